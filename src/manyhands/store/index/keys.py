"""Unique keys of a queue, in tables that never grow all at once.

A dict grows by moving all of its entries: with a million keys that blocks the event loop for longer
than a second's other work. Many small dicts move a little at a time.
"""

from typing import Final

_SPLIT_COUNT: Final = 1 << 15
_TABLES_COUNT: Final = 64


class Keys:
    """Maps a key to the id of the unfinished job that holds it."""

    __slots__ = ("_mask", "_tables")

    def __init__(self) -> None:
        self._tables: list[dict[bytes, str]] = [{}]
        self._mask = 0

    def get(self, key: bytes) -> str | None:
        return self._tables[hash(key) & self._mask].get(key)

    def put(self, key: bytes, job_id: str) -> None:
        table = self._tables[hash(key) & self._mask]
        table[key] = job_id
        if self._mask == 0 and len(table) > _SPLIT_COUNT:
            self._split(table)

    def drop(self, key: bytes, job_id: str) -> None:
        """Frees a key, if this job holds it."""
        table = self._tables[hash(key) & self._mask]
        if table.get(key) == job_id:
            del table[key]

    def _split(self, whole: dict[bytes, str]) -> None:
        self._mask = _TABLES_COUNT - 1
        self._tables = [{} for _ in range(_TABLES_COUNT)]
        for key, job_id in whole.items():
            self._tables[hash(key) & self._mask][key] = job_id

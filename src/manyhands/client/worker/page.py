"""A page that a child and its supervisor share: which job each slot runs, and a few numbers.

It is a mapped file, so that it can be read when the child is dead, however it died.
"""

import mmap
import struct
from pathlib import Path
from typing import Final, NamedTuple

from manyhands.client.notes import Held

_HEAD: Final = struct.Struct("=9Q")
_HEAD_BYTES: Final = 128
# A byte that says whether a job runs, the lengths of its id and token, and both.
_LENGTHS: Final = struct.Struct("=HH")
_RECORD_BYTES: Final = 1024
_NAME_BYTES: Final = 128  # at the end of a record: the name of the task, as much of it as fits
_TEXT_BYTES_MAX: Final = _RECORD_BYTES - 1 - _LENGTHS.size - _NAME_BYTES
FIELDS: Final = (
    "is_ready",
    "is_connected",
    "shortest_term_ms",
    "completed",
    "failed",
    "given_back",
    "lost",
    "ahead",
    "ticks",  # of the child's loop: they stop where code holds the interpreter
)


class Begun(NamedTuple):
    """A job that a slot runs."""

    held: Held
    task: str


class Page:
    """The numbers of a child, and its running jobs."""

    def __init__(self, path: Path, slots: int, *, is_new: bool = False) -> None:
        self.path = path
        self._tasks = [""] * slots  # as they were written last
        size = _HEAD_BYTES + slots * _RECORD_BYTES
        if is_new:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def close(self) -> None:
        """Lets go of the file."""
        self._map.close()

    # The child's side. Several threads write, each to its own slot.

    def put(self, slot: int, held: Held, task: str) -> None:
        """A slot begins with a job. The flag is written last: a record is whole or not there."""
        if self._tasks[slot] != task:
            self._tasks[slot] = task
            end = _HEAD_BYTES + (slot + 1) * _RECORD_BYTES
            name = task.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
            self._map[end - _NAME_BYTES : end] = name
        job_id, token = held[0].encode(), held[1].encode()
        if len(job_id) + len(token) > _TEXT_BYTES_MAX:
            return  # no server sends such a long one
        start = _HEAD_BYTES + slot * _RECORD_BYTES
        record = _LENGTHS.pack(len(job_id), len(token)) + job_id + token
        self._map[start + 1 : start + 1 + len(record)] = record
        self._map[start] = 1

    def clear(self, slot: int) -> None:
        """A slot has finished its job."""
        self._map[_HEAD_BYTES + slot * _RECORD_BYTES] = 0

    def write(self, **numbers: int) -> None:
        """Sets some of the numbers."""
        found = self.read() | numbers
        _HEAD.pack_into(self._map, 0, *(found[name] for name in FIELDS))

    # The supervisor's side.

    def read(self) -> dict[str, int]:
        """The numbers."""
        return dict(zip(FIELDS, _HEAD.unpack_from(self._map), strict=True))

    def running(self) -> list[Held]:
        """The leases of the jobs that were begun and not finished."""
        return [each.held for each in self.begun()]

    def begun(self) -> list[Begun]:
        """These jobs, with their tasks."""
        found: list[Begun] = []
        for slot in range(len(self._tasks)):
            start = _HEAD_BYTES + slot * _RECORD_BYTES
            if self._map[start]:
                id_length, token_length = _LENGTHS.unpack_from(self._map, start + 1)
                text = self._map[start + 1 + _LENGTHS.size : start + _RECORD_BYTES]
                job_id = text[:id_length].decode()
                held = job_id, text[id_length : id_length + token_length].decode()
                task = text[-_NAME_BYTES:].rstrip(b"\0").decode(errors="replace")
                found.append(Begun(held, task))
        return found

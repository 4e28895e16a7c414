"""Tables from a key to job ids, in the order in which they came; a key without any is not there."""

from collections.abc import Hashable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
Table = dict[_Key, dict[str, None]]


def add(table: Table[_Key], key: _Key, job_id: str) -> None:
    """One more."""
    ids = table.get(key)
    if ids is None:
        table[key] = {job_id: None}
    else:
        ids[job_id] = None


def discard(table: Table[_Key], key: _Key, job_id: str) -> None:
    """One less, if it is there."""
    ids = table.get(key)
    if ids is not None:
        ids.pop(job_id, None)
        if not ids:
            del table[key]

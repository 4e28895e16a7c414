"""Tables from a key to job ids in order of arrival; a key without ids is removed."""

from collections.abc import Hashable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
Table = dict[_Key, dict[str, None]]


def add(table: Table[_Key], key: _Key, job_id: str) -> None:
    """Adds an id."""
    ids = table.get(key)
    if ids is None:
        table[key] = {job_id: None}
    else:
        ids[job_id] = None


def discard(table: Table[_Key], key: _Key, job_id: str) -> None:
    """Removes an id, if it is there."""
    ids = table.get(key)
    if ids is not None:
        ids.pop(job_id, None)
        if not ids:
            del table[key]

"""Checksums of rows, so that a changed byte is noticed when the row is read.

SQLite notices damage to the structure of its file, but returns a damaged value as it is. So each
row has a checksum of its values. A job has three: of what never changes, of what changes, and of
its result, because a claim must not read the payload again. Rows that can be computed from jobs
(tags, failures) have none.
"""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import apsw
import msgspec

from manyhands.store.contract import StoreError
from manyhands.store.records.tables import SUMMED

_encode = msgspec.msgpack.Encoder().encode


class RecordDamagedError(StoreError):
    """A row does not match its checksum. The text names the row."""


def checksum(*values: Any) -> int:  # noqa: ANN401 - any SQLite value
    """The checksum of the values of a row, in order; a text and the same bytes differ."""
    return crc32(_encode(values))


def with_sum(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values to write to a table in ``SUMMED``, with their checksum."""
    return (*values, checksum(*values))


def verified(what: str, row: Sequence[Any]) -> Sequence[Any]:
    """The values read from such a table, without the checksum. Raises RecordDamagedError."""
    *values, found = row
    if found != checksum(*values):
        raise RecordDamagedError(f"{what} does not match its checksum")
    return values


def read_rows(connection: apsw.Connection, table: str) -> list[Sequence[Any]]:
    """All rows of a table in ``SUMMED``. Raises RecordDamagedError."""
    columns = ", ".join(SUMMED[table])
    statement = f"SELECT {columns}, checksum FROM {table} ORDER BY 1"  # noqa: S608 - our own words
    return [verified(f"{table} {row[0]}", row) for row in connection.execute(statement)]


def write_facts(connection: apsw.Connection, **facts: str) -> None:
    """Stores facts about the file in it."""
    statement = "INSERT OR REPLACE INTO facts VALUES(?, ?, ?)"
    connection.executemany(statement, [with_sum(fact) for fact in facts.items()])


def read_fact(connection: apsw.Connection, key: str) -> str | None:
    """A stored fact, or None."""
    statement = "SELECT key, value, checksum FROM facts WHERE key = ?"
    row = connection.execute(statement, (key,)).fetchone()
    return None if row is None else verified(f"facts {key}", row)[1]

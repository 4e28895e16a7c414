"""The file as a source to load from, at start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from manyhands.model.job import Job, State
from manyhands.store.bulk import Bulk
from manyhands.store.index.live import Index
from manyhands.store.records.frames import Counters
from manyhands.store.records.loader import Loader
from manyhands.store.records.packer import TermsBook
from manyhands.store.sqlite.checksums import RecordDamagedError, read_fact, read_rows
from manyhands.store.sqlite.opening import damaged, damaged_record
from manyhands.store.sqlite.reader import open_reader
from manyhands.store.sqlite.rows import COLUMNS, WEIGHT, decode_row


def load(file: Path, index: Index, terms: TermsBook, bulks: dict[str, Bulk]) -> Counters | None:
    """Fills an empty index. Returns the counters of the last commit, or None if there was none."""
    connection = open_reader(file)
    try:
        with connection:  # one snapshot
            counters = Loader(_Source(connection, terms), index, terms, bulks).load()
    except RecordDamagedError as error:
        raise damaged_record(file, error) from None
    except (apsw.Error, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise damaged(file, f"a record cannot be read ({error})") from None
    finally:
        connection.close()
    return counters


class _Source:
    def __init__(self, connection: apsw.Connection, terms: TermsBook) -> None:
        self._connection = connection
        self._terms = terms.by_number

    def terms(self) -> Iterator[Any]:
        yield from read_rows(self._connection, "terms")

    def settings(self, table: str) -> Iterator[Any]:
        yield from read_rows(self._connection, table)

    def counts(self) -> Iterator[tuple[str, str, int]]:
        statement = "SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
        yield from self._connection.execute(statement)

    def jobs_at(self, queue: str, state: State) -> Iterator[Job]:
        statement = f"SELECT {COLUMNS} FROM jobs WHERE queue = ? AND state = ? ORDER BY serial"  # noqa: S608
        for row in self._connection.execute(statement, (queue, state)):
            yield decode_row(row, self._terms)

    def finished_since(self, namespace: str, serial: int) -> Iterator[Job]:
        statement = (
            f"SELECT {COLUMNS} FROM jobs WHERE namespace = ? AND serial >= ?"  # noqa: S608
            " AND finished_at IS NOT NULL ORDER BY serial"
        )
        for row in self._connection.execute(statement, (namespace, serial)):
            yield decode_row(row, self._terms)

    def counters(self) -> str | None:
        return read_fact(self._connection, "counters")

    def finished_bytes(self) -> int:
        statement = f"SELECT sum({WEIGHT}) FROM jobs WHERE finished_at IS NOT NULL"  # noqa: S608
        return int(self._connection.execute(statement).get or 0)

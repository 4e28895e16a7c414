"""Applies the journal to the database: many frames per transaction, which also records the last
applied frame, so that after a crash each frame is applied exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import apsw

from manyhands.store.records.fold import Window
from manyhands.store.records.frames import JobRow, decode_frame
from manyhands.store.records.rows import join_events, split_events
from manyhands.store.records.tables import OF_JOB, Table
from manyhands.store.sqlite.checksums import with_sum, write_facts
from manyhands.store.sqlite.rows import changing_sum, result_sum, sums_of
from manyhands.store.sqlite.writer.journal import Mark, encode_mark

# A frame as received, with its number.
PackedFrame = tuple[int, memoryview]

# About half a millisecond each, so that the writer can poll its socket in between.
_FOLD_BYTES: Final = 64 * 1024
_STEP_ROWS: Final = 64
# Rows with large payloads take longer: these are written in the helper thread.
_STEP_BYTES: Final = 64 * 1024

_INSERT_JOB: Final = f"INSERT INTO jobs VALUES({'?, ' * 15}CAST(? AS TEXT), ?, ?, ?, ?, ?)"
_UPDATE_JOB: Final = (
    "UPDATE jobs SET queue = ?2, state = ?3, finished_at = ?4, result_until = ?5,"
    " record = CAST(?6 AS TEXT), result = ?7, changing_sum = ?8, result_sum = ?9 WHERE serial = ?1"
)
_DROP_RESULT: Final = (
    "UPDATE jobs SET result = NULL, result_until = NULL, result_sum = NULL WHERE serial = ?"
)
_PAYLOAD: Final = 16  # its index in the row of a job
_Step = tuple[str, Iterable[Any]]
# Payloads and results are the last values of a row, followed by up to three checksums.
_LARGE_FROM: Final = -5


# Runs slow work and returns when it has finished.
Beside = Callable[[Callable[[], object]], None]


def right_here(work: Callable[[], object]) -> None:
    """Runs the work in this thread."""
    work()


class Applier:
    """Writes windows through one connection."""

    def __init__(
        self, connection: apsw.Connection, epoch: str, beside: Beside = right_here
    ) -> None:
        self._connection = connection
        self._epoch = epoch
        self._beside = beside

    def apply(self, frames: Sequence[PackedFrame]) -> Iterator[None]:
        """Writes these frames to the database; they are durable there when the iterator is
        exhausted. The caller may pause between the steps.
        """
        window = Window()
        weight = 0
        for number, packed in frames:
            window.fold(decode_frame(packed))
            weight += len(packed)
            if weight > _FOLD_BYTES:
                weight = 0
                yield
            if window.is_closed():
                yield from self._write(window, number)
                window = Window()
        if window.counters:
            yield from self._write(window, frames[-1][0])

    def _write(self, window: Window, number: int) -> Iterator[None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        if window.events_dropped_to:
            self._drop_events(window.events_dropped_to)
        for statement, rows in _steps(window):
            found = iter(rows)
            while some := list(islice(found, _STEP_ROWS)):
                for few, is_large in _by_weight(some):
                    if is_large:
                        self._beside(partial(connection.executemany, statement, few))
                    else:
                        connection.executemany(statement, few)
                yield
        mark = encode_mark(Mark(self._epoch, number)).decode()
        write_facts(connection, counters=window.counters, journal=mark)
        self._beside(lambda: connection.execute("COMMIT"))

    def _drop_events(self, seq: int) -> None:
        """Drops all events up to this one: whole rows, and the beginning of the next row."""
        execute = self._connection.execute
        execute("DELETE FROM events WHERE last_seq <= ?", (seq,))
        oldest = execute("SELECT * FROM events ORDER BY last_seq LIMIT 1").fetchone()
        if oldest is not None and oldest[0] - oldest[1] < seq:
            last_seq, count, bodies, _ = oldest
            kept = split_events(count, bodies)[seq - last_seq :]
            row = with_sum((last_seq, len(kept), b"".join(kept)))
            execute("INSERT OR REPLACE INTO events VALUES(?, ?, ?, ?)", row)


def _inserted(window: Window) -> Iterator[JobRow]:
    """Whole rows of jobs, with their checksums; payloads may be in another table."""
    payloads = window.tables["payloads"]
    for serial, row in window.inserted.items():
        payload = row[_PAYLOAD]
        if payload is None:
            (payload,) = payloads.row((serial,))
        yield (*row, *sums_of(row, payload))


def _updated(row: JobRow) -> JobRow:
    serial, queue, _, finished_at, _, record, result = row
    changing = changing_sum(serial, queue, finished_at, record)
    return (*row, changing, result_sum(serial, result))


def _by_weight(rows: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Splits rows where they become large; yields each piece and whether it is large."""
    few: list[Any] = []
    weight = 0
    for row in rows:
        few.append(row)
        for value in row[_LARGE_FROM:]:
            if type(value) is bytes:
                weight += len(value)
        if weight >= _STEP_BYTES:
            yield few, True
            few, weight = [], 0
    if few:
        yield few, False


def _steps(window: Window) -> Iterator[_Step]:
    """Statements and their rows, in order of execution: removals first, so that ids are free for
    new rows.
    """
    dropped = [(serial,) for serial in window.dropped]
    with_rows = [(serial,) for serial in window.dropped | window.replaced]
    yield "DELETE FROM jobs WHERE serial = ?", with_rows
    for table in OF_JOB:
        statement = f"DELETE FROM {table.name} WHERE serial = ?"  # noqa: S608 - our own words
        yield statement, with_rows if table.is_of_row else dropped
    yield _DROP_RESULT, [(serial,) for serial in window.dropped_results]
    for changes in window.tables.values():
        if not changes.table.removed_last:
            yield _removal(changes.table), changes.removed
    yield _INSERT_JOB, _inserted(window)
    yield _UPDATE_JOB, map(_updated, window.updated.values())
    for changes in window.tables.values():
        rows = changes.rows()
        yield _upsert(changes.table), map(with_sum, rows) if changes.table.has_sum else rows
    bodies = window.events[max(0, window.events_dropped_to - window.events_after) :]
    after = max(window.events_after, window.events_dropped_to)
    yield "INSERT INTO events VALUES(?, ?, ?, ?)", map(with_sum, join_events(after, bodies))
    for changes in window.tables.values():
        if changes.table.removed_last:
            yield _removal(changes.table), changes.removed


def _removal(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {table.removed_by}"  # noqa: S608 - our own words


def _upsert(table: Table) -> str:
    how = "IGNORE" if table.keeps_first else "REPLACE"
    marks = ", ".join("?" * (len(table.key) + len(table.columns) + table.has_sum))
    return f"INSERT OR {how} INTO {table.name} VALUES({marks})"

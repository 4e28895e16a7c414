"""From the journal into the database: many frames in one transaction, which also says up to which
frame it went. So a frame that is found in the journal after a crash is applied once, or was.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import apsw

from manyhands.store.folding import SETTINGS, Window
from manyhands.store.frames import decode_frame
from manyhands.store.journal import Mark, encode_mark
from manyhands.store.rows import join_events, split_events

# A frame by its number, as it came.
PackedFrame = tuple[int, memoryview]

# About half a millisecond each, so that whoever applies can look up in between.
_FOLD_BYTES: Final = 64 * 1024
_STEP_ROWS: Final = 64

_INSERT_JOB: Final = f"INSERT INTO jobs VALUES({'?, ' * 15}CAST(? AS TEXT), ?, ?)"
_UPDATE_JOB: Final = (
    "UPDATE jobs SET queue = ?2, state = ?3, finished_at = ?4, result_until = ?5,"
    " record = CAST(?6 AS TEXT), result = ?7 WHERE serial = ?1"
)
# Numbers start anew when a job is put to work again: later ones are from before.
_DROP_PARTIALS: Final = "DELETE FROM partials WHERE serial = ? AND (number >= ? OR number < ?)"

_DROP_GROUPS: Final = (
    "DELETE FROM failure_groups WHERE NOT EXISTS"
    " (SELECT 1 FROM failures WHERE failures.group_id = failure_groups.group_id)"
)

_Step = tuple[str, Iterable[Any]]


# Has something done that takes a while; it is done when this returns.
Beside = Callable[[Callable[[], object]], None]


def right_here(work: Callable[[], object]) -> None:
    """Do it."""
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
        """Have these frames in the database, and durable there, when it is exhausted. It may be
        left alone between its steps for as long as there is something better to do.
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
                connection.executemany(statement, some)
                yield
        yield from self._write_partials(window)
        mark = Mark(self._epoch, number)
        connection.executemany(
            "INSERT OR REPLACE INTO facts VALUES(?, ?)",
            (("counters", window.counters), ("journal", encode_mark(mark).decode())),
        )
        self._beside(lambda: connection.execute("COMMIT"))

    def _drop_events(self, seq: int) -> None:
        """All events up to this one: whole rows, and the beginning of the row that is left."""
        execute = self._connection.execute
        execute("DELETE FROM events WHERE last_seq <= ?", (seq,))
        oldest = execute("SELECT * FROM events ORDER BY last_seq LIMIT 1").fetchone()
        if oldest is not None and oldest[0] - oldest[1] < seq:
            last_seq, count, bodies = oldest
            kept = split_events(count, bodies)[seq - last_seq :]
            change = "UPDATE events SET count = ?, bodies = ? WHERE last_seq = ?"
            execute(change, (len(kept), b"".join(kept), last_seq))

    def _write_partials(self, window: Window) -> Iterator[None]:
        execute = self._connection.execute
        for serial, number, oldest, at, warning, payload in chain(*window.partials.values()):
            execute(_DROP_PARTIALS, (serial, number, oldest))
            values = (serial, number, at, warning, payload)
            execute("INSERT INTO partials VALUES(?, ?, ?, ?, ?)", values)
            yield


def _steps(window: Window) -> Iterator[_Step]:
    """Statements and their rows, in the order in which a window is made true: what goes, goes
    first, so that its id is free for what comes.
    """
    gone = [(serial,) for serial in window.dropped | window.replaced]
    for table in ("jobs", "tags", "payloads"):
        yield f"DELETE FROM {table} WHERE serial = ?", gone  # noqa: S608 - our own words
    yield "DELETE FROM partials WHERE serial = ?", [(serial,) for serial in window.dropped]
    mended = [(serial,) for serial in window.dropped | window.mended]
    yield "DELETE FROM failures WHERE serial = ?", mended
    yield (
        "UPDATE jobs SET result = NULL, result_until = NULL WHERE serial = ?",
        [(serial,) for serial in window.dropped_results],
    )
    yield "DELETE FROM history WHERE step_ms = ? AND at < ?", window.dropped_samples.items()
    yield "INSERT INTO terms VALUES(?, ?)", window.terms
    yield _INSERT_JOB, window.inserted.values()
    yield "INSERT INTO payloads VALUES(?, ?)", window.payloads.values()
    yield _UPDATE_JOB, window.updated.values()
    yield "INSERT OR REPLACE INTO failures VALUES(?, ?, ?, ?, ?)", window.failures.values()
    groups = window.failure_groups.values()
    yield "INSERT OR IGNORE INTO failure_groups VALUES(?, ?, ?)", groups
    yield "INSERT INTO tags VALUES(?, ?)", chain(*window.tagged.values())
    yield "INSERT INTO events VALUES(?, ?, ?)", join_events(window.events_after, window.events)
    yield "INSERT OR REPLACE INTO history VALUES(?, ?, ?, ?)", window.samples.values()
    if window.audit_dropped_to:
        yield "DELETE FROM audit WHERE seq <= ?", [(window.audit_dropped_to,)]
    yield "INSERT OR REPLACE INTO audit VALUES(?, ?)", window.audit.values()
    for table in SETTINGS:
        settings = window.settings[table].items()
        kept = [(name, record) for name, record in settings if record is not None]
        yield f"INSERT OR REPLACE INTO {table} VALUES(?, ?)", kept
        removed = [(name,) for name, record in settings if record is None]
        yield f"DELETE FROM {table} WHERE name = ?", removed  # noqa: S608
    yield "DELETE FROM terms WHERE terms_id = ?", window.dropped_terms
    yield _DROP_GROUPS, window.dropped_groups[:1]

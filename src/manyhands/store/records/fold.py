"""Folds many frames into one window, with each row written once.

A job that is submitted and finishes within a window is one row in its final form; of several rows
with one key the last one counts; rows that are removed later are not written. This relies on the
order in which ``apply.py`` writes a window, removals first.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Raw

from manyhands.store.records.frames import NewRow, PlainRow, ReceivedFrame
from manyhands.store.records.rows import plain_record
from manyhands.store.records.tables import (
    EVENTS,
    JOBS,
    OF_JOB,
    OF_ROW,
    REMOVED_LAST,
    REPLACED,
    RESULTS,
    TABLES,
    Key,
    Record,
    Row,
    Table,
)

# Where the fields of an update (after the serial) are in the row of a job.
_PLACE: Final = slice(3, 7)  # queue, state, finished_at, result_until
_RESULT_UNTIL: Final = 6
_RECORD: Final = 15
_RESULT: Final = 17
_UPDATE_RESULT_UNTIL: Final = 4
_UPDATE_RECORD: Final = 5
_UPDATE_RESULT: Final = 6


class Changes:
    """Changes of a table whose removals name one row each."""

    __slots__ = ("_rows", "removed", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.removed: dict[Key, None] = {}  # applied first
        self._rows: dict[Key, Record] = {}

    def fold(self, rows: Sequence[Row]) -> None:
        """Adds rows; what a removal covers is not written any more."""
        kept, removed, keeps_first = self._rows, self.removed, self.table.keeps_first
        for key, record in rows:
            if record is None:
                removed[key] = None
                kept.pop(key, None)
            elif not keeps_first or key not in kept:
                kept[key] = record

    def drop(self, serial: int) -> None:
        """Drops what was to be written for a job."""
        self._rows.pop((serial,), None)

    def rows(self) -> Iterator[Record]:
        """The rows to write."""
        for key, record in self._rows.items():
            yield key + record

    def row(self, key: Key) -> Record:
        """One of them, without its key."""
        return self._rows[key]


class GroupedChanges(Changes):
    """Changes of a table whose removals may concern many rows: all rows of a group are checked."""

    __slots__ = ("_groups",)

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._groups: dict[Any, dict[Key, Record]] = {}

    def fold(self, rows: Sequence[Row]) -> None:
        groups, place = self._groups, self.table.grouped_by
        for key, record in rows:
            if record is None:
                self._remove(key)
                continue
            name = None if place is None else key[place]
            group = groups.get(name)
            if group is None:
                groups[name] = {key: record}
            else:
                group[key] = record

    def _remove(self, removal: Key) -> None:
        self.removed[removal] = None
        table = self.table
        name = None if table.grouped_by is None else removal[0]
        if table.covers is None:
            self._groups.pop(name, None)
        elif name in self._groups:
            group = self._groups[name]
            for key in [key for key in group if table.covers(removal, key)]:
                del group[key]

    def drop(self, serial: int) -> None:
        self._groups.pop(serial, None)

    def rows(self) -> Iterator[Record]:
        for group in self._groups.values():
            for key, record in group.items():
                yield key + record


class Window:
    """Frames that are written together."""

    __slots__ = (
        "_inserted",
        "_plain",
        "_updated",
        "counters",
        "dropped",
        "dropped_results",
        "events",
        "events_after",
        "events_dropped_to",
        "replaced",
        "tables",
    )

    def __init__(self) -> None:
        self.counters = ""
        # All by serial.
        self.dropped: dict[int, None] = {}  # jobs with everything that belongs to them
        self.replaced: dict[int, None] = {}  # jobs with the rows that are written again with them
        self.dropped_results: dict[int, None] = {}  # of jobs that are not written otherwise
        self._inserted: dict[int, list[Any]] = {}
        self._updated: dict[int, list[Any]] = {}
        # Plain jobs that were only submitted, claimed or completed: what is new, and the last row.
        self._plain: dict[int, tuple[NewRow | None, PlainRow]] = {}
        self.events_after = 0  # the number before the first event's
        self.events: list[Raw] = []
        self.events_dropped_to = 0
        self.tables = {
            name: Changes(table) if table.is_removed_singly() else GroupedChanges(table)
            for name, table in TABLES.items()
        }

    @property
    def inserted(self) -> dict[int, list[Any]]:
        """Whole rows of jobs to write."""
        self._settle_all()
        return self._inserted

    @property
    def updated(self) -> dict[int, list[Any]]:
        """What changed in rows of jobs that are there."""
        self._settle_all()
        return self._updated

    def is_closed(self) -> bool:
        """Whether nothing can be added, because the last removal depends on what was there
        before.
        """
        return any(self.tables[table.name].removed for table in REMOVED_LAST)

    def fold(self, frame: ReceivedFrame) -> None:
        """Adds the next frame."""
        self.counters = frame.counters
        for name, rows in frame.rows.items():
            changes = self.tables.get(name)
            if changes is not None:
                changes.fold(rows)
            else:
                for key, _ in rows:
                    self._drop(name, key[0])
        inserted, updated, plain = self._inserted, self._updated, self._plain
        for row in frame.inserted:
            inserted[row[0]] = row
            updated.pop(row[0], None)
            plain.pop(row[0], None)
        for row in frame.updated:
            serial = row[0]
            if serial in plain:
                self._settle(*plain.pop(serial))
            job = inserted.get(serial)
            if job is None:
                updated[serial] = row
            else:
                job[_PLACE] = row[1:_UPDATE_RECORD]
                job[_RECORD] = row[_UPDATE_RECORD]
                job[_RESULT] = row[_UPDATE_RESULT]
        for step in frame.plain:
            serial, new = step.serial, step.new
            if new is None and serial in plain:
                new = plain[serial][0]
            plain[serial] = (new, step)
        if frame.events:
            if not self.events:
                self.events_after = frame.events_after
            assert frame.events_after == self.events_after + len(self.events)
            self.events += frame.events

    def _settle_all(self) -> None:
        for new, step in self._plain.values():
            self._settle(new, step)
        self._plain.clear()

    def _settle(self, new: NewRow | None, step: PlainRow) -> None:
        """Makes the row of a plain job."""
        serial, end = step.serial, step.end
        state, finished_at, record = plain_record(step)
        result = until = None
        if end is not None:
            result, until = end.result, end.result_until
        if new is not None:
            self._inserted[serial] = [
                serial,
                new.job_id,
                new.uid,
                step.queue,
                state,
                finished_at,
                until,
                None,
                None,
                new.terms_id,
                new.submitted_at,
                new.unique_key,
                new.realm,
                new.name,
                new.address,
                record,
                new.payload,
                result,
            ]
            return
        job = self._inserted.get(serial)
        if job is None:
            self._updated[serial] = [serial, step.queue, state, finished_at, until, record, result]
        else:
            job[_PLACE] = (step.queue, state, finished_at, until)
            job[_RECORD], job[_RESULT] = record, result

    def _drop(self, name: str, value: int) -> None:
        """Adds a removal from a hot collection."""
        if name == EVENTS:
            self.events_dropped_to = max(self.events_dropped_to, value)
        elif name == RESULTS:
            self._drop_result(value)
        else:
            assert name in (JOBS, REPLACED)
            self._inserted.pop(value, None)
            self._updated.pop(value, None)
            self._plain.pop(value, None)
            for table in OF_JOB if name == JOBS else OF_ROW:
                self.tables[table.name].drop(value)
            (self.dropped if name == JOBS else self.replaced)[value] = None

    def _drop_result(self, serial: int) -> None:
        if serial in self._plain:
            self._settle(*self._plain.pop(serial))
        if serial in self._inserted:
            self._inserted[serial][_RESULT] = self._inserted[serial][_RESULT_UNTIL] = None
        elif serial in self._updated:
            row = self._updated[serial]
            row[_UPDATE_RESULT] = row[_UPDATE_RESULT_UNTIL] = None
        else:
            self.dropped_results[serial] = None

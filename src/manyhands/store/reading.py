"""Questions to the file, each through a connection that only reads."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from manyhands.model.audit import AuditEntry
from manyhands.model.events import Event
from manyhands.model.history import Sample, StoredSample
from manyhands.model.job import Job
from manyhands.store.packing import TermsBook
from manyhands.store.rows import COLUMNS, decode_row, split_events
from manyhands.store.store import PartialResult, StoredEvent

_BUSY_MS: Final = 5_000
_NAMES_AT_ONCE: Final = 1_000

_decode_entry = msgspec.json.Decoder(AuditEntry).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_sample = msgspec.msgpack.Decoder(Sample).decode


def open_reader(file: Path) -> apsw.Connection:
    """A connection that cannot change anything."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(_BUSY_MS)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


class Reader:
    """One connection. Used by one thread at a time."""

    def __init__(self, file: Path, terms: TermsBook) -> None:
        self.connection = open_reader(file)
        self._terms = terms.by_number

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a question. The snapshot that it looked at is let go of."""
        return self.connection.execute(statement, tuple(values)).fetchall()

    def make_job(self, row: Sequence[Any]) -> Job:
        """The job of a row of ``COLUMNS``."""
        return decode_row(row, self._terms)

    def job(self, job_id: str) -> Job | None:
        """A job by its id."""
        return self._job("job_id", job_id)

    def job_by_uid(self, uid: str) -> Job | None:
        """A job whose own id has not 32 digits."""
        return self._job("uid", uid)

    def _job(self, column: str, value: str | int) -> Job | None:
        statement = f"SELECT {COLUMNS} FROM jobs WHERE {column} = ?"  # noqa: S608 - our own words
        rows = self.rows(statement, (value,))
        return self.make_job(rows[0]) if rows else None

    def ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        """The latest jobs that ended under these names. Names have no index of their own, so this
        walks over the namespace once, or once for each so many names.
        """
        found: dict[str, Job] = {}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            some = names[first : first + _NAMES_AT_ONCE]
            marks = ", ".join("?" * len(some))
            latest = (
                "SELECT max(serial) FROM jobs WHERE namespace = ? AND finished_at IS NOT NULL"  # noqa: S608
                f" AND name IN ({marks}) GROUP BY name"
            )
            for (serial,) in self.rows(latest, (namespace, *some)):
                job = self._job("serial", serial)
                if job is not None and job.name is not None:  # else it was pruned just now
                    found[job.name] = job
        return found

    def events(self, seq: int, count_max: int) -> list[StoredEvent]:
        """Events after a place in the log."""
        found: list[StoredEvent] = []
        rows = self.connection.execute(
            "SELECT * FROM events WHERE last_seq > ? ORDER BY last_seq", (seq,)
        )
        for last_seq, count, bodies in rows:
            before = max(seq, last_seq - count)
            some = split_events(count, bodies)[before - last_seq :][: count_max - len(found)]
            found += [
                StoredEvent(number, _decode_event(body))
                for number, body in enumerate(some, before + 1)
            ]
            if len(found) == count_max:
                break
        rows.close()  # the snapshot that it looked at is let go of
        return found

    def first_seq(self) -> int | None:
        """The oldest event that is kept."""
        statement = "SELECT last_seq - count + 1 FROM events ORDER BY last_seq LIMIT 1"
        found: int | None = self.connection.execute(statement).get
        return found

    def partials(self, job_id: str) -> list[PartialResult]:
        """The kept pieces of a job's result, in order."""
        rows = self.rows(
            "SELECT number, at, payload, warning FROM partials"
            " WHERE serial = (SELECT serial FROM jobs WHERE job_id = ?) ORDER BY number",
            (job_id,),
        )
        return [PartialResult(row[0], row[1], row[2], bool(row[3])) for row in rows]

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None
    ) -> list[StoredSample]:
        """Samples in the order of time; of one queue with the one before them."""
        columns = "SELECT step_ms, at, queue, sample FROM history"
        if queue is None:
            condition = "WHERE step_ms = ? AND at >= ? AND at < ? ORDER BY at, queue"
            rows = self.rows(f"{columns} {condition}", (step_ms, since, until))
        else:
            condition = "WHERE queue = ? AND step_ms = ? AND at >= ? AND at < ? ORDER BY at"
            before = "WHERE queue = ? AND step_ms = ? AND at < ? ORDER BY at DESC LIMIT 1"
            rows = self.rows(f"{columns} {before}", (queue, step_ms, since))
            rows += self.rows(f"{columns} {condition}", (queue, step_ms, since, until))
        return [
            StoredSample(step_ms, at, name, _decode_sample(sample))
            for step_ms, at, name, sample in rows
        ]

    def audit(self, before: int | None, count_max: int) -> list[AuditEntry]:
        """Entries of the audit log, the newest first."""
        rows = self.rows(
            "SELECT record FROM audit WHERE seq < coalesce(?, seq + 1) ORDER BY seq DESC LIMIT ?",
            (before, count_max),
        )
        return [_decode_entry(row[0]) for row in rows]

    def last_audit_seq(self) -> int:
        """The number of the newest entry of the audit log; 0: there is none."""
        return int(self.rows("SELECT coalesce(max(seq), 0) FROM audit")[0][0])


class ReaderPool:
    """Readers for threads: as many as are in use at once."""

    def __init__(self, file: Path, terms: TermsBook) -> None:
        self._file = file
        self._terms = terms
        self._free: queue.SimpleQueue[Reader] = queue.SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Reader]:
        """A reader that nobody else uses meanwhile."""
        try:
            reader = self._free.get_nowait()
        except queue.Empty:
            reader = Reader(self._file, self._terms)
        try:
            yield reader
        finally:
            self._free.put(reader)

    def close(self) -> None:
        """Close all that are free."""
        while not self._free.empty():
            self._free.get_nowait().connection.close()

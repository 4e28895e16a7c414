"""Queries on the file, through read-only connections."""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import msgspec
from msgspec.structs import replace

from manyhands.loggers import get_logger
from manyhands.model.audit import AuditEntry
from manyhands.model.history import Sample, StoredSample
from manyhands.model.job import Job
from manyhands.store.contract import PartialResult, StoredEvent
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.rows import decode_event, split_events
from manyhands.store.records.tables import LOG_BIT
from manyhands.store.sqlite.checksums import RecordDamagedError, verified
from manyhands.store.sqlite.rows import COLUMNS, COLUMNS_COUNT, DIALECT, decode_row

Found = TypeVar("Found")
_log = get_logger("manyhands.store")
_BUSY_MS: Final = 5_000
_NAMES_AT_ONCE: Final = 1_000

_decode_entry = msgspec.json.Decoder(AuditEntry).decode
_decode_sample = msgspec.msgpack.Decoder(Sample).decode


def open_reader(file: Path) -> apsw.Connection:
    """A read-only connection."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(_BUSY_MS)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


class Reader:
    """One connection, used by one thread at a time."""

    dialect = DIALECT

    def __init__(self, file: Path, terms: TermsBook) -> None:
        self.connection = open_reader(file)
        self._terms = terms.by_number
        self._reported: set[str] = set()  # damage that is in the log already

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query. Releases the snapshot."""
        return self.connection.execute(statement, tuple(values)).fetchall()

    def at_once(self, read: Callable[[], Found]) -> Found:
        """What several queries find in one snapshot."""
        self.connection.execute("BEGIN")
        try:
            return read()
        finally:
            self.connection.execute("ROLLBACK")

    def make_job(self, row: Sequence[Any]) -> Job:
        """The job of a row of ``COLUMNS``, which may be followed by the size of a payload that was
        not read. Raises RecordDamagedError.
        """
        if len(row) == COLUMNS_COUNT:
            return decode_row(row, self._terms)
        return replace(decode_row(row[:-1], self._terms), stored_bytes=row[-1])

    def whole_job(self, row: Sequence[Any]) -> Job | None:
        """The same for listings, which leave out damaged jobs. Each is logged once."""
        try:
            return self.make_job(row)
        except RecordDamagedError as error:
            self._report(str(error))
            return None

    def _report(self, damage: str) -> None:
        if damage not in self._reported:
            self._reported.add(damage)
            _log.error("a record is damaged and is left out", reason=damage)

    def job(self, job_id: str) -> Job | None:
        """A job by its id."""
        return self._job("job_id", job_id)

    def payload(self, serial: int) -> bytes | None:
        """The payload of a job. Raises RecordDamagedError."""
        job = self._job("serial", serial)
        return job.payload if job is not None else None

    def job_by_uid(self, uid: str) -> Job | None:
        """A job whose own id is not 32 digits long."""
        return self._job("uid", uid)

    def _job(self, column: str, value: str | int) -> Job | None:
        statement = f"SELECT {COLUMNS} FROM jobs WHERE {column} = ?"  # noqa: S608 - our own words
        rows = self.rows(statement, (value,))
        return self.make_job(rows[0]) if rows else None

    def ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        """The latest jobs that finished under these names. Names have no index, so each
        ``_NAMES_AT_ONCE`` of them cost a walk over the namespace.
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
                if job is not None and job.name is not None:  # else it has just been pruned
                    found[job.name] = job
        return found

    def events(self, seq: int, count_max: int) -> list[StoredEvent]:
        """Events after a sequence number. Damaged ones are left out."""
        found: list[StoredEvent] = []
        rows = self.connection.execute(
            "SELECT * FROM events WHERE last_seq > ? ORDER BY last_seq", (seq,)
        )
        for row in rows:
            last_seq, count, bodies = row[:3]
            try:
                verified(f"the log of events {last_seq - count + 1} to {last_seq}", row)
            except RecordDamagedError as error:
                self._report(str(error))  # consumers continue with those after it
                continue
            before = max(seq, last_seq - count)
            some = split_events(count, bodies)[before - last_seq :][: count_max - len(found)]
            found += [
                StoredEvent(number, decode_event(body))
                for number, body in enumerate(some, before + 1)
            ]
            if len(found) == count_max:
                break
        rows.close()  # releases the snapshot
        return found

    def first_seq(self) -> int | None:
        """The sequence number of the oldest stored event."""
        statement = "SELECT last_seq - count + 1 FROM events ORDER BY last_seq LIMIT 1"
        found: int | None = self.connection.execute(statement).get
        return found

    def partials(self, job_id: str) -> list[PartialResult]:
        """The stored pieces of a job's result, in order."""
        rows = self.rows(
            "SELECT * FROM partials"
            " WHERE serial = (SELECT serial FROM jobs WHERE job_id = ?) ORDER BY number",
            (job_id,),
        )
        what = f"a piece of the result of job {job_id}"
        return [
            PartialResult(number, at, payload, bool(kind % LOG_BIT), bool(kind & LOG_BIT))
            for _, number, at, kind, payload in (verified(what, row) for row in rows)
        ]

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None
    ) -> list[StoredSample]:
        """Samples in order of time; for one queue, with the one before them."""
        columns = "SELECT * FROM history"
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
            for name, step_ms, at, sample in (verified("the history", row) for row in rows)
        ]

    def audit(self, before: int | None, count_max: int) -> list[AuditEntry]:
        """Entries of the audit log, the newest first."""
        rows = self.rows(
            "SELECT * FROM audit WHERE seq < coalesce(?, seq + 1) ORDER BY seq DESC LIMIT ?",
            (before, count_max),
        )
        return [_decode_entry(verified(f"audit {row[0]}", row)[1]) for row in rows]

    def last_audit_seq(self) -> int:
        """The number of the newest entry of the audit log; 0 if there is none."""
        return int(self.rows("SELECT coalesce(max(seq), 0) FROM audit")[0][0])


class ReaderPool:
    """Readers for threads, as many as are in use at once."""

    def __init__(self, file: Path, terms: TermsBook) -> None:
        self._file = file
        self._terms = terms
        self._free: queue.SimpleQueue[Reader] = queue.SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Reader]:
        """Lends a reader to one thread."""
        try:
            reader = self._free.get_nowait()
        except queue.Empty:
            reader = Reader(self._file, self._terms)
        try:
            yield reader
        finally:
            self._free.put(reader)

    def close(self) -> None:
        """Closes all readers that are not in use."""
        while not self._free.empty():
            self._free.get_nowait().connection.close()

"""Queries on the tables, through connections of their own, for threads that may wait."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from msgspec.structs import replace

from manyhands.config.database import DatabaseAddress
from manyhands.model.audit import AuditEntry
from manyhands.model.history import Sample, StoredSample
from manyhands.model.job import Job
from manyhands.store.contract import PartialResult, StoredEvent, StoreFailedError
from manyhands.store.postgres.rows import COLUMNS, COLUMNS_COUNT, decode_row, dialect
from manyhands.store.postgres.sessions import connect, is_passing
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.rows import decode_event, decode_terms, split_events
from manyhands.store.records.tables import LOG_BIT

Found = TypeVar("Found")
_CONNECTIONS_MAX: Final = 4
_EVENTS_AT_ONCE: Final = 100  # rows
_decode_entry = msgspec.json.Decoder(AuditEntry).decode
_decode_sample = msgspec.msgpack.Decoder(Sample).decode


@lru_cache(maxsize=1024)
def _marked(statement: str) -> str:
    """A statement with this driver's marks for values."""
    return statement.replace("%", "%%").replace("?", "%s")


class Reader:
    """One connection, used by one thread at a time."""

    def __init__(self, address: DatabaseAddress, terms: TermsBook) -> None:
        self.connection = connect(address)
        self.dialect = dialect(address.schema)
        self._prefix = self.dialect.prefix
        self._terms = terms.by_number

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        return self.connection.execute(_marked(statement), values, binary=True).fetchall()

    def make_job(self, row: Sequence[Any]) -> Job:
        """The job of a row of ``COLUMNS``, which may be followed by the size of a payload that was
        not read.
        """
        if row[4] not in self._terms:
            self._learn(row[4])
        if len(row) == COLUMNS_COUNT:
            return decode_row(row, self._terms)
        return replace(decode_row(row[:-1], self._terms), stored_bytes=row[-1])

    whole_job = make_job

    def _learn(self, number: int) -> None:
        """Reads terms that a job has kept although no other one had them any more."""
        statement = f"SELECT record FROM {self._prefix}terms WHERE terms_id = ?"
        for (record,) in self.rows(statement, (number,)):
            self._terms[number] = decode_terms(record.encode())

    def jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Jobs by their ids."""
        statement = f"SELECT {COLUMNS} FROM {self._prefix}jobs WHERE job_id = ANY(?)"
        found = (self.make_job(row) for row in self.rows(statement, (list(job_ids),)))
        return {job.job_id: job for job in found}

    def job(self, job_id: str) -> Job | None:
        """A job by its id."""
        return self.jobs((job_id,)).get(job_id)

    def job_by_uid(self, uid: str) -> Job | None:
        """A job whose own id is not 32 digits long."""
        rows = self.rows(f"SELECT {COLUMNS} FROM {self._prefix}jobs WHERE uid = ?", (uid,))
        return self.make_job(rows[0]) if rows else None

    def ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        """The latest jobs that finished under these names."""
        columns = COLUMNS
        rows = self.rows(
            f"SELECT {columns} FROM {self._prefix}jobs WHERE serial IN (SELECT max(serial)"
            f" FROM {self._prefix}jobs WHERE namespace = ? AND finished_at IS NOT NULL"
            " AND name = ANY(?) GROUP BY name)",
            (namespace.encode(), [name.encode() for name in names]),
        )
        jobs = [self.make_job(row) for row in rows]
        return {job.name: job for job in jobs if job.name is not None}

    def events(self, seq: int, count_max: int) -> list[StoredEvent]:
        """Events after a sequence number."""
        found: list[StoredEvent] = []
        while len(found) < count_max:
            after = found[-1].seq if found else seq
            wanted = min(_EVENTS_AT_ONCE, count_max - len(found))  # each row has one at least
            rows = self.rows(
                f"SELECT last_seq, count, bodies FROM {self._prefix}events WHERE last_seq > ?"
                f" ORDER BY last_seq LIMIT {wanted}",
                (after,),
            )
            for last_seq, count, bodies in rows:
                before = max(after, last_seq - count)
                some = split_events(count, bodies)[before - last_seq :][: count_max - len(found)]
                found += [
                    StoredEvent(number, decode_event(body))
                    for number, body in enumerate(some, before + 1)
                ]
                if len(found) == count_max:
                    break
            if len(rows) < wanted:
                break
        return found

    def first_seq(self) -> int | None:
        """The sequence number of the oldest stored event."""
        rows = self.rows(
            f"SELECT last_seq - count + 1 FROM {self._prefix}events ORDER BY last_seq LIMIT 1"
        )
        return int(rows[0][0]) if rows else None

    def partials(self, job_id: str) -> list[PartialResult]:
        """The stored pieces of a job's result, in order."""
        rows = self.rows(
            f"SELECT number, at, warning, payload FROM {self._prefix}partials WHERE serial ="
            f" (SELECT serial FROM {self._prefix}jobs WHERE job_id = ?) ORDER BY number",
            (job_id,),
        )
        return [
            PartialResult(number, at, payload, bool(kind % LOG_BIT), bool(kind & LOG_BIT))
            for number, at, kind, payload in rows
        ]

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None
    ) -> list[StoredSample]:
        """Samples in order of time; for one queue, with the one before them."""
        columns = f"SELECT queue, step_ms, at, sample FROM {self._prefix}history"
        if queue is None:
            condition = "WHERE step_ms = ? AND at >= ? AND at < ? ORDER BY at, queue"
            rows = self.rows(f"{columns} {condition}", (step_ms, since, until))
        else:
            name = queue.encode()
            condition = "WHERE queue = ? AND step_ms = ? AND at >= ? AND at < ? ORDER BY at"
            before = "WHERE queue = ? AND step_ms = ? AND at < ? ORDER BY at DESC LIMIT 1"
            rows = self.rows(f"{columns} {before}", (name, step_ms, since))
            rows += self.rows(f"{columns} {condition}", (name, step_ms, since, until))
        return [
            StoredSample(step_ms, at, name.decode(), _decode_sample(sample))
            for name, step_ms, at, sample in rows
        ]

    def audit(self, before: int | None, count_max: int) -> list[AuditEntry]:
        """Entries of the audit log, the newest first."""
        condition = "TRUE" if before is None else f"seq < {int(before)}"
        rows = self.rows(
            f"SELECT record FROM {self._prefix}audit WHERE {condition} ORDER BY seq DESC LIMIT ?",
            (count_max,),
        )
        return [_decode_entry(record) for (record,) in rows]

    def last_audit_seq(self) -> int:
        """The number of the newest entry of the audit log; 0 if there is none."""
        return int(self.rows(f"SELECT coalesce(max(seq), 0) FROM {self._prefix}audit")[0][0])

    def applied_batch(self, tenure: int) -> int:
        """The last batch of this tenure that the tables hold."""
        rows = self.rows(f"SELECT batch FROM {self._prefix}progress WHERE tenure = ?", (tenure,))
        return int(rows[0][0]) if rows else 0


class ReaderPool:
    """A few readers for threads; who finds none free waits."""

    def __init__(self, address: DatabaseAddress, terms: TermsBook) -> None:
        self._address = address
        self._terms = terms
        self._free: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        self._room = threading.Semaphore(_CONNECTIONS_MAX)

    @contextmanager
    def borrow(self) -> Iterator[Reader]:
        """Lends a reader to one thread. Raises StoreFailedError if the database is away; a
        connection that broke meanwhile is replaced, and used again from the start by ``ask``.
        """
        with self._room:
            try:
                reader = self._free.get_nowait()
            except queue.Empty:
                reader = self._connected()
            try:
                yield reader
            except BaseException:
                reader.connection.close()  # it may be in the middle of anything
                raise
            self._free.put(reader)

    def _connected(self) -> Reader:
        try:
            return Reader(self._address, self._terms)
        except psycopg.OperationalError as error:
            text = " ".join(str(error).split())
            raise StoreFailedError(f"the database cannot be reached: {text}") from None

    def ask(self, question: Callable[[Reader], Found], patience_seconds: float) -> Found:
        """The answer to a question that only reads, asked again for a while if the connection
        breaks. Raises StoreFailedError.
        """
        give_up_at = time.perf_counter() + patience_seconds
        pause = 0.02
        while True:
            try:
                with self.borrow() as reader:
                    return question(reader)
            except (psycopg.OperationalError, StoreFailedError) as error:
                passes = isinstance(error, StoreFailedError) or is_passing(error.sqlstate)
                if not passes or time.perf_counter() > give_up_at:
                    text = " ".join(str(error).split())
                    raise StoreFailedError(f"the records cannot be read: {text}") from None
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def close(self) -> None:
        """Closes all readers that are not in use."""
        while not self._free.empty():
            self._free.get_nowait().connection.close()

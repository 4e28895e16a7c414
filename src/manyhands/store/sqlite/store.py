"""The default store: live jobs in memory, every change on disk before it is reported.

A separate process (``writer/``) first writes a journal, which makes a change durable, and a little
later a SQLite file, which this process only reads. Decisions read the index in memory, and the file
only for finished jobs that have left it. A query on the file sees everything that was durable when
it began.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw
from msgspec.structs import replace

from manyhands.engine.view import View
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Command
from manyhands.model.filter import Filter
from manyhands.model.history import StoredSample
from manyhands.model.job import Job
from manyhands.model.plain import event_of
from manyhands.store.batch import Batch
from manyhands.store.collector import Collector
from manyhands.store.contract import (
    SEARCH_SECONDS_MAX,
    Counted,
    FailureQuestion,
    Failures,
    Page,
    PartialResult,
    Selection,
    StoredEvent,
    StoreFailedError,
)
from manyhands.store.index.recount import check_index
from manyhands.store.records.counts import count_by_state
from manyhands.store.records.failures import read_codes, read_failures
from manyhands.store.records.frames import Counters
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.records.pruner import Pruner, answered
from manyhands.store.records.search import search, select
from manyhands.store.retention import Retention
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.copies import copy_database
from manyhands.store.sqlite.opening import DirectoryLock, inspect, make_private, unusable
from manyhands.store.sqlite.reader import Reader, ReaderPool
from manyhands.store.sqlite.recovery import read_mark, recover
from manyhands.store.sqlite.rows import DIALECT
from manyhands.store.sqlite.source import load
from manyhands.store.sqlite.writer import journal
from manyhands.store.sqlite.writer.link import WRITER_COMMAND, WriterLink

# With fewer terms than this, a walk over all jobs is not worth it.
_TERMS_KEPT: Final = 1_000

# Readers wait until the file holds what is durable, usually for a few milliseconds.
_CATCH_UP_REST_SECONDS: Final = 0.001
_CATCH_UP_SECONDS_MAX: Final = 30.0


class SqliteStore:
    """A directory with a database, used by one server at a time."""

    def __init__(
        self,
        directory: Path,
        retention: Retention | None = None,
        writer_command: Sequence[str] = WRITER_COMMAND,
    ) -> None:
        retention = retention or Retention()
        self._directory = directory
        self._file = directory / schema.FILE_NAME
        self._terms = TermsBook()
        self._collector = Collector(self._read_finished, self.whole)
        self.live = self._collector.index
        self.write = self._collector.write
        self.write_plain = self._collector.write_plain
        self.backlog_bytes = self._collector.backlog_bytes
        self.held_bytes = self._collector.held_bytes
        self.is_unsaved = self._collector.is_unsaved
        self.bulks = self._collector.bulks
        self.keep_bulk = self._collector.keep_bulk
        self.keep_audit = self._collector.keep_audit
        self.keep_samples = self._collector.keep_samples
        self.take_audit_seq = self._collector.take_audit_seq
        self._lock = DirectoryLock(directory)
        try:
            counters = self._open(writer_command)
        except (apsw.Error, OSError) as error:
            self._lock.release()
            raise unusable(self._file, error) from error
        except BaseException:
            self._lock.release()
            raise
        self.alive_at = counters.alive_at if counters is not None else None
        counters = counters or Counters()
        self.behind_ms = counters.behind_ms
        self._collector.seq = self._last_seq = self._applied_seq = counters.seq
        self._collector.audit_seq = self._reader.last_audit_seq()
        self._durable = 0  # the number of the last durable batch
        self._applied = 0  # the number of the last batch that the file holds
        self._swept = 0
        self._first_seq = self._reader.first_seq() or counters.seq + 1
        self._packer = Packer(self._terms, retention.result_ms, counters.serial)
        self._pruner = Pruner(self._collector, DIALECT, retention)
        self._removals = Removals()
        self._removed: deque[tuple[int, Removals]] = deque()  # with the numbers of their batches

    def _open(self, writer_command: Sequence[str]) -> Counters | None:
        make_private(self._directory)
        check = self._file.exists() and inspect(self._file)
        if recover(self._file):
            check = False  # it was checked before it was changed
        if not self._file.exists():
            schema.create(self._file)
        # The writer checks the file while it is loaded here.
        self._link = WriterLink(writer_command, self._file, self._lock.descriptors, check=check)
        try:
            try:
                counters = load(self._file, self.live, self._terms, self.bulks)
            finally:
                # If the file is damaged, the check describes it better than the error of the load.
                self._link.wait_until_open()
        except BaseException:
            self._link.abandon()
            raise
        self._opened = self._file.stat()
        self._reader = Reader(self._file, self._terms)
        self._pool = ReaderPool(self._file, self._terms)
        return counters

    def load(self, command: Command) -> View:
        return self.live

    def touch(self) -> None:
        self._collector.batch.touched = True

    def _read_finished(self, job_id: str) -> Job | None:
        """A job that is not in the index: finished or unknown."""
        if job_id in self._pruner.leaving:
            return None
        job = self._collector.newest(job_id)
        return job if job is not None else self._reader.job(job_id)

    def whole(self, job: Job) -> Job:
        if not job.stored_bytes:
            return job
        found = _with_payload(job, self._reader)
        if found is None:
            raise StoreFailedError(f"the payload of job {job.job_id} is not on record")
        return found

    # Committing.

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        batch = self._collector.seal(now)
        if batch is None:
            return None
        index = self.live
        counters = Counters(
            now,
            index.serial,
            self._collector.seq,
            index.position,
            max(0, index.finished_bytes),
            self.behind_ms,
        )
        removals, self._removals = self._removals, Removals()
        self._removed.append((batch.number, removals))
        packed = self._packer.pack(batch, counters, removals)
        batch.is_durable = self._link.send(packed, batch.number, at_once=at_once)
        return batch

    def fileno(self) -> int | None:
        return self._link.fileno()

    def has_unsent(self) -> bool:
        return self._link.has_unsent()

    def send_more(self) -> None:
        self._link.send_more()

    def finish_commits(self) -> int:
        number = self._link.committed()
        for batch in self._collector.committed(number):
            self._last_seq = batch.last_seq
        self._durable = number
        if self._link.applied > self._applied:
            self._let_go(self._link.applied)
        return number

    def _let_go(self, number: int) -> None:
        """Drops from memory what the file holds, up to this batch."""
        for batch in self._collector.applied(number):
            self._applied_seq = batch.last_seq
        while self._removed and self._removed[0][0] <= number:
            self._pruner.forget(self._removed.popleft()[1])
        self._applied = number

    # Reading.

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        found: list[StoredEvent] = []
        applied_seq = self._applied_seq
        if seq < applied_seq:
            found = _events_until(self._reader, seq, count_max, applied_seq)
        for batch in self._collector.unapplied:
            start = max(seq - batch.events_after, 0)
            some = map(event_of, batch.entries[start : start + count_max - len(found)])
            first = batch.events_after + start + 1
            found += [StoredEvent(number, event) for number, event in enumerate(some, first)]
        return found

    def past_events(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        applied_seq = self._applied_seq
        if seq >= applied_seq:
            return ()
        with self._pool.borrow() as reader:
            return _events_until(reader, seq, count_max, applied_seq)

    def last_seq(self) -> int:
        return self._last_seq

    def first_seq(self) -> int:
        return self._first_seq

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        with self._reading() as reader:
            return reader.partials(job_id)

    def find(self, job_id: str) -> Job | None:
        # Memory first: what leaves memory meanwhile is in the file before that.
        job = self._unapplied(job_id)
        if job is None and len(job_id) == 32:
            other = self.live.job_by_uid(job_id)
            job = self._unapplied(other.job_id) if other is not None else None
        if job is not None and not job.stored_bytes:
            return job
        with self._pool.borrow() as reader:
            if job is not None and (found := _with_payload(job, reader)) is not None:
                return found
            # Or it got another payload meanwhile, which is in the file.
            job = reader.job(job_id)
            if job is None and len(job_id) == 32:
                job = reader.job_by_uid(job_id)
            return job

    def _unapplied(self, job_id: str) -> Job | None:
        """The durable value of a job that the file does not hold yet. May run in a thread, hence
        the copy.
        """
        for batch in reversed(tuple(self._collector.unapplied)):
            if job_id in batch.values:
                return batch.job(job_id)
        return None

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        with self._reading() as reader:
            return reader.ended(namespace, names)

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        with self._reading() as reader:
            return search(reader, self.live, wanted, seconds_max)

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        with self._reading() as reader:
            return count_by_state(reader, self.live, wanted, seconds_max)

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        with self._reading() as reader:
            return reader.audit(before, count_max)

    def failures(self, wanted: FailureQuestion) -> Failures:
        with self._reading() as reader:
            return reader.at_once(lambda: read_failures(reader, wanted))

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        with self._reading() as reader:
            return read_codes(reader)

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        with self._reading() as reader:
            return reader.samples(step_ms, since, until, queue)

    def select(self, wanted: Filter) -> Selection:
        with self._reading() as reader:
            return select(reader, self.live, wanted)

    @contextmanager
    def _reading(self, number: int = 0) -> Iterator[Reader]:
        """A reader that sees everything durable now, and every batch up to this number. May take a
        while; not for the event loop.
        """
        number = max(number, self._durable)
        with self._pool.borrow() as reader:
            if self._applied < number:
                self._catch_up(reader, number)
            yield reader

    def _catch_up(self, reader: Reader, number: int) -> None:
        self._link.hurry()
        # A time limit, which decides nothing about any job, so it need not be the server's clock.
        give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
        while read_mark(reader.connection).applied < number:
            if self._link.has_failed() or time.perf_counter() > give_up_at:
                raise StoreFailedError("the store's records are not up to date; see the log")
            time.sleep(_CATCH_UP_REST_SECONDS)

    # Upkeep.

    def prune(self, now: int, count_max: int) -> int:
        steps = self._pruner.prune(now, count_max, self._removals, self._first_seq, self._last_seq)
        count = answered(steps, self._reader)
        if not self._removals.is_empty():
            self.touch()
        self._first_seq = max(self._first_seq, self._removals.events_to + 1)
        return count

    def begin_sweep(self) -> None:
        self._terms.watch()
        # Terms that were in use before are found with the jobs of these batches.
        self._swept = self._collector.batch.number - 1

    def find_unused(self) -> Sequence[int]:
        if len(self._terms.by_number) < _TERMS_KEPT:
            return ()
        with self._reading(self._swept) as reader:
            rows = reader.rows("SELECT terms_id FROM terms EXCEPT SELECT terms_id FROM jobs")
        return [row[0] for row in rows]

    def end_sweep(self, unused: Sequence[int]) -> int:
        dropped = self._terms.drop(unused)
        self._removals.terms += [((number,), None) for number in dropped]
        self._removals.groups = True
        self.touch()
        return len(dropped)

    def begin_fetch(self, job_ids: Sequence[str]) -> None:
        """Never needed: decisions find every record by themselves."""

    def has_fetched(self) -> bool:
        return True

    def end_fetch(self) -> None:
        """Does nothing."""

    def check(self) -> None:
        check_index(self.live)

    def is_in_place(self) -> bool:
        try:
            if os.path.samestat(self._file.stat(), self._opened):
                return True
            self._link.give_up(f"another file is in the place of {self._file}")
        except OSError as error:
            self._link.give_up(f"{self._file} cannot be reached: {error.strerror}")
        return False

    def free_bytes(self) -> int | None:
        space = os.statvfs(self._directory)
        return space.f_bavail * space.f_frsize

    def facts(self) -> dict[str, str | int]:
        log = self._file.with_name(self._file.name + "-wal")
        return {
            "kind": "sqlite",
            "path": str(self._file),
            "bytes": self._file.stat().st_size,
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "journal_bytes": _bytes_of(journal.segments(self._directory)),
            "schema": schema.VERSION,
            "sqlite": apsw.sqlite_lib_version(),
            "unfinished_jobs": sum(one.unfinished_count for one in self.live.queues.values()),
            "events": self._last_seq - self._first_seq + 1,
        }

    def reserve_positions(self, position: int) -> None:
        self.live.position = max(self.live.position, position)

    def begin_graph(self, namespace: str, serial: int) -> None:
        self.live.namespaces.begin_earlier(namespace, serial)

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        with self._reading() as reader:
            yield from copy_database(reader.connection, Path(target))

    def expect_no_answer(self) -> None:
        self._link.expect_no_answer()

    def close(self) -> str | None:
        # Readers first: the writer can empty its log only when nothing reads it.
        self._pool.close()
        self._reader.connection.close()
        failure = self._link.close()
        self._lock.release()
        return failure


def _with_payload(job: Job, reader: Reader) -> Job | None:
    """A job with its payload from the file; None if the file holds another value."""
    payload = reader.payload(job.serial)
    if payload is None or len(payload) != job.stored_bytes:
        return None
    return replace(job, payload=payload, stored_bytes=0)


def _events_until(reader: Reader, seq: int, count_max: int, last_seq: int) -> list[StoredEvent]:
    """Events from the file, which may be ahead of the acknowledged commits, up to the last
    acknowledged one.
    """
    stored = reader.events(seq, min(count_max, last_seq - seq))
    return [event for event in stored if event.seq <= last_seq]


def _bytes_of(files: Sequence[Path]) -> int:
    """Their total size; some may be removed meanwhile."""
    return sum(file.stat().st_size for file in files if file.exists())

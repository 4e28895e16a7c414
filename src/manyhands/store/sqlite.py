"""The default store: live jobs in memory, every change on disk before it is told.

A process of its own (``writer.py``) writes: first a journal, which makes a change durable, and a
little later a SQLite file, which is only read here. Decisions read the index in memory, and the
file only for jobs that have finished and were let go of. Whoever asks the file is shown all that
was durable when he asked.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from manyhands.engine.view import View
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Command
from manyhands.model.history import StoredSample
from manyhands.model.job import Job
from manyhands.store import journal, schema
from manyhands.store.batch import Batch
from manyhands.store.collect import Collector
from manyhands.store.copying import copy_database
from manyhands.store.counting import count_by_state
from manyhands.store.failing import read_codes, read_failures
from manyhands.store.frames import Counters
from manyhands.store.link import WRITER_COMMAND, WriterLink
from manyhands.store.loading import load
from manyhands.store.opening import DirectoryLock, inspect, unusable
from manyhands.store.packing import Packer, Removals, TermsBook
from manyhands.store.pruning import Pruner
from manyhands.store.reading import Reader, ReaderPool
from manyhands.store.recovery import read_mark, recover
from manyhands.store.retention import Retention
from manyhands.store.searching import search, select
from manyhands.store.store import (
    SEARCH_SECONDS_MAX,
    Counted,
    FailureQuestion,
    Failures,
    Filter,
    Page,
    PartialResult,
    Selection,
    StoredEvent,
    StoreFailedError,
)

# Fewer terms than this are not worth a walk over all jobs.
_TERMS_KEPT: Final = 1_000

# For readers who wait until the file holds what is durable: a few milliseconds, as a rule.
_CATCH_UP_REST_SECONDS: Final = 0.001
_CATCH_UP_SECONDS_MAX: Final = 30.0


class SqliteStore:
    """A directory with a database in it, held by one server at a time."""

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
        self._collector = Collector(self._read_finished)
        self.index = self._collector.index
        self.write = self._collector.write
        self.is_unsaved = self._collector.is_unsaved
        self.bulks = self._collector.bulks
        self.keep_bulk = self._collector.keep_bulk
        self.keep_audit = self._collector.keep_audit
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
        self._collector.seq = self._last_seq = self._applied_seq = counters.seq
        self._collector.audit_seq = self._reader.last_audit_seq()
        self._durable = 0  # the number of the last durable batch
        self._applied = 0  # of the last batch that the file holds
        self._swept = 0
        self._first_seq = self._reader.first_seq() or counters.seq + 1
        self._packer = Packer(self._terms, retention.result_ms, counters.serial)
        self._pruner = Pruner(self._collector, self._reader, retention)
        self._removals = Removals()
        self._removed: deque[tuple[int, Removals]] = deque()  # with the batches they went into

    def _open(self, writer_command: Sequence[str]) -> Counters | None:
        check = self._file.exists() and inspect(self._file)
        if recover(self._file):
            check = False  # it was checked before it was changed
        if not self._file.exists():
            schema.create(self._file)
        descriptor = self._lock.descriptor
        # The writer checks the file while it is loaded here.
        self._link = WriterLink(writer_command, self._file, descriptor, check=check)
        try:
            try:
                counters = load(self._file, self.index, self._terms, self.bulks)
            finally:
                # Of a damaged file the check has more to say than what stumbled over it here.
                self._link.wait_until_open()
        except BaseException:
            self._link.abandon()
            raise
        self._opened = self._file.stat()
        self._reader = Reader(self._file, self._terms)
        self._pool = ReaderPool(self._file, self._terms)
        return counters

    def load(self, command: Command) -> View:
        return self.index

    def touch(self) -> None:
        self._collector.batch.touched = True

    def _read_finished(self, job_id: str) -> Job | None:
        """A job that is not in the index: finished, or never heard of."""
        if job_id in self._pruner.leaving:
            return None
        job = self._collector.newest(job_id)
        return job if job is not None else self._reader.job(job_id)

    # Committing.

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        batch = self._collector.seal(now)
        if batch is None:
            return None
        counters = Counters(now, self.index.serial, self._collector.seq, self.index.position)
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
        """Up to this batch the file tells everything: it need not be in memory as well."""
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
            stored = self._reader.events(seq, min(count_max, applied_seq - seq))
            # The file may be ahead of what we were told, and nobody may hear of that before.
            found = [event for event in stored if event.seq <= applied_seq]
        for batch in self._collector.unapplied:
            start = max(seq - batch.events_after, 0)
            some = batch.events[start : start + count_max - len(found)]
            first = batch.events_after + start + 1
            found += [StoredEvent(number, event) for number, event in enumerate(some, first)]
        return found

    def last_seq(self) -> int:
        return self._last_seq

    def first_seq(self) -> int:
        return self._first_seq

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        with self._reading() as reader:
            return reader.partials(job_id)

    def find(self, job_id: str) -> Job | None:
        # Memory first: what leaves it meanwhile is in the file before.
        job = self._unapplied(job_id)
        if job is None and len(job_id) == 32:
            other = self.index.job_by_uid(job_id)
            job = self._unapplied(other.job_id) if other is not None else None
        if job is not None:
            return job
        with self._pool.borrow() as reader:
            job = reader.job(job_id)
            if job is None and len(job_id) == 32:
                job = reader.job_by_uid(job_id)
            return job

    def _unapplied(self, job_id: str) -> Job | None:
        """The durable value of a job that the file does not hold yet. This may run beside the
        loop, hence the copy.
        """
        for batch in reversed(tuple(self._collector.unapplied)):
            if job_id in batch.jobs:
                return batch.jobs[job_id]
        return None

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        with self._reading() as reader:
            return reader.ended(namespace, names)

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        with self._reading() as reader:
            return search(reader, self.index, wanted, seconds_max)

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        with self._reading() as reader:
            return count_by_state(reader, self.index, wanted, seconds_max)

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        with self._reading() as reader:
            return reader.audit(before, count_max)

    def failures(self, wanted: FailureQuestion) -> Failures:
        with self._reading() as reader:
            return read_failures(reader, wanted)

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        with self._reading() as reader:
            return read_codes(reader)

    def keep_samples(self, samples: Sequence[StoredSample]) -> None:
        self._collector.batch.samples += samples

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        with self._reading() as reader:
            return reader.samples(step_ms, since, until, queue)

    def select(self, wanted: Filter) -> Selection:
        with self._reading() as reader:
            return select(reader, self.index, wanted)

    @contextmanager
    def _reading(self, number: int = 0) -> Iterator[Reader]:
        """A reader that is shown all that is durable now, and what is not but has at most this
        number. It may take a while: not for the loop.
        """
        number = max(number, self._durable)
        with self._pool.borrow() as reader:
            if self._applied < number:
                self._catch_up(reader, number)
            yield reader

    def _catch_up(self, reader: Reader, number: int) -> None:
        self._link.hurry()
        # This bounds an effort and decides nothing about any job, so it need not be the server's
        # clock.
        give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
        while read_mark(reader.connection).applied < number:
            if self._link.has_failed() or time.perf_counter() > give_up_at:
                raise StoreFailedError("the store's records are not up to date; see the log")
            time.sleep(_CATCH_UP_REST_SECONDS)

    # Operating.

    def prune(self, now: int, count_max: int) -> int:
        count = self._pruner.prune(now, count_max, self._removals, self._first_seq, self._last_seq)
        if not self._removals.is_empty():
            self.touch()
        self._first_seq = max(self._first_seq, self._removals.events_to + 1)
        return count

    def begin_sweep(self) -> None:
        self._terms.watch()
        # Terms that were given out before are to be found with the jobs of these batches.
        self._swept = self._collector.batch.number - 1

    def find_unused(self) -> Sequence[int]:
        if len(self._terms.by_number) < _TERMS_KEPT:
            return ()
        with self._reading(self._swept) as reader:
            rows = reader.rows("SELECT terms_id FROM terms EXCEPT SELECT terms_id FROM jobs")
        return [row[0] for row in rows]

    def end_sweep(self, unused: Sequence[int]) -> int:
        dropped = self._terms.drop(unused)
        self._removals.terms += [(number,) for number in dropped]
        self._removals.groups = True
        self.touch()
        return len(dropped)

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
            "unfinished_jobs": sum(one.unfinished_count for one in self.index.queues.values()),
            "events": self._last_seq - self._first_seq + 1,
        }

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        with self._reading() as reader:
            yield from copy_database(reader.connection, Path(target))

    def close(self) -> None:
        # Readers first: the writer empties its log only when nobody looks at it.
        self._pool.close()
        self._reader.connection.close()
        self._link.close()
        self._lock.release()


def _bytes_of(files: Sequence[Path]) -> int:
    """What they take up; some may go meanwhile."""
    return sum(file.stat().st_size for file in files if file.exists())

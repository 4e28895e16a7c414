"""The store on PostgreSQL: live jobs in memory, every change in the database before it is reported.

A commit is one row of the journal, appended from the event loop (``append.py``). A process of its
own folds many of them and writes the tables (``applier.py``), which searches, history and the next
start read. Decisions read the index in memory; a record that has left it is fetched by a thread,
and the decision is made again.
"""

import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final, NoReturn, TypeVar

import psycopg
from msgspec import Struct

from manyhands.config.database import DatabaseAddress
from manyhands.engine.view import MissingError, View
from manyhands.model import limits
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
    StoreError,
    StoreFailedError,
)
from manyhands.store.index.live import Index
from manyhands.store.index.recount import check_index
from manyhands.store.postgres import schema, tenure
from manyhands.store.postgres.append import APPEND_BOUNDS, Appender, Counts, Record
from manyhands.store.postgres.applier import Begin
from manyhands.store.postgres.journal import take_over
from manyhands.store.postgres.link import APPLIER_COMMAND, ApplierLink
from manyhands.store.postgres.reader import Reader, ReaderPool
from manyhands.store.postgres.serials import first_serial, has_room, second_at, second_of
from manyhands.store.postgres.sessions import check_server, connect, unusable
from manyhands.store.postgres.source import Source
from manyhands.store.postgres.vacuum import Hindrance, VacuumWatch
from manyhands.store.records.counts import count_by_state
from manyhands.store.records.failures import read_codes, read_failures
from manyhands.store.records.frames import Counters
from manyhands.store.records.loader import Loader
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.records.pruner import Pruner, Steps, answered
from manyhands.store.records.search import search
from manyhands.store.records.search import select as select_jobs
from manyhands.store.retention import Retention

Found = TypeVar("Found")
# With fewer terms than this, a walk over all jobs is not worth it.
_TERMS_KEPT: Final = 1_000
_PAYLOAD_BYTES_MAX: Final = 1 << 62  # of any size: in the row of its job, and in memory
_CATCH_UP_REST_SECONDS: Final = 0.002
_CATCH_UP_REST_SECONDS_MAX: Final = 0.02
_CATCH_UP_SECONDS_MAX: Final = 30.0
_READ_SECONDS_MAX: Final = 5.0  # a question of a person waits so long for a database that is away
_FETCH_SECONDS_MAX: Final = 1e9  # a decision waits as commits do
_JOIN_TRIES: Final = 5


class _Deciding(Index):
    """The same index, for decisions: it raises where it would have to read a record."""

    def job(self, job_id: str) -> Job | None:
        found = super().job(job_id)
        if found is None and "\0" not in job_id:
            self.look_up(job_id)
        return found

    look_up: Callable[[str], None]


def _number_of(record: str) -> int:
    """63 bits of the text, so that no two servers number the same terms differently."""
    return int.from_bytes(sha256(record.encode()).digest()[:8]) >> 1


class Joining(Struct, frozen=True):
    """As whom a server joins."""

    server: str
    incarnation: str
    lease_seconds: float = tenure.LEASE_SECONDS  # after which a silent server counts as dead
    address: str = ""  # of its cluster listener; empty: it has to be alone


class PostgresStore:
    """The tables of one schema, decided about by one server at a time."""

    def __init__(
        self,
        address: DatabaseAddress,
        retention: Retention | None = None,
        *,
        joining: Joining | None = None,
        unsafe_commits: bool = False,
        in_background: bool = True,
        applier_command: Sequence[str] = APPLIER_COMMAND,
    ) -> None:
        """Without ``in_background``, ``prune`` reads at once instead of in a thread."""
        retention = retention or Retention()
        self._address = address
        self._unsafe_commits = unsafe_commits
        self._in_background = in_background
        self._terms = TermsBook(_number_of)
        self._fetched: dict[str, Job | None] = {}
        self._collector = Collector(self._read_finished)
        self.live = self._collector.index
        self._view = _Deciding.__new__(_Deciding)
        self._view.__dict__ = self.live.__dict__  # one state, two ways to look at it
        self.live.__dict__["look_up"] = self._look_up
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
        self._poll = select.epoll()
        self._rings = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._rings, select.EPOLLIN)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="manyhands-records")
        self._answers: deque[Callable[[], None]] = deque()
        self._asked_count = 0  # of which no answer has rung yet
        self._pool = ReaderPool(address, self._terms)
        self._beat: tenure.Beat | None = None
        self._vacuum: VacuumWatch | None = None
        self._joining = joining or Joining(socket.gethostname(), secrets.token_hex(8))
        try:
            counters = self._open(applier_command)
        except psycopg.Error as error:
            self._give_up()
            raise unusable(address, error) from None
        except BaseException:
            self._give_up()
            raise
        self._begin(counters, retention)

    def _begin(self, counters: Counters | None, retention: Retention) -> None:
        self.alive_at = counters.alive_at if counters is not None else None
        counters = counters or Counters()
        self.behind_ms = counters.behind_ms
        self._collector.seq = self._last_seq = self._applied_seq = counters.seq
        self._durable = 0  # the number of the last durable batch
        self._applied = 0  # the number of the last batch that the tables hold
        self._swept = 0
        self._begin_serials()
        self._packer = Packer(
            self._terms, retention.result_ms, self.live.serial, _PAYLOAD_BYTES_MAX
        )
        self._pruner = Pruner(self._collector, self._dialect, retention)
        self._pruning: Steps | None = None
        self._pruned = 0
        self._removals = Removals()
        self._removed: deque[tuple[int, Removals]] = deque()  # with the numbers of their batches
        self._fetches = False

    def _open(self, applier_command: Sequence[str]) -> Counters | None:
        address = self._address
        with connect(address) as connection:
            check_server(connection, unsafe_commits=self._unsafe_commits)
            schema.migrate(connection, address)
            self._tenure = self._join(connection)
            # From here on it shows that it lives, however long the rest takes.
            self._appender: Appender | None = None
            self._beat = tenure.Beat(address, self._tenure, self._suspect)
            for dead in self._dead:
                take_over(connection, address.schema, dead, self._tenure.number)
            counters = self._load()
            tenure.begin_serving(connection, address.schema, self._tenure.number)
            self._begin_writing(connection, applier_command)
        return counters

    def _begin_writing(
        self, connection: psycopg.Connection[tuple[Any, ...]], applier_command: Sequence[str]
    ) -> None:
        """Begins the journal of this tenure, and the process that applies it."""
        address = self._address
        cluster = connection.execute(
            f"SELECT value FROM {address.schema}.facts WHERE key = 'cluster'"
        ).fetchone()
        assert cluster is not None
        begin = Begin(address, self._tenure.number, self._tenure.incarnation)
        self._link = ApplierLink(begin, self._poll, applier_command)
        self._appender = Appender(
            address,
            cluster[0],
            self._tenure,
            self._poll,
            self._on_durable,
            unsafe_commits=self._unsafe_commits,
        )
        self._vacuum = VacuumWatch(self._pool, address.schema)

    def _join(self, connection: psycopg.Connection[tuple[Any, ...]]) -> tenure.Tenure:
        joining = self._joining
        for _ in range(_JOIN_TRIES):
            self._dead = tenure.find_dead(connection, self._address.schema, joining.lease_seconds)
            found = tenure.join(
                connection,
                self._address.schema,
                server=joining.server,
                address=socket.gethostname(),
                incarnation=joining.incarnation,
                beside=self._dead,
            )
            if found is not None:
                return found
        raise StoreError("other servers start on this database at the same time; try again.")

    def _load(self) -> Counters | None:
        with self._pool.borrow() as reader:
            self._dialect = reader.dialect
            with reader.connection.transaction():  # one snapshot
                reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                counters = Loader(
                    Source(reader), self.live, self._terms, self.bulks, _PAYLOAD_BYTES_MAX
                ).load()
                self._collector.audit_seq = reader.last_audit_seq()
                last_seq = counters.seq if counters is not None else 0
                self._first_seq = reader.first_seq() or last_seq + 1
        return counters

    def _begin_serials(self) -> None:
        """New jobs come after all others, in the own slot."""
        second = second_of(self.live.serial) + 1
        self.live.serial = first_serial(second, self._tenure.slot)

    def _suspect(self) -> None:
        if self._appender is not None:
            self._appender.suspect()

    def _give_up(self) -> None:
        """Lets everything go after a start that failed."""
        if self._beat is not None:
            self._beat.end()
        if hasattr(self, "_link"):
            self._link.abandon()
        if self._vacuum is not None:
            self._vacuum.end()
        self._pool.close()
        self._threads.shutdown()
        self._poll.close()
        os.close(self._rings)

    # Deciding.

    def load(self, command: Command) -> View:
        if not has_room(self.live.serial, limits.BATCH_COUNT_MAX):  # no command makes more jobs
            self._begin_serials()
        return self._view

    def touch(self) -> None:
        self._collector.batch.touched = True

    def _read_finished(self, job_id: str) -> Job | None:
        """A job that is not in the index, as far as that is known without asking."""
        if job_id in self._pruner.leaving:
            return None
        job = self._collector.newest(job_id)
        return job if job is not None else self._fetched.get(job_id)

    def _look_up(self, job_id: str) -> None:
        """Raises MissingError unless it is known that there is no such job."""
        if job_id not in self._fetched and job_id not in self._pruner.leaving:
            raise MissingError(job_id)

    def begin_fetch(self, job_ids: Sequence[str]) -> None:
        self._fetches = True
        wanted = list(dict.fromkeys(job_ids))

        def fetch(reader: Reader) -> dict[str, Job]:
            return reader.jobs(wanted)

        def take(found: dict[str, Job]) -> None:
            self._fetched |= dict.fromkeys(wanted)
            self._fetched |= found
            self._fetches = False

        self._in_thread(fetch, take, _FETCH_SECONDS_MAX)

    def has_fetched(self) -> bool:
        return not self._fetches

    def end_fetch(self) -> None:
        self._fetched = {}

    def _in_thread(
        self, question: Callable[[Reader], Found], take: Callable[[Found], None], seconds: float
    ) -> None:
        """Asks in a thread; the answer is taken in the event loop, by ``finish_commits``."""

        def work() -> None:
            answer: Callable[[], None]
            try:
                answer = partial(take, self._pool.ask(question, seconds))
            except Exception as error:  # noqa: BLE001 - raised where the answer is taken
                answer = partial(_raise, error)
            self._answers.append(answer)
            os.eventfd_write(self._rings, 1)

        self._asked_count += 1
        self._threads.submit(work)

    def whole(self, job: Job) -> Job:
        return job

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
        assert self._appender is not None
        self._appender.send(self._packer.pack(batch, counters, removals), batch.number)
        second = second_at(now)
        if second > second_of(index.serial):  # in order of arrival to the second
            index.serial = first_serial(second, self._tenure.slot)
        return batch

    def fileno(self) -> int | None:
        return self._poll.fileno()

    def has_unsent(self) -> bool:
        return False  # what waits for room is part of `fileno`

    def send_more(self) -> None:
        """Does nothing: see ``has_unsent``."""

    def _on_durable(self, record: Record) -> None:
        self._durable = record.batch
        self._link.send(record)

    def finish_commits(self) -> int:
        assert self._appender is not None
        try:
            self._appender.work()
        except StoreFailedError:
            self._link.give_up()
            raise
        self._link.receive()
        if self._asked_count:
            self._take_answers()
        for batch in self._collector.committed(self._durable):
            self._last_seq = batch.last_seq
        if self._link.batch > self._applied:
            self._let_go(self._link.batch)
            self._appender.release(self._link.record)
        return self._durable

    def _take_answers(self) -> None:
        """Takes the answers that have rung; each rings once, after it is there."""
        with suppress(BlockingIOError):
            count = os.eventfd_read(self._rings)
            self._asked_count -= count
            for _ in range(count):
                self._answers.popleft()()

    def _let_go(self, number: int) -> None:
        """Drops from memory what the tables hold, up to this batch."""
        for batch in self._collector.applied(number):
            self._applied_seq = batch.last_seq
        while self._removed and self._removed[0][0] <= number:
            self._pruner.forget(self._removed.popleft()[1])
        self._applied = number

    # Reading.

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        found = list(self.past_events(seq, count_max))
        for batch in tuple(self._collector.unapplied):
            start = max(seq - batch.events_after, 0)
            some = map(event_of, batch.entries[start : start + count_max - len(found)])
            first = batch.events_after + start + 1
            found += [StoredEvent(number, event) for number, event in enumerate(some, first)]
        return found

    def past_events(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        applied_seq = self._applied_seq
        if seq >= applied_seq:
            return ()
        count = min(count_max, applied_seq - seq)
        found = self._pool.ask(lambda reader: reader.events(seq, count), _READ_SECONDS_MAX)
        return [event for event in found if event.seq <= applied_seq]

    def last_seq(self) -> int:
        return self._last_seq

    def first_seq(self) -> int:
        return self._first_seq

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        return self._read(lambda reader: reader.partials(job_id))

    def find(self, job_id: str) -> Job | None:
        # Memory first: what leaves memory meanwhile is in the tables before that.
        job = self._unapplied(job_id)
        if job is None and len(job_id) == 32:
            other = self.live.job_by_uid(job_id)
            job = self._unapplied(other.job_id) if other is not None else None
        if job is not None:
            return job

        def question(reader: Reader) -> Job | None:
            found = reader.job(job_id)
            if found is None and len(job_id) == 32:
                found = reader.job_by_uid(job_id)
            return found

        return self._pool.ask(question, _READ_SECONDS_MAX)

    def _unapplied(self, job_id: str) -> Job | None:
        """The durable value of a job that the tables do not hold yet. May run in a thread, hence
        the copy.
        """
        for batch in reversed(tuple(self._collector.unapplied)):
            if job_id in batch.values:
                return batch.job(job_id)
        return None

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        return self._read(lambda reader: reader.ended(namespace, names))

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        return self._read(lambda reader: search(reader, self.live, wanted, seconds_max))

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        return self._read(lambda reader: count_by_state(reader, self.live, wanted, seconds_max))

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        return self._read(lambda reader: reader.audit(before, count_max))

    def failures(self, wanted: FailureQuestion) -> Failures:
        def question(reader: Reader) -> Failures:
            with reader.connection.transaction():
                reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return read_failures(reader, wanted)

        return self._read(question)

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        return self._read(read_codes)

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        return self._read(lambda reader: reader.samples(step_ms, since, until, queue))

    def select(self, wanted: Filter) -> Selection:
        return self._read(lambda reader: select_jobs(reader, self.live, wanted))

    def _read(self, question: Callable[[Reader], Found], number: int = 0) -> Found:
        """Asks the tables when they hold everything durable now, and every batch up to this number.
        May take a while; not for the event loop.
        """
        number = max(number, self._durable)

        def caught_up(reader: Reader) -> Found:
            if self._applied < number:
                self._catch_up(reader, number)
            return question(reader)

        return self._pool.ask(caught_up, _READ_SECONDS_MAX)

    def _catch_up(self, reader: Reader, number: int) -> None:
        self._link.hurry()
        give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
        pause = _CATCH_UP_REST_SECONDS
        while reader.applied_batch(self._tenure.number) < number:
            if self._link.has_failed() or time.perf_counter() > give_up_at:
                raise StoreFailedError("the store's records are not up to date; see the log")
            time.sleep(pause)
            pause = min(2 * pause, _CATCH_UP_REST_SECONDS_MAX)

    # Upkeep.

    def prune(self, now: int, count_max: int) -> int:
        if self._pruning is None:
            steps = self._pruner.prune(
                now, count_max, self._removals, self._first_seq, self._last_seq
            )
            if not self._in_background:
                with self._pool.borrow() as reader:
                    self._finish_pruning(answered(steps, reader))
            else:
                self._pruning = steps
                self._prune_on(None)
        pruned, self._pruned = self._pruned, 0
        return pruned

    def _prune_on(self, answer: object) -> None:
        """Takes the answer to the last question, and asks the next in a thread."""
        steps = self._pruning
        assert steps is not None
        try:
            question = steps.send(answer)
        except StopIteration as end:
            self._pruning = None
            self._finish_pruning(int(end.value))
            return
        self._in_thread(question, self._prune_on, _FETCH_SECONDS_MAX)

    def _finish_pruning(self, count: int) -> None:
        self._pruned += count
        if not self._removals.is_empty():
            self.touch()
        self._first_seq = max(self._first_seq, self._removals.events_to + 1)

    def begin_sweep(self) -> None:
        self._terms.watch()
        # Terms that were in use before are found with the jobs of these batches.
        self._swept = self._collector.batch.number - 1

    def find_unused(self) -> Sequence[int]:
        if len(self._terms.by_number) < _TERMS_KEPT:
            return ()
        prefix = self._dialect.prefix
        statement = f"SELECT terms_id FROM {prefix}terms EXCEPT SELECT terms_id FROM {prefix}jobs"
        rows = self._read(lambda reader: reader.rows(statement), self._swept)
        return [row[0] for row in rows]

    def end_sweep(self, unused: Sequence[int]) -> int:
        dropped = self._terms.drop(unused)
        self._removals.terms += [((number,), None) for number in dropped]
        self._removals.groups = True
        self.touch()
        return len(dropped)

    def check(self) -> None:
        check_index(self.live)

    def is_in_place(self) -> bool:
        return True  # the journal notices when the database is another one

    def free_bytes(self) -> int | None:
        """PostgreSQL does not say how much room there is, only when there is none."""
        assert self._appender is not None
        return 0 if self._appender.is_full else None

    def facts(self) -> dict[str, str | int]:
        assert self._appender is not None
        return {
            "kind": "postgresql",
            "path": self._address.shown,
            "schema": schema.VERSION,
            "tenure": self._tenure.number,
            "records": self._appender.acknowledged,
            "unfinished_jobs": sum(one.unfinished_count for one in self.live.queues.values()),
            "events": self._last_seq - self._first_seq + 1,
        }

    def appends(self) -> tuple[Counts, Sequence[float]]:
        """What the journal went through, and the bounds by which its appends are counted."""
        assert self._appender is not None
        return self._appender.counts, APPEND_BOUNDS

    def apply_lag_seconds(self) -> float:
        """Age of the oldest durable record that is not in the tables."""
        assert self._appender is not None
        return self._appender.lag_seconds()

    def hindrance(self) -> Hindrance:
        """What keeps the database from removing dead rows."""
        return self._vacuum.found if self._vacuum is not None else Hindrance()

    def reserve_positions(self, position: int) -> None:
        self.live.position = max(self.live.position, position)

    def begin_graph(self, namespace: str, serial: int) -> None:
        self.live.namespaces.begin_earlier(namespace, serial)

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        raise StoreError(BACKUP)

    def expect_no_answer(self) -> None:
        self._link.expect_no_answer()

    def close(self) -> str | None:
        """Ends the tenure in order: what is durable is applied, then the journal is closed. What
        cannot be done is left to the next start.
        """
        assert self._appender is not None
        failure = None
        if self._vacuum is not None:
            self._vacuum.end()
        applied = self._link.close()
        if self._beat is not None:
            self._beat.end()
        if applied:
            try:
                self._appender.close_journal()
                with connect(self._address) as connection:
                    tenure.finish_closing(
                        connection, self._address.schema, self._tenure.number, None
                    )
            except (StoreError, psycopg.Error):
                applied = False
        if not applied and not self._link.has_failed():
            failure = (
                "the database did not answer at the end; what was acknowledged is in its journal, "
                "and the next start applies it"
            )
        self._appender.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
        self._poll.close()
        return failure


BACKUP: Final = (
    "this store is backed up as the database that it is in: with pg_dump, or continuously (PITR). "
    "All tables of the schema belong to it, the journal too."
)


def _raise(error: Exception) -> NoReturn:
    raise error

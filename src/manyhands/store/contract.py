"""The contract of a store: load, write, commit, and queries on the records.

A store never decides. The dispatcher gets a view from it (``load``), lets the engine decide, hands
over the effects (``write``), and commits what has gathered. Commits finish in order, and a query
sees everything that was committed before it. A store that keeps jobs elsewhere (a database shared
by several servers) fills its view in ``load``; one that keeps them in memory returns its index.
This module must not know about asyncio or protocols.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from manyhands.engine.effects import Effects
from manyhands.engine.plain import Change
from manyhands.engine.view import View
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Command
from manyhands.model.events import Cursor, Event, Signal
from manyhands.model.failures import Group
from manyhands.model.filter import Filter
from manyhands.model.history import StoredSample
from manyhands.model.job import Holder, Job, Schedule, State, Unnotified
from manyhands.model.policy import NamedLimit, Queue
from manyhands.store.batch import Batch

if TYPE_CHECKING:
    from manyhands.store.bulk import Bulk
    from manyhands.store.mirror import Mirror, Original

# The default time limit of a search.
SEARCH_SECONDS_MAX: Final = 2.0


class StoreError(Exception):
    """The store cannot be opened or cannot continue. The text says what to do."""


class StoreFailedError(StoreError):
    """A write or a sync failed, so nothing more may be acknowledged."""


class StoreFencedError(StoreFailedError):
    """Another server has taken over: this one must not answer anything more."""


class Page(Struct, frozen=True):
    """A page of a listing. ``next`` is the cursor of the following page, or None on the last one.
    If ``complete`` is False, the search stopped at its time limit; continue from ``next``.
    """

    jobs: tuple[Job, ...]
    next: int | None
    complete: bool = True


class FailureGroup(Struct, frozen=True):
    """Jobs on record that failed in the same way."""

    group: Group
    count: int
    first_at: int
    last_at: int
    trend: tuple[int, ...]  # how many in each of the last 24 hours, the current hour last
    queues: tuple[tuple[str, int], ...]  # the queues with most of them
    job_ids: tuple[str, ...]  # of the newest
    retrying: int = 0  # unfinished jobs with such a failure, which are tried again


class Failures(Struct, frozen=True):
    """The largest or latest groups, and the totals."""

    groups: tuple[FailureGroup, ...]
    groups_count: int
    failed_count: int
    retrying_count: int = 0


class FailureQuestion(Struct, frozen=True, kw_only=True):
    """Which groups to return."""

    now: int
    queue: str | None = None
    latest_first: bool = False  # otherwise the largest first
    count_max: int = 100
    group_id: str | None = None  # only this one
    patterns: tuple[str, ...] = ()  # only queues that fit one of these; empty: all


class Counted(Struct, frozen=True):
    """How many jobs match a filter, by state. If not ``complete``, there may be more of each."""

    counts: dict[State, int]
    complete: bool = True


class Selection(Struct, frozen=True):
    """Jobs that match a filter, by serial and id; ``next`` and ``complete`` as in a page."""

    jobs: tuple[tuple[int, str], ...]
    next: int | None
    complete: bool = True


class StoredEvent(Struct, frozen=True):
    """An event and its sequence number."""

    seq: int
    event: Event


class PartialResult(Struct, frozen=True):
    """A stored piece of a result, or a line of the job's log."""

    number: int
    at: int
    payload: bytes
    warning: bool
    is_log: bool = False


class QueueFacts(Protocol):
    """One queue as it is now."""

    @property
    def queue(self) -> Queue:
        """Its settings."""

    @property
    def counts(self) -> Mapping[State, int]:
        """Jobs on record by state, finished ones included."""

    @property
    def unfinished_count(self) -> int:
        """The number of unfinished jobs."""

    @property
    def ready_count(self) -> int:
        """The number of ready jobs."""

    def oldest_ready_at(self) -> int | None:
        """Since when the longest-waiting ready job has been ready."""

    def ready_by_priority(self) -> dict[float, int]:
        """The number of ready jobs of each priority."""

    def ahead_of(self, job: Job) -> int:
        """How many ready jobs will be handed out before this one."""


class Live(Protocol):
    """Unfinished jobs and settings as of the last decision, committed or not."""

    @property
    def view(self) -> View:
        """The same data as a view for the engine."""

    @property
    def queues(self) -> Mapping[str, QueueFacts]:
        """Known queues by name."""

    @property
    def limits(self) -> Mapping[str, NamedLimit]:
        """Named limits."""

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Schedules by id."""

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """The position of each consumer of events."""

    @property
    def unnotified(self) -> Mapping[str, Unnotified]:
        """Finished jobs with dependants that have not been notified. The same object for the life
        of the store.
        """

    @property
    def due_entries(self) -> Mapping[str, int]:
        """Jobs with a timer, and when it is due at the earliest. The same object for the life of
        the store.
        """

    @property
    def position(self) -> int:
        """The position that was assigned last."""

    @property
    def unfinished_bytes(self) -> int:
        """Memory used by unfinished jobs, payloads included."""

    @property
    def finished_bytes(self) -> int:
        """Bytes of payloads and results of finished jobs on record, which ``--retention-bytes``
        bounds.
        """

    def next_due_at(self) -> int | None:
        """When the next timer may be due."""

    def job(self, job_id: str) -> Job | None:
        """Any job still on record, by its id, uid or name key; see the view."""

    def live_job(self, job_id: str) -> Job | None:
        """An unfinished job, or a finished one that is still needed, by its own id."""

    def live_jobs(self) -> Iterable[Job]:
        """All live jobs."""

    def rare_jobs(self) -> Iterable[Job]:
        """All live jobs but plain ones, which have no times of their own."""

    def jobs_count(self) -> int:
        """The number of live jobs."""

    def job_by_uid(self, uid: str) -> Job | None:
        """An unfinished job whose own id is not 32 digits long."""

    def key_holder(self, queue: str, key: bytes) -> str | None:
        """The id of the unfinished job that holds a unique key."""

    def named(self, namespace: str, name: str) -> str | None:
        """The id that a name refers to."""

    def forgotten_count(self, namespace: str) -> int:
        """How often names ceased to be valid because their graph ended, since the start."""

    def dependants(self, key: str) -> Sequence[str]:
        """Ids of unfinished jobs that wait for this id or name key, in order of arrival."""

    def awaited_keys(self, count_max: int) -> list[str]:
        """Ids and name keys that unfinished jobs wait for, those named first, at most so many."""

    def is_lost(self, key: str) -> bool:
        """Whether what such a key refers to has ended without success, as far as memory knows: it
        may also be unknown.
        """

    def waited(self) -> Iterable[str]:
        """Ids of all jobs with waiters, or without durable interest."""

    def queues_count(self) -> int:
        """The number of queues."""

    def graph_endings(self, namespace: str) -> Mapping[State, int]:
        """The final states of the jobs in a namespace's open graph, or in its last one."""

    def graph_losses(self, namespace: str) -> Mapping[str, State]:
        """Jobs of that graph that failed or were cancelled, by id."""

    def last_serial(self) -> int:
        """The serial of the job that was submitted last."""

    def queue(self, name: str) -> Queue | None:
        """The settings of a known queue."""

    def limit_used(self, name: str) -> int:
        """Live leases that count against a named limit."""

    def leased_by_holder(self, holder: Holder) -> Sequence[str]:
        """Ids of jobs with free leases of a worker, by realm and name."""

    def has_leases(self) -> bool:
        """Whether any job is leased."""

    def holders(self) -> dict[tuple[str, str | None], list[Job]]:
        """Workers that hold leases, by realm and name, with the jobs they hold."""

    def workers(self, workers_max: int, jobs_max: int) -> list[tuple[Holder, int, list[Job]]]:
        """Some of these workers, each with the number of its leases and a few of its jobs. The cost
        does not grow with the number of leases; a connection counts as one worker.
        """

    def workers_count(self) -> int:
        """The number of workers that hold leases."""

    def retrying_counts(self, queue: str) -> Mapping[State, int]:
        """How many jobs of a queue failed and are tried again, by the state they are in."""

    def retrying_queues(self) -> Mapping[str, Mapping[State, int]]:
        """The same of every queue that has such jobs."""

    def retried_jobs(self, count_max: int) -> list[Job]:
        """Jobs that failed and are tried again, at most so many."""


class Committing(Protocol):
    """What the dispatcher needs: a view to decide on, and commits."""

    alive_at: int | None  # server time of the last commit before this start; None for a new store
    behind_ms: int  # how far the ages of records lag behind; stored with the next commit

    def load(self, command: Command) -> View:
        """The state that the command may read."""

    def write(self, effects: Effects) -> int:
        """Applies the effects in memory and adds them to the open batch; returns the bytes of
        payloads and results in that batch.
        """

    def write_plain(self, changes: Sequence[Change], signals: Sequence[Signal] = ()) -> int:
        """The same for steps of plain jobs (``engine/plain.py``), with the signals that leave with
        them.
        """

    def backlog_bytes(self) -> int:
        """Bytes of payloads and results in memory because they are not on record yet."""

    def held_bytes(self) -> dict[str, int]:
        """Bytes of payloads and results in memory: ``gathering`` for the next commit; ``frames``
        being written; ``recent``, durable but not on record yet; ``jobs`` that are unfinished;
        ``records`` of finished ones, in stores that keep them in memory.
        """

    def is_unsaved(self, job_id: str) -> bool:
        """Whether the present value of the job is not committed yet."""

    def touch(self) -> None:
        """Makes the next commit happen even if nothing changed, to show that the server is
        alive.
        """

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        """Seals the open batch and sends it to be made durable; returns None if it was empty. With
        ``at_once`` it may be made durable right here, if that is quick.
        """

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when a commit may have finished; None if commits are
        durable at once.
        """

    def has_unsent(self) -> bool:
        """Whether part of a batch still waits for room in the socket to the writer."""

    def send_more(self) -> None:
        """Sends what is waiting, without blocking."""

    def finish_commits(self) -> int:
        """The number of the last durable batch. Raises StoreFailedError if one failed."""

    def begin_fetch(self, job_ids: Sequence[str]) -> None:
        """Begins to read records that a decision missed; ``fileno`` becomes readable when they are
        there. Nothing is decided meanwhile.
        """

    def has_fetched(self) -> bool:
        """Whether they are there; decisions find them until ``end_fetch``."""

    def end_fetch(self) -> None:
        """The decisions that needed them are made."""

    def check(self) -> None:
        """Raises AssertionError if the lookup tables disagree with the jobs."""

    def is_in_place(self) -> bool:
        """Whether the files that the store writes to are still in place. If not, the store has
        failed.
        """

    def free_bytes(self) -> int | None:
        """Free space where the store writes; None if it does not matter."""

    def expect_no_answer(self) -> None:
        """Notes that the disk has not answered for long, so that ``close`` waits for it less than
        usual.
        """

    def close(self) -> str | None:
        """Closes the store. What was not committed is lost. Returns an error that was not known
        before, if any.
        """


class Reading(Protocol):
    """Queries: jobs and settings as they are now, and the records."""

    @property
    def live(self) -> Live:
        """Unfinished jobs and settings."""

    bulks: dict[str, "Bulk"]  # bulk operations that run or ran, the oldest first

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """Committed events in order."""

    def past_events(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """Committed events that have to be read from a file; empty if they are in memory. May take
        a while; call it in a thread.
        """

    def last_seq(self) -> int:
        """The sequence number of the newest committed event; 0 if there is none."""

    def first_seq(self) -> int:
        """The sequence number of the oldest stored event."""

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        """A page of a listing, from committed records. May take a while; call it in a thread."""

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        """The number of jobs by state that match the filter, ignoring its states. May take as long
        as ``seconds_max``; call it in a thread.
        """

    def select(self, wanted: Filter) -> Selection:
        """Like ``search``, without the jobs themselves."""

    def whole(self, job: Job) -> Job:
        """A current job with its payload, which may be only on record."""

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        """The stored pieces of a job's result."""

    def find(self, job_id: str) -> Job | None:
        """A committed job by its id or uid, finished or not. May be called in a thread."""

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        """The latest committed jobs that finished under these names, in any graph. May take a
        while; call it in a thread.
        """

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        """Committed entries of the audit log, the newest first. May be called in a thread."""

    def failures(self, wanted: FailureQuestion) -> Failures:
        """Failed jobs on record, grouped by error. May take a while; call it in a thread."""

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        """The number of failed jobs on record by code and queue. Call it in a thread."""

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        """Committed samples of a time range, in order, of one queue or of all. With a queue, the
        last sample before the range comes first, to show the initial state. May be called in a
        thread.
        """

    def facts(self) -> dict[str, str | int]:
        """Facts for the operator: kind, path, sizes, versions."""


class Keeping(Protocol):
    """What is stored besides jobs, and upkeep of the store."""

    def take_audit_seq(self) -> int:
        """The number of the next entry of the audit log."""

    def keep_audit(self, entry: AuditEntry) -> None:
        """Adds an entry of the audit log to the open batch, replacing one of the same number."""

    def keep_bulk(self, bulk: "Bulk") -> None:
        """Adds the present state of a bulk operation to the open batch."""

    def keep_samples(self, samples: Sequence[StoredSample]) -> None:
        """Adds samples to the open batch, replacing earlier ones of the same span and queue."""

    def prune(self, now: int, count_max: int) -> int:
        """Drops a slice of records and results that are past their retention; returns how many."""

    def begin_sweep(self) -> None:
        """Begins to look for data that no job refers to any more. Call ``find_unused`` once
        everything decided so far is committed, then ``end_sweep``.
        """

    def find_unused(self) -> Sequence[int]:
        """Data that no committed job refers to. Takes a while; call it in a thread."""

    def end_sweep(self, unused: Sequence[int]) -> int:
        """Drops what was found, unless it was used meanwhile; returns how many."""

    def reserve_positions(self, position: int) -> None:
        """Skips all positions up to this one, which imported jobs have."""

    def begin_graph(self, namespace: str, serial: int) -> None:
        """Makes the open graph of a namespace begin with this serial, because part of it was
        imported.
        """

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copies the store while it is in use; yields (pages left, total pages)."""


class Store(Committing, Reading, Keeping, Protocol):
    """Everything a store provides."""


class Mirrored(Store, Protocol):
    """A store on a database that several servers share. One of them decides; the others show what
    it decided.
    """

    def mirror(self) -> "Mirror":
        """Keeps the live jobs as those of the server that decides."""

    def original(self) -> "Original":
        """The live jobs, for others to mirror."""

    passed_on_bytes: Callable[[], int]  # of commands that wait for another server

    def applied_number(self) -> int:
        """The number of the last batch whose records can be read in the database."""

    def hurry(self) -> int:
        """Has everything durable applied soon; returns the number of its last batch."""

    def apply_lag_seconds(self) -> float:
        """The age of the oldest batch that is durable and cannot be read there yet."""

    def applied_seq(self) -> int:
        """The number of the last event that can be read there."""

    def follow(self, last_seq: int, applied_seq: int) -> None:
        """The server that decides has published events up to ``last_seq``."""

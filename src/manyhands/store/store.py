"""The contract of a store: load, write, commit; and what can be asked of the records.

A store never decides. The dispatcher asks it for a view (``load``), lets the engine decide, hands
the effects over (``write``), and commits whatever gathered. Commits finish in order; whoever asks
for records is shown all that was committed before. A store that keeps jobs elsewhere (a database
shared by several servers) fills its view in ``load``; one that keeps them here gives its index.
Nothing in here may know of asyncio or of protocols.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from manyhands.engine.effects import Effects
from manyhands.engine.view import View
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Command
from manyhands.model.events import Event
from manyhands.model.failures import Group
from manyhands.model.history import StoredSample
from manyhands.model.job import Job, State
from manyhands.store.batch import Batch
from manyhands.store.index import Index

if TYPE_CHECKING:
    from manyhands.store.bulk import Bulk

# An effort's end, where nobody says otherwise.
SEARCH_SECONDS_MAX: Final = 2.0


class StoreError(Exception):
    """The store cannot be opened, or cannot go on. Its text says what to do."""


class StoreFailedError(StoreError):
    """A write or a sync failed: nothing more may be acknowledged."""


class Order(enum.StrEnum):
    """Order of a listing, by arrival."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs a listing shows. All conditions must hold."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    tag: str | None = None
    worker: str | None = None  # the present holder's name, or that of an earlier attempt
    realm: str | None = None  # the front that submitted it
    unique_key: bytes | None = None
    name: str | None = None
    submitted_before: int | None = None
    submitted_after: int | None = None
    failure: str | None = None  # the id of a group of failures
    failure_code: str | None = None  # the code of the failure that a job ended with
    text: str | None = None  # bytes that occur in the payload, as UTF-8
    order: Order = Order.NEWEST
    after: int | None = None  # serial of the last job of the page before
    count_max: int = 100
    # Show no more of a payload than this, and no results: enough to tell jobs apart, whatever
    # their size. None: everything.
    payload_bytes: int | None = None


class Page(Struct, frozen=True):
    """Part of a listing. ``next``: the cursor of the following page; None: this was the last.
    ``complete`` is False if the search stopped at its bound: go on from ``next``.
    """

    jobs: tuple[Job, ...]
    next: int | None
    complete: bool = True


class FailureGroup(Struct, frozen=True):
    """Jobs on record that failed alike."""

    group: Group
    count: int
    first_at: int
    last_at: int
    trend: tuple[int, ...]  # how many in each of the last 24 hours, the present one last
    queues: tuple[tuple[str, int], ...]  # where most of them are
    job_ids: tuple[str, ...]  # the newest


class Failures(Struct, frozen=True):
    """The largest groups, or the latest; and how much there is in all."""

    groups: tuple[FailureGroup, ...]
    groups_count: int
    failed_count: int


class FailureQuestion(Struct, frozen=True, kw_only=True):
    """Which groups are wanted."""

    now: int
    queue: str | None = None
    latest_first: bool = False  # else the largest
    count_max: int = 100
    group_id: str | None = None  # only this one


class Counted(Struct, frozen=True):
    """How many jobs a filter finds by state. Not ``complete``: there may be more of each."""

    counts: dict[State, int]
    complete: bool = True


class Selection(Struct, frozen=True):
    """Part of what a filter finds, by serial and id; ``next`` and ``complete`` as in a page."""

    jobs: tuple[tuple[int, str], ...]
    next: int | None
    complete: bool = True


class StoredEvent(Struct, frozen=True):
    """An event and its place in the log."""

    seq: int
    event: Event


class PartialResult(Struct, frozen=True):
    """A piece of a result, as it was kept."""

    number: int
    at: int
    payload: bytes
    warning: bool


class Store(Protocol):
    """Where jobs are kept."""

    index: Index
    bulks: dict[str, "Bulk"]  # operations on many jobs that run or ran, the oldest first
    alive_at: int | None  # server time of the last commit before this start; None: a new store

    def load(self, command: Command) -> View:
        """What the command may look at."""

    def write(self, effects: Effects) -> None:
        """Make the effects true here, and part of the open batch."""

    def is_unsaved(self, job_id: str) -> bool:
        """Whether the job's present value has not been committed yet."""

    def touch(self) -> None:
        """Let the next commit happen even if nothing changed: it tells that the server lives."""

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        """Seal the open batch and send it to be made durable; None if there was nothing in it.
        ``at_once``: it may be made durable right here, if that is quickly done.
        """

    def fileno(self) -> int | None:
        """Readable when a commit may have finished; None: all are durable at once."""

    def has_unsent(self) -> bool:
        """Part of a batch still waits for room on the way to the writer."""

    def send_more(self) -> None:
        """Send what waits, without blocking."""

    def finish_commits(self) -> int:
        """The number of the last batch that is durable. Raises StoreFailedError if one failed."""

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """Committed events in order."""

    def last_seq(self) -> int:
        """The sequence number of the newest committed event; 0: none."""

    def first_seq(self) -> int:
        """The sequence number of the oldest event that is still kept."""

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        """A page of a listing, from committed records. May take a while: call it in a thread."""

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        """How many jobs there are by state that fit in everything but their state. May take as
        long as is said: call it in a thread.
        """

    def select(self, wanted: Filter) -> Selection:
        """The same, without the jobs themselves."""

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        """The kept pieces of a job's result."""

    def find(self, job_id: str) -> Job | None:
        """A committed job by its id, by its uid, finished or not. May be called in a thread."""

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        """The latest committed jobs that ended under these names, whatever graph they were of.
        May take a while: call it in a thread.
        """

    def take_audit_seq(self) -> int:
        """The number of the next entry of the audit log."""

    def keep_audit(self, entry: AuditEntry) -> None:
        """Let the open batch keep an entry of the audit log, in place of one of its number."""

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        """Committed entries of the audit log, the newest first. May be called in a thread."""

    def keep_bulk(self, bulk: "Bulk") -> None:
        """Let the open batch keep an operation on many jobs as it is now."""

    def failures(self, wanted: FailureQuestion) -> Failures:
        """Failed jobs on record, by what went wrong. May take a while: call it in a thread."""

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        """How many failed jobs are on record by code and queue. Call it in a thread."""

    def keep_samples(self, samples: Sequence[StoredSample]) -> None:
        """Let the open batch keep these, in place of earlier ones of the same span and queue."""

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        """Committed samples of a time, in its order; of one queue, or of all. With a queue, the
        last one before that time comes first: it tells how things stood. May be called in a
        thread.
        """

    def prune(self, now: int, count_max: int) -> int:
        """Drop a slice of records and results that outlived their retention; gives how many."""

    def begin_sweep(self) -> None:
        """Begin to look for what no job refers to any more. ``find_unused`` comes when everything
        that was decided up to now is committed, ``end_sweep`` after it.
        """

    def find_unused(self) -> Sequence[int]:
        """What no committed job refers to. Takes a while: call it in a thread."""

    def end_sweep(self, unused: Sequence[int]) -> int:
        """Drop what was found, unless it was used meanwhile; gives how many."""

    def is_in_place(self) -> bool:
        """Whether what it writes to is still where it is looked for. If not, it has failed."""

    def free_bytes(self) -> int | None:
        """Room left where the store writes; None: it does not matter."""

    def facts(self) -> dict[str, str | int]:
        """What an operator wants to know: kind, path, sizes, versions."""

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store while it is in use; yields (pages left, pages in all)."""

    def close(self) -> None:
        """Let go. Whatever was not committed is not there at the next start."""

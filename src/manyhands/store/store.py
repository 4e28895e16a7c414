"""The contract of a store: load, write, commit; and what can be asked of the records.

A store never decides. The dispatcher asks it for a view (``load``), lets the engine decide, hands
the effects over (``write``), and commits whatever gathered. Commits finish in order; whoever asks
for records is shown all that was committed before. A store that keeps jobs elsewhere (a database
shared by several servers) fills its view in ``load``; one that keeps them here gives its index.
Nothing in here may know of asyncio or of protocols.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from manyhands.engine.effects import Effects
from manyhands.engine.view import View
from manyhands.model.commands import Command
from manyhands.model.events import Event
from manyhands.model.history import StoredSample
from manyhands.model.job import Job, State
from manyhands.store.batch import Batch
from manyhands.store.index import Index


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
    text: str | None = None  # bytes that occur in the payload, as UTF-8
    order: Order = Order.NEWEST
    after: int | None = None  # serial of the last job of the page before
    count_max: int = 100


class Page(Struct, frozen=True):
    """Part of a listing. ``next``: the cursor of the following page; None: this was the last.
    ``complete`` is False if the search stopped at its bound: go on from ``next``.
    """

    jobs: tuple[Job, ...]
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
    alive_at: int | None  # server time of the last commit before this start; None: a new store

    def load(self, command: Command) -> View:
        """What the command may look at."""

    def write(self, effects: Effects) -> None:
        """Make the effects true here, and part of the open batch."""

    def is_unsaved(self, job_id: str) -> bool:
        """Whether the job's present value has not been committed yet."""

    def touch(self) -> None:
        """Let the next commit happen even if nothing changed: it tells that the server lives."""

    def begin_commit(self, now: int) -> Batch | None:
        """Seal the open batch and send it to be made durable; None if there was nothing in it."""

    def fileno(self) -> int | None:
        """Readable when a commit may have finished; None: commits finish at once."""

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

    def search(self, wanted: Filter) -> Page:
        """A page of a listing, from committed records. May take a while: call it in a thread."""

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        """The kept pieces of a job's result."""

    def find(self, job_id: str) -> Job | None:
        """A committed job by its id, by its uid, finished or not. May be called in a thread."""

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

    def free_bytes(self) -> int | None:
        """Room left where the store writes; None: it does not matter."""

    def facts(self) -> dict[str, str | int]:
        """What an operator wants to know: kind, path, sizes, versions."""

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store while it is in use; yields (pages left, pages in all)."""

    def close(self) -> None:
        """Let go. Whatever was not committed is not there at the next start."""

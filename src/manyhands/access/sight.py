"""The store as a caller with queue patterns sees it: its queues, their jobs, and nothing else.

Whatever shows jobs reads them here, so that a page or an answer cannot forget to leave some out.
What these classes lack is not for showing.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from manyhands.dispatch.sleepers import Sleeper, Sleepers
from manyhands.engine.view import View
from manyhands.model.filter import Filter
from manyhands.model.history import StoredSample
from manyhands.model.job import Holder, Job, Schedule, State
from manyhands.model.policy import NamedLimit, Queue
from manyhands.model.roles import Caller
from manyhands.store.contract import (
    SEARCH_SECONDS_MAX,
    Counted,
    FailureQuestion,
    Failures,
    Live,
    Page,
    PartialResult,
    QueueFacts,
    Selection,
    Store,
)

V = TypeVar("V")


class SeenQueues(Mapping[str, V]):
    """Those of a mapping by queue that the caller may use."""

    def __init__(self, whole: Mapping[str, V], caller: Caller) -> None:
        self._whole = whole
        self._may_use = caller.may_use

    def __getitem__(self, name: str) -> V:
        if not self._may_use(name):
            raise KeyError(name)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return filter(self._may_use, self._whole)

    def __len__(self) -> int:
        return sum(map(self._may_use, self._whole))


class SeenLive:
    """Unfinished jobs and settings."""

    def __init__(self, live: Live, caller: Caller) -> None:
        self._live = live
        self._caller = caller
        self.queues: Mapping[str, QueueFacts] = SeenQueues(live.queues, caller)

    @property
    def view(self) -> View:
        """For commands, which the gate judges."""
        return self._live.view

    # Queues and settings.

    def queue(self, name: str) -> Queue | None:
        """The settings of a known queue."""
        return self._live.queue(name) if self._caller.may_use(name) else None

    @property
    def limits(self) -> Mapping[str, NamedLimit]:
        """Named limits belong to no queue."""
        return self._live.limits

    def limit_used(self, name: str) -> int:
        """Live leases that count against a named limit."""
        return self._live.limit_used(name)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Schedules of these queues."""
        may_use = self._caller.may_use
        return {name: row for name, row in self._live.schedules.items() if may_use(row.queue)}

    # Jobs.

    def job(self, job_id: str) -> Job | None:
        """Any job still on record."""
        return self._seen(self._live.job(job_id))

    def live_job(self, job_id: str) -> Job | None:
        """An unfinished job, or a finished one that is still needed."""
        return self._seen(self._live.live_job(job_id))

    def job_by_uid(self, uid: str) -> Job | None:
        """The same by its uid."""
        return self._seen(self._live.job_by_uid(uid))

    def named(self, namespace: str, name: str) -> str | None:
        """The id that a name refers to."""
        job_id = self._live.named(namespace, name)
        return None if job_id is None or self.job(job_id) is None else job_id

    def dependants(self, key: str) -> Sequence[str]:
        """Ids of unfinished jobs that wait for this one."""
        return [job_id for job_id in self._live.dependants(key) if self.live_job(job_id)]

    def awaited_keys(self, count_max: int) -> list[str]:
        """What unfinished jobs wait for; their own queues decide, in ``dependants``."""
        return self._live.awaited_keys(count_max)

    def is_lost(self, key: str) -> bool:
        """Whether that has ended without success."""
        return self._live.is_lost(key)

    def retrying_counts(self, queue: str) -> Mapping[State, int]:
        """How many jobs of a queue are tried again."""
        may_use = self._caller.may_use(queue)
        return self._live.retrying_counts(queue) if may_use else MappingProxyType({})

    def retrying_queues(self) -> Mapping[str, Mapping[State, int]]:
        """The same of every queue that has such jobs."""
        return SeenQueues(self._live.retrying_queues(), self._caller)

    def retried_jobs(self, count_max: int) -> list[Job]:
        """Those jobs."""
        return [job for job in self._live.retried_jobs(count_max) if self._seen(job)]

    # Workers.

    def leased_by_holder(self, holder: Holder) -> Sequence[str]:
        """Ids of jobs that a worker holds."""
        return [job_id for job_id in self._live.leased_by_holder(holder) if self.live_job(job_id)]

    def holders(self) -> dict[tuple[str, str | None], list[Job]]:
        """Workers that hold jobs of these queues, with those jobs."""
        found = {}
        for key, jobs in self._live.holders().items():
            seen = [job for job in jobs if self._seen(job)]
            if seen:
                found[key] = seen
        return found

    def workers(self, workers_max: int, jobs_max: int) -> list[tuple[Holder, int, list[Job]]]:
        """Some of them; a connection counts as one worker."""
        return [
            (lease.holder, len(jobs), jobs[:jobs_max])
            for jobs in self._by_worker()[:workers_max]
            if (lease := jobs[0].lease) is not None
        ]

    def workers_count(self) -> int:
        """How many they are."""
        return len(self._by_worker())

    def _by_worker(self) -> list[list[Job]]:
        found: dict[Any, list[Job]] = {}
        for key, jobs in self.holders().items():
            for job in jobs:
                connection = None if job.lease is None else job.lease.connection
                found.setdefault((*key, connection), []).append(job)
        return list(found.values())

    def _seen(self, job: Job | None) -> Job | None:
        return job if job is not None and self._caller.may_use(job.queue) else None


class SeenStore:
    """Records and live jobs."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._caller = caller
        self.live = SeenLive(store.live, caller)
        self.bulks: Mapping[str, Any] = {}  # they change jobs of any queue

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        """A page of a listing."""
        return self._store.search(self._limited(wanted), seconds_max)

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        """The number of jobs by state that match the filter."""
        return self._store.count(self._limited(wanted), seconds_max)

    def select(self, wanted: Filter) -> Selection:
        """Like ``search``, without the jobs themselves."""
        return self._store.select(self._limited(wanted))

    def _limited(self, wanted: Filter) -> Filter:
        return replace(wanted, seen_by=self._caller)

    def find(self, job_id: str) -> Job | None:
        """A committed job."""
        job = self._store.find(job_id)
        return job if job is not None and self._caller.may_use(job.queue) else None

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        """What was reported about a job."""
        return [] if self.find(job_id) is None else self._store.partials(job_id)

    def failures(self, wanted: FailureQuestion) -> Failures:
        """Failed jobs on record, grouped by error."""
        return self._store.failures(replace(wanted, patterns=self._caller.queues))

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        """The number of failed jobs by code and queue."""
        return [row for row in self._store.failure_codes() if self._caller.may_use(row[1])]

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        """Samples of one queue or of all that are seen, each by itself."""
        may_use = self._caller.may_use
        if queue is not None and not may_use(queue):
            return []
        rows = self._store.samples(step_ms, since, until, queue)
        return [row for row in rows if row.queue and may_use(row.queue)]

    def first_seq(self) -> int:
        """The number of the oldest stored event."""
        return self._store.first_seq()

    def facts(self) -> dict[str, str | int]:
        """Facts about the store as a whole."""
        return self._store.facts()

    def free_bytes(self) -> int | None:
        """Free space where the store writes."""
        return self._store.free_bytes()


class SeenSleepers:
    """Workers that wait for work in these queues."""

    def __init__(self, sleepers: Sleepers, caller: Caller) -> None:
        self._sleepers = sleepers
        self._may_use = caller.may_use

    @property
    def count(self) -> int:
        """How many there are with a name."""
        return len(self.known(self._sleepers.count))

    def is_wanted(self, queue: str) -> bool:
        """Whether this queue has a sleeper."""
        return self._may_use(queue) and self._sleepers.is_wanted(queue)

    def known(self, count_max: int) -> list[Sleeper]:
        """Those with a name, and what they wait for of these queues."""
        found: list[Sleeper] = []
        for sleeper in self._sleepers.known(self._sleepers.count):
            queues = [queue for queue in sleeper.queues if self._may_use(queue)]
            if queues and len(found) < count_max:
                found.append(Sleeper(queues, sleeper.wake, sleeper.holder, sleeper.hands))
        return found

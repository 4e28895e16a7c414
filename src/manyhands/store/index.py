"""The live jobs in memory, and every way to find them that a decision needs.

An index answers the engine's questions (``engine/view.py``) and takes in its effects. It holds no
rule: whatever it keeps can be worked out again from the jobs themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from manyhands.engine.effects import Settings
from manyhands.engine.timers import due_at
from manyhands.model.events import Cursor
from manyhands.model.identity import is_job_id, name_key, uid_of
from manyhands.model.job import FINISHED, Holder, Job, Schedule, State, Untold
from manyhands.model.policy import NamedLimit, Queue
from manyhands.store.due import Due
from manyhands.store.keys import Keys
from manyhands.store.leases import Leases
from manyhands.store.namespaces import Namespaces
from manyhands.store.ready import ReadyQueue
from manyhands.store.tables import Table, add, discard

_READY: Final = State.READY
_LEASED: Final = State.LEASED


class QueueIndex:
    """One queue: its settings, its ready jobs, its counts."""

    __slots__ = ("counts", "keys", "queue", "ready")

    def __init__(self, queue: Queue, current: Callable[[str], Job | None]) -> None:
        self.queue = queue
        self.ready = ReadyQueue(queue.name, current)
        self.counts: dict[State, int] = dict.fromkeys(State, 0)  # all on record, finished too
        self.keys = Keys()

    @property
    def unfinished_count(self) -> int:
        """Jobs that have not finished."""
        counts = self.counts
        return counts[State.BLOCKED] + counts[State.DELAYED] + counts[_READY] + counts[_LEASED]


class Index:
    """All unfinished jobs, and finished ones as long as something needs them here."""

    def __init__(self, read_finished: Callable[[str], Job | None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, QueueIndex] = {}
        self.limits: dict[str, NamedLimit] = {}
        self.schedules: dict[str, Schedule] = {}
        self.cursors: dict[str, Cursor] = {}
        # Ended jobs with dependants that have not heard of it. One table for life.
        self.untold: dict[str, Untold] = {}
        self._forgotten_counts: dict[str, dict[State, int]] = {}  # of queues with records only
        self.serial = 0  # of the job that was stored last
        self.position = 0
        self._read_finished = read_finished
        self._get = self.jobs.get
        self._dependants: Table[str] = {}
        self._odd_uids: dict[str, str] = {}
        self._by_waiter: Table[str] = {}
        self._unwanted: dict[str, None] = {}  # jobs without durable interest
        self.namespaces = Namespaces(self._get, self._drop)
        self._names = self.namespaces.names
        self.leases = Leases()
        self.due_times = Due(self._get)
        self._put_lease = self.leases.put
        self._due_entries = self.due_times.entries

    # The engine's questions.

    def job(self, job_id: str) -> Job | None:
        job = self._get(job_id)
        if job is not None:
            return job
        if job_id in self._odd_uids:
            return self._get(self._odd_uids[job_id])
        if "\0" in job_id:
            return self._job_by_name(job_id)
        return self._read_finished(job_id)

    def _job_by_name(self, key: str) -> Job | None:
        """What a name key means: the job of that name, else the job whose id stands there."""
        namespace, _, name = key.partition("\0")
        names = self._names.get(namespace)
        job_id = names.get(name) if names is not None else None
        if job_id is not None:
            return self._get(job_id) or self.job(job_id)
        return self.job(name) if is_job_id(name) else None

    def key_holder(self, queue: str, key: bytes) -> str | None:
        found = self.queues.get(queue)
        return found.keys.get(key) if found is not None else None

    def key_holder_anywhere(self, key: bytes) -> str | None:
        for queue in self.queues.values():
            job_id = queue.keys.get(key)
            if job_id is not None:
                return job_id
        return None

    def named(self, namespace: str, name: str) -> str | None:
        return self.namespaces.named(namespace, name)

    def is_awaited(self, job: Job) -> bool:
        table = self._dependants
        if not table:
            return False
        name = job.name
        return job.job_id in table or (
            name is not None and name_key(job.namespace or "", name) in table
        )

    def dependants(self, key: str) -> Sequence[str]:
        found = self._dependants.get(key)
        return tuple(found) if found is not None else ()

    def untold_of(self, job_id: str) -> Untold | None:
        return self.untold.get(job_id)

    def last_serial(self) -> int:
        return self.serial

    def first_ready(self, queue: str) -> Job | None:
        return self.queues[queue].ready.first()

    def ready(self, queue: str) -> Iterator[Job]:
        return iter(self.queues[queue].ready)

    def queue(self, name: str) -> Queue | None:
        found = self.queues.get(name)
        return found.queue if found is not None else None

    def queues_count(self) -> int:
        return len(self.queues)

    def unfinished_count(self, queue: str) -> int:
        found = self.queues.get(queue)
        return found.unfinished_count if found is not None else 0

    def leased_count(self, queue: str) -> int:
        return self.queues[queue].counts[_LEASED]

    def limit(self, name: str) -> NamedLimit | None:
        return self.limits.get(name)

    def limit_used(self, name: str) -> int:
        return self.leases.limits_used.get(name, 0)

    def leased_by_connection(self, connection: str) -> Sequence[str]:
        return self.leases.of_connection(connection)

    def leased_by_holder(self, holder: Holder) -> Sequence[str]:
        return self.leases.of_holder(holder)

    def has_leases(self) -> bool:
        """Whether anybody holds anything."""
        return self.leases.workers_count() > 0

    def leased(self) -> Iterable[str]:
        return self.leases.all()

    def waited_by(self, waiter: str) -> Sequence[str]:
        return tuple(self._by_waiter.get(waiter, ()))

    def waited(self) -> Iterable[str]:
        ids = dict.fromkeys(job_id for ids in self._by_waiter.values() for job_id in ids)
        ids.update(self._unwanted)
        return list(ids)

    def schedule(self, schedule_id: str) -> Schedule | None:
        return self.schedules.get(schedule_id)

    def schedules_count(self) -> int:
        return len(self.schedules)

    def take_position(self) -> int:
        self.position += 1
        return self.position

    def due(self, now: int, count_max: int) -> Sequence[str]:
        return self.due_times.until(now, count_max)

    def job_by_uid(self, uid: str) -> Job | None:
        """An unfinished job whose own id has not 32 digits."""
        job_id = self._odd_uids.get(uid)
        return self._get(job_id) if job_id is not None else None

    # Taking in what was decided.

    def take_back(self, job_id: str) -> Job:
        """A finished job that was let go of is about to change: have its last value here."""
        job = self._read_finished(job_id)
        assert job is not None
        self.keep(job)
        return job

    def keep(self, job: Job) -> None:
        """Have a finished job here that is counted already. Its name points to it again, unless
        a later job has taken the name.
        """
        self.jobs[job.job_id] = job
        if job.name is not None:
            self.namespaces.point(job, job.name)
        if len(job.job_id) != 32:
            self._odd_uids[uid_of(job.job_id)] = job.job_id

    def take_settings(self, settings: Settings) -> None:
        """Limits, schedules, cursors and forgotten queues of one command."""
        self.limits.update((limit.name, limit) for limit in settings.limits)
        for name in settings.removed_limits:
            self.limits.pop(name, None)
        self.schedules.update(settings.schedules)
        for schedule_id in settings.removed_schedules:
            self.schedules.pop(schedule_id, None)
        self.cursors.update(settings.cursors)
        for name in settings.removed_cursors:
            self.cursors.pop(name, None)
        for job_id, untold in settings.untold.items():
            if untold is not None:
                self.untold[job_id] = untold
            else:
                self.untold.pop(job_id, None)
        for name in settings.forgotten_queues:
            queue = self.queues.pop(name, None)
            if queue is not None:
                self._forgotten_counts[name] = queue.counts

    def put_queue(self, queue: Queue) -> None:
        """A queue with these settings."""
        found = self.queues.get(queue.name)
        if found is None:
            found = self.queues[queue.name] = QueueIndex(queue, self._get)
            found.counts.update(self._forgotten_counts.pop(queue.name, {}))
        else:
            found.queue = queue

    def _revive(self, name: str) -> QueueIndex:
        """A queue that was forgotten while it still had records: one of them changes."""
        self.put_queue(Queue(name))
        return self.queues[name]

    def put(self, job: Job) -> None:
        """A job with this value, replacing the one before."""
        self.change(self._get(job.job_id), job)

    def change(self, old: Job | None, job: Job) -> None:  # noqa: C901 - the hot path: one look
        """``put`` for who knows the value before."""
        job_id = job.job_id
        self.jobs[job_id] = job
        queue = self.queues.get(job.queue) or self._revive(job.queue)
        state = job.state
        lease = job.lease
        if old is None:
            self._put_new(job, queue)
            if lease is not None:
                self._put_lease(None, job)
            if job.waits_for:
                self._put_edges(None, job)
            if job.waiters or not job.durable_interest:
                self._put_waiters(None, job)
        else:
            if (
                old.state is not state
                or old.queue != job.queue
                or old.incarnation != job.incarnation  # ended and submitted again by one command
            ):
                self._move(old, job, queue)
            elif state is _READY and (old.position != job.position or old.priority != job.priority):
                queue.ready.add(job)
            if old.lease is not lease:
                self._put_lease(old, job)
            if job.waits_for or old.waits_for:
                self._put_edges(old, job)
            if job.waiters or not job.durable_interest or old.waiters or not old.durable_interest:
                self._put_waiters(old, job)
        # Nothing is ever due for most jobs, and for those that have finished.
        if (
            job.deadline_at is not None
            or job.run_at is not None
            or (lease is not None and (lease.expires_at is not None or lease.cutoff_at is not None))
        ):
            instant = due_at(job)
            if instant is not None:
                self.due_times.put(instant, job_id)
                return
        if self._due_entries and job_id in self._due_entries:
            self.due_times.drop(job_id)

    def _move(self, old: Job, job: Job, queue: QueueIndex) -> None:
        """From one state, queue or incarnation to the next."""
        state, was = job.state, old.state
        before = queue
        if old.queue != job.queue:
            before = self.queues.get(old.queue) or self._revive(old.queue)
        before.counts[was] -= 1
        queue.counts[state] += 1
        if was is _READY:
            before.ready.leave(old)
        if state is _READY:
            queue.ready.count += 1
            queue.ready.add(job)
        key = job.unique_key
        if key is not old.unique_key or (
            key is not None and (before is not queue or state in FINISHED or was in FINISHED)
        ):
            self._move_key(old, job, before, queue)
        if job.namespace is not None and (state in FINISHED) is not (was in FINISHED):
            self.namespaces.count(job, job.namespace, self.serial + 1)
        if job.name is not None and old.incarnation != job.incarnation:
            self.namespaces.point(job, job.name)

    def _put_new(self, job: Job, queue: QueueIndex) -> None:
        state, key = job.state, job.unique_key
        queue.counts[state] += 1
        if state is _READY:
            queue.ready.count += 1
            queue.ready.add(job)
        if key is not None and state not in FINISHED:
            queue.keys.put(key, job.job_id)
        if job.namespace is not None or job.name is not None:
            self.namespaces.put_new(job)
        if len(job.job_id) != 32:
            self._odd_uids[uid_of(job.job_id)] = job.job_id

    def _move_key(self, old: Job, job: Job, before: QueueIndex, queue: QueueIndex) -> None:
        key = old.unique_key
        if key is not None:
            before.keys.drop(key, job.job_id)
        if job.unique_key is not None and job.state not in FINISHED:
            queue.keys.put(job.unique_key, job.job_id)

    def _put_edges(self, old: Job | None, job: Job) -> None:
        before = old.waits_for if old is not None and old.state not in FINISHED else ()
        after = job.waits_for if job.state not in FINISHED else ()
        if before is after:
            return
        for key in before:
            if key not in after:
                discard(self._dependants, key, job.job_id)
        for key in after:
            add(self._dependants, key, job.job_id)

    def _put_waiters(self, old: Job | None, job: Job) -> None:
        before = old.waiters if old is not None else ()
        after = job.waiters
        if before is not after:
            fresh: Iterable[str]
            if after[: len(before)] == before:
                fresh = after[len(before) :]  # joiners; thousands may wait for one job
            else:
                there, here = set(before), set(after)
                for waiter in there - here:
                    discard(self._by_waiter, waiter, job.job_id)
                fresh = here - there
            for waiter in fresh:
                add(self._by_waiter, waiter, job.job_id)
        if job.durable_interest or job.state in FINISHED:
            if self._unwanted:
                self._unwanted.pop(job.job_id, None)
        else:
            self._unwanted[job.job_id] = None

    def forget(self, job: Job) -> None:
        """Let go of a finished job that is safely stored. Names of a graph that is still being
        worked on stay, with their outcome, until the last job of the graph has finished.
        """
        if job.namespace is None or not self.namespaces.keeps(job):
            self._drop(job.job_id)

    def _drop(self, job_id: str) -> None:
        job = self._get(job_id)
        if job is None or job.state not in FINISHED:
            return
        del self.jobs[job_id]
        if job.name is not None:
            self.namespaces.forget(job)
        if len(job_id) != 32:
            self._odd_uids.pop(uid_of(job_id), None)

    def counts_of(self, queue: str) -> dict[State, int]:
        """Jobs on record by state, also of a queue that was forgotten while it had records."""
        found = self.queues.get(queue)
        if found is not None:
            return found.counts
        return self._forgotten_counts.setdefault(queue, dict.fromkeys(State, 0))

    def recorded_queues(self) -> list[str]:
        """Names of all queues that may have jobs on record."""
        return [*self.queues, *self._forgotten_counts]

    def holders(self) -> dict[tuple[str, str | None], list[Job]]:
        """Workers that hold leases, by realm and name, with what they hold."""
        found: dict[tuple[str, str | None], list[Job]] = {}
        for job_id in self.leased():
            job = self.jobs[job_id]
            assert job.lease is not None
            holder = job.lease.holder
            found.setdefault((holder.realm, holder.name), []).append(job)
        return found

    def workers(self, workers_max: int, jobs_max: int) -> list[tuple[Holder, int, list[Job]]]:
        """Some of those who hold leases: who, how many, and a few of them. Unlike ``holders`` its
        cost does not grow with the number of leases; a connection counts as one worker.
        """
        found: list[tuple[Holder, int, list[Job]]] = []
        for count, ids in self.leases.some(workers_max, jobs_max):
            jobs = [self.jobs[job_id] for job_id in ids]
            lease = jobs[0].lease
            assert lease is not None
            found.append((lease.holder, count, jobs))
        return found

    def workers_count(self) -> int:
        """How many hold leases."""
        return self.leases.workers_count()

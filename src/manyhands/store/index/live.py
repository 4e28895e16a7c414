"""The live jobs in memory, with every lookup that a decision needs.

An index answers the engine's queries (``engine/view.py``) and takes in its effects. It holds no
rules: everything in it can be computed again from the jobs themselves.

Plain jobs are kept as their values (``model/plain.py``); whoever looks at one gets an ordinary job,
made on the spot, one at a time. A change other than the steps of plain jobs replaces the value by
the changed job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import force_setattr, replace

from manyhands.engine.effects import Settings
from manyhands.engine.timers import due_at, lease_ends_at
from manyhands.engine.view import View
from manyhands.model import limits
from manyhands.model.events import Cursor
from manyhands.model.identity import is_job_id, name_key, uid_of
from manyhands.model.job import FINISHED, Holder, Job, Schedule, State, Unnotified
from manyhands.model.plain import Plain, PlainCompleted, PlainLeased, PlainReady, job_of
from manyhands.model.policy import NamedLimit, Queue
from manyhands.model.receipts import Receipt
from manyhands.model.roles import fits_any
from manyhands.store.index.due import Due
from manyhands.store.index.keys import Keys
from manyhands.store.index.leases import Leases
from manyhands.store.index.namespaces import Namespaces
from manyhands.store.index.ready import ReadyQueue
from manyhands.store.index.retrying import Retrying
from manyhands.store.index.tables import Table, add, discard

_READY: Final = State.READY
_LEASED: Final = State.LEASED
_COMPLETED: Final = State.COMPLETED
_LOST: Final = frozenset({State.FAILED, State.CANCELLED})
_JOB_BYTES: Final = limits.JOB_BYTES


class QueueIndex:
    """One queue: settings, ready jobs and counts."""

    __slots__ = ("all_ready", "counts", "first_ready", "key_holder", "keys", "queue", "ready")

    def __init__(self, queue: Queue, current: Callable[[str], Job | Plain | None]) -> None:
        self.queue = queue
        self.ready = ReadyQueue(queue.name, current)
        self.counts: dict[State, int] = dict.fromkeys(State, 0)  # all on record, finished too
        self.keys = Keys()
        self.key_holder = self.keys.get
        self.first_ready = self.ready.first
        self.all_ready = self.ready.__iter__

    @property
    def ready_count(self) -> int:
        """The number of ready jobs."""
        return self.ready.count

    def oldest_ready_at(self) -> int | None:
        """Since when the longest-waiting ready job has been ready."""
        return self.ready.oldest_at()

    def ready_by_priority(self) -> dict[float, int]:
        """The number of ready jobs of each priority."""
        return self.ready.count_by_priority()

    def ahead_of(self, job: Job) -> int:
        """How many ready jobs will be handed out before this one."""
        return self.ready.ahead_of(job)

    @property
    def unfinished_count(self) -> int:
        """The number of unfinished jobs."""
        counts = self.counts
        return counts[State.BLOCKED] + counts[State.DELAYED] + counts[_READY] + counts[_LEASED]


class Index:
    """All unfinished jobs, and finished ones while something still needs them in memory."""

    def __init__(self, read_finished: Callable[[str], Job | None]) -> None:
        self.values: dict[str, Job | Plain] = {}
        self.queues: dict[str, QueueIndex] = {}
        # Settings by table and name.
        self.settings: dict[str, dict[str, Any]] = {}
        self.limits: dict[str, NamedLimit] = self.settings.setdefault("limits", {})
        self.schedules: dict[str, Schedule] = self.settings.setdefault("schedules", {})
        self.cursors: dict[str, Cursor] = self.settings.setdefault("cursors", {})
        self._receipts: dict[str, Receipt] = {}  # the oldest first
        self._receipts_weight = 0
        # Finished jobs with dependants that have not been notified. The same object for life.
        self.unnotified: dict[str, Unnotified] = {}
        self._forgotten_counts: dict[str, dict[State, int]] = {}  # of queues with records only
        self.serial = 0  # of the job that was added last
        self.position = 0
        self.unfinished_bytes = 0  # of unfinished jobs, with their payloads
        self.finished_bytes = 0  # payloads and results of all finished jobs on record
        self._read_finished = read_finished
        self.value = self.values.get
        self.known_queue = self.queues.get
        self._dependants: Table[str] = {}
        self._odd_uids: dict[str, str] = {}
        self._by_waiter: Table[str] = {}
        self._unwanted: dict[str, None] = {}  # jobs without durable interest
        self._answers: dict[str, bool] = {}  # cached answers to queries about many jobs
        self.namespaces = Namespaces(self.live_job, self._drop)
        self._names = self.namespaces.names
        self.leases = Leases()
        self.due_times = Due(self.live_job)
        self.retrying = Retrying()
        self._put_lease = self.leases.put
        self._begin_lease = self.leases.begin
        self._end_lease = self.leases.end
        self.due_entries = self.due_times.entries

    @property
    def view(self) -> View:
        return self

    def clear(self) -> None:
        """Forgets everything. Tables stay the same objects: others refer to them."""
        for rows in self.settings.values():
            rows.clear()
        for table in (
            self.values,
            self.queues,
            self._receipts,
            self.unnotified,
            self._forgotten_counts,
            self._dependants,
            self._odd_uids,
            self._by_waiter,
            self._unwanted,
            self._answers,
        ):
            table.clear()
        self._receipts_weight = self.unfinished_bytes = self.finished_bytes = 0
        self.serial = self.position = 0
        self.namespaces.clear()
        self.leases.clear()
        self.due_times.clear()
        self.retrying.clear()

    # Queries of the engine.

    def live_job(self, job_id: str) -> Job | None:
        value = self.value(job_id)
        return value if value is None else job_of(value)

    def job(self, job_id: str) -> Job | None:
        value = self.value(job_id)
        if value is not None:
            return job_of(value)
        if job_id in self._odd_uids:
            return self.live_job(self._odd_uids[job_id])
        if "\0" in job_id:
            return self._job_by_name(job_id)
        return self._read_finished(job_id)

    def _job_by_name(self, key: str) -> Job | None:
        """The job that a name key refers to: the job of that name, else the job with that id."""
        namespace, _, name = key.partition("\0")
        names = self._names.get(namespace)
        job_id = names.get(name) if names is not None else None
        if job_id is not None:
            job = self.value(job_id)  # one with a name is never plain
            return job if type(job) is Job else self.job(job_id)
        return self.job(name) if is_job_id(name) else None

    def key_holder(self, queue: str, key: bytes) -> str | None:
        found = self.queues.get(queue)
        return found.keys.get(key) if found is not None else None

    def key_holder_anywhere(self, key: bytes, patterns: tuple[str, ...] = ()) -> str | None:
        for name, queue in self.queues.items():
            job_id = queue.keys.get(key)
            if job_id is not None and fits_any(patterns, name):
                return job_id
        return None

    def named(self, namespace: str, name: str) -> str | None:
        return self.namespaces.named(namespace, name)

    def forgotten_count(self, namespace: str) -> int:
        return self.namespaces.forgotten.get(namespace, 0)

    def is_awaited(self, job: Job) -> bool:
        table = self._dependants
        if not table:
            return False
        name = job.name
        return job.job_id in table or (
            name is not None and name_key(job.namespace or "", name) in table
        )

    def has_dependants(self, job_id: str) -> bool:
        return job_id in self._dependants

    def dependants(self, key: str) -> Sequence[str]:
        found = self._dependants.get(key)
        return tuple(found) if found is not None else ()

    def awaited_keys(self, count_max: int) -> list[str]:
        return list(islice(self._dependants, count_max))

    def is_lost(self, key: str) -> bool:
        namespace, is_name, name = key.partition("\0")
        job_id = self._names.get(namespace, {}).get(name, name) if is_name else key
        value = self.value(job_id)
        if value is None:
            return True
        return isinstance(value, Job) and value.state in _LOST and job_id not in self.unnotified

    def unnotified_of(self, job_id: str) -> Unnotified | None:
        return self.unnotified.get(job_id)

    def last_serial(self) -> int:
        return self.serial

    def first_ready(self, queue: str) -> Job | None:
        entry = self.queues[queue].ready.first()
        return entry if entry is None else job_of(entry)

    def ready(self, queue: str) -> Iterator[Job]:
        return map(job_of, self.queues[queue].ready)

    def queue(self, name: str) -> Queue | None:
        found = self.queues.get(name)
        return found.queue if found is not None else None

    def queues_count(self) -> int:
        return len(self.queues)

    def unfinished_count(self, queue: str) -> int:
        found = self.queues.get(queue)
        return found.unfinished_count if found is not None else 0

    def blocked_count(self, queue: str) -> int:
        found = self.queues.get(queue)
        return found.counts[State.BLOCKED] if found is not None else 0

    def blocked(self, queue: str) -> Iterator[Job]:
        for job in self.rare_jobs():
            if job.state is State.BLOCKED and job.queue == queue:
                yield job

    def while_unchanged(self, question: str, answer: Callable[[], bool]) -> bool:
        known = self._answers.get(question)
        if known is None:
            known = self._answers[question] = answer()
        return known

    def recorded_count(self, queue: str) -> int:
        found = self.queues.get(queue)
        return sum(found.counts.values()) if found is not None else 0

    def has_finished(self) -> bool:
        known = self.queues.values()
        return bool(self._forgotten_counts) or any(
            queue.counts[state] for queue in known for state in FINISHED
        )

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
        """Whether any job is leased."""
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

    def receipt(self, key: str) -> Receipt | None:
        return self._receipts.get(key)

    def receipts_weight(self) -> int:
        return self._receipts_weight

    def oldest_receipts(self, count_max: int) -> Sequence[tuple[str, Receipt]]:
        return list(islice(self._receipts.items(), count_max))

    def take_position(self) -> int:
        self.position += 1
        return self.position

    def due(self, now: int, count_max: int) -> Sequence[str]:
        return self.due_times.until(now, count_max)

    def next_due_at(self) -> int | None:
        return self.due_times.next_at()

    def graph_endings(self, namespace: str) -> dict[State, int]:
        return self.namespaces.endings(namespace)

    def graph_losses(self, namespace: str) -> dict[str, State]:
        return self.namespaces.lost.get(namespace, {})

    @property
    def jobs(self) -> dict[str, Job]:
        """All live jobs by id: a copy. A search in memory reads them in a thread, hence the first
        copy, which nothing can interrupt.
        """
        return {job_id: job_of(value) for job_id, value in self.values.copy().items()}

    def live_jobs(self) -> Iterable[Job]:
        return map(job_of, self.values.values())

    def rare_jobs(self) -> Iterator[Job]:
        """The live jobs that are not plain: all with a delay or dependencies, and others."""
        return (job for job in self.values.values() if isinstance(job, Job))

    def jobs_count(self) -> int:
        return len(self.values)

    def job_by_uid(self, uid: str) -> Job | None:
        """An unfinished job whose own id is not 32 digits long."""
        job_id = self._odd_uids.get(uid)
        return self.live_job(job_id) if job_id is not None else None

    # Taking in effects.

    def take_back(self, job_id: str) -> Job:
        """Restores a finished job that had left memory and is about to change."""
        job = self._read_finished(job_id)
        assert job is not None
        self.keep(job)
        return job

    def keep(self, job: Job) -> None:
        """Keeps a finished job that is already counted. Its name refers to it again, unless a later
        job has taken the name.
        """
        self.values[job.job_id] = job
        if job.name is not None:
            self.namespaces.point(job, job.name)
        if len(job.job_id) != 32:
            self._odd_uids[uid_of(job.job_id)] = job.job_id

    def take_settings(self, settings: Settings) -> None:
        """Takes what one command changed besides jobs; new values of queues are already set."""
        for table, rows in settings.tables():
            for name, value in rows.items():
                if table == "queues":
                    if value is None:
                        self.forget_queue(name)
                else:
                    self.put_setting(table, name, value)
        for job_id, unnotified in settings.unnotified.items():
            if unnotified is not None:
                self.unnotified[job_id] = unnotified
            else:
                self.unnotified.pop(job_id, None)
        for key, receipt in settings.receipts.items():
            self.put_receipt(key, receipt)

    def put_setting(self, table: str, name: str, value: Any) -> None:  # noqa: ANN401
        """Sets what a table holds under a name; None removes it."""
        rows = self.settings.setdefault(table, {})
        if value is None:
            rows.pop(name, None)
        else:
            rows[name] = value

    def forget_queue(self, name: str) -> None:
        """Drops a queue; its records keep being counted."""
        queue = self.queues.pop(name, None)
        if queue is not None and any(queue.counts.values()):
            self._forgotten_counts[name] = queue.counts

    def put_receipt(self, key: str, receipt: Receipt | None) -> None:
        """Keeps the receipt of a submit as the newest one; None removes it."""
        before = self._receipts.pop(key, None)
        if before is not None:
            self._receipts_weight -= before.weight()
        if receipt is not None:
            self._receipts[key] = receipt
            self._receipts_weight += receipt.weight()

    def put_queue(self, queue: Queue) -> None:
        """Sets the settings of a queue."""
        found = self.queues.get(queue.name)
        if found is None:
            found = self.queues[queue.name] = QueueIndex(queue, self.value)
            found.counts.update(self._forgotten_counts.pop(queue.name, {}))
        else:
            found.queue = queue

    def _revive(self, name: str) -> QueueIndex:
        """Restores a forgotten queue that still had records, because one of them changes."""
        self.put_queue(Queue(name))
        return self.queues[name]

    def put(self, job: Job) -> None:
        """Sets the value of a job, replacing the one before."""
        self.change(self.live_job(job.job_id), job)

    def change(self, old: Job | None, job: Job) -> None:  # noqa: C901, PLR0912 - the hot path
        """Like ``put``, when the previous value is known."""
        job_id = job.job_id
        self.values[job_id] = job
        if self._answers:
            self._answers.clear()
        queue = self.queues.get(job.queue) or self._revive(job.queue)
        state = job.state
        lease = job.lease
        if old is None:
            self._put_new(job, queue)
            if job.finished_at is None:
                self.unfinished_bytes += len(job.payload) + _JOB_BYTES
            else:
                self._weigh(job, 1)
            if lease is not None:
                self._put_lease(None, job)
            if job.waits_for:
                self._put_edges(None, job)
            if job.waiters or not job.durable_interest:
                self._put_waiters(None, job)
            if job.failure is not None:
                self.retrying.put(None, job)
        else:
            if (
                old.state is not state
                or old.queue != job.queue
                or old.incarnation != job.incarnation  # finished and submitted again by one command
            ):
                self._move(old, job, queue)
            elif state is _READY and (old.position != job.position or old.priority != job.priority):
                queue.ready.add(job)
            if (
                old.finished_at is not job.finished_at
                or old.payload is not job.payload
                or old.result is not job.result
            ):
                self._weigh_again(old, job)
            if old.lease is not lease:
                self._put_lease(old, job)
            if job.waits_for or old.waits_for:
                self._put_edges(old, job)
            if job.waiters or not job.durable_interest or old.waiters or not old.durable_interest:
                self._put_waiters(old, job)
            if job.failure is not None or old.failure is not None:
                self.retrying.put(old, job)
        # Most jobs, and all finished ones, have no timers.
        if (
            job.deadline_at is not None
            or job.run_at is not None
            or (lease is not None and (lease.expires_at is not None or lease.cutoff_at is not None))
        ):
            instant = due_at(job)
            if instant is not None:
                self.due_times.put(instant, job_id)
                return
        if self.due_entries and job_id in self.due_entries:
            self.due_times.drop(job_id)

    # The steps of the short way (``engine/plain.py``): what ``change`` would do, and no more.

    def add_plain(self, job: Job | PlainReady) -> None:
        """Adds a new job, which is ready."""
        serial = self.serial + 1
        if serial == job.position:
            serial = job.position  # mostly: then one number in memory serves as both
        self.serial = serial
        force_setattr(job, "serial", serial)  # not shared yet
        self.put_plain(job)

    def put_plain(self, job: Job | PlainReady) -> None:
        """Adds a ready job without rarities, behind all others of its priority."""
        job_id, key = job.job_id, job.unique_key
        self.values[job_id] = job
        if self._answers:
            self._answers.clear()
        queue = self.queues.get(job.queue) or self._revive(job.queue)
        queue.counts[_READY] += 1
        queue.ready.append(job)
        if key is not None:
            queue.keys.put(key, job_id)
        if len(job_id) != 32:
            self._odd_uids[uid_of(job_id)] = job_id
        self.unfinished_bytes += len(job.payload) + _JOB_BYTES
        if job.waiters or not job.durable_interest:
            self._add_waiters(job_id, job.waiters, is_wanted=job.durable_interest)

    def lease_plain(self, before: Job | PlainReady, after: Job | PlainLeased) -> None:
        """Replaces a ready job that had no lease and has no deadline by its leased value."""
        job_id, queue, lease = before.job_id, self.queues[before.queue], after.lease
        assert lease is not None
        self.values[job_id] = after
        if self._answers:
            self._answers.clear()
        counts = queue.counts
        counts[_READY] -= 1
        counts[_LEASED] += 1
        queue.ready.leave(before)
        self._begin_lease(job_id, lease)
        instant = lease_ends_at(lease)
        if instant is not None:
            self.due_times.put(instant, job_id)

    def complete_plain(self, after: PlainCompleted) -> None:
        """Replaces a leased job by its completed value."""
        before, result = after.leased, after.result
        ready = before.ready
        job_id, key = ready.job_id, ready.unique_key
        self.values[job_id] = after
        if self._answers:
            self._answers.clear()
        queue = self.queues[ready.queue]
        counts = queue.counts
        counts[_LEASED] -= 1
        counts[_COMPLETED] += 1
        if key is not None:
            queue.keys.drop(key, job_id)
        size = len(ready.payload)
        self.unfinished_bytes -= size + _JOB_BYTES
        if after.payload is not None:
            size = len(after.payload)
        self.finished_bytes += size if result is None else size + len(result)
        self._end_lease(job_id, before.lease)
        if ready.waiters or not ready.durable_interest:
            for waiter in ready.waiters:
                discard(self._by_waiter, waiter, job_id)
            self._unwanted.pop(job_id, None)
        if self.due_entries and job_id in self.due_entries:
            self.due_times.drop(job_id)

    def complete_job(self, before: Job, job: Job) -> None:
        """The same for an ordinary job."""
        job_id, queue, lease = job.job_id, self.queues[job.queue], before.lease
        assert lease is not None
        self.values[job_id] = job
        if self._answers:
            self._answers.clear()
        counts = queue.counts
        counts[_LEASED] -= 1
        counts[_COMPLETED] += 1
        key, payload, result = job.unique_key, job.payload, job.result
        if key is not None:
            queue.keys.drop(key, job_id)
        if job.namespace is not None:
            self.namespaces.count(job, job.namespace, self.serial + 1, _LEASED)
        size = len(payload)
        self.finished_bytes += size + job.stored_bytes
        if result is not None:
            self.finished_bytes += len(result)
        if before.payload is not payload:
            size = len(before.payload)
        self.unfinished_bytes -= size + _JOB_BYTES
        if job.limits:
            self._put_lease(before, job)
        else:
            self._end_lease(job_id, lease)
        if before.waiters or not job.durable_interest:
            self._put_waiters(before, job)
        if self.due_entries and job_id in self.due_entries:
            self.due_times.drop(job_id)

    def shed_payload(self, stored: Job) -> None:
        """Drops a payload that is on record with this value of the job. If the job has finished
        meanwhile, all of it is dropped.
        """
        old = self.value(stored.job_id)
        if not isinstance(old, Job) or old.payload is not stored.payload:
            return
        if old.finished_at is not None and old is not stored:
            return
        job = replace(old, payload=b"", stored_bytes=len(old.payload))
        self._weigh(old, -1)
        self._weigh(job, 1)
        self.values[job.job_id] = job
        if job.state is _READY:
            self.queues[job.queue].ready.swap(old, job)

    def _weigh_again(self, old: Job, job: Job) -> None:
        payload = job.payload
        if old.finished_at is None and job.finished_at is not None and old.payload is payload:
            # The usual case: a job has finished.
            size, result = len(payload), job.result
            self.unfinished_bytes -= size + _JOB_BYTES
            size += job.stored_bytes
            self.finished_bytes += size if result is None else size + len(result)
        else:
            self._weigh(old, -1)
            self._weigh(job, 1)

    def _weigh(self, job: Job, sign: int) -> None:
        """Adds or subtracts a job's bytes."""
        if job.finished_at is None:
            self.unfinished_bytes += sign * (len(job.payload) + _JOB_BYTES)
        else:
            result = job.result
            weight = len(job.payload) + job.stored_bytes
            if result is not None:
                weight += len(result)
            self.finished_bytes += sign * weight

    def _move(self, old: Job, job: Job, queue: QueueIndex) -> None:
        """Moves a job between states, queues or incarnations."""
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
            self.namespaces.count(job, job.namespace, self.serial + 1, was)
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
        if old is None and job.state not in FINISHED:
            self._add_waiters(job.job_id, job.waiters, is_wanted=job.durable_interest)
            return
        before = old.waiters if old is not None else ()
        after = job.waiters
        if before is not after:
            fresh: Iterable[str]
            if after[: len(before)] == before:
                fresh = after[len(before) :]  # only new ones: thousands may wait for one job
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

    def _add_waiters(self, job_id: str, waiters: Sequence[str], *, is_wanted: bool) -> None:
        """Notes those who wait for a new job, and whether it is wanted without them."""
        for waiter in waiters:
            add(self._by_waiter, waiter, job_id)
        if not is_wanted:
            self._unwanted[job_id] = None

    def forget_plain(self, job_id: str) -> None:
        """Drops a completed plain job that is on record."""
        del self.values[job_id]
        if len(job_id) != 32:
            self._odd_uids.pop(uid_of(job_id), None)

    def forget(self, job: Job) -> None:
        """Drops a finished job that is on record. Names of an open graph stay, with their outcome,
        until the last job of the graph has finished.
        """
        if job.namespace is None or not self.namespaces.keeps(job):
            self._drop(job.job_id)

    def _drop(self, job_id: str) -> None:
        job = self.value(job_id)
        if not isinstance(job, Job) or job.state not in FINISHED:
            return
        del self.values[job_id]
        if job.name is not None:
            self.namespaces.forget(job)
        if len(job_id) != 32:
            self._odd_uids.pop(uid_of(job_id), None)

    def counts_of(self, queue: str) -> dict[State, int]:
        """Jobs on record by state, also of a forgotten queue that still has records."""
        found = self.queues.get(queue)
        if found is not None:
            return found.counts
        return self._forgotten_counts.get(queue) or dict.fromkeys(State, 0)

    def count_records(self, queue: str, state: State, count: int) -> None:
        """Counts finished jobs on record of a queue, whether it is known or forgotten."""
        counts = self.counts_of(queue)
        counts[state] = count
        if queue not in self.queues:
            self._forgotten_counts[queue] = counts

    def let_go(self, queue: str) -> None:
        """Drops the counts of a forgotten queue once its last record is gone."""
        counts = self._forgotten_counts.get(queue)
        if counts is not None and not any(counts.values()):
            del self._forgotten_counts[queue]

    def recorded_queues(self) -> list[str]:
        """Names of all queues that may have jobs on record."""
        return [*self.queues, *self._forgotten_counts]

    def holders(self) -> dict[tuple[str, str | None], list[Job]]:
        """Workers that hold leases, by realm and name, with the jobs they hold."""
        found: dict[tuple[str, str | None], list[Job]] = {}
        for job_id in self.leased():
            job = job_of(self.values[job_id])
            assert job.lease is not None
            holder = job.lease.holder
            found.setdefault((holder.realm, holder.name), []).append(job)
        return found

    def workers(self, workers_max: int, jobs_max: int) -> list[tuple[Holder, int, list[Job]]]:
        """Some workers that hold leases, each with the number of its leases and a few of its jobs.
        Unlike ``holders``, the cost does not grow with the number of leases; a connection counts as
        one worker.
        """
        found: list[tuple[Holder, int, list[Job]]] = []
        for count, ids in self.leases.some(workers_max, jobs_max):
            jobs = [job_of(self.values[job_id]) for job_id in ids]
            lease = jobs[0].lease
            assert lease is not None
            found.append((lease.holder, count, jobs))
        return found

    def workers_count(self) -> int:
        """The number of workers that hold leases."""
        return self.leases.workers_count()

    def retrying_counts(self, queue: str) -> Mapping[State, int]:
        """How many jobs of a queue failed and are tried again, by the state they are in."""
        return self.retrying.counts_of(queue)

    def retrying_queues(self) -> Mapping[str, Mapping[State, int]]:
        """The same of every queue that has such jobs."""
        return self.retrying.counts

    def retried_jobs(self, count_max: int) -> list[Job]:
        """Jobs that failed and are tried again, at most so many."""
        return [job_of(self.values[job_id]) for job_id in islice(self.retrying.ids(), count_max)]

"""Computes everything in an index again from its jobs, for tests and for servers that check
themselves (``check_invariants``). It walks over every job.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

from manyhands.engine.invariants import check_job
from manyhands.engine.timers import due_at
from manyhands.model import limits
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.plain import job_of
from manyhands.store.index.live import Index, QueueIndex
from manyhands.store.index.retrying import is_retried
from manyhands.store.index.tables import Table

_Key = TypeVar("_Key", bound=Hashable)
_UNFINISHED: Final = tuple(state for state in State if state not in FINISHED)


def check_index(index: Index) -> None:
    """Asserts that the index agrees with a recount."""
    live: dict[str, Job] = {}
    by_queue: dict[str, list[Job]] = {name: [] for name in index.queues}
    for job_id, value in index.values.items():
        job = job_of(value)
        check_job(job)
        assert job.job_id == job_id, f"{job.job_id} is kept as {job_id}"
        if job.state not in FINISHED:
            live[job_id] = job
            assert job.queue in by_queue, f"{job_id} is in a queue that nobody knows"
            by_queue[job.queue].append(job)
    for name, queue in index.queues.items():
        _check_queue(name, queue, by_queue[name])
    _check_tables(index, live)
    for job in live.values():
        _check_ways(index, job)
    size = sum(len(job.payload) + limits.JOB_BYTES for job in live.values())
    kept = index.unfinished_bytes
    assert kept == size, f"unfinished jobs weigh {size} bytes, the index says {kept}"


def _check_queue(name: str, queue: QueueIndex, jobs: list[Job]) -> None:
    counts = Counter(job.state for job in jobs)
    for state in _UNFINISHED:
        kept = queue.counts[state]
        assert kept == counts[state], f"queue {name} counts {kept} {state}, not {counts[state]}"
    ready = sorted(
        (job for job in jobs if job.state is State.READY),
        key=lambda job: (-job.priority, job.position),
    )
    order = [job.job_id for job in queue.ready]
    assert order == [job.job_id for job in ready], f"queue {name} is out of order"
    assert queue.ready.count == len(ready), f"queue {name} miscounts its ready jobs"
    first = queue.ready.first()
    begins = None if first is None else job_of(first)
    assert begins == (ready[0] if ready else None), f"queue {name} begins with another job"


def _check_tables(index: Index, live: Mapping[str, Job]) -> None:
    leases = [(job, job.lease) for job in live.values() if job.lease is not None]
    bound = [(lease.connection, job) for job, lease in leases if lease.connection is not None]
    free = [
        ((lease.holder.realm, lease.holder.name), job)
        for job, lease in leases
        if lease.connection is None
    ]
    edges = [(key, job) for job in live.values() for key in job.waits_for]
    waiters = [(waiter, job) for job in live.values() for waiter in job.waiters]
    _check_table("leases by connection", index.leases.by_connection, bound)
    _check_table("leases by holder", index.leases.by_holder, free)
    _check_table("dependants", index._dependants, edges)  # noqa: SLF001 - its own recount
    _check_table("waiters", index._by_waiter, waiters)  # noqa: SLF001
    unwanted = {job_id for job_id, job in live.items() if not job.durable_interest}
    kept = set(index._unwanted)  # noqa: SLF001
    assert kept == unwanted, f"nobody wants {sorted(unwanted)} durably, not {sorted(kept)}"
    retried = [(job.queue, job) for job in live.values() if is_retried(job)]
    _check_table("retried jobs", index.retrying.by_queue, retried)
    counted = Counter((job.queue, job.state) for job in live.values() if is_retried(job))
    by_state = {
        (queue, state): count
        for queue, counts in index.retrying.counts.items()
        for state, count in counts.items()
        if count
    }
    assert by_state == dict(counted), f"retried are {by_state}, not {dict(counted)}"
    held = Counter(name for job, _ in leases if job.state is State.LEASED for name in job.limits)
    used = {name: count for name, count in index.leases.limits_used.items() if count}
    assert used == dict(held), f"named limits are used {used}, not {dict(held)}"


def _check_table(what: str, kept: Table[_Key], pairs: Iterable[tuple[_Key, Job]]) -> None:
    wanted: dict[_Key, set[str]] = {}
    for key, job in pairs:
        wanted.setdefault(key, set()).add(job.job_id)
    found = {key: set(ids) for key, ids in kept.items()}
    odd = [key for key in (*found, *wanted) if found.get(key) != wanted.get(key)]
    assert not odd, f"{what} of {odd[0]}: {found.get(odd[0])}, a recount: {wanted.get(odd[0])}"


def _check_ways(index: Index, job: Job) -> None:
    """Checks the other lookups of a job: by key, by name, by time."""
    job_id = job.job_id
    if job.unique_key is not None:
        holder = index.key_holder(job.queue, job.unique_key)
        assert holder == job_id, f"key {job.unique_key!r} is held by {holder}, not by {job_id}"
    if job.name is not None:
        named = index.named(job.namespace or "", job.name)
        assert named == job_id, f"{job.name!r} points to {named}, not to {job_id}"
    instant = due_at(job)
    if instant is not None:
        entry = index.due_times.entries.get(job_id)
        assert entry is not None, f"{job_id} will not be looked at"
        assert entry <= instant, f"{job_id} will be looked at too late"

"""Why a job is not running: everything between it and its next step, as sentences.

The same gates as in ``claim.py``, explained instead of applied. Sleepers are not job state, so they
are passed in.
"""

from itertools import islice
from typing import Final

from manyhands.engine.view import View
from manyhands.model.job import FINISHED, Job, Lease, State
from manyhands.model.obstacles import Obstacle, Wait
from manyhands.model.policy import Queue
from manyhands.model.reasons import Reason

# Dependencies that are examined one by one; the rest are only counted.
LOOKED_AT_MAX: Final = 20
_LOST: Final = frozenset({State.FAILED, State.CANCELLED})


def why_it_waits(
    job: Job, view: View, now: int, *, awaited: bool, ahead: int = 0
) -> tuple[Wait, ...]:
    """What a job waits for, the most important first; nothing for a finished one. ``awaited``: its
    queue has a sleeper. ``ahead``: about how many ready jobs of the queue go first.
    """
    if job.state in FINISHED:
        return ()
    if job.state is State.BLOCKED:
        return _blocked(job, view)
    if job.state is State.DELAYED:
        return (_delayed(job),)
    if job.state is State.LEASED:
        assert job.lease is not None
        return (_leased(job.lease),)
    found = (*_of_job(job, now), *_of_queue(job, view, now), *_of_limits(job, view))
    if not awaited and not view.leased_count(job.queue):
        sentence = f"nobody is known to work on queue {job.queue!r}: no worker holds a job of it,"
        sentence += " and none waits for one"
        found = (*found, Wait(Obstacle.NO_WORKERS, sentence, name=job.queue))
    if found:
        return found
    if ahead:
        noun = "job goes" if ahead == 1 else "jobs go"
        sentence = f"{ahead} {noun} before it"
        return (Wait(Obstacle.IN_LINE, sentence, name=job.queue, count=ahead),)
    sentence = "nothing is in its way: the next worker that asks gets it"
    return (Wait(Obstacle.NEXT, sentence, name=job.queue),)


def why_queue_waits(name: str, view: View, now: int) -> tuple[Wait, ...]:
    """What keeps the next ready job of a queue from being handed out; workers are not looked at."""
    job = view.first_ready(name) if view.queue(name) is not None else None
    return () if job is None else (*_of_queue(job, view, now), *_of_limits(job, view))


def _blocked(job: Job, view: View) -> tuple[Wait, ...]:
    count = len(job.waits_for)
    lost: list[Job] = []
    ids: list[str] = []
    for key in islice(job.waits_for, LOOKED_AT_MAX):
        other = view.job(key)
        if other is None:
            ids.append(key.rpartition("\0")[2])
            continue
        ids.append(other.job_id)
        if other.state in _LOST:
            lost.append(other)
    reasons = [
        Wait(
            Obstacle.LOST_DEPENDENCY,
            f"job {other.job_id}, on which it depends, is {other.state}: it is held until that one"
            " runs again",
            job_ids=(other.job_id,),
            count=1,
        )
        for other in lost
    ]
    if count > len(lost):
        noun = "another job" if count == 1 else f"{count} other jobs"
        if lost:
            noun = f"{count} jobs in all"
        reasons.append(
            Wait(
                Obstacle.BLOCKED,
                f"it waits for {noun} to complete",
                job_ids=tuple(ids),
                count=count,
            )
        )
    return tuple(reasons)


def _delayed(job: Job) -> Wait:
    sentence = (
        "it failed and is tried again after a pause"
        if job.reason is Reason.RETRY
        else "it is delayed"
    )
    return Wait(Obstacle.DELAYED, sentence, until_at=job.run_at)


def _leased(lease: Lease) -> Wait:
    who = lease.holder.name or lease.holder.address or "a worker without a name"
    if lease.in_grace:
        sentence = f"the lease of {who!r} has expired and is kept from others for a while"
        return Wait(Obstacle.IN_GRACE, sentence, until_at=lease.expires_at, name=who)
    sentence = f"{who!r} works on it"
    if lease.expires_at is None:
        sentence += "; its lease ends when it reports, or with its connection"
    return Wait(Obstacle.LEASED, sentence, until_at=lease.expires_at, name=who)


def _of_job(job: Job, now: int) -> tuple[Wait, ...]:
    """The reasons that are in the job itself."""
    if job.lease is not None and job.lease.spent:
        who = job.lease.holder.name or job.lease.holder.address
        sentence = f"its last lease expired and no attempt is left; it fails unless {who!r} goes on"
        return (Wait(Obstacle.SPENT, sentence, name=who),)
    if job.deadline_at is not None and job.deadline_at <= now:
        sentence = "its deadline has passed: it is about to fail"
        return (Wait(Obstacle.OVERDUE, sentence, until_at=job.deadline_at),)
    return ()


def _of_queue(job: Job, view: View, now: int) -> tuple[Wait, ...]:
    queue = view.queue(job.queue) or Queue(job.queue)
    found: list[Wait] = []
    if queue.paused:
        found.append(Wait(Obstacle.PAUSED, f"queue {job.queue!r} is paused", name=job.queue))
    policy = queue.policy
    leased = view.leased_count(job.queue)
    if policy.concurrency_max is not None and leased >= policy.concurrency_max:
        sentence = (
            f"queue {job.queue!r} is full: {leased} of {policy.concurrency_max} leases are held"
        )
        found.append(Wait(Obstacle.CONCURRENCY, sentence, name=job.queue, count=leased))
    rate = policy.rate
    if rate is not None and queue.rate_used >= rate.count:
        opens_at = queue.rate_started_at + rate.per_ms
        if now < opens_at:
            noun = "job" if rate.count == 1 else "jobs"
            sentence = f"queue {job.queue!r} hands out {rate.count} {noun} in"
            sentence += f" {rate.per_ms / 1000:g} s, and has done so"
            found.append(Wait(Obstacle.RATE, sentence, until_at=opens_at, name=job.queue))
    return tuple(found)


def _of_limits(job: Job, view: View) -> tuple[Wait, ...]:
    found: list[Wait] = []
    for name in job.limits:
        limit = view.limit(name)
        used = view.limit_used(name)
        if limit is not None and used >= limit.concurrency_max:
            sentence = f"limit {name!r} is full: {used} of {limit.concurrency_max} leases are held"
            found.append(Wait(Obstacle.LIMIT, sentence, name=name, count=used))
    return tuple(found)

"""Time as a command: which instant a job waits for next, and what happens then."""

from typing import Final

from msgspec.structs import replace

from manyhands.engine import endings
from manyhands.engine.effects import Effects
from manyhands.engine.retry import budget_is_spent, on_expiry_of
from manyhands.engine.transitions import Trigger, advance
from manyhands.model import limits
from manyhands.model.commands import FollowClock, Prolong, Recover, Tick
from manyhands.model.job import FINISHED, EndReason, Failure, Job, Lease, State
from manyhands.model.policy import OnExpiry, Reentry
from manyhands.model.reasons import Reason
from manyhands.model.replies import Accepted, Reply, Ticked

_DELAYED: Final = State.DELAYED
_LEASED: Final = State.LEASED


def due_at(job: Job) -> int | None:
    """The next instant at which time alone changes the job, or None."""
    state = job.state
    if state in FINISHED:
        return None
    instant = job.deadline_at
    other: int | None = None
    lease = job.lease
    if state is _LEASED:
        assert lease is not None
        other = lease_ends_at(lease)
    elif state is _DELAYED:
        other = job.run_at
    elif lease is not None and lease.spent:
        # Rule 6: a lapsed lease without budget fails only later, so that its holder can still
        # report.
        assert lease.expires_at is not None
        other = lease.expires_at + limits.LAPSE_GRACE_MS
    if instant is None or (other is not None and other < instant):
        return other
    return instant


def lease_ends_at(lease: Lease) -> int | None:
    """When time alone ends a lease that is held, or None."""
    expires_at, cutoff_at = lease.expires_at, lease.cutoff_at
    if cutoff_at is not None and (expires_at is None or cutoff_at < expires_at):
        return cutoff_at
    return expires_at


def decide_tick(command: Tick, effects: Effects) -> Reply:
    """Does everything that is due, in order of time, up to the bound."""
    due = effects.view.due(effects.now, command.count_max)
    for job_id in due:
        job = effects.job(job_id)
        assert job is not None
        _pass_time(job, effects)
    return Ticked(len(due), more=len(due) == command.count_max)


def _pass_time(job: Job, effects: Effects) -> None:
    now = effects.now
    if job.deadline_at is not None and job.deadline_at <= now:
        failure = Failure("deadline", "the deadline passed before the job was finished")
        endings.fail_for_good(effects, job, failure, Reason.DEADLINE, EndReason.CUTOFF)
    elif job.state is State.DELAYED:
        effects.enter(
            advance(
                job,
                Trigger.READIED,
                now,
                run_at=None,
                reason=Reason.NONE,
                position=effects.position(Reentry.TAIL),
            ),
            job.entered_at,
        )
    elif job.state is State.LEASED:
        lease = job.lease
        assert lease is not None
        if lease.cutoff_at is not None and lease.cutoff_at <= now:
            endings.lose(effects, job, EndReason.CUTOFF)
        else:
            expire(job, lease, effects)
    else:
        endings.lose(effects, job, EndReason.EXPIRED)  # its holder did not speak up


def expire(job: Job, lease: Lease, effects: Effects) -> None:
    """Expires a lease: first the grace period of the queue, then revoke or lapse (rule 6)."""
    policy = effects.policy(job.queue)
    now = effects.now
    if policy.grace_ms > 0 and not lease.in_grace:
        kept = replace(lease, in_grace=True, expires_at=now + policy.grace_ms)
        effects.put(replace(job, lease=kept))
        effects.notify_holder(job, lease)
        return
    if on_expiry_of(job, policy) is OnExpiry.REVOKE or job.waits_for or not endings.is_wanted(job):
        # A job with new dependencies may not be resumed, and one without interest must not run
        # again: neither can lapse.
        endings.lose(effects, job, EndReason.EXPIRED)
        return
    spent = budget_is_spent(job, policy, job.attempts_used + 1)
    effects.enter(
        advance(
            job,
            Trigger.READIED,
            now,
            lease=replace(lease, lapsed=True, spent=spent, in_grace=False, expires_at=now),
            position=effects.position(Reentry.AHEAD),
            reason=Reason.LAPSED,
        ),
        job.entered_at,
    )


def decide_prolong(command: Prolong, effects: Effects) -> Reply:
    """Rule 7: a stall of the server extends all leases, since no worker could have renewed."""
    count = 0
    for job_id in effects.view.leased():
        job = effects.job(job_id)
        assert job is not None
        count += _prolong(job, command.outage_ms, effects)
    return Accepted(count)


def _prolong(job: Job, outage_ms: int, effects: Effects) -> int:
    lease = job.lease
    if lease is None or (lease.expires_at is None and lease.cutoff_at is None):
        return 0
    expires_at = None if lease.expires_at is None else lease.expires_at + outage_ms
    cutoff_at = None if lease.cutoff_at is None else lease.cutoff_at + outage_ms
    effects.put(replace(job, lease=replace(lease, expires_at=expires_at, cutoff_at=cutoff_at)))
    return 1


def decide_follow_clock(command: FollowClock, effects: Effects) -> Reply:
    """Rule 7: shifts delays, retries and intervals with the clock, so that they keep their length.
    An instant that the submitter named (``wanted_at``) does not move.
    """
    count = 0
    for job_id, run_at in command.jobs:
        job = effects.job(job_id)
        if job is not None and job.run_at == run_at and run_at != job.wanted_at:
            effects.put(replace(job, run_at=run_at + command.step_ms))
            count += 1
    for schedule_id, due, next_at in command.schedules:
        schedule = effects.view.schedule(schedule_id)
        if schedule is not None and schedule.next_at == due:
            effects.set().schedules[schedule_id] = replace(schedule, next_at=next_at)
            count += 1
    return Accepted(count)


def decide_recover(command: Recover, effects: Effects) -> Reply:
    """Ends the bound leases and the waiters of earlier incarnations (rules 2 and 22): their
    connections ended with the server, and no command said so. Free leases are extended (rule 7).
    """
    count = 0
    prefixes = tuple(f"{name}/" for name in (command.incarnation, *command.alive))
    for job_id in effects.view.waited():
        job = effects.job(job_id)
        assert job is not None
        endings.drop_waiters(
            effects, job, tuple(w for w in job.waiters if not w.startswith(prefixes))
        )
    for job_id in effects.view.leased():
        job = effects.job(job_id)
        assert job is not None
        lease = job.lease
        if lease is None:
            continue  # it was abandoned above
        if lease.connection is not None and not lease.connection.startswith(prefixes):
            # Not charged: the server left, not the worker (rule 5).
            endings.give_back(effects, job, EndReason.RELEASED)
            count += 1
        else:
            _prolong(job, command.outage_ms, effects)
    return Accepted(count)

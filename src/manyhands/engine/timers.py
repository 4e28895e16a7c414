"""Time as a command: which instant a job waits for next, and what happens then."""

from typing import Final

from msgspec.structs import replace

from manyhands.engine import ending
from manyhands.engine.effects import Effects
from manyhands.engine.retry import budget_is_spent, on_expiry_of
from manyhands.engine.transitions import Trigger, advance
from manyhands.model import limits
from manyhands.model.commands import Prolong, Recover, Tick
from manyhands.model.job import FINISHED, EndReason, Failure, Job, Lease, State
from manyhands.model.outcome import Accepted, Reply, Ticked
from manyhands.model.policy import OnExpiry, Reentry

_DELAYED: Final = State.DELAYED
_LEASED: Final = State.LEASED


def due_at(job: Job) -> int | None:
    """The next instant at which time alone changes the job; None: never."""
    state = job.state
    if state in FINISHED:
        return None
    instant = job.deadline_at
    other: int | None = None
    lease = job.lease
    if state is _LEASED:
        assert lease is not None
        other = lease.expires_at
        if lease.cutoff_at is not None and (other is None or lease.cutoff_at < other):
            other = lease.cutoff_at
    elif state is _DELAYED:
        other = job.run_at
    elif lease is not None and lease.spent:
        # A lapsed lease without budget: its holder has a last moment to speak up.
        assert lease.expires_at is not None
        other = lease.expires_at + limits.LAPSE_GRACE_MS
    if instant is None or (other is not None and other < instant):
        return other
    return instant


def decide_tick(command: Tick, effects: Effects) -> Reply:
    """Everything that is due, in order of time, up to the bound."""
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
        ending.fail_for_good(effects, job, failure, "deadline", EndReason.CUTOFF)
    elif job.state is State.DELAYED:
        effects.enter(
            advance(
                job,
                Trigger.READIED,
                now,
                run_at=None,
                reason="",
                position=effects.position(Reentry.TAIL),
            ),
            job.entered_at,
        )
    elif job.state is State.LEASED:
        lease = job.lease
        assert lease is not None
        if lease.cutoff_at is not None and lease.cutoff_at <= now:
            ending.lose(effects, job, EndReason.CUTOFF)
        else:
            expire(job, lease, effects)
    else:
        ending.lose(effects, job, EndReason.EXPIRED)  # its holder did not speak up


def expire(job: Job, lease: Lease, effects: Effects) -> None:
    """A lease ran out: grace first, then by the policy of rule 6."""
    policy = effects.policy(job.queue)
    now = effects.now
    if policy.grace_ms > 0 and not lease.in_grace:
        kept = replace(lease, in_grace=True, expires_at=now + policy.grace_ms)
        effects.put(replace(job, lease=kept))
        effects.tell_holder(job, lease)
        return
    if on_expiry_of(job, policy) is OnExpiry.REVOKE or job.waits_for or not ending.is_wanted(job):
        # New dependencies bind when a job comes back, and what nobody wants does not come back:
        # in both cases there is nothing left to lapse.
        ending.lose(effects, job, EndReason.EXPIRED)
        return
    spent = budget_is_spent(job, policy, job.attempts_used + 1)
    effects.enter(
        advance(
            job,
            Trigger.READIED,
            now,
            lease=replace(lease, lapsed=True, spent=spent, in_grace=False, expires_at=now),
            position=effects.position(Reentry.AHEAD),
            reason="lapsed",
        ),
        job.entered_at,
    )


def decide_prolong(command: Prolong, effects: Effects) -> Reply:
    """Rule 7: our own standstill is nobody's fault."""
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


def decide_recover(command: Recover, effects: Effects) -> Reply:
    """Rule 2 and rule 22 after a start: nobody saw those connections end."""
    count = 0
    prefix = command.incarnation + "/"
    for job_id in effects.view.waited():
        job = effects.job(job_id)
        assert job is not None
        ending.drop_waiters(effects, job, tuple(w for w in job.waiters if not w.startswith(prefix)))
    for job_id in effects.view.leased():
        job = effects.job(job_id)
        assert job is not None
        lease = job.lease
        if lease is None:
            continue  # it was abandoned above
        if lease.connection is not None and not lease.connection.startswith(prefix):
            # Not charged: it was the server that left, not the worker.
            ending.give_back(effects, job, EndReason.RELEASED)
            count += 1
        else:
            _prolong(job, command.outage_ms, effects)
    return Accepted(count)

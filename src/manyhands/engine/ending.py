"""How leases and jobs end, whoever asked for it: a worker, an operator, or time."""

from typing import Any, Final

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.retry import backoff_ms, backoff_of, budget_is_spent, reentry_of
from manyhands.engine.transitions import Trigger, advance, moved
from manyhands.model import limits
from manyhands.model.job import (
    CHARGED,
    FINISHED,
    Attempt,
    EndReason,
    Failure,
    HistoryEntry,
    Holder,
    Job,
    Lease,
    State,
)
from manyhands.model.payload import Encoding
from manyhands.model.policy import Reentry

_COMPLETE: Final = Trigger.COMPLETED
_COMPLETED: Final = EndReason.COMPLETED


def ended_attempts(
    job: Job, lease: Lease, now: int, reason: EndReason, failure: str = ""
) -> tuple[Attempt, ...]:
    """The job's attempts with this lease added as ended."""
    attempt = Attempt(
        lease.number, lease.holder, lease.claimed_at, now, reason, lease.token, failure
    )
    return with_attempt(job.attempts, attempt)


def with_attempt(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """One more attempt; the first and the latest ones are kept."""
    if len(attempts) < limits.ATTEMPTS_KEPT_MAX:
        return (*attempts, attempt)
    return (attempts[0], *attempts[2:], attempt)


def with_history(job: Job, now: int, what: str, detail: str = "") -> tuple[HistoryEntry, ...]:
    """The job's history with one entry more; the first and the latest ones are kept."""
    rows = (*job.history, HistoryEntry(now, what, detail))
    if len(rows) <= limits.HISTORY_KEPT_MAX:
        return rows
    return (rows[0], *rows[1 - limits.HISTORY_KEPT_MAX :])


def is_wanted(job: Job) -> bool:
    """Rule 22: whether anybody is still interested."""
    return job.durable_interest or bool(job.waiters)


def place(
    effects: Effects,
    job: Job,
    *,
    lease: Lease | None = None,
    run_at: int | None = None,
    reentry: Reentry = Reentry.TAIL,
    reason: str = "",
    **changes: Any,  # noqa: ANN401 - fields of Job
) -> Job:
    """Put a job where it belongs: blocked, delayed or ready. ``lease`` is the one that ended."""
    now = effects.now
    since = job.entered_at
    before = job.queue
    if changes.get("waits_for", job.waits_for):
        job = advance(job, Trigger.HELD, now, lease=None, run_at=run_at, reason=reason, **changes)
        effects.held.append(job)
    elif run_at is not None and run_at > now:
        job = advance(
            job, Trigger.POSTPONED, now, lease=None, run_at=run_at, reason=reason, **changes
        )
    else:
        job = advance(
            job,
            Trigger.READIED,
            now,
            lease=None,
            run_at=None,
            reason=reason,
            position=effects.position(reentry),
            **changes,
        )
    effects.enter(job, since, lease, left_queue="" if before == job.queue else before)
    return job


def give_back(effects: Effects, job: Job, reason: EndReason, reentry: Reentry | None = None) -> Job:
    """A lease ends without being charged; the job waits for the next worker."""
    lease = job.lease
    assert lease is not None
    attempts = ended_attempts(job, lease, effects.now, reason)
    job = replace(job, attempts=attempts, progress=None)
    if not is_wanted(job):
        return cancel(effects, job, "abandoned")
    where = reentry or reentry_of(job)
    return place(effects, job, lease=lease, reentry=where, reason=reason.value)


def lose(effects: Effects, job: Job, reason: EndReason) -> Job:
    """A lease ends and is charged: lost, expired or cut off. Back at once, while allowed."""
    lease = job.lease
    assert lease is not None
    assert reason in CHARGED
    now = effects.now
    sentence = _LOSSES[reason]
    used = job.attempts_used + 1
    job = replace(
        job,
        attempts=ended_attempts(job, lease, now, reason, sentence),
        attempts_used=used,
        progress=None,
    )
    if not is_wanted(job):
        return cancel(effects, job, "abandoned")
    if budget_is_spent(job, effects.policy(job.queue), used):
        failure = Failure("attempts", f"the last allowed attempt ended: {sentence}")
        return _end_failed(effects, job, failure, "out_of_attempts", lease)
    reentry = Reentry.AHEAD if reason is EndReason.CUTOFF else reentry_of(job)
    return place(effects, job, lease=lease, reentry=reentry, reason=reason.value)


_LOSSES: Final = {
    EndReason.LOST: "the worker's connection was lost",
    EndReason.EXPIRED: "the lease expired",
    EndReason.CUTOFF: "the attempt took longer than allowed",
}


def fail_and_retry(effects: Effects, job: Job, failure: Failure, delay_ms: int | None) -> Job:
    """A reported failure that may be tried again, by policy."""
    lease = job.lease
    assert lease is not None
    now = effects.now
    policy = effects.policy(job.queue)
    used = job.attempts_used + 1
    job = replace(
        job,
        attempts=ended_attempts(job, lease, now, EndReason.FAILED, first_line(failure)),
        attempts_used=used,
        failure=failure,
        progress=None,
    )
    if not is_wanted(job):
        return cancel(effects, job, "abandoned")
    if budget_is_spent(job, policy, used):
        return _end_failed(effects, job, failure, "out_of_attempts", lease)
    rest = backoff_ms(job, backoff_of(job, policy), used) if delay_ms is None else delay_ms
    return place(effects, job, lease=lease, run_at=effects.now + rest, reason="retry")


def fail_for_good(
    effects: Effects, job: Job, failure: Failure, reason: str, ended: EndReason = EndReason.FAILED
) -> Job:
    """The job fails, whatever is left of its budget."""
    lease = job.lease
    if lease is not None:
        attempts = ended_attempts(job, lease, effects.now, ended, first_line(failure))
        job = replace(job, attempts=attempts)
    return _end_failed(effects, job, failure, reason, lease)


def _end_failed(
    effects: Effects, job: Job, failure: Failure, reason: str, lease: Lease | None
) -> Job:
    now, since = effects.now, job.entered_at
    job = advance(
        job,
        Trigger.FAILED,
        now,
        lease=None,
        finished_at=now,
        failure=failure,
        reason=reason,
        run_at=None,
    )
    _conclude(effects, job, since, lease)
    effects.ended.append(job)
    return job


def cancel(effects: Effects, job: Job, reason: str) -> Job:
    """The job is not wanted any more. Its holder is told."""
    now, since = effects.now, job.entered_at
    lease = job.lease
    if lease is not None:
        if not job.attempts or job.attempts[-1].number != lease.number:
            attempts = ended_attempts(job, lease, now, EndReason.CANCELLED)
            job = replace(job, attempts=attempts)
        effects.tell_holder(job, lease)
    job = advance(
        job, Trigger.CANCELLED, now, lease=None, finished_at=now, reason=reason, run_at=None
    )
    _conclude(effects, job, since, lease)
    effects.ended.append(job)
    return job


def complete(
    effects: Effects,
    job: Job,
    holder: Holder,
    result: bytes | None,
    result_encoding: Encoding,
) -> Job:
    """The work is finished. ``holder`` is who said so, leased or not."""
    now = effects.now
    lease = job.lease
    if lease is not None:
        attempt = Attempt(
            lease.number, lease.holder, lease.claimed_at, now, _COMPLETED, lease.token
        )
    else:
        attempt = Attempt(job.lease_number, holder, now, now, _COMPLETED)
    since, attempts = job.entered_at, job.attempts
    if job.failure is not None or job.reason or job.run_at is not None or job.waits_for:
        job = replace(job, failure=None, reason="", run_at=None, waits_for=())
    completed = replace(
        job,
        state=moved(job, _COMPLETE),
        entered_at=now,
        lease=None,
        finished_at=now,
        attempts=(attempt,) if not attempts else with_attempt(attempts, attempt),
        result=result,
        result_encoding=result_encoding,
    )
    _conclude(effects, completed, since, lease, holder)
    effects.ended.append(completed)
    return completed


def _conclude(
    effects: Effects, job: Job, since: int, lease: Lease | None, holder: Holder | None = None
) -> None:
    assert job.state in FINISHED
    if job.waiters:
        effects.signal("ended", job)
        job = replace(job, waiters=())
    if job.result is not None and result_ms_of(job) == 0:
        job = replace(job, result=None)  # thrown away, now that those who wait have it
    effects.enter(job, since, lease, holder)


def result_ms_of(job: Job) -> int | None:
    """How long the result is kept: the job's own wish, else its front's. None: like the record."""
    wish = job.terms.result_ms
    return wish if wish is not None else job.terms.defaults.result_ms


def drop_waiters(effects: Effects, job: Job, gone: tuple[str, ...]) -> None:
    """Waiters leave. A job nobody wants is cancelled, unless a worker has it: that one may
    finish, but the job is not handed out again.
    """
    if gone:
        left = tuple(waiter for waiter in job.waiters if waiter not in gone)
        job = replace(job, waiters=left)
        effects.put(job)
    if not is_wanted(job) and job.state is not State.LEASED and job.state not in FINISHED:
        cancel(effects, job, "abandoned")


def first_line(failure: Failure) -> str:
    """What a list of attempts shows of a failure."""
    return (failure.message or failure.code).partition("\n")[0][:200]

"""How leases and jobs end, whether a worker, an operator or time ends them.

There is one function for each way to end, so that charging (rule 5), interest (rule 22) and the
place in the queue (rule 18) are decided the same way for every protocol.
"""

from typing import Any, Final

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.retry import backoff_ms, backoff_of, budget_is_spent, reentry_of
from manyhands.engine.transitions import COMPLETED_FROM, Trigger, advance
from manyhands.model import limits
from manyhands.model.job import (
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
from manyhands.model.plain import completing_attempt
from manyhands.model.policy import QueuePolicy, Reentry, Terms
from manyhands.model.reasons import BY_VALUE, LOST_CODE, Reason
from manyhands.model.traces import telling_line

_COMPLETED: Final = EndReason.COMPLETED
_NO_REASON: Final = Reason.NONE


def ended_attempts(
    job: Job, lease: Lease, now: int, reason: EndReason, failure: str = ""
) -> tuple[Attempt, ...]:
    """The job's attempts with this lease added as ended."""
    attempt = Attempt(
        lease.number, lease.holder, lease.claimed_at, now, reason, lease.token, failure
    )
    return with_attempt(job.attempts, attempt)


def with_attempt(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    """Adds an attempt; the first and the latest ones are kept."""
    if len(attempts) < limits.ATTEMPTS_KEPT_MAX:
        return (*attempts, attempt)
    return (attempts[0], *attempts[2:], attempt)


def with_history(job: Job, now: int, what: str, detail: str = "") -> tuple[HistoryEntry, ...]:
    """Adds an entry to the job's history; the first and the latest ones are kept."""
    rows = (*job.history, HistoryEntry(now, what, detail))
    if len(rows) <= limits.HISTORY_KEPT_MAX:
        return rows
    return (rows[0], *rows[1 - limits.HISTORY_KEPT_MAX :])


def is_wanted(job: Job) -> bool:
    """Rule 22: whether any interest is left, durable or of a waiter."""
    return job.durable_interest or bool(job.waiters)


def place(
    effects: Effects,
    job: Job,
    *,
    lease: Lease | None = None,
    run_at: int | None = None,
    reentry: Reentry = Reentry.TAIL,
    reason: Reason = _NO_REASON,
    **changes: Any,  # noqa: ANN401 - fields of Job
) -> Job:
    """Puts an unfinished job where it belongs: blocked, delayed or ready. ``lease`` is the one that
    ended. Dependencies come first: a job that waits for others keeps its time for later.
    """
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
    """Ends a lease without charging it: the worker released the job, said goodbye, or never got it
    (rules 5 and 8). The job waits for the next worker.
    """
    lease = job.lease
    assert lease is not None
    attempts = ended_attempts(job, lease, effects.now, reason)
    job = replace(job, attempts=attempts, progress=None)
    if not is_wanted(job):
        return cancel(effects, job, Reason.ABANDONED)
    where = reentry or reentry_of(job)
    return place(effects, job, lease=lease, reentry=where, reason=BY_VALUE[reason])


def lose(effects: Effects, job: Job, reason: EndReason) -> Job:
    """Ends a lease and charges it: lost, expired or cut off (rule 5).

    While the budget lasts, the job is ready at once: a lost worker says nothing about the job, so
    there is no backoff. A job that was cut off goes ahead of all others.
    """
    lease = job.lease
    assert lease is not None
    why = BY_VALUE[reason]
    assert why.charged
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
        return cancel(effects, job, Reason.ABANDONED)
    if budget_is_spent(job, effects.policy(job.queue), used):
        failure = Failure(LOST_CODE, f"the last allowed attempt ended: {sentence}")
        return _end_failed(effects, job, failure, Reason.OUT_OF_ATTEMPTS, lease)
    reentry = Reentry.AHEAD if reason is EndReason.CUTOFF else reentry_of(job)
    return place(effects, job, lease=lease, reentry=reentry, reason=why)


_LOSSES: Final = {
    EndReason.LOST: "the worker's connection was lost",
    EndReason.EXPIRED: "the lease expired",
    EndReason.CUTOFF: "the attempt took longer than allowed",
}


def fail_and_retry(effects: Effects, job: Job, failure: Failure, delay_ms: int | None) -> Job:
    """Ends an attempt that failed and may be retried, after the backoff (rule 9)."""
    lease = job.lease
    assert lease is not None
    now = effects.now
    policy = effects.policy(job.queue)
    used = job.attempts_used + 1
    job = replace(
        job,
        attempts=ended_attempts(job, lease, now, EndReason.FAILED, shown_line(failure)),
        attempts_used=used,
        failure=failure,
        progress=None,
    )
    if not is_wanted(job):
        return cancel(effects, job, Reason.ABANDONED)
    if budget_is_spent(job, policy, used):
        return _end_failed(effects, job, failure, Reason.OUT_OF_ATTEMPTS, lease)
    rest = backoff_ms(job, backoff_of(job, policy), used) if delay_ms is None else delay_ms
    return place(effects, job, lease=lease, run_at=effects.now + rest, reason=Reason.RETRY)


def fail_for_good(
    effects: Effects,
    job: Job,
    failure: Failure,
    reason: Reason,
    ended: EndReason = EndReason.FAILED,
) -> Job:
    """Fails the job, whatever is left of its budget."""
    lease = job.lease
    if lease is not None:
        attempts = ended_attempts(job, lease, effects.now, ended, shown_line(failure))
        job = replace(job, attempts=attempts)
    return _end_failed(effects, job, failure, reason, lease)


def _end_failed(
    effects: Effects, job: Job, failure: Failure, reason: Reason, lease: Lease | None
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
    conclude(effects, job, since, lease)
    effects.ended.append(job)
    return job


def cancel(effects: Effects, job: Job, reason: Reason, detail: str = "") -> Job:
    """Cancels the job and notifies its holder."""
    now, since = effects.now, job.entered_at
    lease = job.lease
    if lease is not None:
        if not job.attempts or job.attempts[-1].number != lease.number:
            attempts = ended_attempts(job, lease, now, EndReason.CANCELLED)
            job = replace(job, attempts=attempts)
        effects.notify_holder(job, lease)
    job = advance(
        job,
        Trigger.CANCELLED,
        now,
        lease=None,
        finished_at=now,
        reason=reason,
        detail=detail,
        run_at=None,
    )
    conclude(effects, job, since, lease)
    effects.ended.append(job)
    return job


def complete(
    effects: Effects,
    job: Job,
    holder: Holder,
    result: bytes | None,
    result_encoding: Encoding,
) -> Job:
    """Completes the job. ``holder`` is who reported it, with a lease or (rule 4) without one."""
    completed = completed_by(job, holder, result, result_encoding, effects.now)
    conclude(effects, completed, job.entered_at, job.lease, holder)
    effects.ended.append(completed)
    return completed


def completed_by(
    job: Job, holder: Holder, result: bytes | None, result_encoding: Encoding, now: int
) -> Job:
    """The job as it is once it is completed."""
    lease = job.lease
    if lease is not None:
        attempt = completing_attempt(lease, now)
    else:
        attempt = Attempt(job.lease_number, holder, now, now, _COMPLETED)
    attempts = job.attempts
    if (
        job.failure is not None
        or job.reason is not _NO_REASON
        or job.run_at is not None
        or job.waits_for
    ):
        job = replace(job, failure=None, reason=_NO_REASON, run_at=None, waits_for=())
    return replace(
        job,
        state=COMPLETED_FROM[job.state],
        entered_at=now,
        lease=None,
        finished_at=now,
        attempts=(attempt,) if not attempts else with_attempt(attempts, attempt),
        result=result,
        result_encoding=result_encoding,
    )


def conclude(
    effects: Effects,
    job: Job,
    since: int,
    lease: Lease | None,
    holder: Holder | None = None,
    policy: QueuePolicy | None = None,
) -> None:
    """Stores a job that has finished, and notifies those who wait for it."""
    assert job.state in FINISHED
    if job.waiters:
        effects.signal("ended", job)
        job = replace(job, waiters=())
    if job.result is not None and result_ms_of(job.terms) == 0:
        job = replace(job, result=None)  # thrown away, now that those who wait have it
    effects.enter(job, since, lease, holder, policy)


def result_ms_of(terms: Terms) -> int | None:
    """Rule 21: how long the result is kept, by the job's terms or its front; None: like the
    record.
    """
    wish = terms.result_ms
    return wish if wish is not None else terms.defaults.result_ms


def drop_waiters(effects: Effects, job: Job, gone: tuple[str, ...]) -> None:
    """Removes waiters. A job without any interest left is cancelled (rule 22), unless a worker has
    it: that worker may finish, but the job is not handed out again.
    """
    if gone:
        left = tuple(waiter for waiter in job.waiters if waiter not in gone)
        job = replace(job, waiters=left)
        effects.put(job)
    if not is_wanted(job) and job.state is not State.LEASED and job.state not in FINISHED:
        cancel(effects, job, Reason.ABANDONED)


def shown_line(failure: Failure) -> str:
    """The line of a failure that a list of attempts shows."""
    return (telling_line(failure.message) or failure.code)[:200]

"""Asking again after an owner died: was the command decided, and what was the answer?

A front cannot know whether the owner that died had committed what it was asked. The next owner has
everything that was committed: it looks for the traces of the command, and decides only if there
are none. Commands without such traces are repeated if that does no harm, and refused otherwise.
"""

from typing import Final

from msgspec.structs import replace

from manyhands.model.commands import (
    Attach,
    ByToken,
    Claim,
    Command,
    Complete,
    Conclude,
    Depart,
    Detach,
    Fail,
    LiftTerms,
    Look,
    LookByKey,
    LookByName,
    NewJob,
    OnExisting,
    RemoveCursor,
    Renew,
    RenewHeld,
    Report,
    SetCursor,
    SetLimit,
    SetPriority,
    SetQueue,
    SetTags,
    Submit,
)
from manyhands.model.job import FINISHED, EndReason, Job, State
from manyhands.model.replies import (
    Changed,
    Claimed,
    Concluded,
    Refusal,
    Reply,
    Reported,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.store.contract import Live

# To repeat these changes nothing, or the engine recognises the repetition.
_REPEATABLE: Final = frozenset(
    {
        Attach,
        Claim,
        Complete,
        Conclude,
        Depart,
        Detach,
        Fail,
        LiftTerms,
        Look,
        LookByKey,
        LookByName,
        RemoveCursor,
        Renew,
        RenewHeld,
        Report,
        SetCursor,
        SetLimit,
        SetPriority,
        SetQueue,
        SetTags,
        Submit,
    }
)
UNKNOWN_OUTCOME: Final = Refusal(
    Why.UNAVAILABLE,
    "the server that was asked is gone or out of reach; whether it did this is not known, look"
    " before asking again",
)


def may_repeat(command: Command) -> bool:
    """Whether the next owner may be asked the same."""
    return type(command) in _REPEATABLE


def earlier_answer(command: Command, live: Live) -> Reply | None:
    """The answer of an owner that is gone, if it committed the command; None if it did not."""
    if type(command) is Submit:
        return _submitted(command, live)
    if type(command) is Claim:
        return _claimed(command, live)
    if type(command) is Complete or type(command) is Fail:
        return _concluded(command, live)
    if type(command) is Conclude:
        found = [_concluded(item, live) for item in command.items]
        if any(found):
            # It was committed as a whole: an item without a trace was refused.
            return Concluded(tuple(map(_reported, found)))
    return None


def repeated(command: Command) -> Command:
    """The command as it is decided where no trace of it is in memory. A job that has finished since
    is on record only: if it is there, it is the answer.
    """
    if type(command) is not Submit or command.once is not None:
        return command
    items = tuple(
        replace(item, asked_again=True)
        if item.id_chosen
        else replace(item, id_chosen=True, on_existing=OnExisting.KEEP)
        for item in command.items
    )
    return replace(command, items=items)


def _submitted(command: Submit, live: Live) -> Reply | None:
    """By the ids of its jobs: a submit is committed as a whole. One that only joined jobs that were
    there already, or has a key for repetitions, may be decided again.
    """
    if command.once is not None:
        return None
    found = [(item, live.job(item.job_id)) for item in command.items]
    if not any(job is not None and _is_made_by(item, job) for item, job in found):
        return None
    items: list[Submitted | Refusal] = []
    for item, job in found:
        if job is not None:
            items.append(Submitted(job, created=_is_made_by(item, job)))
        else:
            items.append(_joined(item, live))
    return SubmittedMany(tuple(items))


def _is_made_by(item: NewJob, job: Job) -> bool:
    """Whether the job was made from this item: a chosen id may be that of another submit."""
    if not item.id_chosen:
        return True
    if job.state in FINISHED:
        return False  # perhaps long before: the engine looks when
    return (
        job.queue == item.queue
        and job.origin == item.origin
        and (job.stored_bytes > 0 or job.payload == item.payload)
    )


def _joined(item: NewJob, live: Live) -> Submitted | Refusal:
    """An item without a job of its own: it joined the holder of its key, or was refused."""
    if item.unique_key is not None:
        holder = live.key_holder(item.queue, item.unique_key)
        job = None if holder is None else live.job(holder)
        if job is not None:
            return Submitted(job, created=False)
    return UNKNOWN_OUTCOME


def _claimed(command: Claim, live: Live) -> Reply | None:
    """By its tokens, which no other claim has."""
    tokens = frozenset(command.tokens)
    if command.connection is not None:
        ids = live.view.leased_by_connection(command.connection)
    else:
        ids = live.leased_by_holder(command.holder)
    jobs: list[Job] = []
    for job_id in ids:
        job = live.job(job_id)
        if (
            job is not None
            and job.state is State.LEASED
            and job.lease is not None
            and job.lease.token in tokens
        ):
            jobs.append(job)
    return Claimed(tuple(jobs)) if jobs else None


def _reported(changed: Changed | None) -> Reported | Refusal:
    if changed is None:
        return UNKNOWN_OUTCOME
    job = changed.job
    return Reported(job.job_id, job.state, job.incarnation)


def _concluded(command: Complete | Fail, live: Live) -> Changed | None:
    """By the last attempt: it ended in this way, and by the lease that the command is about."""
    job = live.job(command.job_id)
    if job is None or job.lease is not None or not job.attempts:
        return None
    last, proof = job.attempts[-1], command.proof
    reason = EndReason.COMPLETED if type(command) is Complete else EndReason.FAILED
    if last.reason is not reason:
        return None
    if type(proof) is ByToken:
        return Changed(job, repeated=True) if last.token == proof.token else None
    if type(command) is Complete and command.next_queue is None and job.result != command.result:
        return None
    return Changed(job, repeated=True)

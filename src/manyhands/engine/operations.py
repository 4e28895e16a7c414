"""What operators and clients do to jobs: cancel, requeue, move, change, attach, depart."""

from msgspec.structs import replace

from manyhands.engine import endings, graph, timers
from manyhands.engine.effects import Effects
from manyhands.engine.joins import add_dependencies, attach, relocate
from manyhands.engine.lease import fail_held
from manyhands.engine.validation import bad_delay, bad_priority, bad_queue, bad_tags
from manyhands.model import limits
from manyhands.model.commands import (
    Attach,
    Cancel,
    Depart,
    Detach,
    ExpireLease,
    Move,
    Only,
    Requeue,
    SetDependencies,
    SetPriority,
    SetTags,
)
from manyhands.model.identity import name_key
from manyhands.model.job import FINISHED, EndReason, Job, State, Unnotified
from manyhands.model.policy import Queue, Reentry
from manyhands.model.reasons import Reason
from manyhands.model.replies import Accepted, Changed, ChangedMany, Refusal, Reply, Why


def _unknown(job_id: str) -> Refusal:
    return Refusal(Why.UNKNOWN_JOB, f"there is no job {job_id}")


def _known(effects: Effects, job_id: str, only: Only | None) -> Job | Refusal:
    """The job, if it meets the condition of the command (rule 28)."""
    job = effects.job(job_id)
    if only is not None and not _fits(job, only):
        now = "gone" if job is None else f"{job.state} in queue {job.queue!r}"
        return Refusal(Why.NO_LONGER_FITS, f"job {job_id} is {now} by now", job)
    return job if job is not None else _unknown(job_id)


def _fits(job: Job | None, only: Only) -> bool:
    return job is not None and job.state in only.states and only.queue in (None, job.queue)


def _unfinished(effects: Effects, job_id: str, only: Only | None = None) -> Job | Refusal:
    job = _known(effects, job_id, only)
    if isinstance(job, Refusal):
        return job
    if job.state is State.COMPLETED:
        return Refusal(Why.ALREADY_COMPLETED, f"job {job_id} is completed already", job)
    if job.state is State.FAILED:
        return Refusal(Why.ALREADY_FAILED, f"job {job_id} has failed already", job)
    if job.state is State.CANCELLED:
        return Refusal(Why.ALREADY_CANCELLED, f"job {job_id} is cancelled already", job)
    return job


def decide_cancel(command: Cancel, effects: Effects) -> Reply:
    """Rule 12: cancels jobs together with those that depend on them, or refuses while there are
        any.

    If more jobs depend on them than one command may change, further commands cancel those, and the
    answer has only the requested jobs.
    """
    ids = dict.fromkeys(command.job_ids)
    if not ids:
        return Refusal(Why.EMPTY_BATCH, "there is nothing in this batch")
    if len(ids) > limits.BATCH_COUNT_MAX:
        sentence = f"a batch has at most {limits.BATCH_COUNT_MAX} items, this one {len(ids)}"
        return Refusal(Why.BATCH_TOO_LARGE, sentence)
    if len(ids) == 1:
        find = _unfinished if command.only_unfinished else _cancellable
        single = find(effects, command.job_ids[0], command.only)
        if isinstance(single, Refusal):
            return single
    # By their own ids, because a request may name one job in several ways.
    known = {job.job_id: job for job in map(effects.job, ids) if job is not None}
    ended = FINISHED if command.only_unfinished else (State.COMPLETED, State.CANCELLED)
    only = command.only
    jobs = [
        job
        for job in known.values()
        if job.state not in ended and (only is None or _fits(job, only))
    ]
    if command.with_dependants:
        found = _with_dependants(effects, jobs)
        if found is not None:
            jobs = found
        else:
            _doom_dependants(effects, jobs, command.detail)
    else:
        for job in jobs:
            for dependant in graph.dependants_of(effects, job):
                if dependant.job_id not in known:
                    sentence = f"job {dependant.job_id} depends on job {job.job_id}"
                    return Refusal(Why.HAS_DEPENDANTS, sentence, job)
    # Dependants first, so that their own policy about lost dependencies (rule 10) does not apply.
    cancelled = [
        endings.cancel(effects, job, Reason.CANCELLED, command.detail) for job in reversed(jobs)
    ]
    return ChangedMany(tuple(reversed(cancelled)))


def _cancellable(effects: Effects, job_id: str, only: Only | None) -> Job | Refusal:
    job = _unfinished(effects, job_id, only)
    if isinstance(job, Refusal) and job.why is Why.ALREADY_FAILED and job.job is not None:
        return job.job
    return job


def _with_dependants(effects: Effects, jobs: list[Job]) -> list[Job] | None:
    """The jobs and all their dependants, direct or not; None if those are too many."""
    found = {job.job_id: job for job in jobs}
    count_max = len(found) + limits.DEPENDANTS_NOTIFIED_MAX
    stack = list(jobs)
    while stack:
        for dependant in graph.dependants_of(effects, stack.pop()):
            if dependant.job_id not in found:
                if len(found) == count_max:
                    return None
                found[dependant.job_id] = dependant
                stack.append(dependant)
    return list(found.values())


def _doom_dependants(effects: Effects, jobs: list[Job], detail: str) -> None:
    """Starts a cascade cancellation: all present dependants will be cancelled, whatever their
    policy.
    """
    doom = Unnotified(effects.view.last_serial(), detail)
    for job in jobs:
        if effects.view.is_awaited(job):
            effects.set().unnotified[job.job_id] = doom


def decide_requeue(command: Requeue, effects: Effects) -> Reply:
    """Rule 15: the same id again, with a fresh budget. The lease number continues, so that a report
    under a lease of an earlier incarnation cannot be taken for a new one.
    """
    job = _known(effects, command.job_id, command.only)
    if isinstance(job, Refusal):
        return job
    if job.state not in FINISHED:
        return Refusal(Why.NOT_FINISHED, f"job {job.job_id} is {job.state}", job)
    if job.state is State.CANCELLED and not command.cancelled_too:
        sentence = "a cancelled job cannot be requeued; add it anew"
        return Refusal(Why.ALREADY_CANCELLED, sentence, job)
    queue = command.queue or job.queue
    refusal = bad_queue(effects, queue) or bad_delay(command.delay_ms)
    if refusal is not None:
        return refusal
    if job.unique_key is not None and effects.key_holder(queue, job.unique_key) is not None:
        return Refusal(Why.DUPLICATE_KEY, "another unfinished job holds its unique key", job)
    if job.name is not None and _name_is_taken(effects, job):
        return Refusal(Why.DUPLICATE_NAME, "another unfinished job has its name", job)
    now = effects.now
    if job.deadline_at is not None and job.deadline_at <= now:
        job = replace(job, deadline_at=None)
    if effects.queue(queue) is None:
        effects.put_queue(Queue(queue))
    job = replace(
        job,
        incarnation=job.incarnation + 1,
        attempts_used=0,
        finished_at=None,
        result=None,
        failure=None,
        detail="",
        progress=None,
        partials_count=0,
        durable_interest=True,
        waits_for=(),
        history=endings.with_history(job, now, Reason.REQUEUED.value, job.state.value),
    )
    return Changed(
        endings.place(
            effects, job, run_at=now + command.delay_ms, reason=Reason.REQUEUED, queue=queue
        )
    )


def _name_is_taken(effects: Effects, job: Job) -> bool:
    job_id = effects.named(job.namespace or "", job.name or "")
    other = effects.job(job_id) if job_id is not None else None
    return other is not None and other.job_id != job.job_id and other.state not in FINISHED


def decide_move(command: Move, effects: Effects) -> Reply:
    """Moves a job to another queue, from any unfinished state."""
    job = _unfinished(effects, command.job_id, command.only)
    if isinstance(job, Refusal):
        return job
    refusal = bad_queue(effects, command.queue) or bad_delay(command.delay_ms)
    if refusal is not None:
        return refusal
    if job.unique_key is not None and command.queue != job.queue:
        holder = effects.key_holder(command.queue, job.unique_key)
        if holder is not None:
            return Refusal(Why.DUPLICATE_KEY, f"job {holder} holds its unique key there", job)
    run_at = effects.now + command.delay_ms
    return Changed(relocate(effects, job, command.queue, run_at, job.waits_for))


def decide_set_priority(command: SetPriority, effects: Effects) -> Reply:
    """Sets a priority. A ready job goes behind the others of its new priority (rule 18)."""
    job = _unfinished(effects, command.job_id, command.only)
    if isinstance(job, Refusal):
        return job
    refusal = bad_priority(command.priority)
    if refusal is not None:
        return refusal
    if job.priority == command.priority:
        return Changed(job)
    ready = job.state is State.READY
    position = effects.position(Reentry.TAIL) if ready else job.position
    job = replace(job, priority=command.priority, position=position)
    effects.put(job)
    return Changed(job)


def decide_set_tags(command: SetTags, effects: Effects) -> Reply:
    """Tags keep the order in which they were added."""
    job = effects.job(command.job_id)
    if job is None:
        return _unknown(command.job_id)
    tags = dict.fromkeys((*job.tags, *command.add))
    for tag in command.remove:
        tags.pop(tag, None)
    refusal = bad_tags(tuple(tags))
    if refusal is not None:
        return refusal
    job = replace(job, tags=tuple(tags))
    effects.put(job)
    return Changed(job)


def decide_set_dependencies(command: SetDependencies, effects: Effects) -> Reply:
    """Adds and removes dependencies of an unfinished job."""
    job = _unfinished(effects, command.job_id)
    if isinstance(job, Refusal):
        return job
    if command.only_idle and not _is_idle(job):
        sentence = "dependencies change only while a job waits"
        return Refusal(Why.NOT_IDLE, sentence, job)
    if command.add:
        added = add_dependencies(effects, job, command.add, command.on_unknown_dependency)
        if isinstance(added, Refusal):
            return added
        job = added.job
    if command.remove:
        removed = set(command.remove)
        if job.namespace is not None:
            names = (effects.named(job.namespace, name) for name in command.remove)
            removed.update(name for name in names if name is not None)
            removed.update(name_key(job.namespace, name) for name in command.remove)
        kept = tuple(key for key in job.depends_on if key not in removed)
        job = replace(job, depends_on=kept)
        graph.free(effects, job, tuple(key for key in job.waits_for if key not in removed))
        job = effects.jobs[job.job_id]
    return Changed(job)


def _is_idle(job: Job) -> bool:
    """Whether no worker has the job, or had it until its lease lapsed: that one relies on what it
    was given.
    """
    return job.state is State.BLOCKED or (job.state is State.READY and job.lease is None)


def decide_expire_lease(command: ExpireLease, effects: Effects) -> Reply:
    """Expires a lease at once, without grace, since an operator decided it."""
    job = _unfinished(effects, command.job_id, command.only)
    if isinstance(job, Refusal):
        return job
    if job.state is not State.LEASED or job.lease is None:
        return Refusal(Why.NOT_LEASED, f"job {job.job_id} is {job.state}, nobody holds it", job)
    effects.tell_holder(job, job.lease)
    timers.expire(job, replace(job.lease, in_grace=True), effects)
    return Changed(effects.jobs[job.job_id])


def decide_attach(command: Attach, effects: Effects) -> Reply:
    """Adds an interest in a job (rule 22); for a finished one, the answer is the job itself."""
    job = effects.job(command.job_id)
    if job is None:
        return _unknown(command.job_id)
    if job.state in FINISHED:
        return Changed(job)
    return Changed(attach(effects, job, command.waiter, durable=command.durable))


def decide_detach(command: Detach, effects: Effects) -> Reply:
    """Removes a waiter from all jobs that it waited for."""
    ids = effects.view.waited_by(command.waiter)
    for job_id in ids:
        job = effects.job(job_id)
        assert job is not None
        endings.drop_waiters(effects, job, (command.waiter,))
    return Accepted(len(ids))


def decide_depart(command: Depart, effects: Effects) -> Reply:
    """A worker left: its jobs go back, charged only if the worker was lost (rule 5). Attempts that
    it did not survive fail first; one whose lease is gone by now is passed over.
    """
    for failed in command.failed:
        held = effects.job(failed.job_id)
        if held is not None:
            fail_held(effects, held, failed)
    ids: list[str] = []
    if command.connection is not None:
        ids.extend(effects.view.leased_by_connection(command.connection))
    if command.holder is not None:
        ids.extend(effects.view.leased_by_holder(command.holder))
    count = 0
    for job_id in dict.fromkeys(ids):
        job = effects.job(job_id)
        assert job is not None
        if job.state is not State.LEASED:
            continue  # lapsed: somebody else may claim it already
        if command.holder is not None and not _is_of(job, command):
            continue  # of another worker without a name
        if count == command.count_max:
            break
        count += 1
        if command.reason is EndReason.LOST:
            endings.lose(effects, job, EndReason.LOST)
        else:
            endings.give_back(effects, job, command.reason)
    return Accepted(count)


def _is_of(job: Job, command: Depart) -> bool:
    """Rule 3: workers without a name are distinguished by their address."""
    lease, holder = job.lease, command.holder
    assert lease is not None
    assert holder is not None
    if command.connection is not None and lease.connection == command.connection:
        return True
    return holder.name is not None or lease.holder.address == holder.address

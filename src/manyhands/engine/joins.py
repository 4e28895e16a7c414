"""A submit that meets an existing job (rules 15 and 16), and the same changes by other commands."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from manyhands.engine import endings, graph
from manyhands.engine.effects import Effects
from manyhands.engine.graph import Resolved
from manyhands.model import limits
from manyhands.model.commands import NewJob, OnExisting
from manyhands.model.job import FINISHED, EndReason, Job, Lease, State
from manyhands.model.policy import OnDuplicate, OnUnknownDependency, Queue
from manyhands.model.reasons import Reason
from manyhands.model.replies import Refusal, Submitted, Why

_NOTHING: Final[Mapping[str, str]] = {}
_ASSUMED_SHOWN_MAX: Final = 200
_MOVES: Final = (Reason.MOVED.value, Reason.ADVANCED.value)


def meet_live(
    effects: Effects, item: NewJob, known: Job, coming: Mapping[str, str]
) -> Submitted | Refusal:
    """A submit under the id or name of an unfinished job does what it asked for in that case."""
    if item.on_existing is OnExisting.ADD_DEPENDENCIES:
        on_unknown = item.on_unknown_dependency
        return add_dependencies(effects, known, item.depends_on, on_unknown, coming)
    if item.on_existing is OnExisting.MOVE:
        return move_in(effects, item, known)
    why = Why.DUPLICATE_JOB if known.queue == item.queue else Why.IN_OTHER_QUEUE
    if not item.id_chosen:
        why = Why.DUPLICATE_NAME
    sentence = f"job {known.job_id} is {known.state} in queue {known.queue!r}"
    return Refusal(why, sentence, known)


def keep_known(effects: Effects, item: NewJob, known: Job) -> Submitted | Refusal:
    """A submit that keeps the existing job of its id or name, finished or not (rule 15). A chosen
    id in another queue is not the same submit again, but a mistake; unless the job was moved, for
    then its queue does not show where it was submitted.
    """
    if item.id_chosen and known.queue != item.queue and not _was_moved(known):
        sentence = f"job {known.job_id} is {known.state} in queue {known.queue!r}"
        return Refusal(Why.IN_OTHER_QUEUE, sentence, known)
    if known.state not in FINISHED:
        known = attach(effects, known, item.waiter, durable=item.durable_interest)
    return Submitted(known, created=False)


def _was_moved(job: Job) -> bool:
    return any(entry.what in _MOVES for entry in job.history)


def meet_key_holder(effects: Effects, item: NewJob, holder_id: str) -> Submitted | Refusal | Job:
    """Rule 16: what a submit does when another job holds its unique key. Returns the job to
    replace, if there is one.
    """
    holder = effects.job(holder_id)
    assert holder is not None
    if item.on_duplicate is OnDuplicate.ATTACH:
        if holder.terms.result_ms == 0 and item.terms.result_ms != 0:
            # A joiner only adds (rule 22): this one wants a result that was not to be kept.
            holder = replace(holder, terms=item.terms)
            effects.put(holder)
        joined = attach(effects, holder, item.waiter, durable=item.durable_interest)
        return Submitted(joined, created=False)
    if item.on_duplicate is OnDuplicate.REPLACE and holder.state is not State.LEASED:
        return holder
    sentence = f"job {holder_id} holds this unique key and is {holder.state}"
    return Refusal(Why.DUPLICATE_KEY, sentence, holder)


def attach(effects: Effects, job: Job, waiter: str | None, *, durable: bool) -> Job:
    """Rule 22: adds an interest. Joining never takes anything from other clients."""
    waiters = job.waiters if waiter is None else (*job.waiters, waiter)
    durable = durable or job.durable_interest
    if waiters is job.waiters and durable == job.durable_interest:
        return job
    job = replace(job, waiters=waiters, durable_interest=durable)
    effects.put(job)
    return job


def with_assumed(job: Job, resolved: Resolved, now: int) -> Job:
    """Notes unknown dependencies that count as satisfied, so that a misspelt one can be found."""
    names = ", ".join(resolved.assumed)[:_ASSUMED_SHOWN_MAX]
    return replace(job, history=endings.with_history(job, now, "dependency unknown", names))


def move_in(effects: Effects, item: NewJob, known: Job) -> Submitted | Refusal:
    """A submit under a live id that asks to move that job."""
    if known.unique_key is not None and known.queue != item.queue:
        holder = effects.key_holder(item.queue, known.unique_key)
        if holder is not None:
            return Refusal(Why.DUPLICATE_KEY, f"job {holder} holds its unique key there", known)
    waits_for, depends_on = known.waits_for, known.depends_on
    if item.depends_on:
        resolved = graph.resolve(
            effects,
            item.depends_on,
            item.namespace,
            item.on_unknown_dependency,
            graph.on_dependency_failure_of(known),
            _NOTHING,
        )
        if isinstance(resolved, Refusal):
            return resolved
        if graph.closes_cycle(effects, known.job_id, resolved.waits_for):
            return graph.cycle_refusal(known.job_id)
        waits_for, depends_on = tuple(resolved.waits_for), tuple(resolved.depends_on)
    now = effects.now
    job = replace(
        known,
        payload=item.payload,
        stored_bytes=0,
        encoding=item.encoding,
        tags=item.tags or known.tags,
        headers=item.headers or known.headers,
        priority=item.priority or known.priority,
        wanted_at=item.run_at,
        depends_on=depends_on,
        durable_interest=known.durable_interest or item.durable_interest,
        waiters=known.waiters if item.waiter is None else (*known.waiters, item.waiter),
    )
    run_at = item.run_at if item.run_at is not None else now + item.delay_ms
    return Submitted(relocate(effects, job, item.queue, run_at, waits_for), created=False)


def relocate(
    effects: Effects,
    job: Job,
    queue: str,
    run_at: int,
    waits_for: tuple[str, ...],
    completed: Lease | None = None,
) -> Job:
    """Moves a job into a queue from any state; its lease ends, its budget starts again.
    ``completed`` is the lease whose holder moves the job on.
    """
    now = effects.now
    lease = job.lease
    what = Reason.MOVED if completed is None else Reason.ADVANCED
    if not endings.is_wanted(job):
        return endings.cancel(effects, replace(job, waits_for=waits_for), Reason.ABANDONED)
    if lease is not None:
        attempts = endings.ended_attempts(job, lease, now, EndReason.MOVED)
        job = replace(job, attempts=attempts)
        effects.notify_holder(job, lease)
    if effects.queue(queue) is None:
        effects.put_queue(Queue(queue))
    return endings.place(
        effects,
        job,
        lease=lease or completed,
        run_at=run_at,
        reason=what,
        queue=queue,
        attempts_used=0,
        progress=None,
        waits_for=waits_for,
        history=endings.with_history(job, now, what.value, f"from {job.queue} to {queue}"),
    )


def add_dependencies(
    effects: Effects,
    job: Job,
    names: tuple[str, ...],
    on_unknown: OnUnknownDependency,
    coming: Mapping[str, str] = _NOTHING,
) -> Submitted | Refusal:
    """Adds dependencies. A leased job continues: its worker cannot be stopped for that, so the new
    edges only take effect if the job returns.
    """
    resolved = graph.resolve(
        effects, names, job.namespace, on_unknown, graph.on_dependency_failure_of(job), coming
    )
    if isinstance(resolved, Refusal):
        return resolved
    fresh = [key for key in resolved.waits_for if key not in job.waits_for]
    if job.job_id in fresh or graph.closes_cycle(effects, job.job_id, fresh):
        return graph.cycle_refusal(job.job_id)
    more = [key for key in resolved.depends_on if key not in job.depends_on]
    if len(job.depends_on) + len(more) > limits.DEPENDENCIES_COUNT_MAX:
        sentence = f"a job may depend on at most {limits.DEPENDENCIES_COUNT_MAX} others"
        return Refusal(Why.TOO_MANY_DEPENDENCIES, sentence, job)
    job = replace(job, depends_on=(*job.depends_on, *more))
    if resolved.assumed:
        job = with_assumed(job, resolved, effects.now)
    if not fresh:
        if more or resolved.assumed:
            effects.put(job)
    elif job.lease is not None and job.state is State.READY:
        # A lapsed lease ends here: its job must not run now, so its holder may not resume it
        # either.
        effects.notify_holder(job, job.lease)
        job = endings.lose(effects, replace(job, waits_for=tuple(fresh)), EndReason.EXPIRED)
    elif job.state in (State.READY, State.DELAYED):
        job = endings.place(effects, job, run_at=job.run_at, waits_for=tuple(fresh))
    else:
        job = replace(job, waits_for=(*job.waits_for, *fresh))
        effects.put(job)
    if resolved.lost is not None and job.state is State.BLOCKED:  # else it binds when it returns
        graph.lose_dependant(effects, job, resolved.lost)
        job = effects.jobs[job.job_id]
    return Submitted(job, created=False)

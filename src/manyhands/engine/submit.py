"""Submitting: new jobs, joined jobs, finished jobs that are requeued (rules 14 to 16)."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from manyhands.engine import endings, graph
from manyhands.engine.effects import Effects
from manyhands.engine.graph import Resolved
from manyhands.engine.joins import keep_known, meet_key_holder, meet_live, with_assumed
from manyhands.engine.receipts import keep_receipt, repeated
from manyhands.engine.validation import bad_new_job, bad_new_queue
from manyhands.model import limits
from manyhands.model.commands import NewJob, OnExisting, Submit
from manyhands.model.identity import name_key
from manyhands.model.job import (
    FINISHED,
    JOINED_HEADER,
    SUBMITTED,
    SUBMITTED_AGAIN,
    HistoryEntry,
    Job,
    State,
)
from manyhands.model.policy import (
    NO_POLICY,
    OnUnknownDependency,
    Queue,
    QueuePolicy,
    Reentry,
)
from manyhands.model.reasons import Reason
from manyhands.model.replies import Refusal, Reply, Submitted, SubmittedMany, Why

_READY: Final = State.READY
_NOTHING: Final[Mapping[str, str]] = {}


def decide_submit(command: Submit, effects: Effects) -> Reply:
    """Submits each item by itself; or all or nothing, where items may name later ones."""
    once = command.once
    if once is None:
        return _submit(command, effects)
    before = repeated(effects, once)
    if before is not None:
        return before
    reply = _submit(command, effects)
    if type(reply) is SubmittedMany:
        keep_receipt(effects, once, reply)
    return reply


def _submit(command: Submit, effects: Effects) -> Reply:
    items = command.items
    if len(items) == 1:
        return SubmittedMany((admit(effects, items[0]),))
    if not items:
        return Refusal(Why.EMPTY_BATCH, "there is nothing in this batch")
    if len(items) > limits.BATCH_COUNT_MAX:
        sentence = f"a batch has at most {limits.BATCH_COUNT_MAX} items, this one {len(items)}"
        return Refusal(Why.BATCH_TOO_LARGE, sentence)
    effects.track()
    if command.all_or_nothing:
        return _submit_together(items, effects)
    return SubmittedMany(tuple(admit(effects, item) for item in items))


def admit(  # noqa: C901 - all that may refuse it, in order
    effects: Effects, item: NewJob, coming: Mapping[str, str] = _NOTHING
) -> Submitted | Refusal:
    """Admits one job, as its id, name and key allow. ``coming`` are later items of its batch.

    All checks come before the first change, so that a refused item leaves nothing behind.
    """
    queue = effects.queue(item.queue)
    refusal = bad_new_queue(effects, item.queue) if queue is None else None
    refusal = refusal or bad_new_job(effects, item)
    if refusal is not None:
        return refusal
    known: Job | None = None
    if item.id_chosen or item.name is not None:
        known = _known(effects, item)
        refusal = _unwelcome(effects, item, known)
        if refusal is not None:
            return refusal
        if known is not None and item.on_existing is OnExisting.KEEP:
            return keep_known(effects, item, known)
        if known is not None and _is_of_this_submit(effects, item, known):
            return Submitted(known)
        if known is not None and known.state not in FINISHED:
            return meet_live(effects, item, known, coming)
        if item.id_chosen and item.name is not None and _name_is_taken(effects, item):
            return Refusal(Why.DUPLICATE_NAME, f"another unfinished job has the name {item.name!r}")
    replaced: Job | None = None
    if item.unique_key is not None:
        holder_id = effects.key_holder(item.queue, item.unique_key)
        if holder_id is not None:
            met = meet_key_holder(effects, item, holder_id)
            if not isinstance(met, Job):
                return met
            replaced = met
    if queue is not None and queue.policy is not NO_POLICY:
        refusal = _full_queue(effects, item, queue.policy, replaced)
        if refusal is not None:
            return refusal
    resolved = _resolve(effects, item, known, coming) if item.depends_on else None
    if isinstance(resolved, Refusal):
        return resolved
    # Nothing can refuse it from here on, so changes may begin.
    if replaced is not None:
        endings.cancel(effects, replaced, Reason.REPLACED)
    if queue is None:
        queue = Queue(item.queue)
        effects.put_queue(queue)
    return _create(effects, item, queue, known, resolved)


def _inherit(effects: Effects, before: Job, job: Job) -> None:
    """A new job took the name of one that failed or was cancelled: jobs held by that one wait for
    it.
    """
    old, new = before.job_id, job.job_id
    doom = effects.doom(old)
    dependants = {other.job_id: other for other in graph.dependants_of(effects, before)}
    if effects.is_awaited(old):
        # Including those of this command, which are not in the view.
        dependants.update((other.job_id, other) for other in effects.jobs.values())
    for dependant in dependants.values():
        if old not in dependant.waits_for:
            continue  # by name, and the name has moved
        if doom is not None and graph.is_doomed(dependant, doom):
            continue  # it was cancelled together with that one
        effects.put(
            replace(
                dependant,
                waits_for=tuple(new if key == old else key for key in dependant.waits_for),
                depends_on=tuple(new if key == old else key for key in dependant.depends_on),
            )
        )


def _resolve(
    effects: Effects, item: NewJob, known: Job | None, coming: Mapping[str, str]
) -> Resolved | Refusal:
    own = item.job_id if item.namespace is None else item.name
    if own in item.depends_on and item.on_unknown_dependency is OnUnknownDependency.REFUSE:
        return graph.cycle_refusal(item.job_id)  # rather than: there is no such job yet
    terms = item.terms
    resolved = graph.resolve(
        effects,
        item.depends_on,
        item.namespace,
        item.on_unknown_dependency,
        terms.on_dependency_failure or terms.defaults.on_dependency_failure,
        coming,
    )
    if isinstance(resolved, Refusal):
        return resolved
    if resolved.waits_for and _closes_cycle(effects, item, known, resolved.waits_for):
        return graph.cycle_refusal(item.job_id)
    return resolved


def _known(effects: Effects, item: NewJob) -> Job | None:
    if item.id_chosen:
        return effects.job(item.job_id)
    if item.name is not None:
        job_id = effects.named(item.namespace or "", item.name)
        return effects.job(job_id) if job_id is not None else None
    return None


def _is_of_this_submit(effects: Effects, item: NewJob, known: Job) -> bool:
    """Whether a submit whose answer was lost has made this job, which is finished by now."""
    if not item.asked_again or known.state not in FINISHED:
        return False
    again = (entry.at for entry in known.history if entry.what == SUBMITTED_AGAIN)
    submitted_at = max(again, default=known.submitted_at)
    return known.queue == item.queue and effects.now - submitted_at < limits.ASKED_AGAIN_MS


def _unwelcome(effects: Effects, item: NewJob, known: Job | None) -> Refusal | None:
    """Rule 28: the refusal that a submit under a chosen id may ask for."""
    if item.unless_scheduled and effects.view.schedule(item.name or item.job_id) is not None:
        return Refusal(Why.DUPLICATE_JOB, "a recurring job has this id")
    if (
        item.once_per_queue
        and known is not None
        and known.state is State.COMPLETED
        and known.queue == item.queue
    ):
        return Refusal(Why.ALREADY_COMPLETED, "the job was completed in this queue before", known)
    return None


def _name_is_taken(effects: Effects, item: NewJob) -> bool:
    job_id = effects.named(item.namespace or "", item.name or "")
    other = effects.job(job_id) if job_id is not None else None
    return other is not None and other.job_id != item.job_id and other.state not in FINISHED


def _full_queue(
    effects: Effects, item: NewJob, policy: QueuePolicy, replaced: Job | None
) -> Refusal | None:
    jobs_max = policy.jobs_max
    if item.priority > 0 and policy.jobs_max_high is not None:
        jobs_max = policy.jobs_max_high
    elif item.priority < 0 and policy.jobs_max_low is not None:
        jobs_max = policy.jobs_max_low
    if jobs_max is None:
        return None
    if effects.unfinished_count(item.queue) - (replaced is not None) < jobs_max:
        return None
    return Refusal(Why.QUEUE_FULL, f"queue {item.queue!r} holds {jobs_max} jobs already")


def _create(
    effects: Effects, item: NewJob, queue: Queue, known: Job | None, resolved: Resolved | None
) -> Submitted:
    """The new job, in its first state. ``known`` is a finished job of its id or name."""
    now = effects.now
    if is_simple(item):
        job = new_job(item, effects.view.take_position(), now)
    else:
        job = _with_rarities(effects, new_job(item, 0, now), item, resolved)
    if known is not None and item.id_chosen:
        # Rule 15: the same id again. The lease number continues, the budget starts again.
        job = replace(
            job,
            serial=known.serial,
            incarnation=known.incarnation + 1,
            lease_number=known.lease_number,
            attempts=known.attempts,
            history=_submitted_again(known, now),
        )
    if resolved is not None and resolved.assumed:
        job = with_assumed(job, resolved, now)
    effects.enter(job, now, policy=queue.policy)
    if known is not None and not item.id_chosen:
        _inherit(effects, known, job)
    if resolved is not None and resolved.waits_for:
        effects.held.append(job)
        if resolved.lost is not None:
            graph.lose_dependant(effects, job, resolved.lost)
            job = effects.jobs[job.job_id]
    return Submitted(job)


def _submitted_again(known: Job, now: int) -> tuple[HistoryEntry, ...]:
    if not any(entry.what in (SUBMITTED, SUBMITTED_AGAIN) for entry in known.history):
        first = HistoryEntry(known.submitted_at, SUBMITTED)
        known = replace(known, history=(first, *known.history))
    return endings.with_history(known, now, SUBMITTED_AGAIN)


def new_job(item: NewJob, position: int, now: int) -> Job:
    """A new job that is ready at once and has nothing unusual."""
    waiter = item.waiter
    return Job(
        job_id=item.job_id,
        queue=item.queue,
        state=_READY,
        payload=item.payload,
        encoding=item.encoding,
        terms=item.terms,
        origin=item.origin,
        priority=item.priority,
        position=position,
        submitted_at=now if item.submitted_at is None else item.submitted_at,
        entered_at=now,
        unique_key=item.unique_key,
        durable_interest=item.durable_interest,
        waiters=() if waiter is None else (waiter,),
    )


def is_simple(item: NewJob) -> bool:
    """Whether a job is ready at once and has nothing unusual, as most are."""
    return not (
        item.depends_on
        or item.delay_ms
        or item.run_at is not None
        or item.name is not None
        or item.deadline_at is not None
        or item.tags
        or item.limits
        or item.headers
        or item.metadata
        or item.schedule is not None
    )


def _with_rarities(effects: Effects, job: Job, item: NewJob, resolved: Resolved | None) -> Job:
    run_at = item.run_at if item.run_at is not None else effects.now + item.delay_ms
    waits_for = tuple(resolved.waits_for) if resolved is not None else ()
    due = run_at <= effects.now
    state = State.READY if due else State.DELAYED
    if waits_for:
        state = State.BLOCKED
    return replace(
        job,
        state=state,
        position=effects.position(Reentry.TAIL) if state is _READY else 0,
        run_at=None if due else run_at,
        wanted_at=item.run_at,
        deadline_at=item.deadline_at,
        namespace=item.namespace,
        name=item.name,
        tags=item.tags,
        limits=tuple(sorted(set(item.limits))),
        depends_on=tuple(resolved.depends_on) if resolved is not None else (),
        waits_for=waits_for,
        schedule=item.schedule,
        headers=item.headers or None,
        metadata=item.metadata,
    )


def _closes_cycle(
    effects: Effects, item: NewJob, known: Job | None, waits_for: Sequence[str]
) -> bool:
    """Whether a job closes a cycle. A new one can only do so if another job already waits for its
    id or name, or for the finished job whose name it takes.
    """
    keys = [item.job_id]
    if known is not None:
        keys.append(known.job_id)
    if item.name is not None:
        keys.append(name_key(item.namespace or "", item.name))
    return any(
        key in waits_for
        or (effects.is_awaited(key) and graph.closes_cycle(effects, key, waits_for))
        for key in keys
    )


def _submit_together(items: tuple[NewJob, ...], effects: Effects) -> Reply:
    """All or nothing. Items may name each other in any order, so their ids are collected first."""
    coming: dict[str, str] = {}
    for item in items:
        known = _known(effects, item)
        kept = item.on_existing is OnExisting.KEEP
        kept = kept or (known is not None and _is_of_this_submit(effects, item, known))
        if known is None or (known.state in FINISHED and not kept):
            coming.setdefault(item.name or item.job_id, item.job_id)
    replies: list[Submitted | Refusal] = []
    joined: dict[str, str] = {}  # ids of items that joined another job instead of becoming one
    for item in items:
        reply = admit(effects, item, coming)
        if isinstance(reply, Refusal):
            return reply
        key = item.name or item.job_id
        if coming.pop(key, None) not in (None, reply.job.job_id):
            joined[item.job_id] = coming[key] = reply.job.job_id
        replies.append(reply)
    if joined:
        _redirect(effects, items, joined)
    created = [reply.job for reply in replies if isinstance(reply, Submitted)]
    ids = [job.job_id for job in created]
    looped = graph.find_cycle(effects, ids, within=graph.new_jobs_only(effects, created))
    if looped is not None:
        return graph.cycle_refusal(looped)
    return SubmittedMany(tuple(replies))


def _redirect(effects: Effects, items: tuple[NewJob, ...], joined: Mapping[str, str]) -> None:
    """Lets items that depend on an item that joined another job wait for that job. Payloads may
    name the item by the id it was submitted under, so headers tell the worker which job it became.
    """
    for item in items:
        job = effects.jobs.get(item.job_id) if item.depends_on else None
        if job is None:
            continue
        became = {f"{JOINED_HEADER}{key}": joined[key] for key in item.depends_on if key in joined}
        if not became and joined.keys().isdisjoint(job.waits_for):
            continue
        waits_for = dict.fromkeys(joined.get(key, key) for key in job.waits_for)
        depends_on = dict.fromkeys(joined.get(key, key) for key in job.depends_on)
        headers = {**job.headers, **became} if job.headers else job.headers
        effects.put(
            replace(job, waits_for=tuple(waits_for), depends_on=tuple(depends_on), headers=headers)
        )

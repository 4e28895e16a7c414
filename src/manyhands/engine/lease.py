"""What the holder of a lease may do: renew, report, send, complete, fail, release."""

from typing import Any, Final

from msgspec.structs import replace

from manyhands.engine import endings, graph
from manyhands.engine.effects import Effects, Partial
from manyhands.engine.joins import relocate
from manyhands.engine.transitions import Trigger, advance
from manyhands.engine.validation import bad_delay, bad_payload, bad_queue
from manyhands.model import limits
from manyhands.model.commands import (
    ByAnyone,
    ByConnection,
    ByHolder,
    ByToken,
    Complete,
    Conclude,
    Fail,
    LiftTerms,
    Proof,
    Release,
    ReleaseAll,
    Renew,
    RenewHeld,
    Report,
    SendPartial,
)
from manyhands.model.job import (
    FINISHED,
    NOTED,
    Attempt,
    EndReason,
    Holder,
    Job,
    Lease,
    Progress,
    State,
)
from manyhands.model.policy import Completion, OnUnknownDependency
from manyhands.model.reasons import Reason
from manyhands.model.replies import (
    Accepted,
    Changed,
    ChangedMany,
    Concluded,
    Refusal,
    Reply,
    Reported,
    Why,
)
from manyhands.model.roles import fits_any

_COMPLETED: Final = State.COMPLETED
_OPEN: Final = Completion.OPEN
_NOBODY: Final = Holder("native", None)
_ENDED: Final = {
    State.COMPLETED: Why.ALREADY_COMPLETED,
    State.FAILED: Why.ALREADY_FAILED,
    State.CANCELLED: Why.ALREADY_CANCELLED,
}


def proves(lease: Lease, proof: Proof) -> bool:
    """Rule 3: whether the proof matches the lease. Every protocol identifies workers differently,
    so a command says how it proves its lease.
    """
    if type(proof) is ByConnection:
        return lease.connection == proof.connection
    if type(proof) is ByToken:
        return lease.token == proof.token
    if type(proof) is ByHolder:
        holder = lease.holder
        if holder.realm != proof.realm:
            return False
        if holder.name is not None:
            return holder.name == (proof.name or proof.address)
        return holder.address == proof.address
    return False


def held(effects: Effects, job_id: str, proof: Proof, queue: str | None) -> Job | Refusal:
    """The job, if the proof matches its lease; otherwise the refusal."""
    job = effects.job(job_id)
    if job is None:
        return _unknown(job_id)
    return _proven(effects, job, proof, queue)


def _proven(effects: Effects, job: Job, proof: Proof, queue: str | None) -> Job | Refusal:
    job_id = job.job_id
    lease = job.lease
    if lease is None:
        if job.state in FINISHED:
            return Refusal(_ENDED[job.state], f"job {job_id} is {job.state} already", job)
        return Refusal(Why.NOT_LEASED, f"job {job_id} is {job.state}, nobody holds it", job)
    if not proves(lease, proof):
        return Refusal(Why.NOT_YOUR_LEASE, f"the lease of job {job_id} is not yours", job)
    if queue is not None and job.queue != queue:
        sentence = f"job {job_id} is leased in queue {job.queue!r}, not in {queue!r}"
        return Refusal(Why.WRONG_QUEUE, sentence, job)
    if lease.holder.name is None and type(proof) is ByHolder and proof.name is not None:
        # A lease taken without a name (a plain GET) belongs to the first named request.
        adopted = replace(lease, holder=replace(lease.holder, name=proof.name))
        job = replace(job, lease=adopted)
        effects.put(job)
    return job


def decide_renew(command: Renew, effects: Effects) -> Reply:
    """Starts a new term. A lapsed lease is valid again, since no other worker has claimed the job
    yet (rule 6).
    """
    job = held(effects, command.job_id, command.proof, command.queue)
    if isinstance(job, Refusal):
        return job
    refusal = bad_payload(command.payload) or bad_delay(command.term_ms or 0)
    if refusal is not None:
        return refusal
    changes: dict[str, Any] = {}
    if command.payload is not None:
        changes = {"payload": command.payload, "encoding": command.encoding}
    job = _renewed(effects, job, command.term_ms, changes)
    return Changed(job)


def _renewed(effects: Effects, job: Job, term_ms: int | None, changes: dict[str, Any]) -> Job:
    lease = job.lease
    assert lease is not None
    now = effects.now
    policy = effects.policy(job.queue)
    term_ms = (policy.lease_ms or None) if policy.lease_forced else term_ms or lease.term_ms
    expires_at = now + term_ms if term_ms is not None else None
    lease = replace(lease, expires_at=expires_at, in_grace=False, lapsed=False, spent=False)
    if job.state is State.READY:
        since = job.entered_at
        job = advance(job, Trigger.CLAIMED, now, lease=lease, reason=Reason.RENEWED, **changes)
        effects.enter(job, since)
    else:
        job = replace(job, lease=lease, **changes)
        effects.put(job)
    return job


def decide_renew_held(command: RenewHeld, effects: Effects) -> Reply:
    """Starts a new term for what these workers hold, lapsed or not. Leases in their first third
    stay as they are: a supervisor vouches more often than that, and each renewal writes a job.
    """
    count = 0
    for holder in command.holders:
        for job_id in effects.view.leased_by_holder(holder):
            if count == command.count_max:
                return Accepted(count)
            job = effects.job(job_id)
            assert job is not None
            lease = job.lease
            if lease is None or lease.expires_at is None or lease.term_ms is None:
                continue
            if not fits_any(command.queues, job.queue):
                continue
            if 3 * (lease.expires_at - effects.now) < 2 * lease.term_ms:
                _renewed(effects, job, None, {})
                count += 1
    return Accepted(count)


def decide_lift_terms(command: LiftTerms, effects: Effects) -> Reply:
    """Removes the terms of a connection's leases; the longest attempt still applies."""
    count = 0
    for job_id in effects.view.leased_by_connection(command.connection):
        job = effects.job(job_id)
        assert job is not None
        lease = job.lease
        assert lease is not None
        if job.state is not State.LEASED or lease.term_ms is None:
            continue
        if effects.policy(job.queue).lease_forced:
            continue
        lease = replace(lease, term_ms=None, expires_at=None, in_grace=False)
        effects.put(replace(job, lease=lease))
        count += 1
    return Accepted(count)


def decide_report(command: Report, effects: Effects) -> Reply:
    """Records progress, which also renews a lease with a term."""
    job = held(effects, command.job_id, command.proof, None)
    if isinstance(job, Refusal):
        return job
    if command.numerator < 0 or command.denominator < 0:
        return Refusal(Why.BAD_COUNT, "progress is two numbers of 0 or more", job)
    progress = Progress(command.numerator, command.denominator, command.seconds_left, effects.now)
    lease = job.lease
    assert lease is not None
    if command.renew and lease.term_ms is not None:
        job = _renewed(effects, job, None, {"progress": progress})
    else:
        job = replace(job, progress=progress)
        effects.put(job)
    effects.signal("progress", job, command.payload)
    return Changed(job)


def decide_send_partial(command: SendPartial, effects: Effects) -> Reply:
    """A piece of the result: kept with the job, and sent to its waiters. A line of the log is only
    kept.
    """
    job = held(effects, command.job_id, command.proof, None)
    if isinstance(job, Refusal):
        return job
    refusal = bad_payload(command.payload)
    if refusal is not None:
        return refusal
    job = replace(job, partials_count=job.partials_count + 1)
    effects.put(job)
    if len(command.payload) <= limits.PARTIAL_BYTES_MAX:
        # A larger piece still reaches the waiters; it is only left out of the record.
        piece = Partial(
            job, effects.now, command.payload, warning=command.warning, is_log=command.is_log
        )
        effects.set().partials.append(piece)
    if not command.is_log:
        effects.signal("warning" if command.warning else "partial", job, command.payload)
    return Changed(job)


def decide_complete(command: Complete, effects: Effects) -> Reply:
    """Completes a job, or moves it to the next queue."""
    job = effects.view.job(command.job_id)
    if job is None:
        return _unknown(command.job_id)
    return _complete(effects, job, command)


def _unknown(job_id: str) -> Refusal:
    return Refusal(Why.UNKNOWN_JOB, f"there is no job {job_id}")


def _complete(effects: Effects, job: Job, command: Complete) -> Changed | Refusal:
    if job.state is _COMPLETED and _repeats(job, command):
        return Changed(job, repeated=True)
    is_open = job.terms.defaults.completion is _OPEN and job.state not in FINISHED
    if is_open:
        if job.state is State.BLOCKED:
            return Refusal(Why.NOT_LEASED, f"job {job.job_id} waits for other jobs", job)
    else:
        found = _proven(effects, job, command.proof, command.queue)
        if type(found) is not Job:
            return found  # type: ignore[return-value]
        job = found
    result = command.result
    if result is not None and len(result) > limits.PAYLOAD_BYTES_MAX:
        return bad_payload(result)  # type: ignore[return-value]
    if command.note:
        job = _noted(effects, job, command.note)
    if command.next_queue is not None:
        return _complete_into(effects, job, command, command.next_queue)
    if command.depends_on or command.delay_ms:
        sentence = "a delay or dependencies need a next queue to wait in"
        return Refusal(Why.BAD_TIME, sentence, job)
    if command.replaces_payload and result is not None:
        job = replace(job, payload=result, stored_bytes=0, encoding=command.encoding)
    lease = job.lease
    if is_open and lease is not None and not proves(lease, command.proof):
        # Open completion (rule 4) by another worker: the holder is notified, the attempt says so.
        effects.notify_holder(job, lease)
        sentence = "completed by another"
        ended = endings.ended_attempts(job, lease, effects.now, EndReason.CANCELLED, sentence)
        job = replace(job, lease=None, attempts=ended)
        lease = None
    speaker = _speaker(command.proof) if lease is None else lease.holder
    return Changed(endings.complete(effects, job, speaker, result, command.encoding))


def _noted(effects: Effects, job: Job, note: str) -> Job:
    note = note[: limits.NOTE_CHARACTERS_MAX]
    return replace(job, history=endings.with_history(job, effects.now, NOTED, note))


def _speaker(proof: Proof) -> Holder:
    if type(proof) is ByHolder:
        return Holder(proof.realm, proof.name, proof.address)
    return Holder("native", proof.name) if type(proof) is ByAnyone else _NOBODY


def _repeats(job: Job, command: Complete) -> bool:
    """Whether the same holder repeats its completion, for example after a lost answer. Then it gets
    the same answer again, and nothing changes.
    """
    if not job.attempts:
        return False
    if command.repeated_exactly and (job.queue != command.queue or job.result != command.result):
        return False
    last = job.attempts[-1]
    proof = command.proof
    same_result = command.result in (None, job.result)
    if type(proof) is ByToken:
        # If the result was dropped meanwhile, there is nothing to compare with.
        return last.token == proof.token and (same_result or job.result is None)
    if type(proof) is not ByHolder:
        return False
    return same_result and _attempt_is_of(last, proof)


def _attempt_is_of(attempt: Attempt, proof: ByHolder) -> bool:
    holder = attempt.holder
    if holder.realm != proof.realm:
        return False
    if holder.name is None:
        return holder.address == proof.address
    return holder.name == (proof.name or proof.address)


def _complete_into(effects: Effects, job: Job, command: Complete, queue: str) -> Changed | Refusal:
    """Moves a job from this queue into the next in one step; its result becomes the payload (rule
    20).
    """
    refusal = bad_queue(effects, queue) or bad_delay(command.delay_ms)
    if refusal is not None:
        return refusal
    resolved = graph.resolve(
        effects,
        command.depends_on,
        job.namespace,
        OnUnknownDependency.REFUSE,
        graph.on_dependency_failure_of(job),
        {},
    )
    if isinstance(resolved, Refusal):
        return resolved
    if graph.closes_cycle(effects, job.job_id, resolved.waits_for):
        return graph.cycle_refusal(job.job_id)
    if job.unique_key is not None and queue != job.queue:
        holder = effects.key_holder(queue, job.unique_key)
        if holder is not None:
            return Refusal(Why.DUPLICATE_KEY, f"job {holder} holds its unique key there", job)
    lease = job.lease
    now = effects.now
    if lease is not None:
        attempts = endings.ended_attempts(job, lease, now, EndReason.COMPLETED)
        job = replace(job, attempts=attempts, lease=None)
    if command.result is not None:
        job = replace(job, payload=command.result, stored_bytes=0, encoding=command.encoding)
    job = replace(job, result=None, failure=None, depends_on=tuple(resolved.depends_on))
    waits_for = tuple(resolved.waits_for)
    run_at = now + command.delay_ms
    return Changed(relocate(effects, job, queue, run_at, waits_for, completed=lease))


def decide_fail(command: Fail, effects: Effects) -> Reply:
    """A reported failure: retried by policy, or final (rule 9)."""
    job = effects.job(command.job_id)
    if job is None:
        return _unknown(command.job_id)
    return fail_held(effects, job, command)


def fail_held(effects: Effects, job: Job, command: Fail) -> Changed | Refusal:
    """Ends an attempt as failed, if the proof matches the lease."""
    found = _proven(effects, job, command.proof, command.queue)
    if isinstance(found, Refusal):
        return found
    job = found
    refusal = bad_payload(command.payload) or bad_payload(command.failure.payload)
    refusal = refusal or bad_delay(command.delay_ms or 0)
    if refusal is not None:
        return refusal
    failure = command.failure
    if len(failure.message) > limits.FAILURE_MESSAGE_BYTES_MAX:
        failure = replace(failure, message=failure.message[: limits.FAILURE_MESSAGE_BYTES_MAX])
    if command.payload is not None:
        job = replace(job, payload=command.payload, stored_bytes=0, encoding=command.encoding)
    if job.state is State.READY:
        # The holder of a lapsed lease reports: what follows is as if it had not lapsed (rule 6).
        job = _renewed(effects, job, None, {})
    if command.note:
        job = _noted(effects, job, command.note)
    if command.retry:
        return Changed(endings.fail_and_retry(effects, job, failure, command.delay_ms))
    return Changed(endings.fail_for_good(effects, job, failure, Reason.FAILED))


def decide_conclude(command: Conclude, effects: Effects) -> Reply:
    """Several completions and failures. A refused item changes nothing and does not affect the
    others. Later items see the effects of earlier ones, including those on dependants.
    """
    if not command.items:
        return Refusal(Why.EMPTY_BATCH, "there is nothing in this batch")
    if len(command.items) > limits.BATCH_COUNT_MAX:
        sentence = f"a batch has at most {limits.BATCH_COUNT_MAX} items"
        return Refusal(Why.BATCH_TOO_LARGE, sentence)
    changed = effects.jobs
    replies: list[Reported | Refusal] = []
    for item in command.items:
        job = effects.job(item.job_id)
        if job is None:
            replies.append(_unknown(item.job_id))
            continue
        job_id = job.job_id
        before = changed.get(job_id)  # it may have been meant by its name
        if before is not None:
            job = before
        if isinstance(item, Complete):
            reply = _complete(effects, job, item)
        else:
            reply = fail_held(effects, job, item)
        if isinstance(reply, Changed):
            graph.settle(effects)
            job = reply.job
            replies.append(Reported(job.job_id, job.state, job.incarnation))
            continue
        if before is not None:
            changed[job_id] = before
        else:
            changed.pop(job_id, None)
        replies.append(reply)
    return Concluded(tuple(replies))


def decide_release(command: Release, effects: Effects) -> Reply:
    """Gives a job back, perhaps with new dependencies."""
    found = _releasable(effects, command)
    return found if isinstance(found, Refusal) else Changed(_release(effects, found, command))


def decide_release_all(command: ReleaseAll, effects: Effects) -> Reply:
    """All or nothing: every item is checked before the first one is given back."""
    if not command.items:
        return Refusal(Why.EMPTY_BATCH, "there is nothing in this batch")
    if len(command.items) > limits.BATCH_COUNT_MAX:
        sentence = f"a batch has at most {limits.BATCH_COUNT_MAX} items"
        return Refusal(Why.BATCH_TOO_LARGE, sentence)
    found: dict[str, Job] = {}
    for item in command.items:
        job = _releasable(effects, item)
        if isinstance(job, Refusal):
            return job
        if job.job_id in found:  # under another of its names, perhaps
            sentence = f"job {job.job_id} cannot be given back twice"
            return Refusal(Why.NOT_LEASED, sentence, job)
        found[job.job_id] = job
    pairs = zip(found.values(), command.items, strict=True)
    released = [_release(effects, job, item) for job, item in pairs]
    looped = graph.find_cycle(effects, [job.job_id for job in released])
    if looped is not None:
        return graph.cycle_refusal(looped)
    return ChangedMany(tuple(released))


def _releasable(effects: Effects, command: Release) -> Job | Refusal:
    job = held(effects, command.job_id, command.proof, None)
    if isinstance(job, Refusal) or not command.depends_on:
        return job
    resolved = graph.resolve(
        effects,
        command.depends_on,
        job.namespace if command.namespace is None else command.namespace,
        command.on_unknown_dependency,
        graph.on_dependency_failure_of(job),
        {},
    )
    if isinstance(resolved, Refusal):
        return resolved
    if graph.closes_cycle(effects, job.job_id, resolved.waits_for):
        return graph.cycle_refusal(job.job_id)
    more = tuple(key for key in resolved.depends_on if key not in job.depends_on)
    fresh = tuple(key for key in resolved.waits_for if key not in job.waits_for)
    if len(job.depends_on) + len(more) > limits.DEPENDENCIES_COUNT_MAX:
        sentence = f"a job may depend on at most {limits.DEPENDENCIES_COUNT_MAX} others"
        return Refusal(Why.TOO_MANY_DEPENDENCIES, sentence, job)
    return replace(job, depends_on=(*job.depends_on, *more), waits_for=(*job.waits_for, *fresh))


def _release(effects: Effects, job: Job, command: Release) -> Job:
    if job.state is State.READY:
        job = _renewed(effects, job, None, {})
    return endings.give_back(effects, job, command.reason, command.reentry)

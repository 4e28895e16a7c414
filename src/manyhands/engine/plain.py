"""The short way of plain jobs: submit, claim and complete where no rule for anything rare applies.

``decide`` is the truth. A step here only recognises the cases in which most rules have nothing to
say, and makes the same values: the job before, the job after, and the event. In any other case it
returns None, before anything has changed, and the rules decide. A test drives random commands
through both ways and compares all that follows from them.

A job that is plain from its submit on is not even made: its values (``model/plain.py``) are a few
words each, and stand for the job and for the event. The steps also take ordinary jobs, where they
come from elsewhere or have something rare that does not matter for the step.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from manyhands.engine.claim import leased_to, new_lease, term_ms_of
from manyhands.engine.endings import completed_by, result_ms_of
from manyhands.engine.lease import proves
from manyhands.engine.submit import is_simple, new_job
from manyhands.engine.validation import bad_simple_job, bad_terms
from manyhands.engine.view import QueueView, View
from manyhands.model import limits
from manyhands.model.commands import (
    ByHolder,
    Claim,
    ClaimOrder,
    Complete,
    Conclude,
    NewJob,
    Proof,
    Submit,
)
from manyhands.model.events import Event
from manyhands.model.job import Holder, Job, State
from manyhands.model.payload import Encoding
from manyhands.model.plain import (
    PLAIN_BYTES_MAX,
    Plain,
    PlainCompleted,
    PlainLeased,
    PlainReady,
)
from manyhands.model.policy import NO_POLICY

Value = Job | Plain
# A job as it was, if it is not new; as it is now; and the event that says so. The value of a plain
# job is all three of them.
Change = Plain | tuple[Job | None, Job, Event]
# The end of a job, and the job as its worker and those who wait for it see it: with them, and with
# a result that is perhaps not kept.
Ending = tuple[Change, Job | PlainCompleted]

_LEASED: Final = State.LEASED
_IN_TURNS: Final = ClaimOrder.PRIORITY_IN_TURNS


def submit(command: Submit, view: View, now: int) -> list[Change] | None:
    """New jobs that are ready at once, in known queues without a policy."""
    return None if command.once is not None else create(command.items, view, now)


def create(items: Sequence[NewJob], view: View, now: int) -> list[Change] | None:
    """The same for the items alone."""
    if len(items) == 1:  # as nearly always
        item = items[0]
        if not _is_plain(item, view):
            return None
        return [_created(item, view.take_position(), now)]
    if not 0 < len(items) <= limits.BATCH_COUNT_MAX or _may_meet(items):
        return None
    for item in items:
        if not _is_plain(item, view):
            return None
    return [_created(item, view.take_position(), now) for item in items]


def _created(item: NewJob, position: int, now: int) -> Change:
    if len(item.payload) > PLAIN_BYTES_MAX:
        job = new_job(item, position, now)
        return None, job, _event(job, now, now, None)
    waiter = item.waiter
    return PlainReady(
        item.job_id,
        item.queue,
        item.payload,
        item.encoding,
        item.terms,
        item.origin,
        item.priority,
        position,
        now if item.submitted_at is None else item.submitted_at,
        now,
        item.unique_key,
        item.durable_interest,
        () if waiter is None else (waiter,),
    )


def _is_plain(item: NewJob, view: View) -> bool:
    """Whether nothing refuses the job, and it joins no other."""
    if not is_simple(item):
        return False
    known = view.known_queue(item.queue)
    if known is None or known.queue.policy is not NO_POLICY:
        return False
    key = item.unique_key
    if key is not None and known.key_holder(key) is not None:
        return False
    if bad_simple_job(item) is not None or bad_terms(item.terms) is not None:
        return False
    if item.id_chosen and view.job(item.job_id) is not None:
        return False
    return not item.unless_scheduled or view.schedule(item.job_id) is None


def _may_meet(items: Sequence[NewJob]) -> bool:
    """Whether two items may have the same id or unique key."""
    ids = {item.job_id for item in items}
    keys = [item.unique_key for item in items if item.unique_key is not None]
    return len(ids) < len(items) or len(set(keys)) < len(keys)


def claim(command: Claim, view: View, now: int) -> Sequence[Change] | None:
    """The next job of queues without a policy, or the next ones of one such queue."""
    if command.job_id is not None or len(command.queues) > limits.CLAIM_QUEUES_MAX:
        return None
    if len(command.tokens) != 1:
        return _claim_many(command, view, now)
    if len(command.queues) == 1:  # as nearly always
        known = view.known_queue(command.queues[0])
        job = None if known is None else next_of(known)
    else:
        job = _best(command, view)
        if job is not None and not _is_free(job):
            return None
    if job is None:
        return None
    return (_grant(command, job, command.tokens[0], now),)


def value_of(change: Change) -> Value:
    """The job as it is now."""
    return change[1] if isinstance(change, tuple) else change


def entry_of(change: Change) -> Event | Plain:
    """The event of a change."""
    return change[2] if isinstance(change, tuple) else change


def next_of(known: QueueView) -> Job | PlainReady | None:
    """The job that a claim over this queue would surely get. If there is none, the rules may still
    find one.
    """
    queue = known.queue
    if queue.policy is not NO_POLICY or queue.paused:
        return None
    job = known.first_ready()
    return job if job is not None and _is_free(job) else None


def _is_free(job: Job | PlainReady) -> bool:
    """Whether nothing keeps a ready job from being handed out, its payload is in memory, and it has
    not failed before.
    """
    return isinstance(job, PlainReady) or not (
        job.lease is not None
        or job.deadline_at is not None
        or job.limits
        or job.failure is not None
        or job.stored_bytes
    )


def _best(command: Claim, view: View) -> Job | PlainReady | None:
    """The job that goes first among those of several queues (rule 19), unless the rules have to
    decide about one of them.
    """
    queues, in_turns = command.queues, command.order is _IN_TURNS
    start = command.turn if in_turns else 0
    best: Job | PlainReady | None = None
    for offset in range(len(queues)):
        known = view.known_queue(queues[(start + offset) % len(queues)])
        if known is None:
            continue
        if known.queue.policy is not NO_POLICY:
            return None
        job = None if known.queue.paused else known.first_ready()
        if job is None:
            continue
        if not in_turns or not _is_free(job):
            return job
        if best is None or job.priority > best.priority:
            best = job
    return best


def _claim_many(command: Claim, view: View, now: int) -> list[Change] | None:
    tokens = command.tokens
    if not 0 < len(tokens) <= limits.CLAIM_COUNT_MAX or len(command.queues) != 1:
        return None
    name = command.queues[0]
    known = view.known_queue(name)
    if known is None or known.queue.paused or known.queue.policy is not NO_POLICY:
        return None
    found: list[Job | PlainReady] = []
    payload_bytes = 0
    for job in known.all_ready():
        if not _is_free(job):
            return None
        found.append(job)
        payload_bytes += len(job.payload)
        if len(found) == len(tokens) or payload_bytes > limits.CLAIM_BYTES_MAX:
            break
    if not found:
        return None
    return [_grant(command, job, tokens[index], now) for index, job in enumerate(found)]


def _grant(command: Claim, job: Job | PlainReady, token: str, now: int) -> Change:
    term_ms = command.term_ms or None  # 0: no expiry
    if command.terms_ms or command.term_of_job:
        term_ms = term_ms_of(command, job, NO_POLICY)
    return lease(job, command.holder, token, command.connection, term_ms, now)


def lease(
    job: Job | PlainReady,
    holder: Holder,
    token: str,
    connection: str | None,
    term_ms: int | None,
    now: int,
) -> Change:
    """The lease of a job that `next_of` or `claim` has found."""
    longest_ms = job.terms.attempt_ms_max
    if type(job) is Job:
        leased = leased_to(job, holder, token, connection, term_ms, longest_ms, now)
        return job, leased, _event(leased, now, job.entered_at, holder)
    assert type(job) is PlainReady
    begun = new_lease(1, holder, token, connection, term_ms, longest_ms, now)
    return PlainLeased(job, begun, job.queue, holder, now, now - job.at)


def complete(command: Complete, view: View, now: int) -> Ending | None:
    """A leased job, by its holder, if no other job waits for it."""
    key = command.job_id
    value = view.job(key) if "\0" in key else view.value(key)  # the first by its name
    if (
        value is None
        or command.next_queue is not None
        or command.note
        or command.delay_ms
        or command.depends_on
        or (command.queue is not None and command.queue != value.queue)
    ):
        return None  # or it wants more than the end of the job
    proof, result, encoding = command.proof, command.result, command.encoding
    if type(value) is Job:
        replaces = command.replaces_payload
        return _end_job(value, proof, result, encoding, view, now, replaces_payload=replaces)
    if command.replaces_payload:
        return end(value, proof, result, encoding, view, now, replaces_payload=True)
    return end(value, proof, result, encoding, view, now)


def conclude(command: Conclude, view: View, now: int) -> list[Ending] | None:
    """Several such completions."""
    items = command.items
    if not 0 < len(items) <= limits.BATCH_COUNT_MAX:
        return None
    endings: list[Ending] = []
    for item in items:
        ending = complete(item, view, now) if type(item) is Complete else None
        if ending is None:
            return None
        endings.append(ending)
    if len({job.job_id for _, job in endings}) < len(items):
        return None
    return endings


def end(
    value: Value,
    proof: Proof,
    result: bytes | None,
    encoding: Encoding,
    view: View,
    now: int,
    *,
    replaces_payload: bool = False,
) -> Ending | None:
    """The same for a job in memory."""
    if type(value) is PlainLeased:
        ready, queue, holder = value.ready, value.queue, value.holder
        if not proves(value.lease, proof) or (holder.name is None and type(proof) is ByHolder):
            return None
        known = view.known_queue(queue)
        if known is None or known.queue.policy is not NO_POLICY:
            return None
        if view.has_dependants(ready.job_id):
            return None
        if result is not None and len(result) > PLAIN_BYTES_MAX:
            job = value.job()
            return _end_job(
                job, proof, result, encoding, view, now, replaces_payload=replaces_payload
            )
        payload = result if replaces_payload else None
        completed = PlainCompleted(
            value, now, result, encoding, queue, holder, now - value.at, payload
        )
        if result is not None and result_ms_of(ready.terms) == 0:
            return replace(completed, result=None), completed  # as below
        return completed, completed
    if type(value) is not Job:
        return None
    return _end_job(value, proof, result, encoding, view, now, replaces_payload=replaces_payload)


def _end_job(
    job: Job,
    proof: Proof,
    result: bytes | None,
    encoding: Encoding,
    view: View,
    now: int,
    *,
    replaces_payload: bool,
) -> Ending | None:
    lease = job.lease
    if (
        lease is None
        or job.state is not _LEASED
        or job.waits_for  # only if it had come back
        or job.failure is not None  # it is counted among the jobs that are retried
    ):
        return None
    holder = lease.holder
    if not proves(lease, proof) or (holder.name is None and type(proof) is ByHolder):
        return None
    if result is not None and len(result) > limits.PAYLOAD_BYTES_MAX:
        return None
    known = view.known_queue(job.queue)
    if known is None or known.queue.policy is not NO_POLICY or view.is_awaited(job):
        return None
    worked = job
    if replaces_payload and result is not None:
        worked = replace(job, payload=result, stored_bytes=0, encoding=encoding)
    reported = stored = completed_by(worked, holder, result, encoding, now)
    if job.waiters:
        stored = replace(stored, waiters=())
    if result is not None and result_ms_of(job.terms) == 0:
        stored = replace(stored, result=None)  # thrown away, now that those who wait have it
    return (job, stored, _event(stored, now, job.entered_at, holder)), reported


def _event(job: Job, now: int, since: int, holder: Holder | None) -> Event:
    lease, terms = job.lease, job.terms
    allowed = terms.attempts_max
    return Event(
        now,
        job.state,
        job.job_id,
        job.queue,
        job.reason,
        job.incarnation,
        job.lease_number,
        job.attempts_used,
        terms.defaults.attempts_max if allowed is None else allowed,
        holder,
        None if lease is None else lease.expires_at,
        job.priority,
        job.submitted_at,
        job.deadline_at,
        job.origin,
        now - since,
        "",
        job.detail,
    )

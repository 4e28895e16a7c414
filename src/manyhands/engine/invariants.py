"""Invariants of a job, of the effects of a command, and of a view. Checked in tests after every
step, and by servers that check themselves (``dispatch/checks.py``).
"""

from manyhands.engine.effects import Effects
from manyhands.engine.view import View
from manyhands.model.events import Event
from manyhands.model.job import FINISHED, Job, State


def check_job(job: Job) -> None:
    """Asserts that the fields of a job agree with each other."""
    state = job.state
    lease = job.lease
    assert (job.finished_at is not None) == (state in FINISHED), f"{job.job_id}: finished_at"
    assert not (job.payload and job.stored_bytes), f"{job.job_id}: two payloads"
    if state is State.LEASED:
        assert lease is not None, f"{job.job_id}: leased without a lease"
        assert not lease.lapsed, f"{job.job_id}: leased by a lapsed lease"
    if lease is not None:
        assert state is State.LEASED or (state is State.READY and lease.lapsed), (
            f"{job.job_id}: a lease in state {state}"
        )
        assert lease.number <= job.lease_number, f"{job.job_id}: a lease from the future"
        assert (lease.term_ms is None) or lease.expires_at is not None, f"{job.job_id}: no expiry"
    if state is State.BLOCKED:
        assert job.waits_for, f"{job.job_id}: blocked on nothing"
    elif state in (State.READY, State.DELAYED, State.COMPLETED):
        assert not job.waits_for, f"{job.job_id}: {state} while it waits for jobs"
    assert set(job.waits_for) <= set(job.depends_on), f"{job.job_id}: waits for a stranger"
    assert job.job_id not in job.waits_for, f"{job.job_id}: waits for itself"
    if state is State.DELAYED:
        assert job.run_at is not None, f"{job.job_id}: delayed for ever"
    if state is State.READY:
        assert job.run_at is None, f"{job.job_id}: ready, yet not due"
        assert job.position != 0, f"{job.job_id}: ready without a position"
    if state in FINISHED:
        assert not job.waiters, f"{job.job_id}: somebody waits for a finished job"
    numbers = [attempt.number for attempt in job.attempts]
    assert numbers == sorted(numbers), f"{job.job_id}: attempts out of order"
    assert 0 <= job.attempts_used <= job.lease_number, f"{job.job_id}: attempts_used"


def check_effects(effects: Effects) -> None:
    """Asserts that the events of a command match its jobs."""
    last: dict[str, Event] = {event.job_id: event for event in effects.events}
    for job_id, event in last.items():
        assert job_id in effects.jobs, f"{job_id}: an event about a job that did not change"
        job = effects.jobs[job_id]
        assert event.state is job.state, f"{job_id} is {job.state}, its last event: {event.state}"


def check_view(view: View, job: Job) -> None:
    """Asserts that a job is found in every way it must be found, and counted."""
    job_id, queue, lease = job.job_id, job.queue, job.lease
    found = view.job(job_id)
    assert found is not None, f"{job_id}: not there"
    assert found.state is job.state, f"{job_id}: found {found.state}, it is {job.state}"
    live = job.state not in FINISHED
    if job.unique_key is not None:
        holder = view.key_holder(queue, job.unique_key)
        assert (holder == job_id) == live, f"{job_id}: its unique key is held by {holder}"
    if not live:
        return
    blocked_count, leased_count = view.blocked_count(queue), view.leased_count(queue)
    others_count = view.unfinished_count(queue) - blocked_count - leased_count
    assert min(blocked_count, leased_count, others_count) >= 0, f"{job_id}: its queue is miscounted"
    if job.name is not None:
        named = view.named(job.namespace or "", job.name)
        assert named == job_id, f"{job_id}: its name points to {named}"
    if lease is not None:
        if lease.connection is not None:
            ids = view.leased_by_connection(lease.connection)
        else:
            ids = view.leased_by_holder(lease.holder)
        assert job_id in ids, f"{job_id}: its holder does not hold it"
    if job.state is State.LEASED:
        assert leased_count > 0, f"{job_id}: not counted as leased"
        for name in job.limits:
            assert view.limit_used(name) > 0, f"{job_id}: not counted for limit {name!r}"
    elif job.state is State.BLOCKED:
        assert blocked_count > 0, f"{job_id}: not counted as blocked"
        for other in map(view.job, job.waits_for):
            awaited = other is None or view.is_awaited(other)
            assert awaited, f"{job_id}: what it waits for is not awaited"
    elif job.state is State.READY:
        first = view.first_ready(queue)
        assert first is not None, f"{job_id}: ready, but not to be handed out"
        ahead = (-first.priority, first.position) <= (-job.priority, job.position)
        assert ahead, f"{job_id}: not first, although it goes before {first.job_id}"
    for waiter in job.waiters:
        assert job_id in view.waited_by(waiter), f"{job_id}: its waiter does not wait"

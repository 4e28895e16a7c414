"""What must be true of every job at every moment. Checked in tests after every step."""

from manyhands.model.job import FINISHED, Job, State


def check_job(job: Job) -> None:
    """Assert that the fields of a job agree with each other."""
    state = job.state
    lease = job.lease
    assert (job.finished_at is not None) == (state in FINISHED), f"{job.job_id}: finished_at"
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

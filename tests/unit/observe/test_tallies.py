"""What is counted when jobs come, run and go."""

import pytest

from manyhands.model.commands import (
    ByToken,
    Cancel,
    Complete,
    Fail,
    Move,
    Renew,
    Requeue,
    SetDependencies,
    Tick,
)
from manyhands.model.job import Failure, Holder, Origin
from manyhands.model.policy import TERMS, OnExpiry, Terms
from manyhands.observe.facts import Facts
from manyhands.observe.tallies import Tallies
from tests.unit.dispatch.desk import Desk


@pytest.fixture
def desk():
    desk = Desk()
    facts = Facts()
    desk.tallies = Tallies(facts)
    desk.dispatcher.on_batch.append(facts.note)
    return desk


def counted(desk: Desk, queue: str = "q") -> dict[str, int]:
    """The counts that are not zero."""
    sample = desk.tallies.current.get(queue)
    names = ("submitted", "started", "completed", "failed", "failed_attempts", "lost", "cancelled")
    found = {name: getattr(sample, name) for name in names} if sample is not None else {}
    return {name: count for name, count in found.items() if count}


def a_fail(job, *, retry: bool) -> Fail:
    failure = Failure("boom", "it broke")
    return Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure, retry=retry)


def test_a_life_cycle_is_counted_once_at_each_step(desk):
    desk.submit(3)
    desk.run(50)
    job = desk.claim()
    desk.run(200)
    desk.tell(desk.a_complete(job))
    desk.run(50)

    assert counted(desk) == {"submitted": 3, "started": 1, "completed": 1}
    sample = desk.tallies.current["q"]
    assert sum(sample.wait) == 1
    assert 50 <= sample.wait_ms < 200
    assert sum(sample.run) == 1
    assert 200 <= sample.run_ms < 300


def test_delayed_and_blocked_jobs_are_submitted_once_and_not_again_when_they_are_ready(desk):
    (first,) = desk.submit()
    desk.submit(delay_ms=1_000)
    desk.submit(depends_on=(first.job_id,))
    desk.run(2_000)
    desk.tell(Complete(job_id=desk.claim().job_id, proof=ByToken("wrong")))
    job = desk.job(first.job_id)
    desk.tell(desk.a_complete(job))
    desk.run(50)

    assert counted(desk)["submitted"] == 3


def test_a_job_that_is_freed_in_the_millisecond_of_its_submission_is_not_submitted_twice(desk):
    (first,) = desk.submit(delay_ms=10_000)
    blocked = desk.a_submit(depends_on=(first.job_id,))
    desk.tell(blocked)
    free = SetDependencies(job_id=blocked.items[0].job_id, remove=(first.job_id,))
    desk.tell(free)
    desk.run(50)

    assert desk.job(blocked.items[0].job_id).state == "ready"
    assert counted(desk) == {"submitted": 2}


def test_a_failure_that_is_retried_is_a_failed_attempt_and_no_failed_job(desk):
    desk.submit()
    desk.tell(a_fail(desk.claim(), retry=True))
    desk.run(50)
    assert counted(desk) == {"submitted": 1, "started": 1, "failed_attempts": 1}

    desk.run(60_000)
    desk.tell(a_fail(desk.claim(), retry=False))
    desk.run(50)
    assert counted(desk) == {"submitted": 1, "started": 2, "failed_attempts": 2, "failed": 1}


def test_an_expired_lease_is_lost_and_the_last_one_fails_the_job(desk):
    desk.submit(terms=Terms(TERMS["native"].defaults, attempts_max=2))
    desk.claim(term_ms=1_000)
    desk.run(1_100)
    assert counted(desk) == {"submitted": 1, "started": 1, "lost": 1}

    desk.claim(term_ms=1_000)
    desk.run(1_100)
    assert counted(desk) == {"submitted": 1, "started": 2, "lost": 2, "failed": 1}


def test_a_lapsed_lease_that_was_the_last_allowed_is_lost_once(desk):
    lapsing = Terms(TERMS["native"].defaults, attempts_max=1, on_expiry=OnExpiry.LAPSE)
    desk.submit(terms=lapsing)
    desk.claim(term_ms=1_000)
    desk.run(20_000)

    assert counted(desk) == {"submitted": 1, "started": 1, "lost": 1, "failed": 1}


def test_the_last_allowed_lease_is_not_lost_if_its_holder_speaks_up_within_the_same_commit(desk):
    lapsing = Terms(TERMS["native"].defaults, attempts_max=1, on_expiry=OnExpiry.LAPSE)
    desk.submit(terms=lapsing)
    job = desk.claim(term_ms=1_000)
    desk.run(job.lease.expires_at - desk.clock.now() - 1)
    desk.time.now_us += 1_000  # before the timer of the server itself
    desk.tell(Tick(10))
    desk.tell(Renew(job_id=job.job_id, proof=ByToken(job.lease.token)))
    desk.run(50)

    assert [event.reason for event in desk.batches[-1].events] == ["lapsed", "renewed"]
    assert counted(desk) == {"submitted": 1, "started": 1}


def test_a_lease_that_its_holder_takes_up_again_is_not_started_again(desk):
    desk.submit(terms=Terms(TERMS["native"].defaults, on_expiry=OnExpiry.LAPSE))
    job = desk.claim(term_ms=1_000)
    desk.run(2_000)
    desk.tell(desk.a_complete(job))
    desk.run(50)

    assert counted(desk)["started"] == 1
    assert counted(desk)["completed"] == 1


def test_requeued_and_moved_jobs_are_not_submitted_again(desk):
    first, second = desk.submit(2)
    desk.tell(Cancel(job_ids=(first.job_id,)))
    desk.tell(Requeue(job_id=first.job_id))
    desk.tell(Move(job_id=second.job_id, queue="other"))
    desk.run(50)

    assert counted(desk) == {"submitted": 2, "cancelled": 1}
    assert counted(desk, "other") == {}


def test_time_spent_on_a_job_counts_where_it_was_spent(desk):
    desk.submit()
    job = desk.claim()
    desk.run(300)
    proof = ByToken(job.lease.token)
    desk.tell(Complete(job_id=job.job_id, proof=proof, next_queue="second"))
    desk.run(50)

    assert sum(desk.tallies.current["q"].run) == 1
    assert sum(desk.tallies.current["second"].run) == 0


def test_jobs_in_and_out_are_counted_by_the_realms_of_submitter_and_worker(desk):
    desk.submit(2, origin=Origin("gearman"))
    desk.submit(origin=Origin("qless"))
    desk.claim(holder=Holder("dwork", "w"))

    assert desk.tallies.jobs_in == {"gearman": 2, "qless": 1}
    assert desk.tallies.jobs_out == {"dwork": 1}


def test_a_cut_starts_anew_and_loses_nothing_of_the_whole(desk):
    desk.submit(2)
    cut = desk.tallies.cut()
    desk.submit()

    assert cut["q"].submitted == 2
    assert counted(desk) == {"submitted": 1}
    assert desk.tallies.total().submitted == 3


def test_beyond_a_bound_queues_are_counted_together(desk, monkeypatch):
    monkeypatch.setattr("manyhands.model.limits.HISTORY_TALLIES_MAX", 2)
    for queue in ("a", "b", "c", "d"):
        desk.submit(queue=queue)

    assert list(desk.tallies.current) == ["a", "b", ""]
    assert counted(desk, "") == {"submitted": 2}
    assert desk.tallies.total().submitted == 4

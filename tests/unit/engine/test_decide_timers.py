"""Time as a command: which instant a job waits for, and what happens then."""

import pytest

from manyhands.engine.decide import decide
from manyhands.engine.timers import due_at
from manyhands.model import limits
from manyhands.model.commands import Tick
from manyhands.model.job import State
from manyhands.model.policy import OnExpiry, Terms
from manyhands.model.replies import Ticked
from tests.unit.engine.world import HOUR, MINUTE, SECOND, START, World, a_job


def test_each_job_knows_the_next_instant_at_which_time_alone_changes_it():
    world = World()
    first = world.submit(queue="never")
    instants = {
        "ready": due_at(first),
        "blocked": due_at(world.submit(depends_on=(first.job_id,))),
        "delayed": due_at(world.submit(delay_ms=HOUR)),
        "deadline": due_at(world.submit(delay_ms=HOUR, deadline_at=START + MINUTE)),
        "far deadline": due_at(world.submit(delay_ms=MINUTE, deadline_at=START + HOUR)),
    }
    world.submit(queue="a")
    instants["leased"] = due_at(world.claim("a", term_ms=MINUTE))
    world.submit(queue="b", terms=Terms(attempt_ms_max=SECOND))
    instants["cutoff"] = due_at(world.claim("b", term_ms=MINUTE))
    world.submit(queue="c")
    instants["endless"] = due_at(world.claim("c"))
    world.submit(queue="d")
    done = world.claim("d", term_ms=MINUTE)
    instants["finished"] = due_at(world.complete(done.job_id))

    assert instants == {
        "ready": None,
        "blocked": None,
        "delayed": START + HOUR,
        "deadline": START + MINUTE,
        "far deadline": START + MINUTE,
        "leased": START + MINUTE,
        "cutoff": START + SECOND,
        "endless": None,
        "finished": None,
    }
    world.check()


def test_a_lapsed_lease_without_budget_is_due_ten_seconds_later():
    world = World()
    job = world.submit(terms=Terms(attempts_max=1, on_expiry=OnExpiry.LAPSE))
    world.claim(term_ms=MINUTE)
    world.tick(MINUTE)

    instant = due_at(world.job(job.job_id))

    assert instant == START + MINUTE + limits.LAPSE_GRACE_MS
    world.check()


def test_the_next_instant_to_look_at_is_never_too_late():
    world = World()
    world.submit(delay_ms=HOUR)
    job = world.submit()
    world.claim(term_ms=MINUTE)
    world.renew(job.job_id, term_ms=2 * HOUR)

    instant = world.store.live.next_due_at()
    world.tick(HOUR)

    assert instant is not None
    assert instant <= START + HOUR
    assert world.state(job.job_id) is State.LEASED
    world.check()


@pytest.mark.parametrize("early_ms", [1, SECOND])
def test_nothing_happens_before_its_time(early_ms):
    world = World()
    job = world.submit(delay_ms=HOUR)

    count = world.tick(HOUR - early_ms)

    assert (count, world.state(job.job_id)) == (0, State.DELAYED)
    world.check()


def test_delayed_jobs_become_ready_in_the_order_of_their_time():
    world = World()
    late = world.submit(delay_ms=3 * SECOND)
    early = world.submit(delay_ms=SECOND)

    world.tick(HOUR)

    assert [job.job_id for job in world.claim_all(count=2)] == [early.job_id, late.job_id]
    world.check()


def test_one_tick_does_a_bounded_amount_of_work():
    world = World()
    world.submit_all(*(a_job(delay_ms=SECOND) for _ in range(25)))
    world.now += SECOND

    replies = [world.run(Tick(10)) for _ in range(4)]

    assert replies == [
        Ticked(10, more=True),
        Ticked(10, more=True),
        Ticked(5, more=False),
        Ticked(0, more=False),
    ]
    world.check()


@pytest.mark.parametrize(
    "make",
    [
        lambda world, at: world.submit(deadline_at=at),
        lambda world, at: world.submit(deadline_at=at, delay_ms=2 * HOUR),
        lambda world, at: world.submit(
            deadline_at=at, depends_on=(world.submit(queue="r").job_id,)
        ),
        lambda world, at: world.submit(deadline_at=at) and world.claim(),
    ],
)
def test_a_deadline_fails_a_job_wherever_it_stands(make):
    world = World()
    job = make(world, START + HOUR)

    world.tick(HOUR)

    ended = world.job(job.job_id)
    assert (ended.state, ended.reason, ended.failure.code) == (State.FAILED, "deadline", "deadline")
    assert ended.lease is None
    world.check()


def test_a_deadline_fails_a_lapsed_job_too():
    world = World()
    terms = Terms(on_expiry=OnExpiry.LAPSE)
    job = world.submit(deadline_at=START + HOUR, terms=terms)
    world.claim(term_ms=MINUTE)
    world.tick(MINUTE)

    world.tick(HOUR)

    assert (world.state(job.job_id), world.reasons(job.job_id)) == (State.FAILED, ["cutoff"])
    world.check()


def test_the_longest_attempt_and_the_term_at_the_same_instant_count_once():
    world = World()
    job = world.submit(terms=Terms(attempt_ms_max=MINUTE))
    world.claim(term_ms=MINUTE)

    world.tick(MINUTE)

    assert (world.reasons(job.job_id), world.job(job.job_id).attempts_used) == (["cutoff"], 1)
    world.check()


def test_the_same_tick_decided_twice_changes_nothing_twice():
    world = World()
    world.submit(delay_ms=SECOND)
    world.tick(SECOND)

    again = world.tick()

    assert again == 0
    world.check()


def test_everything_due_happens_even_if_a_decision_before_was_never_written():
    world = World()
    job = world.submit(delay_ms=SECOND)
    world.now += SECOND
    decide(Tick(500), world.store.load(Tick(500)), world.now)

    count = world.tick()

    assert (count, world.state(job.job_id)) == (1, State.READY)
    world.check()


def test_a_new_dependency_of_a_lapsed_job_ends_its_lease_and_is_charged():
    world = World()
    job = world.submit(terms=Terms(on_expiry=OnExpiry.LAPSE))
    other = world.submit(queue="r")
    world.claim(term_ms=MINUTE)
    world.tick(MINUTE)

    blocked = world.depend(job.job_id, other.job_id)

    assert (blocked.state, blocked.lease, blocked.attempts_used) == (State.BLOCKED, None, 1)
    assert world.reasons(job.job_id) == ["expired"]
    assert len(world.told("notice")) == 1
    world.check()


def test_a_leased_job_with_new_dependencies_is_blocked_when_its_lease_runs_out():
    world = World()
    job = world.submit(terms=Terms(on_expiry=OnExpiry.LAPSE))
    other = world.submit(queue="r")
    world.claim(term_ms=MINUTE)
    world.depend(job.job_id, other.job_id)

    world.tick(MINUTE)

    back = world.job(job.job_id)
    assert (back.state, back.lease, back.attempts_used) == (State.BLOCKED, None, 1)
    world.check()


def test_finished_jobs_do_not_pile_up_in_the_timer():
    world = World()

    for _ in range(300):
        job = world.submit(deadline_at=world.now + HOUR)
        world.claim()
        world.complete(job.job_id)

    assert len(world.store.live.due_times.heap) < 200
    world.check()

"""A job that waits can be asked what for, and the answer agrees with what a claim would do."""

import pytest

from manyhands.engine.explanation import LOOKED_AT_MAX, why_it_waits
from manyhands.model.commands import SetLimit
from manyhands.model.job import State
from manyhands.model.obstacles import Obstacle
from manyhands.model.policy import OnDependencyFailure, Rate, Terms
from tests.unit.engine.world import MINUTE, SECOND, World, a_job, a_worker


@pytest.fixture
def world():
    return World()


def reasons(world: World, job_id: str, *, awaited: bool = True):
    job = world.job(job_id)
    index = world.store.live
    ahead = index.queues[job.queue].ready.ahead_of(job) if job.state is State.READY else 0
    return why_it_waits(job, index, world.now, awaited=awaited, ahead=ahead)


def obstacles(world: World, job_id: str, **more) -> list[Obstacle]:
    return [reason.what for reason in reasons(world, job_id, **more)]


def test_the_next_job_of_an_open_queue_waits_for_nothing(world):
    job = world.submit()

    assert obstacles(world, job.job_id) == [Obstacle.NEXT]


def test_a_job_behind_others_is_told_how_many_go_first(world):
    first = world.submit()
    world.submit()
    last = world.submit()
    urgent = world.submit(priority=5)

    [reason] = reasons(world, last.job_id)
    assert (reason.what, reason.count) == (Obstacle.IN_LINE, 3)
    assert reasons(world, first.job_id)[0].count == 1
    assert obstacles(world, urgent.job_id) == [Obstacle.NEXT]


def test_a_queue_nobody_asks_for_work_is_said_to_have_no_workers(world):
    job = world.submit()
    world.submit()

    assert obstacles(world, job.job_id, awaited=False) == [Obstacle.NO_WORKERS]
    world.claim()
    other = world.submit()
    assert Obstacle.NO_WORKERS not in obstacles(world, other.job_id, awaited=False)


def test_a_paused_queue_is_named(world):
    job = world.submit()
    world.set_queue(paused=True)

    [reason] = reasons(world, job.job_id)
    assert (reason.what, reason.name) == (Obstacle.PAUSED, "q")
    assert world.claims_nothing()


def test_a_queue_with_all_its_leases_held_says_so(world):
    world.set_queue(concurrency_max=1)
    world.submit()
    waiting = world.submit()
    world.claim()

    [reason] = reasons(world, waiting.job_id)
    assert (reason.what, reason.count) == (Obstacle.CONCURRENCY, 1)
    assert world.claims_nothing()


def test_a_used_up_rate_says_when_it_opens_again(world):
    world.set_queue(rate=Rate(1, MINUTE))
    world.submit()
    waiting = world.submit()
    world.claim()

    [reason] = reasons(world, waiting.job_id)
    assert (reason.what, reason.until_at) == (Obstacle.RATE, world.now + MINUTE)
    world.tick(MINUTE)
    assert obstacles(world, waiting.job_id) == [Obstacle.NEXT]


def test_a_full_named_limit_is_named_with_its_numbers(world):
    world.accepted(SetLimit("gpu", 1))
    world.submit(limits=("gpu",))
    waiting = world.submit(limits=("gpu",))
    world.claim()

    [reason] = reasons(world, waiting.job_id)
    assert (reason.what, reason.name, reason.count) == (Obstacle.LIMIT, "gpu", 1)
    assert "1 of 1" in reason.sentence


def test_several_obstacles_are_all_told(world):
    world.accepted(SetLimit("gpu", 1))
    world.submit(limits=("gpu",))
    waiting = world.submit(limits=("gpu",))
    world.claim()
    world.set_queue(paused=True, concurrency_max=1)

    found = obstacles(world, waiting.job_id)
    assert found == [Obstacle.PAUSED, Obstacle.CONCURRENCY, Obstacle.LIMIT]


def test_a_delayed_job_says_until_when_and_a_retried_one_that_it_is_a_retry(world):
    delayed = world.submit(delay_ms=5 * SECOND)
    retried = world.submit()
    world.fail(world.claim().job_id, retry=True, delay_ms=MINUTE)

    [reason] = reasons(world, delayed.job_id)
    assert (reason.what, reason.until_at) == (Obstacle.DELAYED, world.now + 5 * SECOND)
    [again] = reasons(world, retried.job_id)
    assert again.until_at == world.now + MINUTE
    assert "again" in again.sentence


def test_a_blocked_job_names_the_jobs_it_waits_for(world):
    first, second = world.submit(), world.submit()
    blocked = world.submit(depends_on=(first.job_id, second.job_id))

    [reason] = reasons(world, blocked.job_id)
    assert reason.what is Obstacle.BLOCKED
    assert (reason.job_ids, reason.count) == ((first.job_id, second.job_id), 2)


def test_a_job_held_by_a_failed_dependency_says_that_this_one_must_be_retried(world):
    terms = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    needed, other = world.submit(), world.submit()
    held = world.submit(depends_on=(needed.job_id, other.job_id), terms=terms)
    world.fail(world.claim().job_id)

    lost, rest = reasons(world, held.job_id)
    assert (lost.what, lost.job_ids) == (Obstacle.LOST_DEPENDENCY, (needed.job_id,))
    assert rest.what is Obstacle.BLOCKED


def test_of_many_dependencies_some_are_named_and_all_are_counted(world):
    ids = tuple(world.submit().job_id for _ in range(LOOKED_AT_MAX + 5))
    blocked = world.submit(depends_on=ids)

    [reason] = reasons(world, blocked.job_id)
    assert (len(reason.job_ids), reason.count) == (LOOKED_AT_MAX, LOOKED_AT_MAX + 5)


def test_a_leased_job_says_who_has_it_and_until_when(world):
    world.submit()
    job = world.claim(holder=a_worker("w7"), term_ms=MINUTE)

    [reason] = reasons(world, job.job_id)
    assert (reason.what, reason.name) == (Obstacle.LEASED, "w7")
    assert reason.until_at == world.now + MINUTE


def test_a_lease_without_expiry_says_how_else_it_ends(world):
    world.submit()
    job = world.claim(connection="c")

    [reason] = reasons(world, job.job_id)
    assert reason.until_at is None
    assert "connection" in reason.sentence


def test_a_finished_job_waits_for_nothing(world):
    world.submit()
    job = world.complete(world.claim().job_id)

    assert reasons(world, job.job_id) == ()


def test_ahead_is_counted_over_priorities_and_places(world):
    low = world.submit(a_job(priority=-1))
    jobs = [world.submit() for _ in range(10)]
    ready = world.store.live.queues["q"].ready

    assert [ready.ahead_of(world.job(job.job_id)) for job in jobs] == list(range(10))
    assert ready.ahead_of(world.job(low.job_id)) == 10
    world.set_priority(jobs[9].job_id, 1)
    assert ready.ahead_of(world.job(jobs[0].job_id)) == 1

"""Handing out work: what stands between a ready job and a worker."""

import random

import pytest

from manyhands.model import limits
from manyhands.model.commands import Claim, ClaimOrder, RemoveLimit, SetLimit
from manyhands.model.job import State
from manyhands.model.policy import OnExpiry, Rate, Terms
from manyhands.model.replies import Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_worker

BOTH_ORDERS = pytest.mark.parametrize("order", list(ClaimOrder))


def test_a_claim_gives_a_lease_with_token_holder_and_number():
    world = World()
    world.submit()

    job = world.claim(holder=a_worker("ann", "qless", "10.0.0.1"), term_ms=MINUTE)

    assert job.state is State.LEASED
    assert (job.lease.token, job.lease.number) == ("token-1", 1)
    assert job.lease.holder == a_worker("ann", "qless", "10.0.0.1")
    assert (job.lease.claimed_at, job.lease.expires_at) == (world.now, world.now + MINUTE)
    world.check()


def test_one_job_is_never_given_to_two():
    world = World()
    world.submit()

    first, second = world.claim_reply().jobs, world.claim_reply().jobs

    assert (len(first), len(second)) == (1, 0)
    world.check()


@BOTH_ORDERS
@pytest.mark.parametrize("count", [0, 1, 2, 5, 9])
def test_a_claim_gives_as_many_as_asked_for_or_as_there_are(order, count):
    world = World()
    for number in range(6):
        world.submit(queue="ab"[number % 2])

    jobs = world.claim_all("a", "b", count=count, order=order)

    assert len(jobs) == min(count, 6)
    assert [job.lease.token for job in jobs] == [f"token-{n + 1}" for n in range(len(jobs))]
    world.check()


@BOTH_ORDERS
def test_a_claim_of_no_queues_gives_nothing(order):
    world = World()
    world.submit()

    replies = [
        world.run(Claim(holder=a_worker(), tokens=("t",) * count, order=order))
        for count in (0, 1, 2)
    ]

    assert [reply.jobs for reply in replies] == [(), (), ()]
    world.check()


@BOTH_ORDERS
@pytest.mark.parametrize("count", [1, 3])
def test_a_paused_queue_hands_out_nothing(order, count):
    world = World()
    world.submit(queue="a")
    world.submit(queue="b")
    world.set_queue("a", paused=True)

    jobs = world.claim_all("a", "b", count=count, order=order)

    assert [job.queue for job in jobs] == ["b"]
    world.set_queue("a", paused=False)
    assert world.claim("a").queue == "a"
    world.check()


@BOTH_ORDERS
@pytest.mark.parametrize("count", [1, 5])
def test_a_queue_has_at_most_so_many_leases_at_once(order, count):
    world = World()
    world.set_queue("a", concurrency_max=2)
    for _ in range(5):
        world.submit(queue="a")

    claimed = []
    for _ in range(5):
        claimed += world.claim_all("a", "b", count=count, order=order)

    assert len(claimed) == 2
    world.complete(claimed[0].job_id)
    assert len(world.claim_all("a", count=5)) == 1
    world.check()


@BOTH_ORDERS
@pytest.mark.parametrize("count", [1, 5])
def test_a_named_limit_binds_over_all_queues(order, count):
    world = World()
    world.run(SetLimit("db", 1))
    for queue in ("a", "b"):
        world.submit(queue=queue, limits=("db",))
        world.submit(queue=queue, limits=("db", "other"))

    claimed = []
    for _ in range(3):
        claimed += world.claim_all("a", "b", count=count, order=order)

    assert len(claimed) == 1
    world.release(claimed[0].job_id)
    assert len(world.claim_all("b", "a", count=5)) == 1
    world.check()


def test_jobs_behind_a_used_up_limit_are_passed_over():
    world = World()
    world.run(SetLimit("db", 1))
    world.submit(limits=("db",))
    world.submit(limits=("db",))
    free = world.submit()
    world.claim()

    job = world.claim()

    assert job.job_id == free.job_id
    world.check()


def test_a_limit_nobody_set_does_not_bind():
    world = World()
    for _ in range(3):
        world.submit(limits=("unset",))

    jobs = world.claim_all(count=3)

    assert len(jobs) == 3
    world.check()


def test_a_limit_can_be_set_to_nothing_and_removed():
    world = World()
    world.submit(limits=("db",))
    world.run(SetLimit("db", 0))

    stopped = world.claims_nothing()
    world.run(RemoveLimit("db"))

    assert stopped
    assert world.claim().limits == ("db",)
    world.check()


@pytest.mark.parametrize("count", [1, 5])
def test_a_rate_lets_so_many_through_in_its_window_and_says_when_to_come_back(count):
    world = World()
    world.set_queue(rate=Rate(2, MINUTE))
    for _ in range(5):
        world.submit()

    claimed = []
    for _ in range(3):
        claimed += world.claim_all(count=count)
    refused = world.claim_reply(count=count)
    world.now += MINUTE
    later = world.claim_all(count=count)

    assert len(claimed) == 2
    assert (refused.jobs, refused.retry_at) == ((), world.now)
    assert len(later) == min(count, 2)
    world.check()


def test_a_rate_counts_claims_and_not_leases():
    world = World()
    world.set_queue(rate=Rate(2, MINUTE))
    job = world.submit()
    for _ in range(2):
        world.claim()
        world.release(job.job_id)

    nothing = world.claims_nothing()

    assert nothing
    world.check()


def test_a_job_past_its_deadline_is_not_handed_out_before_the_tick_that_ends_it():
    world = World()
    late = world.submit(deadline_at=world.now + SECOND)
    other = world.submit()
    world.now += SECOND

    job = world.claim()

    assert job.job_id == other.job_id
    by_id = Claim(job_id=late.job_id, holder=a_worker(), tokens=("t",))
    assert world.refused(by_id) is Why.NOT_CLAIMABLE
    world.tick()
    assert world.state(late.job_id) is State.FAILED
    world.check()


def test_a_lapsed_lease_counts_against_no_limit():
    world = World()
    world.set_queue(concurrency_max=1)
    world.run(SetLimit("db", 1))
    job = world.submit(limits=("db",), terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.claim(term_ms=SECOND)

    world.tick(SECOND)

    assert world.claim().job_id == job.job_id
    world.check()


def test_one_job_can_be_claimed_by_its_id():
    world = World()
    world.submit()
    wanted = world.submit()

    reply = world.run(Claim(job_id=wanted.job_id, holder=a_worker(), tokens=("t",), term_ms=MINUTE))

    assert [job.job_id for job in reply.jobs] == [wanted.job_id]
    assert world.job(wanted.job_id).lease.term_ms == MINUTE
    world.check()


@pytest.mark.parametrize(
    "close",
    [
        lambda world: world.set_queue(paused=True),
        lambda world: world.set_queue(concurrency_max=0),
        lambda world: world.run(SetLimit("db", 0)),
    ],
)
def test_a_closed_gate_also_stops_a_claim_by_id(close):
    world = World()
    job = world.submit(limits=("db",))
    close(world)

    why = world.refused(Claim(job_id=job.job_id, holder=a_worker(), tokens=("t",)))

    assert why is Why.NOT_CLAIMABLE
    world.check()


@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.LEASED, State.COMPLETED])
def test_only_a_ready_job_can_be_claimed_by_its_id(state):
    world = World()
    first = world.submit(queue="r")
    match state:
        case State.BLOCKED:
            job = world.submit(depends_on=(first.job_id,))
        case State.DELAYED:
            job = world.submit(delay_ms=HOUR)
        case _:
            job = world.submit()
            world.claim()
    if state is State.COMPLETED:
        world.complete(job.job_id)

    why = world.refused(Claim(job_id=job.job_id, holder=a_worker(), tokens=("t",)))

    assert why is Why.NOT_CLAIMABLE
    world.check()


def test_thousands_of_jobs_that_moved_on_do_not_hide_the_next_one():
    world = World()
    ids = [world.submit(priority=n % 3, payload=bytes([n])).job_id for n in range(200)]
    world.cancel(*ids[:199])

    job = world.claim()

    assert job.job_id == ids[199]
    world.check()


@BOTH_ORDERS
def test_a_claim_for_many_ends_with_the_job_whose_payload_makes_its_answer_large(order):
    world = World()
    size = limits.CLAIM_BYTES_MAX // 2 + 1
    for _ in range(3):
        world.submit(payload=bytes(size))

    jobs = world.claim_reply(count=3, order=order).jobs

    assert len(jobs) == 2
    assert len(world.claim_reply(count=3, order=order).jobs) == 1
    world.check()


def test_a_claim_for_one_gives_a_job_of_any_size():
    world = World()
    world.submit(payload=bytes(limits.CLAIM_BYTES_MAX + 1))

    assert len(world.claim_reply().jobs) == 1


@BOTH_ORDERS
@pytest.mark.parametrize("seed", range(20))
def test_a_claim_of_one_job_gets_what_a_claim_of_several_gets_first(order, seed):
    rng = random.Random(seed)

    def a_world() -> World:
        world = World()
        world.run(SetLimit("db", 1))
        chance = random.Random(seed)
        for _ in range(12):
            queue = chance.choice("abc")
            fields = {"priority": chance.choice((0.0, 0.0, 1.0))}
            if chance.random() < 0.3:
                fields["limits"] = ("db",)
            if chance.random() < 0.2:
                fields["deadline_at"] = world.now + SECOND
            if chance.random() < 0.3:
                fields["terms"] = Terms(
                    on_expiry=OnExpiry.LAPSE, attempts_max=chance.choice((1, 3))
                )
            world.submit(queue=queue, **fields)
            if chance.random() < 0.3:
                world.claim_reply(queue, term_ms=SECOND)
        world.set_queue(chance.choice("abc"), paused=chance.random() < 0.5)
        world.set_queue(chance.choice("abc"), concurrency_max=chance.choice((None, 1)))
        world.tick(chance.choice((0, 2 * SECOND)))
        return world

    queues, turn = rng.sample("abc", 3), rng.randint(0, 5)

    one = a_world().claim_reply(*queues, order=order, turn=turn)
    several = a_world().claim_reply(*queues, order=order, turn=turn, count=5)

    assert [job.job_id for job in one.jobs] == [job.job_id for job in several.jobs[:1]]

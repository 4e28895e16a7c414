"""Which commands take the short way, and which are left to the rules."""

import pytest

from manyhands.engine import plain
from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Claim,
    ClaimOrder,
    Complete,
    Conclude,
    Fail,
    Submit,
)
from manyhands.model.job import Failure
from manyhands.model.policy import QueuePolicy
from manyhands.model.receipts import Once
from tests.unit.engine.world import SECOND, START, World, a_job, a_worker

STEPS = {
    Submit: plain.submit,
    Claim: plain.claim,
    Complete: plain.complete,
    Conclude: plain.conclude,
}
UNTIL = START + 60 * SECOND


@pytest.fixture
def world():
    """A queue that is known, and a job that a worker has."""
    world = World()
    world.submit()
    return world


def takes(world, command):
    """Whether the command takes the short way; nothing is written."""
    return STEPS[type(command)](command, world.store.live, world.now) is not None


def a_claim(*queues, count=1, **fields):
    tokens = tuple(f"token {number}" for number in range(count))
    return Claim(queues=queues or ("q",), holder=a_worker(), tokens=tokens, **fields)


def a_completion(world, job, **fields):
    return Complete(job_id=job.job_id, proof=world.proof_of(job.job_id), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"unique_key": b"a key"},
        {"priority": 10.0},
        {"durable_interest": False, "waiter": "here/1"},
        {"id_chosen": True},
    ],
)
def test_submitting_a_plain_job_takes_the_short_way(world, fields):
    item = a_job(job_id=world.new_id(), **fields)

    assert takes(world, Submit((item,)))


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": 1},
        {"run_at": UNTIL},
        {"deadline_at": UNTIL},
        {"tags": ("t",)},
        {"limits": ("l",)},
        {"name": "n"},
        {"metadata": b"{}"},
        {"schedule": "s"},
        {"depends_on": ("0" * 32,)},
        {"queue": "unknown"},
        {"priority": float("nan")},
        {"unique_key": b""},
        {"unique_key": b"held"},
    ],
)
def test_submitting_anything_rare_is_left_to_the_rules(world, fields):
    world.submit(unique_key=b"held")
    item = a_job(**{"job_id": world.new_id()} | fields)

    assert not takes(world, Submit((item,)))


def test_submitting_under_an_id_that_exists_is_left_to_the_rules(world):
    job = world.submit()
    item = a_job(job_id=job.job_id, id_chosen=True)

    assert not takes(world, Submit((item,)))


def test_submitting_so_that_repetitions_are_recognised_is_left_to_the_rules(world):
    item = a_job(job_id=world.new_id())

    assert not takes(world, Submit((item,), once=Once("key")))


def test_submitting_many_takes_the_short_way_unless_two_may_meet(world):
    one, two = (a_job(job_id=world.new_id(), unique_key=b"k%d" % n) for n in range(2))
    same = a_job(job_id=world.new_id(), unique_key=b"k0")

    assert takes(world, Submit((one, two)))
    assert not takes(world, Submit((one, two, same)))


def test_claiming_takes_the_short_way_also_for_many_jobs_or_several_queues(world):
    world.submit(queue="r")

    assert takes(world, a_claim())
    assert takes(world, a_claim(count=10))
    assert takes(world, a_claim("unknown", "r", "q", order=ClaimOrder.PRIORITY_IN_TURNS))


def test_claiming_where_there_is_nothing_is_left_to_the_rules(world):
    world.claim()

    assert not takes(world, a_claim())
    assert not takes(world, a_claim(count=2))
    assert not takes(world, a_claim("q", "unknown"))


@pytest.mark.parametrize("fields", [{"deadline_at": UNTIL}, {"limits": ("l",)}])
def test_claiming_is_left_to_the_rules_if_the_first_job_is_not_plain(fields):
    world = World()
    world.submit(**fields)
    world.submit()

    assert not takes(world, a_claim())
    assert not takes(world, a_claim(count=2))
    assert not takes(world, a_claim("q", "r"))


def test_a_paused_queue_and_one_with_a_policy_are_left_to_the_rules(world):
    job = world.submit(queue="r")
    world.submit(queue="r")
    world.claim("r")
    world.set_queue(paused=True)
    world.set_queue("r", concurrency_max=5)

    assert not takes(world, a_claim())
    assert not takes(world, a_claim("r"))
    assert not takes(world, Submit((a_job("r", job_id=world.new_id()),)))
    assert not takes(world, a_completion(world, job))


def test_a_queue_whose_policy_was_taken_back_is_plain_again(world):
    world.set_queue(concurrency_max=5)
    world.set_queue(concurrency_max=None)

    assert world.store.live.queues["q"].queue.policy == QueuePolicy()
    assert takes(world, a_claim())


def test_completing_by_the_holder_takes_the_short_way(world):
    job = world.claim()

    assert takes(world, a_completion(world, job, result=b"r"))
    assert takes(world, a_completion(world, job, result=b"r", replaces_payload=True))
    assert takes(world, Conclude((a_completion(world, job),)))


@pytest.mark.parametrize(
    "fields",
    [
        {"note": "n"},
        {"next_queue": "r"},
        {"delay_ms": 1},
        {"depends_on": ("0" * 32,)},
        {"queue": "r"},
        {"proof": ByToken("another")},
        {"job_id": "0" * 31 + "f"},
    ],
)
def test_completing_in_any_other_way_is_left_to_the_rules(world, fields):
    job = world.claim()
    values = {"job_id": job.job_id, "proof": world.proof_of(job.job_id)} | fields

    assert not takes(world, Complete(**values))


def test_what_is_too_large_is_left_to_the_rules(world, monkeypatch):
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 10)
    job = world.claim()
    item = a_job(job_id=world.new_id(), payload=bytes(11))

    assert not takes(world, Submit((item,)))
    assert not takes(world, a_completion(world, job, result=bytes(11)))


def test_completing_a_job_that_others_wait_for_is_left_to_the_rules(world):
    job = world.claim()
    world.submit(depends_on=(job.job_id,))

    assert not takes(world, a_completion(world, job))


def test_completing_a_job_twice_is_left_to_the_rules(world):
    job = world.claim()
    completion = a_completion(world, job)
    failure = Fail(job_id=job.job_id, proof=completion.proof, failure=Failure("f"))

    assert not takes(world, Conclude((completion, completion)))
    assert not takes(world, Conclude((failure,)))

    world.run(completion)
    assert not takes(world, completion)

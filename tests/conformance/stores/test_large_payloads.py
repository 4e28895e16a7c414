"""Large payloads of unfinished jobs need not be in memory, and are never lost for that."""

from random import Random

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Complete,
    Fail,
    Look,
    Move,
    NewJob,
    OnExisting,
    Release,
    Requeue,
    SetPriority,
    SetTags,
    Submit,
)
from manyhands.model.filter import Filter
from manyhands.model.job import Failure, State

LARGE = Random(1).randbytes(limits.PAYLOAD_BYTES_IN_MEMORY + 1)
SIZES = ("empty", "small", "large")


@pytest.fixture
def large(opened):
    """A job with a large payload, on record."""
    job = opened.submit(payload=LARGE)
    opened.settle()
    return job.job_id


def test_a_large_payload_is_in_memory_only_where_there_are_no_records(opened, large):
    small = opened.submit(payload=LARGE[:-1])
    opened.settle()
    held = opened.store.live.unfinished_bytes - 2 * limits.JOB_BYTES

    assert held == len(LARGE) - 1 + (0 if opened.kind == "sqlite" else len(LARGE))
    assert opened.job(small.job_id).payload == LARGE[:-1]
    assert opened.job(large).payload == LARGE


def test_a_job_is_handed_out_with_its_large_payload_before_and_after_a_restart(opened, large):
    (claimed,) = opened.claim()
    assert opened.store.whole(claimed).payload == LARGE
    opened.ask(Release(job_id=large, proof=ByToken(claimed.lease.token)))

    opened.reopen()

    held = opened.store.live.unfinished_bytes - limits.JOB_BYTES
    assert held == (0 if opened.kind == "sqlite" else len(LARGE))
    (claimed,) = opened.claim()
    assert opened.store.whole(claimed).payload == LARGE


def test_a_claim_for_many_ends_with_the_payload_that_passes_the_bound(opened):
    count = limits.CLAIM_BYTES_MAX // len(LARGE) + 1
    for _ in range(count + 5):
        opened.submit(payload=LARGE)
    opened.settle()

    assert len(opened.claim(count=count + 5)) == count


def test_a_job_that_was_claimed_meanwhile_has_its_payload(opened):
    opened.submit(payload=LARGE)
    opened.commit()
    (claimed,) = opened.claim()
    assert opened.store.whole(claimed).payload == LARGE

    opened.settle()

    assert opened.job(claimed.job_id).payload == LARGE
    opened.reopen()
    assert opened.job(claimed.job_id).payload == LARGE


@pytest.mark.parametrize(
    "command",
    [
        lambda job_id: SetTags(job_id=job_id, add=("new",)),
        lambda job_id: SetPriority(job_id=job_id, priority=5.0),
        lambda job_id: Move(job_id=job_id, queue="other"),
    ],
    ids=["tags", "priority", "move"],
)
def test_what_is_done_to_a_job_leaves_its_payload_alone(opened, large, command):
    opened.ask(command(large))
    opened.settle()
    assert opened.job(large).payload == LARGE

    opened.reopen()

    assert opened.job(large).payload == LARGE
    assert opened.store.find(large).payload == LARGE
    assert [job.payload for job in opened.store.search(Filter()).jobs] == [LARGE]


def finish(opened, command=Complete, **fields):
    (claimed,) = opened.claim()
    opened.ask(command(job_id=claimed.job_id, proof=ByToken(claimed.lease.token), **fields))


def test_a_finished_job_is_found_with_its_payload_at_every_moment(opened, large):
    finish(opened, result=b"done")
    assert opened.job(large).payload == LARGE
    opened.commit()
    assert opened.store.find(large).payload == LARGE
    opened.settle()

    assert opened.store.find(large).payload == LARGE
    assert opened.store.find(large).result == b"done"
    assert opened.store.live.finished_bytes == len(LARGE) + 4


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_job_that_is_put_to_work_again_has_its_payload(opened, large, is_settled):
    finish(opened, Fail, failure=Failure("x"))
    if is_settled:
        opened.settle()
    opened.ask(Requeue(job_id=large))
    assert opened.job(large).payload == LARGE
    opened.settle()
    opened.reopen()

    (claimed,) = opened.claim()
    assert opened.store.whole(claimed).payload == LARGE


@pytest.mark.parametrize("result", [b"", b"small", LARGE + b"another"], ids=SIZES)
def test_a_job_that_goes_on_with_its_result_has_that_for_its_payload(opened, large, result):
    finish(opened, result=result, next_queue="next")
    assert opened.job(large).payload == result
    opened.settle()
    assert opened.job(large).payload == result

    opened.reopen()

    (claimed,) = opened.claim("next")
    assert opened.store.whole(claimed).payload == result


def test_a_job_of_the_same_id_has_its_own_payload(opened, large):
    finish(opened, result=b"done")
    opened.settle()
    opened.ask(Submit((NewJob(job_id=large, id_chosen=True, queue="q", payload=b"another"),)))
    opened.settle()
    assert opened.job(large).payload == b"another"

    opened.reopen()

    assert opened.job(large).payload == b"another"
    assert opened.job(large).state is State.READY


@pytest.mark.parametrize("payload", [b"", b"small", LARGE + b"another"], ids=SIZES)
def test_a_job_that_is_submitted_anew_while_it_waits_has_its_new_payload(opened, large, payload):
    moved = NewJob(
        job_id=large, id_chosen=True, on_existing=OnExisting.MOVE, queue="next", payload=payload
    )
    opened.ask(Submit((moved,)))
    assert opened.job(large).payload == payload
    opened.settle()
    assert opened.job(large).payload == payload

    opened.reopen()

    assert opened.job(large).payload == payload


def test_a_look_at_a_job_is_one_at_its_payload(opened, large):
    reply = opened.ask(Look(large))

    assert opened.store.whole(reply.job).payload == LARGE


def test_a_listing_can_tell_how_long_payloads_are_without_reading_them(opened, large):
    opened.submit(payload=b"small")
    opened.settle()

    jobs = opened.store.search(Filter(payload_bytes=0)).jobs

    assert [(job.payload, job.stored_bytes) for job in jobs] == [(b"", 5), (b"", len(LARGE))]
    assert jobs[1].job_id == large

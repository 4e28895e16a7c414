"""A submit that is repeated with its key is answered as before, and its jobs are made once."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import OnExisting, Submit
from manyhands.model.job import State
from manyhands.model.policy import OnUnknownDependency
from manyhands.model.receipts import Once, ReceiptItem
from manyhands.model.replies import Refusal, Repeated, Submitted, SubmittedMany, Why
from tests.unit.engine.world import HOUR, World, a_job

KEY = Once("k", "a digest")


def submit(world: World, *items, once: Once = KEY, **fields):
    return world.run(Submit(world._named(items or (a_job(),)), once=once, **fields))


def jobs_count(world: World) -> int:
    return len({event.job_id for event in world.events()})


def test_a_repeated_submit_is_answered_as_before_though_its_job_has_finished():
    world = World()
    first = submit(world, a_job("q"), a_job("other", name="n", namespace="s"))
    world.complete(world.claim("q").job_id)

    again = submit(world, a_job("q"), a_job("other"))

    ids = [item.job.job_id for item in first.items]
    assert isinstance(again, Repeated)
    assert again.receipt.items == (
        ReceiptItem(ids[0], "q", "ready"),
        ReceiptItem(ids[1], "other", "ready", name="n"),
    )
    assert world.state(ids[0]) is State.COMPLETED
    assert jobs_count(world) == 2


def test_a_key_with_another_content_is_refused_and_changes_nothing():
    world = World()
    submit(world)

    reply = submit(world, once=Once("k", "another digest"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.KEY_REUSED
    assert jobs_count(world) == 1


def test_a_key_is_free_again_after_a_day():
    world = World()
    submit(world)
    world.now += 24 * HOUR - 1
    assert isinstance(submit(world), Repeated)
    world.now += 1

    assert isinstance(submit(world), SubmittedMany)

    assert jobs_count(world) == 2
    assert isinstance(submit(world), Repeated)


def test_a_submit_of_which_nothing_was_admitted_is_decided_anew():
    world = World()
    world.set_queue("q", jobs_max=1)
    blocking = world.submit()
    refused = submit(world)
    assert isinstance(refused, SubmittedMany)
    world.cancel(blocking.job_id)

    reply = submit(world)

    assert isinstance(reply, SubmittedMany)
    assert isinstance(reply.items[0], Submitted)


def test_what_was_refused_of_a_batch_stays_refused():
    world = World()
    submit(world, a_job("q"), a_job("\n"))

    again = submit(world, a_job("q"), a_job("\n"))

    assert [item.why for item in again.receipt.items] == ["", "bad_queue_name"]
    assert again.receipt.items[1].sentence


def test_all_or_nothing_may_be_repeated_too():
    world = World()
    first = submit(world, a_job(), a_job(), all_or_nothing=True)

    again = submit(world, a_job(), a_job(), all_or_nothing=True)

    assert [item.job_id for item in again.receipt.items] == [
        item.job.job_id for item in first.items
    ]
    assert jobs_count(world) == 2


def test_the_oldest_answers_give_way_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(limits, "RECEIPTS_WEIGHT_MAX", 20)
    world = World()
    for number in range(12):
        submit(world, once=Once(f"{number}"))
    assert world.store.live.view.receipts_weight() == 20

    submit(world, *[a_job()] * 9, once=Once("batch"))

    index = world.store.live
    assert index.receipts_weight() == 20
    assert index.receipt("6") is None
    assert index.receipt("7") is not None
    assert index.receipt("batch") is not None


def test_answers_that_are_too_old_go_away_with_later_submits():
    world = World()
    for number in range(8):
        submit(world, once=Once(f"{number}"))
    world.now += 25 * HOUR

    submit(world, once=Once("a"))
    submit(world, once=Once("b"))

    assert world.store.live.view.receipts_weight() == 4


@pytest.mark.parametrize("end", ["ready", "completed", "failed", "cancelled"])
def test_a_submit_may_be_satisfied_with_the_job_of_its_id_whatever_became_of_it(end):
    world = World()
    world.submit(job_id="abc", id_chosen=True)
    if end == "cancelled":
        world.cancel("abc")
    elif end != "ready":
        world.claim("q")
        world.complete("abc") if end == "completed" else world.fail("abc")

    reply = world.offer(a_job(job_id="abc", id_chosen=True, on_existing=OnExisting.KEEP))

    assert isinstance(reply, Submitted)
    assert (reply.job.job_id, reply.created, reply.job.state.value) == ("abc", False, end)
    assert world.job("abc").incarnation == 0


@pytest.mark.parametrize("finished", [False, True])
def test_a_submit_is_not_satisfied_with_the_job_of_its_id_in_another_queue(finished):
    """S2: the same id with another queue is a mistake, and nothing changes."""
    world = World()
    before = world.submit(job_id="abc", id_chosen=True)
    if finished:
        world.claim("q")
        before = world.complete("abc")

    item = a_job("other", job_id="abc", id_chosen=True, on_existing=OnExisting.KEEP)
    reply = world.offer(item)

    assert isinstance(reply, Refusal)
    assert reply.why is Why.IN_OTHER_QUEUE
    assert world.job("abc") == before


def test_a_submit_that_is_repeated_after_its_job_was_moved_gets_that_job():
    """S2: an operator's move between a submit and its repetition makes no mistake of the latter."""
    world = World()
    world.submit(job_id="abc", id_chosen=True)
    moved = world.move("abc", "other")

    reply = world.offer(a_job("q", job_id="abc", id_chosen=True, on_existing=OnExisting.KEEP))

    assert isinstance(reply, Submitted)
    assert (reply.job, reply.created) == (moved, False)


def test_a_submit_may_be_satisfied_with_the_job_of_its_name():
    world = World()
    job = world.submit(namespace="s", name="n")
    world.submit(namespace="s", name="of the same graph")
    world.claim("q")
    world.complete(job.job_id)

    reply = world.offer(a_job(namespace="s", name="n", on_existing=OnExisting.KEEP))

    assert (reply.job.job_id, reply.created) == (job.job_id, False)


@pytest.mark.parametrize("finished", [False, True])
def test_a_job_that_waits_for_itself_closes_a_cycle(finished):
    world = World()
    if finished:
        world.submit(job_id="70", id_chosen=True)
        world.claim("q")
        world.complete("70")

    reply = world.offer(
        a_job(
            job_id="70",
            id_chosen=True,
            depends_on=("70",),
            on_unknown_dependency=OnUnknownDependency.REFUSE,
        )
    )

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE

"""Submitting: one job, many, all or nothing; ids that exist, keys that are held."""

import pytest

from manyhands.model.commands import LookByKey, LookByName, OnExisting
from manyhands.model.job import State
from manyhands.model.payload import Encoding
from manyhands.model.policy import TERMS, OnDuplicate, OnExpiry, OnUnknownDependency, Terms
from manyhands.model.replies import Found, Refusal, Submitted, Why
from manyhands.store.records.rows import encode_record
from tests.unit.engine.world import HOUR, MINUTE, SECOND, START, World, a_job

WAIT = OnUnknownDependency.WAIT
SATISFIED = OnUnknownDependency.SATISFIED


def a_node(name: str, *depends_on: str, **fields):
    """A named job of a graph, as one that is loaded in parts has them."""
    return a_job(
        namespace="n",
        name=name,
        depends_on=depends_on,
        on_unknown_dependency=fields.pop("on_unknown", SATISFIED),
        on_existing=OnExisting.ADD_DEPENDENCIES,
        terms=TERMS["dwork"],
        **fields,
    )


# One job.


def test_a_plain_job_is_ready_at_once():
    world = World()

    job = world.submit(payload=b"in", encoding=Encoding.TEXT)

    assert (job.state, job.payload, job.encoding) == (State.READY, b"in", Encoding.TEXT)
    assert (job.submitted_at, job.entered_at) == (START, START)
    assert world.urgent
    world.check()


def test_headers_stay_with_a_job():
    """S3: headers are for its worker, whoever that is and however often it runs."""
    world = World()
    job = world.submit(headers={"task": "resize", "trace": "0-1"})

    assert job.headers == {"task": "resize", "trace": "0-1"}
    assert world.claim("q").headers == job.headers
    world.complete(job.job_id)
    assert world.requeue(job.job_id).headers == job.headers


def test_a_job_without_headers_has_none():
    """S3: its record does not grow."""
    world = World()

    assert world.submit(headers={}).headers is None
    assert b"headers" not in encode_record(world.submit())


def test_everything_a_submitter_says_is_kept():
    world = World()

    job = world.submit(
        priority=1.5,
        deadline_at=START + HOUR,
        tags=("b", "a"),
        limits=("z", "y", "z"),
        metadata=b"m",
        schedule="s",
        waiter="s1/1",
        durable_interest=False,
        unique_key=b"k",
        terms=TERMS["qless"],
    )

    assert (job.priority, job.deadline_at, job.tags) == (1.5, START + HOUR, ("b", "a"))
    assert job.limits == ("y", "z"), "a limit that is named twice counts once"
    assert (job.metadata, job.schedule, job.waiters) == (b"m", "s", ("s1/1",))
    assert (job.durable_interest, job.unique_key, job.terms) == (False, b"k", TERMS["qless"])
    world.check()


def test_a_delay_or_an_instant_puts_it_off():
    world = World()

    by_delay = world.submit(delay_ms=HOUR)
    by_instant = world.submit(run_at=START + MINUTE)
    in_the_past = world.submit(run_at=START - HOUR)

    assert (by_delay.state, by_delay.run_at) == (State.DELAYED, START + HOUR)
    assert (by_instant.state, by_instant.run_at) == (State.DELAYED, START + MINUTE)
    assert (in_the_past.state, in_the_past.run_at) == (State.READY, None)
    world.check()


def test_an_instant_goes_before_a_delay():
    world = World()

    job = world.submit(run_at=START + MINUTE, delay_ms=HOUR)

    assert job.run_at == START + MINUTE
    world.check()


def test_a_blocked_job_waits_for_its_time_when_it_is_free():
    world = World()
    first = world.submit(queue="r")
    job = world.submit(depends_on=(first.job_id,), delay_ms=HOUR)
    world.claim("r")

    world.complete(first.job_id)

    assert job.state is State.BLOCKED
    assert world.state(job.job_id) is State.DELAYED
    world.tick(HOUR)
    assert world.state(job.job_id) is State.READY
    world.check()


def test_a_full_queue_refuses_and_takes_more_when_one_has_finished():
    world = World()
    world.set_queue(jobs_max=2)
    world.submit()
    world.submit(delay_ms=HOUR)

    refused = world.offer(a_job())
    job = world.claim()
    world.complete(job.job_id)
    accepted = world.offer(a_job())

    assert isinstance(refused, Refusal)
    assert refused.why is Why.QUEUE_FULL
    assert isinstance(accepted, Submitted)
    world.check()


def test_a_full_queue_may_have_room_for_higher_priorities():
    world = World()
    world.set_queue(jobs_max=1, jobs_max_high=2, jobs_max_low=0)

    replies = [world.offer(a_job(priority=priority)) for priority in (-1, 0, 0, 1, 1)]

    full = [isinstance(reply, Refusal) for reply in replies]
    assert full == [True, False, True, False, True]
    world.check()


def test_the_bound_of_a_queue_counts_items_of_the_same_batch():
    world = World()
    world.set_queue(jobs_max=2)
    world.submit(job_id="abc", id_chosen=True)
    world.claim()
    world.complete("abc")

    replies = world.offer_all(a_job(job_id="abc", id_chosen=True), a_job(), a_job())

    assert [isinstance(reply, Refusal) for reply in replies] == [False, False, True]
    world.check()


def test_a_replacement_needs_no_room_of_its_own():
    world = World()
    world.set_queue(jobs_max=1)
    world.submit(unique_key=b"k")

    job = world.submit(unique_key=b"k", on_duplicate=OnDuplicate.REPLACE)

    assert job.state is State.READY
    world.check()


# Chosen ids.


def test_a_live_id_is_refused():
    world = World()
    job = world.submit(job_id="abc", id_chosen=True)

    here = world.offer(a_job(job_id="abc", id_chosen=True))
    there = world.offer(a_job(job_id="abc", id_chosen=True, queue="r"))

    assert isinstance(here, Refusal)
    assert (here.why, here.job) == (Why.DUPLICATE_JOB, job)
    assert isinstance(there, Refusal)
    assert there.why is Why.IN_OTHER_QUEUE
    world.check()


def test_moving_takes_a_job_from_its_holder():
    world = World()
    world.submit(job_id="abc", id_chosen=True)
    world.claim()

    moved = world.submit(job_id="abc", id_chosen=True, queue="r", on_existing=OnExisting.MOVE)

    assert (moved.state, moved.queue, moved.lease) == (State.READY, "r", None)
    assert world.reasons("abc") == ["moved"]
    assert len(world.told("notice")) == 1
    assert moved.history[-1].detail == "from q to r"
    world.check()


@pytest.mark.parametrize("fields", [{"delay_ms": HOUR}, {"run_at": START + HOUR}])
def test_moving_may_put_a_job_off(fields):
    world = World()
    world.submit(job_id="abc", id_chosen=True)

    moved = world.submit(job_id="abc", id_chosen=True, on_existing=OnExisting.MOVE, **fields)

    assert (moved.state, moved.run_at) == (State.DELAYED, START + HOUR)
    world.check()


def test_moving_may_give_a_job_new_dependencies():
    world = World()
    first, second = world.submit(queue="r"), world.submit(queue="r")
    world.submit(job_id="abc", id_chosen=True, depends_on=(first.job_id,))

    kept = world.submit(job_id="abc", id_chosen=True, on_existing=OnExisting.MOVE)
    changed = world.submit(
        job_id="abc",
        id_chosen=True,
        on_existing=OnExisting.MOVE,
        depends_on=(second.job_id,),
    )

    assert (kept.state, kept.waits_for) == (State.BLOCKED, (first.job_id,))
    assert (changed.state, changed.waits_for) == (State.BLOCKED, (second.job_id,))
    world.check()


def test_moving_onto_a_lost_dependency_loses_the_job():
    world = World()
    first = world.submit()
    world.cancel(first.job_id)
    world.submit(job_id="abc", id_chosen=True)

    moved = world.submit(
        job_id="abc",
        id_chosen=True,
        on_existing=OnExisting.MOVE,
        depends_on=(first.job_id,),
    )

    assert (moved.state, moved.reason) == (State.CANCELLED, "dependency_failed")
    world.check()


def test_moving_cannot_close_a_cycle():
    world = World()
    world.submit(job_id="abc", id_chosen=True)
    after = world.submit(depends_on=("abc",))

    reply = world.offer(
        a_job(
            job_id="abc",
            id_chosen=True,
            on_existing=OnExisting.MOVE,
            depends_on=(after.job_id,),
        )
    )

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    world.check()


# Names.


def test_creating_a_live_name_again_adds_dependencies():
    world = World()
    first, second, job = world.submit_all(a_node("a"), a_node("b"), a_node("c", "a"))

    reply = world.offer(a_node("c", "b"))

    assert isinstance(reply, Submitted)
    assert not reply.created
    assert world.job(job.job_id).waits_for == (first.job_id, second.job_id)
    world.check()


def test_creating_a_live_name_again_without_news_has_no_effect():
    world = World()
    job = world.submit(a_node("a"))
    events = len(world.events())

    reply = world.offer(a_node("a"))

    assert isinstance(reply, Submitted)
    assert world.job(job.job_id) == job
    assert len(world.events()) == events
    world.check()


def test_the_same_name_twice_in_one_batch_is_one_job_with_both_dependencies():
    world = World()
    world.submit_all(a_node("a"), a_node("b"))

    jobs = world.submit_together(a_node("c", "a"), a_node("c", "b"))

    assert jobs[0].job_id == jobs[1].job_id
    assert len(jobs[1].waits_for) == 2
    assert world.run(LookByName("n", "c")) == Found(jobs[1])
    world.check()


# All or nothing.


def test_later_items_of_a_batch_are_real_dependencies():
    world = World()

    last, middle, first = world.submit_together(
        a_node("last", "middle"), a_node("middle", "first"), a_node("first")
    )

    assert last.waits_for == (middle.job_id,)
    assert middle.waits_for == (first.job_id,)
    assert [job.state for job in (last, middle, first)] == [
        State.BLOCKED,
        State.BLOCKED,
        State.READY,
    ]
    world.check()


def test_items_with_chosen_ids_may_name_each_other_too():
    world = World()

    after, before = world.submit_together(
        a_job(job_id="a", id_chosen=True, depends_on=("b",)), a_job(job_id="b", id_chosen=True)
    )

    assert (after.state, before.state) == (State.BLOCKED, State.READY)
    world.check()


def test_item_by_item_a_later_item_is_unknown():
    world = World()

    replies = world.offer_all(
        a_job(job_id="a", id_chosen=True, depends_on=("b",)), a_job(job_id="b", id_chosen=True)
    )

    assert isinstance(replies[0], Refusal)
    assert replies[0].why is Why.UNKNOWN_DEPENDENCY
    assert isinstance(replies[1], Submitted)
    world.check()


def test_one_bad_item_refuses_the_whole_batch():
    world = World()

    reply = world.submit_together(a_job(queue="new"), a_job(queue=""))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.BAD_QUEUE_NAME
    assert world.events() == []
    assert world.store.live.queue("new") is None


@pytest.mark.parametrize(
    "items",
    [
        (a_node("a", "a"), a_node("b")),
        (a_node("a", "b"), a_node("b", "a")),
        (a_node("a", "b"), a_node("b", "c"), a_node("c", "a")),
        (a_node("x"), a_node("a", "b"), a_node("b", "c", "x"), a_node("c", "x", "a")),
        (a_node("a"), a_node("b", "a"), a_node("a", "b")),
    ],
)
def test_a_batch_with_a_cycle_is_refused(items):
    world = World()

    reply = world.submit_together(*items)

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    assert world.events() == []


def test_a_cycle_through_a_job_that_waits_already_is_refused():
    world = World()
    world.submit(a_node("a", "b", on_unknown=WAIT))

    reply = world.submit_together(a_node("b", "c"), a_node("c", "a"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    world.check()


def test_a_diamond_in_a_batch_is_no_cycle():
    world = World()

    jobs = world.submit_together(
        a_node("d", "b", "c"), a_node("b", "a"), a_node("c", "a"), a_node("a")
    )

    assert not isinstance(jobs, Refusal)
    assert [job.state for job in jobs] == [State.BLOCKED] * 3 + [State.READY]
    world.check()


def test_a_large_batch_in_reverse_order_is_one_chain():
    world = World()
    items = [a_node(f"j{n}", f"j{n + 1}") for n in range(2_000)]

    jobs = world.submit_together(*items, a_node("j2000"))

    assert not isinstance(jobs, Refusal)
    assert jobs[-1].state is State.READY
    assert {job.state for job in jobs[:-1]} == {State.BLOCKED}
    world.check()


def test_an_item_that_waits_for_a_lost_one_of_its_batch_is_lost_with_it():
    world = World()
    gone = world.submit()
    world.cancel(gone.job_id)

    jobs = world.submit_together(
        a_job(job_id="c", id_chosen=True, depends_on=("b",)),
        a_job(job_id="b", id_chosen=True, depends_on=("a",)),
        a_job(job_id="a", id_chosen=True, depends_on=(gone.job_id,)),
    )

    assert not isinstance(jobs, Refusal)
    assert {job.state for job in jobs} == {State.CANCELLED}
    world.check()


def test_an_item_that_waits_for_one_that_joined_another_job_waits_for_that_job():
    world = World()
    holder = world.submit(unique_key=b"k")

    after, joined = world.submit_together(
        a_job(job_id="b", id_chosen=True, depends_on=("a",)),
        a_job(job_id="a", id_chosen=True, unique_key=b"k"),
    )

    assert joined.job_id == holder.job_id
    assert world.job(after.job_id).waits_for == (holder.job_id,)
    world.claim()
    world.complete(holder.job_id)
    assert world.state(after.job_id) is State.READY


@pytest.mark.parametrize("is_first", [False, True])
def test_a_worker_is_told_which_job_a_dependency_of_the_same_batch_joined(is_first):
    """P19: payloads name it by the id that it was submitted under."""
    world = World()
    holder = world.submit(unique_key=b"k")
    unique = a_job(job_id="a", id_chosen=True, unique_key=b"k")
    after = a_job(job_id="b", id_chosen=True, depends_on=("a",), headers={"outputs": "1"})

    world.submit_together(*([unique, after] if is_first else [after, unique]))

    assert world.job("b").depends_on == world.job("b").waits_for == (holder.job_id,)
    assert world.job("b").headers == {"outputs": "1", "joined.a": holder.job_id}
    world.check()
    world.check()


# Batches item by item.


def test_items_of_a_batch_see_the_keys_of_earlier_ones():
    world = World()

    first, second = world.offer_all(a_job(unique_key=b"k"), a_job(unique_key=b"k"))

    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert second.job.job_id == first.job.job_id
    assert (first.created, second.created) == (True, False)
    world.check()


def test_items_of_a_batch_may_replace_earlier_ones():
    world = World()

    first, second = world.submit_all(
        a_job(unique_key=b"k"), a_job(unique_key=b"k", on_duplicate=OnDuplicate.REPLACE)
    )

    assert (first.state, second.state) == (State.CANCELLED, State.READY)
    assert world.run(LookByKey(b"k", "q")) == Found(second)
    world.check()


def test_a_job_of_the_batch_hears_that_its_dependency_was_replaced():
    world = World()
    holder = world.submit(unique_key=b"k")

    after, new = world.submit_all(
        a_job(depends_on=(holder.job_id,)),
        a_job(unique_key=b"k", on_duplicate=OnDuplicate.REPLACE),
    )

    assert world.state(holder.job_id) is State.CANCELLED
    assert (after.state, after.reason) == (State.CANCELLED, "dependency_failed")
    assert new.state is State.READY
    world.check()


def test_a_job_that_depends_on_the_one_it_replaces_is_lost_with_it():
    world = World()
    holder = world.submit(unique_key=b"k")

    job = world.submit(
        unique_key=b"k", on_duplicate=OnDuplicate.REPLACE, depends_on=(holder.job_id,)
    )

    assert world.state(holder.job_id) is State.CANCELLED
    assert job.state is State.CANCELLED
    world.check()


def test_a_key_that_is_held_stays_held_when_its_former_holder_is_submitted_again():
    world = World()
    world.submit(job_id="abc", id_chosen=True, unique_key=b"k")
    world.cancel("abc")
    holder = world.submit(unique_key=b"k")

    again, joined = world.offer_all(
        a_job(job_id="abc", id_chosen=True, unique_key=b"other"), a_job(unique_key=b"k")
    )

    assert isinstance(again, Submitted)
    assert isinstance(joined, Submitted)
    assert (joined.job.job_id, joined.created) == (holder.job_id, False)
    world.check()


def test_jobs_that_wait_for_each_other_cannot_come_in_one_batch():
    world = World()

    first, second = world.offer_all(
        a_job(job_id="a", id_chosen=True, depends_on=("b",), on_unknown_dependency=WAIT),
        a_job(job_id="b", id_chosen=True, depends_on=("a",), on_unknown_dependency=WAIT),
    )

    assert isinstance(first, Submitted)
    assert isinstance(second, Refusal)
    assert second.why is Why.CYCLE
    world.check()


def test_items_of_a_batch_are_handed_out_in_their_order():
    world = World()
    jobs = world.submit_all(*(a_job(payload=bytes([n])) for n in range(20)))

    claimed = world.claim_all(count=30)

    assert [job.job_id for job in claimed] == [job.job_id for job in jobs]
    world.check()


def test_joining_a_lapsed_job_leaves_its_lease_alone():
    world = World()
    job = world.submit(unique_key=b"k", terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.claim(term_ms=SECOND)
    world.tick(SECOND)

    world.submit(unique_key=b"k", waiter="s1/1")

    joined = world.job(job.job_id)
    assert joined.lease is not None
    assert joined.lease.lapsed
    assert world.complete(job.job_id).state is State.COMPLETED
    world.check()

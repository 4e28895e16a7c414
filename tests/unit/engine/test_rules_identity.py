"""Rules 14 to 19: ids, names and keys, and the order in which jobs are handed out."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ClaimOrder,
    Look,
    LookByKey,
    LookByName,
    Move,
    OnExisting,
    Requeue,
)
from manyhands.model.identity import uid_of
from manyhands.model.job import EndReason, State
from manyhands.model.policy import TERMS, OnDuplicate, OnExpiry, Reentry, Terms
from manyhands.model.replies import Found, Refusal, Submitted, Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_job, a_worker

# Rule 14: the uid.


def test_rule_14_a_job_is_found_by_its_id_and_by_its_uid():
    world = World()
    short = world.submit(job_id="abc", id_chosen=True)

    by_id = world.run(Look("abc"))
    by_uid = world.run(Look(uid_of("abc")))

    assert by_id == by_uid == Found(short)
    assert world.store.find(uid_of("abc")) == short
    world.check()


def test_rule_14_an_id_that_nobody_has_finds_nothing():
    world = World()

    found = world.run(Look("f" * 32))

    assert found == Found(None)


# Rule 15: again after the end.


def finished(world: World, how: str = "completed", **fields):
    """A job that was worked on once and has ended."""
    fields.setdefault("job_id", "abc")
    job = world.submit(id_chosen=True, **fields)
    world.claim(job.queue)
    match how:
        case "completed":
            world.complete(job.job_id, result=b"result")
        case "failed":
            world.fail(job.job_id)
        case "cancelled":
            world.cancel(job.job_id)
    return world.job(job.job_id)


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_rule_15_a_finished_job_is_put_to_work_again_under_the_same_id(how):
    world = World()
    job = finished(world, how)

    again = world.requeue("abc")

    assert (again.job_id, again.state, again.incarnation) == ("abc", State.READY, 1)
    assert (again.attempts_used, again.lease_number) == (0, 1)
    assert (again.result, again.failure, again.finished_at) == (None, None, None)
    assert again.attempts == job.attempts, "what happened before stays visible"
    assert world.states("abc")[-1] is State.READY
    world.check()


def test_rule_15_the_budget_starts_anew_and_the_fence_goes_on():
    world = World()
    job = world.submit(terms=Terms(attempts_max=1))
    world.claim(connection="s1/1")
    world.depart(connection="s1/1")
    assert world.state(job.job_id) is State.FAILED

    world.requeue(job.job_id)
    taken = world.claim()

    assert (taken.attempts_used, taken.lease_number, taken.incarnation) == (0, 2, 1)
    world.check()


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_rule_15_submitting_a_finished_id_again_puts_it_to_work_again(how):
    world = World()
    finished(world, how, payload=b"old")

    again = world.submit(job_id="abc", id_chosen=True, payload=b"new", queue="other")

    assert (again.state, again.queue, again.payload) == (State.READY, "other", b"new")
    assert (again.incarnation, again.lease_number, again.attempts_used) == (1, 1, 0)
    assert again.history[-1].what == "submitted again"
    world.check()


def test_rule_15_a_job_that_was_submitted_again_and_again_knows_each_time():
    world = World()
    first_at = finished(world).submitted_at
    times = [first_at]
    for _ in range(2):
        world.tick(1_000)
        times.append(world.submit(job_id="abc", id_chosen=True).submitted_at)
        world.cancel("abc")

    history = world.job("abc").history

    assert [(entry.at, entry.what) for entry in history] == [
        (times[0], "submitted"),
        (times[1], "submitted again"),
        (times[2], "submitted again"),
    ]
    assert times == [first_at, first_at + 1_000, first_at + 2_000]
    world.check()


def test_rule_15_the_first_submit_stays_on_record_however_much_happened_since():
    world = World()
    first_at = finished(world).submitted_at
    for number in range(limits.HISTORY_KEPT_MAX + 5):
        world.requeue("abc", queue=f"q{number}")
        world.cancel("abc")
    world.tick(1_000)

    again = world.submit(job_id="abc", id_chosen=True)

    assert (again.history[0].at, again.history[0].what) == (first_at, "submitted")
    assert again.history[-1].what == "submitted again"
    assert len(again.history) == limits.HISTORY_KEPT_MAX
    world.check()


def test_rule_15_requeue_may_choose_a_queue_and_a_delay():
    world = World()
    finished(world)

    again = world.requeue("abc", queue="other", delay_ms=HOUR)

    assert (again.state, again.queue, again.run_at) == (State.DELAYED, "other", world.now + HOUR)
    world.check()


def test_rule_15_a_deadline_that_has_passed_does_not_bind_the_next_incarnation():
    world = World()
    finished(world, deadline_at=world.now + HOUR)
    world.now += HOUR

    again = world.requeue("abc")

    assert again.deadline_at is None
    assert world.tick() == 0
    world.check()


def test_rule_15_a_live_job_cannot_be_requeued():
    world = World()
    job = world.submit()

    why = world.refused(Requeue(job_id=job.job_id))

    assert why is Why.NOT_FINISHED
    world.check()


def test_rule_15_it_is_refused_if_another_live_job_holds_its_unique_key():
    world = World()
    finished(world, unique_key=b"key")
    world.submit(unique_key=b"key")

    by_requeue = world.refused(Requeue(job_id="abc"))
    by_submit = world.offer(
        a_job(job_id="abc", id_chosen=True, unique_key=b"key", on_duplicate=OnDuplicate.REFUSE)
    )

    assert by_requeue is Why.DUPLICATE_KEY
    assert isinstance(by_submit, Refusal)
    assert by_submit.why is Why.DUPLICATE_KEY
    assert world.state("abc") is State.COMPLETED
    world.check()


def test_rule_15_the_key_of_another_queue_does_not_matter():
    world = World()
    finished(world, unique_key=b"key")
    world.submit(queue="other", unique_key=b"key")

    again = world.requeue("abc")

    assert again.state is State.READY
    assert world.refused(Move(job_id="abc", queue="other")) is Why.DUPLICATE_KEY
    world.check()


def test_rule_15_a_finished_name_that_is_created_again_is_a_new_job():
    world = World()
    old = world.submit(namespace="n", name="a", terms=TERMS["dwork"])
    world.claim()
    world.complete(old.job_id)

    new = world.submit(namespace="n", name="a", terms=TERMS["dwork"])

    assert new.job_id != old.job_id
    assert (new.state, new.incarnation) == (State.READY, 0)
    assert world.run(LookByName("n", "a")) == Found(new)
    assert world.state(old.job_id) is State.COMPLETED
    world.check()


def test_rule_15_a_requeue_is_refused_if_another_live_job_has_its_name():
    world = World()
    old = world.submit(namespace="n", name="a")
    world.claim()
    world.complete(old.job_id)
    world.submit(namespace="n", name="a")

    why = world.refused(Requeue(job_id=old.job_id))

    assert why is Why.DUPLICATE_NAME
    world.check()


def test_rule_15_a_requeued_job_does_not_wait_for_its_dependencies_again():
    world = World()
    first = world.submit(queue="r")
    job = world.submit(depends_on=(first.job_id,))
    world.cancel(job.job_id)

    again = world.requeue(job.job_id)

    assert (again.state, again.waits_for) == (State.READY, ())
    assert again.depends_on == (first.job_id,)
    world.check()


# Rule 16: three fields that are never mixed.


def test_rule_16_id_name_and_key_of_equal_spelling_are_three_things():
    world = World()
    by_id = world.submit(job_id="abc", id_chosen=True)
    by_name = world.submit(namespace="n", name="abc")
    by_key = world.submit(unique_key=b"abc")

    found = [
        world.run(Look("abc")),
        world.run(LookByName("n", "abc")),
        world.run(LookByKey(b"abc", "q")),
    ]

    assert found == [Found(by_id), Found(by_name), Found(by_key)]
    world.check()


def test_rule_16_a_name_is_unique_within_its_namespace_only():
    world = World()
    here = world.submit(namespace="n", name="a")
    there = world.submit(namespace="m", name="a")

    again = world.offer(a_job(namespace="n", name="a"))

    assert here.job_id != there.job_id
    assert isinstance(again, Refusal)
    assert again.why is Why.DUPLICATE_NAME
    world.check()


def test_rule_16_a_chosen_id_cannot_take_the_name_of_a_live_job():
    world = World()
    job = world.submit(namespace="n", name="a")

    reply = world.offer(a_job(job_id="abc", id_chosen=True, namespace="n", name="a"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.DUPLICATE_NAME
    assert world.run(LookByName("n", "a")) == Found(job)
    world.check()


def holder_of_key(world: World, state: State):
    fields = {"unique_key": b"key"}
    if state is State.BLOCKED:
        fields["depends_on"] = (world.submit(queue="r").job_id,)
    if state is State.DELAYED:
        fields["delay_ms"] = HOUR
    job = world.submit(**fields)
    if state is State.LEASED:
        world.claim()
    if state is State.COMPLETED:
        world.claim()
        world.complete(job.job_id)
    if state is State.FAILED:
        world.claim()
        world.fail(job.job_id)
    if state is State.CANCELLED:
        world.cancel(job.job_id)
    assert world.state(job.job_id) is state
    return world.job(job.job_id)


@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.READY, State.LEASED])
def test_rule_16_a_key_is_held_while_its_job_has_not_finished(state):
    world = World()
    holder = holder_of_key(world, state)

    reply = world.offer(a_job(unique_key=b"key", on_duplicate=OnDuplicate.ATTACH, waiter="s1/1"))

    assert isinstance(reply, Submitted)
    assert (reply.job.job_id, reply.created) == (holder.job_id, False)
    assert world.job(holder.job_id).waiters == ("s1/1",)
    world.check()


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
def test_rule_16_a_finished_job_holds_no_key(state):
    world = World()
    holder = holder_of_key(world, state)

    job = world.submit(unique_key=b"key", on_duplicate=OnDuplicate.REFUSE)

    assert job.job_id != holder.job_id
    assert world.run(LookByKey(b"key", "q")) == Found(job)
    world.check()


def test_rule_16_a_key_belongs_to_its_queue():
    world = World()
    here = world.submit(queue="q", unique_key=b"key")
    there = world.submit(queue="r", unique_key=b"key")

    found = world.run(LookByKey(b"key"))

    assert here.job_id != there.job_id
    assert found == Found(here)
    assert world.run(LookByKey(b"other")) == Found(None)
    world.check()


@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.READY])
def test_rule_16_replace_cancels_the_holder_of_the_key(state):
    world = World()
    holder = holder_of_key(world, state)

    job = world.submit(unique_key=b"key", on_duplicate=OnDuplicate.REPLACE)

    replaced = world.job(holder.job_id)
    assert (replaced.state, replaced.reason) == (State.CANCELLED, "replaced")
    assert world.run(LookByKey(b"key", "q")) == Found(job)
    world.check()


def test_rule_16_a_leased_job_is_never_replaced():
    world = World()
    holder = holder_of_key(world, State.LEASED)

    reply = world.offer(a_job(unique_key=b"key", on_duplicate=OnDuplicate.REPLACE))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.DUPLICATE_KEY
    assert world.job(holder.job_id) == holder
    world.check()


def test_rule_16_a_key_follows_its_job_into_another_queue():
    world = World()
    job = world.submit(unique_key=b"key")

    world.move(job.job_id, "r")

    assert world.run(LookByKey(b"key", "q")) == Found(None)
    assert world.run(LookByKey(b"key", "r")) == Found(world.job(job.job_id))
    world.check()


def test_rule_17_a_queue_is_any_name_and_comes_into_being_with_its_first_job():
    world = World()

    job = world.submit(queue="provisioner/worker_type")

    assert world.store.live.queue("provisioner/worker_type") is not None
    assert world.claim("provisioner/worker_type").job_id == job.job_id
    world.check()


# Rule 18: order within a queue.


def claimed_order(world: World, *queues: str, **fields) -> list[bytes]:
    """Payloads in the order in which single claims hand them out."""
    payloads = []
    while True:
        jobs = world.claim_reply(*queues, **fields).jobs
        if not jobs:
            return payloads
        payloads.append(jobs[0].payload)


def test_rule_18_higher_priority_goes_first_and_equals_first_in_first_out():
    world = World()
    for payload, priority in [(b"a", 0), (b"b", 10), (b"c", -10), (b"d", 10), (b"e", 0.5)]:
        world.submit(payload=payload, priority=priority)

    order = claimed_order(world)

    assert order == [b"b", b"d", b"e", b"a", b"c"]
    world.check()


@pytest.mark.parametrize(
    ("reentry", "order"),
    [
        (Reentry.AHEAD, [b"a", b"b", b"c"]),
        (Reentry.FRONT, [b"b", b"a", b"c"]),
        (Reentry.TAIL, [b"c", b"a", b"b"]),
    ],
)
def test_rule_18_where_a_job_re_enters(reentry, order):
    world = World()
    for payload in (b"a", b"b", b"c"):
        world.submit(payload=payload, terms=Terms(reentry=reentry))
    first, second = world.claim(), world.claim()
    world.release(first.job_id)
    world.release(second.job_id)

    claimed = claimed_order(world)

    assert claimed == order
    world.check()


def test_rule_18_a_release_may_choose_where_the_job_re_enters():
    world = World()
    for payload in (b"a", b"b"):
        world.submit(payload=payload, terms=Terms(reentry=Reentry.FRONT))
    first = world.claim()

    world.release(first.job_id, reentry=Reentry.TAIL)

    assert claimed_order(world) == [b"b", b"a"]
    world.check()


def test_rule_18_ahead_goes_before_front_and_front_before_new_work():
    world = World()
    for payload, reentry in [(b"a", Reentry.FRONT), (b"b", Reentry.AHEAD), (b"c", Reentry.TAIL)]:
        world.submit(payload=payload, terms=Terms(reentry=reentry))
    a, b = world.claim(), world.claim()
    world.release(b.job_id)
    world.release(a.job_id)

    order = claimed_order(world)

    assert order == [b"b", b"a", b"c"]
    world.check()


def test_rule_18_priority_counts_more_than_any_place():
    world = World()
    world.submit(payload=b"low", terms=Terms(reentry=Reentry.AHEAD))
    low = world.claim()
    world.release(low.job_id)

    world.submit(payload=b"high", priority=1)

    assert claimed_order(world) == [b"high", b"low"]
    world.check()


def test_rule_18_what_was_cut_off_goes_ahead():
    world = World()
    world.submit(payload=b"cut", terms=Terms(attempt_ms_max=SECOND))
    world.claim()
    world.submit(payload=b"new")

    world.tick(SECOND)

    assert claimed_order(world) == [b"cut", b"new"]
    world.check()


def test_rule_18_lapsed_leases_go_ahead_in_the_order_of_their_expiry():
    world = World()
    for payload in (b"a", b"b"):
        world.submit(payload=payload, terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.claim(term_ms=2 * MINUTE)
    world.claim(term_ms=MINUTE)
    world.submit(payload=b"c")
    world.tick(MINUTE)
    world.tick(MINUTE)

    order = claimed_order(world)

    assert order == [b"b", b"a", b"c"]
    world.check()


def test_rule_18_jobs_that_lost_their_worker_re_enter_by_their_terms():
    world = World()
    for payload in (b"a", b"b"):
        world.submit(payload=payload, terms=TERMS["dwork"])
    world.claim(connection="s1/1")

    world.depart(connection="s1/1", reason=EndReason.LOST)

    assert claimed_order(world) == [b"a", b"b"]
    world.check()


def test_rule_18_a_new_priority_places_a_job_behind_its_new_equals():
    world = World()
    jobs = [world.submit(payload=payload, priority=1) for payload in (b"a", b"b", b"c")]
    world.set_priority(jobs[0].job_id, 5)
    world.set_priority(jobs[0].job_id, 1)

    same = world.set_priority(jobs[1].job_id, 1)

    assert same.position == jobs[1].position, "the same priority changes nothing"
    assert claimed_order(world) == [b"b", b"c", b"a"]
    world.check()


def test_rule_18_jobs_whose_time_has_come_stand_behind_those_that_wait():
    world = World()
    world.submit(payload=b"later", delay_ms=SECOND)
    world.submit(payload=b"now")

    world.tick(SECOND)

    assert claimed_order(world) == [b"now", b"later"]
    world.check()


# Rule 19: order over several queues.


def three_queues(world: World) -> None:
    for number in (1, 2):
        for queue in ("a", "b", "c"):
            world.submit(queue=queue, payload=f"{queue}{number}".encode())


def test_rule_19_listed_takes_one_queue_until_it_is_empty():
    world = World()
    three_queues(world)

    one_by_one = claimed_order(world, "c", "a", order=ClaimOrder.LISTED)

    assert one_by_one == [b"c1", b"c2", b"a1", b"a2"]
    world.check()


def test_rule_19_listed_does_not_look_at_priorities_of_other_queues():
    world = World()
    world.submit(queue="a", payload=b"low", priority=-10)
    world.submit(queue="b", payload=b"high", priority=10)

    jobs = world.claim_all("a", "b", count=5, order=ClaimOrder.LISTED)

    assert [job.payload for job in jobs] == [b"low", b"high"]
    world.check()


def test_rule_19_in_turns_takes_the_highest_priority_anywhere():
    world = World()
    world.submit(queue="a", payload=b"low", priority=-10)
    world.submit(queue="b", payload=b"high", priority=10)
    world.submit(queue="c", payload=b"normal")

    order = claimed_order(world, "a", "b", "c", order=ClaimOrder.PRIORITY_IN_TURNS)

    assert order == [b"high", b"normal", b"low"]
    world.check()


@pytest.mark.parametrize(
    ("turn", "first"), [(0, b"a1"), (1, b"b1"), (2, b"c1"), (3, b"a1"), (1_000_000, b"b1")]
)
def test_rule_19_among_equals_a_claim_begins_at_its_turn(turn, first):
    world = World()
    three_queues(world)

    job = world.claim("a", "b", "c", order=ClaimOrder.PRIORITY_IN_TURNS, turn=turn)

    assert job.payload == first
    world.check()


def test_rule_19_a_claim_for_many_takes_turns_among_equals():
    world = World()
    three_queues(world)

    jobs = world.claim_all("a", "b", "c", count=6, order=ClaimOrder.PRIORITY_IN_TURNS, turn=1)

    assert [job.payload for job in jobs] == [b"b1", b"c1", b"a1", b"b2", b"c2", b"a2"]
    world.check()


def test_rule_19_a_queue_that_is_listed_twice_gives_each_job_once():
    world = World()
    three_queues(world)

    in_turns = world.claim_all("a", "a", count=5, order=ClaimOrder.PRIORITY_IN_TURNS)
    listed = world.claim_all("b", "b", count=5, order=ClaimOrder.LISTED)

    assert [job.payload for job in in_turns] == [b"a1", b"a2"]
    assert [job.payload for job in listed] == [b"b1", b"b2"]
    world.check()


def test_rule_19_queues_that_nobody_knows_are_passed_over():
    world = World()
    three_queues(world)

    job = world.claim("unknown", "a", holder=a_worker())

    assert job.payload == b"a1"
    world.check()


def test_moving_a_live_job_by_submitting_it_elsewhere_keeps_its_identity():
    world = World()
    job = world.submit(job_id="abc", id_chosen=True, payload=b"old", tags=("t",))

    moved = world.submit(
        job_id="abc",
        id_chosen=True,
        queue="r",
        payload=b"new",
        on_existing=OnExisting.MOVE,
    )

    assert (moved.queue, moved.payload, moved.tags) == ("r", b"new", ("t",))
    assert (moved.incarnation, moved.serial) == (0, job.serial)
    world.check()

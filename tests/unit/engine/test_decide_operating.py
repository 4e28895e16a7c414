"""What operators and submitters do to jobs."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Fail,
    LookByKey,
    LookByName,
    Release,
    ReleaseAll,
    SetTags,
)
from manyhands.model.identity import uid_of
from manyhands.model.job import EndReason, Failure, State
from manyhands.model.policy import TERMS, OnExpiry, Terms
from manyhands.model.replies import Found, Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_job, a_worker


def a_leased_job(world: World, **fields):
    job = world.submit(a_job(**fields))
    return world.claim(job.queue, term_ms=MINUTE)


def in_state(world: World, state: State):
    """A job in this state."""
    match state:
        case State.BLOCKED:
            return world.submit(depends_on=(world.submit(queue="r").job_id,))
        case State.DELAYED:
            return world.submit(delay_ms=HOUR)
        case State.READY:
            return world.submit()
    job = a_leased_job(world)
    if state is State.FAILED:
        world.fail(job.job_id)
    return world.job(job.job_id)


# Cancel.


@pytest.mark.parametrize(
    "state", [State.BLOCKED, State.DELAYED, State.READY, State.LEASED, State.FAILED]
)
def test_a_job_can_be_cancelled_wherever_it_stands(state):
    world = World()
    job = in_state(world, state)

    (cancelled,) = world.cancel(job.job_id, detail="enough")

    assert (cancelled.state, cancelled.reason) == (State.CANCELLED, "cancelled")
    assert cancelled.detail == "enough"
    assert (cancelled.lease, cancelled.run_at) == (None, None)
    assert len(world.told("told")) == (1 if state is State.LEASED else 0)
    world.tick(2 * HOUR)
    assert world.state(job.job_id) is State.CANCELLED
    world.check()


def test_a_lapsed_job_is_cancelled_with_its_lease():
    world = World()
    job = a_leased_job(world, terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)

    (cancelled,) = world.cancel(job.job_id)

    assert (cancelled.state, cancelled.lease) == (State.CANCELLED, None)
    assert world.reasons(job.job_id) == ["cancelled"]
    world.check()


def test_cancelling_several_passes_over_those_that_are_gone():
    world = World()
    done = a_leased_job(world)
    world.complete(done.job_id)
    job = world.submit()

    cancelled = world.cancel(done.job_id, "f" * 32, job.job_id, job.job_id)

    assert [one.job_id for one in cancelled] == [job.job_id]
    assert world.state(done.job_id) is State.COMPLETED
    world.check()


def test_cancelling_tells_those_who_wait():
    world = World()
    job = world.submit(waiter="s1/1")

    world.cancel(job.job_id)

    ended = world.told("ended")
    assert [(signal.job.state, signal.waiters) for signal in ended] == [
        (State.CANCELLED, ("s1/1",))
    ]
    world.check()


# Move.


@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.READY, State.LEASED])
def test_a_job_can_be_moved_wherever_it_stands(state):
    world = World()
    job = in_state(world, state)

    moved = world.move(job.job_id, "elsewhere")

    assert moved.queue == "elsewhere"
    assert moved.state is (State.BLOCKED if state is State.BLOCKED else State.READY)
    assert moved.lease is None
    world.check()


def test_a_move_gives_a_fresh_budget_and_may_put_off():
    world = World()
    job = world.submit()
    world.claim(connection="s1/1")
    world.depart(connection="s1/1")

    moved = world.move(job.job_id, "elsewhere", delay_ms=HOUR)

    assert (moved.state, moved.attempts_used) == (State.DELAYED, 0)
    world.check()


def test_a_move_within_its_queue_places_a_job_at_the_tail():
    world = World()
    first, second = world.submit(), world.submit()

    world.move(first.job_id, "q")

    assert [job.job_id for job in world.claim_all(count=2)] == [second.job_id, first.job_id]
    world.check()


def test_the_history_of_a_job_keeps_its_first_and_its_latest_entries():
    world = World()
    job = world.submit()
    for number in range(limits.HISTORY_KEPT_MAX + 5):
        world.move(job.job_id, f"q{number}")

    history = world.job(job.job_id).history

    assert len(history) == limits.HISTORY_KEPT_MAX
    assert history[0].detail == "from q to q0"
    assert history[-1].detail == f"from q{number - 1} to q{number}"
    world.check()


# Priority and tags.


@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.READY, State.LEASED])
def test_a_priority_can_be_changed_wherever_a_job_stands(state):
    world = World()
    job = in_state(world, state)
    events = len(world.events())

    changed = world.set_priority(job.job_id, 7)

    assert (changed.priority, changed.state) == (7, state)
    assert len(world.events()) == events
    world.check()


def test_tags_are_added_once_and_removed_in_any_state():
    world = World()
    job = world.submit(tags=("a", "b"))
    world.cancel(job.job_id)

    world.changed(SetTags(job.job_id, add=("c", "a"), remove=("b", "unknown")))

    assert world.job(job.job_id).tags == ("a", "c")
    assert world.state(job.job_id) is State.CANCELLED
    world.check()


# Departing.


def test_a_departing_worker_gives_back_everything_it_held():
    world = World()
    for _ in range(3):
        world.submit()
    world.claim_all(count=2, holder=a_worker("ann"))
    other = world.claim(holder=a_worker("bob"))

    count = world.depart(holder=a_worker("ann"))

    assert count == 2
    assert world.state(other.job_id) is State.LEASED
    world.check()


def test_a_worker_that_held_very_much_departs_in_slices():
    world = World()
    for _ in range(5):
        world.submit()
    held = world.claim_all(count=5, holder=a_worker("ann"))

    counts = [world.depart(holder=a_worker("ann"), count_max=2) for _ in range(3)]

    assert counts == [2, 2, 1]
    assert {world.state(job.job_id) for job in held} == {State.READY}
    world.check()


def test_what_a_departing_worker_was_running_fails_and_the_rest_goes_back():
    """S5: in one command, so that no other worker sees a state in between."""
    world = World()
    for _ in range(3):
        world.submit()
    running, waiting, _ = world.claim_all(count=3, holder=a_worker("ann"))
    died = Failure("worker_died", "killed by signal 9")

    count = world.depart(
        holder=a_worker("ann"),
        reason=EndReason.GOODBYE,
        failed=tuple(
            Fail(job_id=job_id, proof=proof, failure=died, retry=True)
            for job_id, proof in (
                (running.job_id, world.proof_of(running.job_id)),
                (waiting.job_id, ByToken("of another lease")),
                ("abcdef", ByToken("t")),
            )
        ),
    )

    assert count == 2
    failed, back = world.job(running.job_id), world.job(waiting.job_id)
    assert (failed.attempts_used, failed.failure) == (1, died)
    assert (back.attempts_used, back.failure, back.state) == (0, None, State.READY)
    world.check()


def test_a_job_held_by_connection_and_name_is_lost_once():
    world = World()
    job = world.submit()
    world.claim(holder=a_worker("ann"), connection="s1/1")

    count = world.depart(connection="s1/1", holder=a_worker("ann"))

    assert (count, world.job(job.job_id).attempts_used) == (1, 1)
    world.check()


def test_a_worker_that_departs_from_a_lapsed_lease_has_nothing_to_give_back():
    world = World()
    job = a_leased_job(world, terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)

    count = world.depart(holder=a_worker())

    assert (count, world.job(job.job_id).attempts_used) == (0, 0)
    world.check()


def test_a_worker_nobody_knows_may_depart():
    world = World()

    count = world.depart(holder=a_worker("stranger"))

    assert count == 0


# Requeue, as seen by the index.


def test_a_requeued_job_is_found_by_its_key_again():
    world = World()
    job = a_leased_job(world, unique_key=b"k")
    world.complete(job.job_id)

    again = world.requeue(job.job_id)

    assert world.run(LookByKey(b"k", "q")) == Found(again)
    world.check()


def test_a_requeued_job_is_found_by_its_name_again():
    world = World()
    job = a_leased_job(world, namespace="n", name="a", terms=TERMS["dwork"])
    world.complete(job.job_id)

    again = world.requeue(job.job_id)

    assert world.run(LookByName("n", "a")) == Found(again)
    world.check()


def test_a_requeued_name_takes_the_place_of_a_later_one_that_has_finished():
    world = World()
    world.submit(namespace="n", name="keeps the namespace alive", queue="r")
    old = a_leased_job(world, namespace="n", name="a")
    world.complete(old.job_id)
    new = a_leased_job(world, namespace="n", name="a")
    world.complete(new.job_id)

    again = world.requeue(old.job_id)

    assert again.state is State.READY
    assert world.run(LookByName("n", "a")) == Found(again)
    world.check()


def test_requeueing_is_not_bound_by_what_was_reported_before():
    world = World()
    job = a_leased_job(world)
    world.report(job.job_id, 1, 2)
    world.now += SECOND
    world.fail(job.job_id)

    again = world.requeue(job.job_id)

    assert (again.progress, again.partials_count, again.reason) == (None, 0, "requeued")
    assert again.history[-1].detail == "failed"
    world.check()


# One job under several of its names.


@pytest.mark.parametrize("with_dependants", [True, False])
def test_a_job_that_is_named_in_two_ways_is_cancelled_once(with_dependants):
    world = World()
    job = world.submit(job_id="abc", id_chosen=True)
    after = world.submit(depends_on=("abc",))

    cancelled = world.cancel("abc", uid_of("abc"), after.job_id, with_dependants=with_dependants)

    assert [one.job_id for one in cancelled] == ["abc", after.job_id]
    assert world.states(job.job_id) == [State.READY, State.CANCELLED]
    world.check()


def test_a_job_that_is_named_in_two_ways_is_given_back_once():
    world = World()
    world.submit(job_id="abc", id_chosen=True)
    world.claim()
    proof = world.proof_of("abc")

    why = world.refused(
        ReleaseAll((Release(job_id="abc", proof=proof), Release(job_id=uid_of("abc"), proof=proof)))
    )

    assert why is Why.NOT_LEASED
    assert world.state("abc") is State.LEASED
    world.check()


def test_a_dependency_that_is_named_in_two_ways_counts_once():
    world = World()
    world.submit(job_id="abc", id_chosen=True)

    job = world.submit(depends_on=("abc", uid_of("abc")))

    assert job.depends_on == job.waits_for == ("abc",)
    world.check()


def test_cancelling_may_leave_failed_jobs_as_they_are():
    world = World()
    failed = in_state(world, State.FAILED)
    job = world.submit()

    why = world.refused(Cancel(job_ids=(failed.job_id,), only_unfinished=True))
    cancelled = world.cancel(failed.job_id, job.job_id, only_unfinished=True)

    assert why is Why.ALREADY_FAILED
    assert [one.job_id for one in cancelled] == [job.job_id]
    assert world.state(failed.job_id) is State.FAILED
    world.check()

"""Queues, named limits and schedules: what is set rather than worked on."""

import pytest

from manyhands.engine.decide import decide
from manyhands.model.commands import (
    Fire,
    ForgetQueue,
    PutSchedule,
    RemoveCursor,
    RemoveSchedule,
    SetCursor,
    SetLimit,
    SetQueue,
    SetTags,
)
from manyhands.model.events import Cursor
from manyhands.model.job import Schedule, State
from manyhands.model.outcome import Accepted, Refusal, SubmittedMany, Why
from manyhands.model.policy import NO_POLICY, TERMS, Rate
from tests.unit.engine.world import HOUR, MINUTE, START, World

DUE = START + HOUR


def a_schedule(**fields) -> Schedule:
    values = {"schedule_id": "s", "queue": "q", "interval_ms": HOUR, "next_at": DUE}
    return Schedule(**(values | fields))


def fire(world: World, due_at: int = DUE, job_id: str = "", schedule_id: str = "s"):
    return world.run(
        Fire(
            schedule_id=schedule_id,
            due_at=due_at,
            next_at=due_at + HOUR,
            job_id=job_id or world.new_id(),
        )
    )


# Queues.


def test_a_queue_comes_into_being_by_its_settings():
    world = World()

    world.set_queue("new", paused=True)

    queue = world.store.index.queue("new")
    assert queue is not None
    assert (queue.paused, queue.policy) == (True, NO_POLICY)


def test_pausing_leaves_the_policy_and_a_policy_leaves_the_pause():
    world = World()
    world.set_queue(attempts_max=3)

    world.set_queue(paused=True)
    world.set_queue(attempts_max=4)

    queue = world.store.index.queue("q")
    assert (queue.paused, queue.policy.attempts_max) == (True, 4)


def test_a_new_rate_counts_from_the_present_window():
    world = World()
    world.set_queue(rate=Rate(1, HOUR))
    for _ in range(3):
        world.submit()
    world.claim()

    world.set_queue(rate=Rate(2, HOUR))

    assert len(world.claim_all(count=3)) == 1
    world.check()


def test_a_queue_with_nothing_left_to_do_can_be_forgotten():
    world = World()
    job = world.submit()
    in_use = world.refused(ForgetQueue("q"))
    world.claim()
    world.complete(job.job_id)

    forgotten = world.run(ForgetQueue("q"))

    assert (in_use, forgotten) == (Why.QUEUE_IN_USE, Accepted(1))
    assert world.store.index.queue("q") is None
    assert world.claims_nothing()


def test_a_job_of_a_forgotten_queue_can_be_put_to_work_again():
    world = World()
    job = world.submit()
    world.claim()
    world.complete(job.job_id)
    world.run(ForgetQueue("q"))

    again = world.requeue(job.job_id)

    assert (again.state, again.queue) == (State.READY, "q")
    assert world.claim().job_id == job.job_id
    world.check()


def test_a_job_of_a_forgotten_queue_can_be_tagged():
    world = World()
    job = world.submit()
    world.claim()
    world.complete(job.job_id)
    world.run(ForgetQueue("q"))

    world.changed(SetTags(job.job_id, add=("t",)))

    assert world.job(job.job_id).tags == ("t",)
    world.check()


# Named limits.


def test_a_limit_is_set_changed_and_removed():
    world = World()

    world.run(SetLimit("db", 3))
    first = world.store.index.limit("db").concurrency_max
    world.run(SetLimit("db", 1))
    second = world.store.index.limit("db").concurrency_max
    world.run(SetLimit("db", None))

    assert (first, second, world.store.index.limit("db")) == (3, 1, None)


def test_lowering_a_limit_takes_no_lease_away():
    world = World()
    for _ in range(3):
        world.submit(limits=("db",))
    held = world.claim_all(count=2)

    world.run(SetLimit("db", 1))

    assert {world.state(job.job_id) for job in held} == {State.LEASED}
    assert world.claims_nothing()
    world.check()


# Schedules.


def test_a_schedule_submits_its_job_when_it_is_fired():
    world = World()
    schedule = a_schedule(
        payload=b"in", priority=3, tags=("t",), limits=("l",), terms=TERMS["http"]
    )
    world.run(PutSchedule(schedule))
    world.now = DUE

    reply = fire(world, job_id="a" * 32)

    assert isinstance(reply, SubmittedMany)
    job = world.job("a" * 32)
    assert (job.state, job.payload, job.priority) == (State.READY, b"in", 3)
    assert (job.tags, job.limits, job.terms) == (("t",), ("l",), TERMS["http"])
    assert (job.schedule, job.origin.realm) == ("s", "schedule")
    stored = world.store.index.schedule("s")
    assert (stored.next_at, stored.fired_count) == (DUE + HOUR, 1)
    assert stored.last_job_id == job.job_id
    world.check()


def test_a_schedule_fires_once_for_each_instant():
    world = World()
    world.run(PutSchedule(a_schedule()))

    replies = [fire(world), fire(world), fire(world, DUE + HOUR)]

    assert [isinstance(reply, SubmittedMany) for reply in replies] == [True, False, True]
    assert len(world.events()) == 2
    world.check()


@pytest.mark.parametrize("schedule_id", ["s", "unknown"])
def test_a_paused_or_removed_schedule_does_not_fire(schedule_id):
    world = World()
    world.run(PutSchedule(a_schedule(paused=True)))

    reply = fire(world, schedule_id=schedule_id)

    assert reply == Accepted(0)
    assert world.events() == []


def test_a_unique_schedule_passes_over_a_firing_while_its_last_job_is_unfinished():
    world = World()
    world.run(PutSchedule(a_schedule(unique=True)))
    fire(world)

    passed = fire(world, DUE + HOUR)
    job = world.claim()
    world.complete(job.job_id)
    fired = fire(world, DUE + 2 * HOUR)

    assert passed == Accepted(0)
    assert isinstance(fired, SubmittedMany)
    assert world.store.index.schedule("s").fired_count == 2
    world.check()


def test_a_firing_that_is_refused_moves_the_schedule_on_all_the_same():
    world = World()
    world.set_queue(jobs_max=0)
    world.run(PutSchedule(a_schedule()))

    command = Fire(schedule_id="s", due_at=DUE, next_at=DUE + HOUR, job_id="a" * 32)
    reply, effects = decide(command, world.store.load(command), world.now)
    world.store.write(effects)

    assert isinstance(reply.items[0], Refusal)
    assert reply.items[0].why is Why.QUEUE_FULL
    assert not effects.jobs
    stored = world.store.index.schedule("s")
    assert (stored.next_at, stored.fired_count, stored.last_job_id) == (DUE + HOUR, 0, None)


def test_a_removed_schedule_leaves_its_jobs():
    world = World()
    world.run(PutSchedule(a_schedule()))
    fire(world, job_id="a" * 32)

    removed = world.run(RemoveSchedule("s"))

    assert removed == Accepted(1)
    assert world.store.index.schedule("s") is None
    assert world.state("a" * 32) is State.READY
    world.check()


def test_a_cron_line_is_as_good_as_an_interval():
    world = World()

    reply = world.run(PutSchedule(a_schedule(interval_ms=None, cron="0 * * * *")))

    assert reply == Accepted(1)
    assert world.store.index.schedule("s").cron == "0 * * * *"
    assert world.tick(MINUTE) == 0


# Bounds by priority, and cursors.


def test_the_bounds_of_a_queue_can_be_set_without_its_other_policy():
    world = World()
    world.set_queue(attempts_max=3)

    world.accepted(SetQueue(queue="q", jobs_max=(1, 2, 0)))

    policy = world.store.index.queue("q").policy
    assert (policy.attempts_max, policy.jobs_max) == (3, 1)
    assert (policy.jobs_max_high, policy.jobs_max_low) == (2, 0)
    assert world.refused(SetQueue(queue="q", jobs_max=(-1, None, None))) is Why.BAD_POLICY


def test_a_reader_of_events_leaves_a_mark_and_takes_it_away():
    world = World()
    cursor = Cursor("reader", 7, "notes")

    world.accepted(SetCursor(cursor))
    kept = dict(world.store.index.cursors)
    removed = [world.accepted(RemoveCursor("reader")) for _ in range(2)]

    assert kept == {"reader": cursor}
    assert removed == [1, 1]
    assert world.store.index.cursors == {}

"""Queues, named limits and schedules: what is set rather than worked on."""

import pytest

from manyhands.engine.decide import decide
from manyhands.model import limits
from manyhands.model.commands import (
    Fire,
    ForgetIdle,
    ForgetQueue,
    PutSchedule,
    RemoveCursor,
    RemoveLimit,
    RemoveSchedule,
    SetCursor,
    SetLimit,
    SetQueue,
    SetTags,
)
from manyhands.model.events import Cursor
from manyhands.model.job import Schedule, State
from manyhands.model.policy import NO_POLICY, TERMS, Queue, QueuePolicy, Rate
from manyhands.model.replies import Accepted, Refusal, SubmittedMany, Why
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


def test_a_schedule_gives_its_headers_to_its_jobs():
    """S3."""
    world = World()
    world.accepted(PutSchedule(a_schedule(headers={"task": "nightly"})))

    [reply] = fire(world).items

    assert reply.job.headers == {"task": "nightly"}


# If absent.


def test_a_queue_that_has_settings_keeps_them():
    """S7."""
    world = World()
    world.set_queue(attempts_max=3)
    command = SetQueue(queue="q", paused=True, policy=QueuePolicy(attempts_max=9), if_absent=True)

    assert world.run(command).applied is False

    queue = world.store.live.queue("q")
    assert (queue.paused, queue.policy.attempts_max) == (False, 3)


def test_a_queue_without_settings_gets_a_policy_and_stays_paused():
    """S7: jobs may have been there before the code that declares its settings."""
    world = World()
    world.submit()
    world.set_queue(paused=True)
    command = SetQueue(queue="q", paused=False, policy=QueuePolicy(attempts_max=9), if_absent=True)

    assert world.run(command).applied is True

    queue = world.store.live.queue("q")
    assert (queue.paused, queue.policy.attempts_max) == (True, 9)


def test_a_queue_that_is_absent_gets_all_settings():
    """S7."""
    world = World()
    command = SetQueue(queue="q", paused=True, policy=QueuePolicy(attempts_max=9), if_absent=True)

    assert world.run(command).applied is True
    assert world.store.live.queue("q").paused


def test_a_limit_and_a_schedule_that_exist_stay_as_they_are():
    """S7."""
    world = World()
    for count, expected in ((1, 1), (2, 0)):
        assert world.accepted(SetLimit("l", count, if_absent=True)) == expected
        schedule = a_schedule(interval_ms=count * HOUR)
        assert world.accepted(PutSchedule(schedule, if_absent=True)) == expected

    assert world.store.live.limit("l").concurrency_max == 1
    assert world.store.live.schedules["s"].interval_ms == HOUR


# Queues.


def test_a_queue_comes_into_being_by_its_settings():
    world = World()

    world.set_queue("new", paused=True)

    queue = world.store.live.queue("new")
    assert queue is not None
    assert (queue.paused, queue.policy) == (True, NO_POLICY)


def test_pausing_leaves_the_policy_and_a_policy_leaves_the_pause():
    world = World()
    world.set_queue(attempts_max=3)

    world.set_queue(paused=True)
    world.set_queue(attempts_max=4)

    queue = world.store.live.queue("q")
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
    assert world.store.live.queue("q") is None
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


# Queues that nobody would miss.


def finish_one(world: World, queue: str) -> None:
    job = world.submit(queue=queue)
    world.claim(queue)
    world.complete(job.job_id)


def prune(world: World, queue: str) -> None:
    """Its records have outlived their time."""
    world.store.prune(world.now + 1_000 * HOUR, 100)
    assert world.store.live.recorded_count(queue) == 0


def test_a_queue_is_forgotten_once_its_last_record_is_gone():
    world = World()
    finish_one(world, "reply")
    with_record = world.run(ForgetIdle(("reply",)))
    prune(world, "reply")

    without = world.run(ForgetIdle(("reply", "unknown")))

    assert (with_record, without) == (Accepted(0), Accepted(1))
    assert world.store.live.queue("reply") is None
    assert world.store.live.recorded_queues() == []
    world.check()


def test_a_queue_with_unfinished_jobs_is_not_idle():
    world = World()
    for queue in ("ready", "leased", "delayed"):
        world.submit(queue=queue, run_at=world.now + HOUR if queue == "delayed" else None)
    world.claim("leased")

    assert world.run(ForgetIdle(("ready", "leased", "delayed"))) == Accepted(0)
    assert world.store.live.queues_count() == 3


@pytest.mark.parametrize("settings", [{}, {"paused": True}, {"paused": False}, {"attempts_max": 3}])
def test_a_queue_that_an_operator_set_up_stays(settings):
    world = World()
    world.set_queue("own", **settings)

    assert world.run(ForgetIdle(("own",))) == Accepted(0)
    assert world.store.live.queue("own") is not None


@pytest.mark.parametrize("fields", [{"paused": True}, {"policy": QueuePolicy(attempts_max=3)}])
def test_settings_that_were_stored_before_queues_were_declared_keep_a_queue(fields):
    world = World()
    world.store.live.put_queue(Queue("old", **fields))

    assert world.run(ForgetIdle(("old",))) == Accepted(0)


@pytest.mark.interpreted
def test_in_a_crowd_idle_queues_go_before_their_records(monkeypatch):
    world = World()
    for queue in ("a", "b", "c"):
        finish_one(world, queue)
    world.submit(queue="busy")
    monkeypatch.setattr(limits, "QUEUES_CROWDED_COUNT", 2)

    reply = world.run(ForgetIdle(("busy", "a", "b", "c")))

    assert reply == Accepted(2)
    assert sorted(world.store.live.queues) == ["busy", "c"]
    assert world.store.live.counts_of("a")[State.COMPLETED] == 1
    world.check()


# Named limits.


def test_a_limit_is_set_changed_and_removed():
    world = World()

    world.run(SetLimit("db", 3))
    first = world.store.live.view.limit("db").concurrency_max
    world.run(SetLimit("db", 1))
    second = world.store.live.view.limit("db").concurrency_max
    world.run(RemoveLimit("db"))

    assert (first, second, world.store.live.view.limit("db")) == (3, 1, None)


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
    stored = world.store.live.view.schedule("s")
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
    assert world.store.live.view.schedule("s").fired_count == 2
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
    stored = world.store.live.view.schedule("s")
    assert (stored.next_at, stored.fired_count, stored.last_job_id) == (DUE + HOUR, 0, None)


def test_a_removed_schedule_leaves_its_jobs():
    world = World()
    world.run(PutSchedule(a_schedule()))
    fire(world, job_id="a" * 32)

    removed = world.run(RemoveSchedule("s"))

    assert removed == Accepted(1)
    assert world.store.live.view.schedule("s") is None
    assert world.state("a" * 32) is State.READY
    world.check()


def test_a_cron_line_is_as_good_as_an_interval():
    world = World()

    reply = world.run(PutSchedule(a_schedule(interval_ms=None, cron="0 * * * *")))

    assert reply == Accepted(1)
    assert world.store.live.view.schedule("s").cron == "0 * * * *"
    assert world.tick(MINUTE) == 0


# Cursors.


def test_a_reader_of_events_leaves_a_mark_and_takes_it_away():
    world = World()
    cursor = Cursor("reader", 7, "notes")

    world.accepted(SetCursor(cursor))
    kept = dict(world.store.live.cursors)
    removed = [world.accepted(RemoveCursor("reader")) for _ in range(2)]

    assert kept == {"reader": cursor}
    assert removed == [1, 1]
    assert world.store.live.cursors == {}

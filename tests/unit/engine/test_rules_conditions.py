"""What a command expects of the world, decided together with the command."""

import pytest

from manyhands.model.commands import (
    Cancel,
    Claim,
    Complete,
    ExpireLease,
    ForgetQueue,
    Move,
    OnExisting,
    Only,
    PutSchedule,
    RemoveLimit,
    RemoveSchedule,
    ReportDrained,
    Requeue,
    SetDependencies,
    SetLimit,
    SetPriority,
    SetQueue,
)
from manyhands.model.job import Schedule, State
from manyhands.model.policy import (
    TERMS,
    OnDependencyFailure,
    OnExpiry,
    OnUnknownDependency,
    Queue,
    QueuePolicy,
    Terms,
)
from manyhands.model.replies import Changed, QueueSet, Refusal, Submitted, Why
from tests.copies import replace
from tests.unit.engine.world import HOUR, MINUTE, SECOND, START, World, a_job, a_worker, by_holder

HOLD = Terms(on_dependency_failure=OnDependencyFailure.HOLD)


def a_schedule(schedule_id: str = "5c") -> Schedule:
    return Schedule(schedule_id=schedule_id, queue="q", interval_ms=HOUR, next_at=START + HOUR)


def a_completed_job(world: World, **fields):
    job = world.submit(**fields)
    world.claim(job.queue)
    return world.complete(job.job_id, result=b"1")


def a_failed_job(world: World, **fields):
    job = world.submit(**fields)
    world.claim(job.queue)
    return world.fail(job.job_id)


def is_drained(
    world: World, *queues: str, report: ReportDrained = ReportDrained.KNOWN, count: int = 1
) -> bool:
    reply = world.claim_reply(*queues, count=count, report_drained=report)
    assert not reply.jobs
    return reply.drained


# Rule 27: when nothing is left to wait for.


def test_rule_27_a_queue_is_drained_when_its_last_job_has_finished():
    world = World()
    job = world.submit()
    world.claim()
    leased = is_drained(world)

    world.complete(job.job_id)

    assert not leased
    assert is_drained(world)
    assert is_drained(world, count=0), "a claim without tokens only asks"


@pytest.mark.parametrize("fields", [{"delay_ms": HOUR}, {}])
def test_rule_27_a_queue_with_delayed_or_paused_jobs_is_not_drained(fields):
    world = World()
    world.set_queue("q", paused=True)
    world.submit(**fields)

    assert not is_drained(world)


def test_rule_27_a_claim_that_gets_a_job_does_not_say_drained():
    world = World()
    world.submit()

    reply = world.claim_reply(report_drained=ReportDrained.ALWAYS)

    assert (len(reply.jobs), reply.drained) == (1, False)


def test_rule_27_a_queue_that_nobody_has_heard_of_is_drained_only_for_claims_that_say_so():
    world = World()

    assert not is_drained(world, "unknown")
    assert is_drained(world, "unknown", report=ReportDrained.ALWAYS)


def test_rule_27_a_claim_that_does_not_ask_is_never_answered_drained():
    world = World()
    a_completed_job(world)

    assert not is_drained(world, report=ReportDrained.NEVER)


def test_rule_27_a_claim_over_several_queues_is_drained_when_all_of_them_are():
    world = World()
    a_completed_job(world)
    world.submit(queue="r", delay_ms=HOUR)

    assert is_drained(world, "q")
    assert not is_drained(world, "q", "r")


def test_rule_27_a_queue_that_only_failures_hold_up_is_drained():
    world = World()
    failed = a_failed_job(world)
    held = world.submit(depends_on=(failed.job_id,), terms=HOLD)
    world.submit(depends_on=(held.job_id,), terms=HOLD)

    assert is_drained(world)


def test_rule_27_a_queue_is_not_drained_while_another_queue_can_free_its_jobs():
    world = World()
    other = world.submit(queue="r")
    world.submit(depends_on=(other.job_id,), terms=HOLD)
    before = is_drained(world)

    world.claim("r")
    world.fail(other.job_id)

    assert not before
    assert is_drained(world), "what was answered before counts no longer"


def test_rule_27_a_queue_is_not_drained_while_a_name_is_still_to_appear():
    world = World()
    world.submit(
        namespace="n",
        name="second",
        depends_on=("first",),
        on_unknown_dependency=OnUnknownDependency.WAIT,
        terms=TERMS["dwork"],
    )

    assert not is_drained(world)


def test_rule_27_a_drained_queue_is_open_again_when_its_failed_job_is_retried():
    world = World()
    failed = a_failed_job(world)
    world.submit(depends_on=(failed.job_id,), terms=HOLD)
    drained = is_drained(world)

    world.requeue(failed.job_id)

    assert drained
    world.claim()
    assert not is_drained(world)


# Rule 28: adding under a chosen id.


def test_rule_28_an_id_that_a_schedule_has_cannot_be_added():
    world = World()
    world.run(PutSchedule(a_schedule("5c")))
    item = a_job(job_id="5c", id_chosen=True, unless_scheduled=True)

    refused = world.offer(item)
    world.run(RemoveSchedule("5c"))

    assert isinstance(refused, Refusal)
    assert (refused.why, refused.sentence) == (Why.DUPLICATE_JOB, "a recurring job has this id")
    assert isinstance(world.offer(item), Submitted)


def test_rule_28_a_name_that_a_schedule_has_cannot_be_added():
    world = World()
    world.run(PutSchedule(a_schedule("nightly")))

    refused = world.offer(a_job(job_id="ab", id_chosen=True, name="nightly", unless_scheduled=True))

    assert refused == Refusal(Why.DUPLICATE_JOB, "a recurring job has this id")


def test_rule_28_a_schedule_cannot_take_the_id_of_a_job_but_may_be_replaced():
    world = World()
    world.submit(job_id="5c", id_chosen=True)

    taken = world.refused(PutSchedule(a_schedule("5c"), unless_job="5c"))
    world.run(PutSchedule(a_schedule("5c")))

    assert taken is Why.DUPLICATE_JOB
    assert world.accepted(PutSchedule(a_schedule("5c"), unless_job="5c")) == 1


@pytest.mark.parametrize("on_existing", list(OnExisting))
def test_rule_28_a_job_is_added_once_to_each_queue_where_that_is_asked_for(on_existing):
    world = World()
    job = a_completed_job(world, job_id="ab", id_chosen=True)
    again = a_job(job_id="ab", id_chosen=True, once_per_queue=True, on_existing=on_existing)

    reply = world.offer(again)

    assert reply == Refusal(
        Why.ALREADY_COMPLETED, "the job was completed in this queue before", job
    )
    assert world.state("ab") is State.COMPLETED


def test_rule_28_a_job_that_was_completed_elsewhere_or_failed_here_is_added_again():
    world = World()
    a_completed_job(world, queue="r", job_id="ab", id_chosen=True)
    elsewhere = world.offer(a_job(job_id="ab", id_chosen=True, once_per_queue=True))
    world.claim()
    world.fail("ab")

    failed_here = world.offer(a_job(job_id="ab", id_chosen=True, once_per_queue=True))

    assert isinstance(elsewhere, Submitted)
    assert isinstance(failed_here, Submitted)
    assert failed_here.job.incarnation == 2


# Rule 28: changing jobs.


def test_rule_28_a_cancelled_job_is_requeued_only_where_that_is_meant():
    world = World()
    job = world.submit()
    world.cancel(job.job_id)

    refused = world.refused(Requeue(job_id=job.job_id, cancelled_too=False))

    assert refused is Why.ALREADY_CANCELLED
    assert world.requeue(job.job_id).state is State.READY


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_rule_28_other_finished_jobs_are_requeued_all_the_same(state):
    world = World()
    job = a_completed_job(world) if state is State.COMPLETED else a_failed_job(world)

    assert world.requeue(job.job_id, cancelled_too=False).state is State.READY


def test_rule_28_dependencies_of_a_job_that_a_worker_counts_on_do_not_change():
    world = World()
    other = world.submit(queue="r")
    delayed = world.submit(queue="d", delay_ms=HOUR)
    leased = world.submit()
    world.claim()
    lapsing = world.submit(queue="l", terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.claim("l", term_ms=SECOND)
    world.tick(MINUTE)

    for job in (delayed, leased, lapsing):
        command = SetDependencies(job_id=job.job_id, add=(other.job_id,), only_idle=True)
        assert world.refused(command) is Why.NOT_IDLE, world.state(job.job_id)
        assert world.job(job.job_id).depends_on == ()


def test_rule_28_dependencies_of_a_job_that_waits_change():
    world = World()
    other = world.submit(queue="r")
    ready = world.submit()

    blocked = world.depend(ready.job_id, other.job_id, only_idle=True)
    freed = world.changed(
        SetDependencies(job_id=ready.job_id, remove=(other.job_id,), only_idle=True)
    )

    assert (blocked.state, freed.state) == (State.BLOCKED, State.READY)


def only_in_q(*states: State) -> Only:
    return Only(states, "q")


@pytest.mark.parametrize(
    "make",
    [
        lambda job_id, only: Cancel(job_ids=(job_id,), only=only),
        lambda job_id, only: Requeue(job_id=job_id, only=only),
        lambda job_id, only: Move(job_id=job_id, queue="s", only=only),
        lambda job_id, only: SetPriority(job_id, 1.0, only),
        ExpireLease,
    ],
)
def test_rule_28_a_job_that_has_gone_on_since_it_was_found_is_left_alone(make):
    world = World()
    job = world.submit()
    leased = world.claim(term_ms=MINUTE)
    failed = a_failed_job(world)
    world.cancel(job.job_id)

    for gone_on in (leased, failed, world.submit(queue="r")):
        before = world.job(gone_on.job_id)
        assert world.refused(make(gone_on.job_id, only_in_q(State.READY))) is Why.NO_LONGER_FITS
        assert world.job(gone_on.job_id) == before
    assert world.refused(make("f" * 32, only_in_q(State.READY))) is Why.NO_LONGER_FITS


def test_rule_28_a_job_that_still_is_what_was_found_is_changed():
    world = World()
    ready, other = world.submit(), world.submit()
    failed = a_failed_job(world, queue="f")

    ranked = world.changed(SetPriority(ready.job_id, 2.0, only_in_q(State.READY)))
    moved = world.move(ready.job_id, "s", only=only_in_q(State.READY))
    requeued = world.requeue(failed.job_id, only=Only((State.FAILED,)))
    (cancelled,) = world.cancel(other.job_id, only=Only((State.READY,)))
    leased = world.claim("s")

    assert (ranked.priority, moved.queue) == (2.0, "s")
    assert (requeued.state, cancelled.state) == (State.READY, State.CANCELLED)
    expired = world.changed(ExpireLease(leased.job_id, Only((State.LEASED,), "s")))
    assert expired.state is State.READY


def test_rule_28_of_several_jobs_those_are_cancelled_that_still_fit():
    world = World()
    ready, leased = world.submit(), world.submit(queue="r")
    world.claim("r")

    cancelled = world.cancel(ready.job_id, leased.job_id, only=Only((State.READY,)))

    assert [job.job_id for job in cancelled] == [ready.job_id]
    assert world.state(leased.job_id) is State.LEASED


# Rule 28: the rest.


def test_rule_28_a_limit_that_is_not_there_cannot_be_removed():
    world = World()
    world.run(SetLimit("db", 1))

    first = world.accepted(RemoveLimit("db"))

    assert first == 1
    assert world.refused(RemoveLimit("db")) is Why.UNKNOWN_LIMIT


@pytest.mark.parametrize(
    ("queue", "result", "counts"),
    [("q", b"1", True), ("q", b"2", False), ("r", b"1", False), ("q", None, False)],
)
def test_rule_28_a_completion_is_repeated_exactly_or_refused(queue, result, counts):
    world = World()
    job = world.submit()
    world.claim(holder=a_worker("ann"))
    proof = by_holder("ann")
    world.complete(job.job_id, proof, queue="q", result=b"1", repeated_exactly=True)

    reply = world.run(
        Complete(job_id=job.job_id, proof=proof, queue=queue, result=result, repeated_exactly=True)
    )

    if counts:
        assert isinstance(reply, Changed)
        assert reply.repeated
    else:
        assert isinstance(reply, Refusal)
        assert reply.why is Why.ALREADY_COMPLETED


def test_rule_28_a_claim_of_no_jobs_changes_nothing():
    world = World()
    job = world.submit()

    reply = world.run(Claim(queues=("q",), holder=a_worker(), tokens=()))

    assert reply.jobs == ()
    assert world.job(job.job_id) == job


# Rule 29: settings of queues.


def test_rule_29_settings_that_a_change_does_not_name_stay():
    world = World()
    world.set_queue(attempts_max=3, lease_ms=SECOND)

    reply = world.run(
        SetQueue(queue="q", policy=QueuePolicy(jobs_max=1), fields=("jobs_max", "lease_ms"))
    )

    policy = QueuePolicy(attempts_max=3, jobs_max=1)
    assert world.store.live.queue("q").policy == policy
    assert reply == QueueSet(Queue("q", policy, declared=True))


def test_rule_29_a_change_without_fields_leaves_the_policy_alone():
    world = World()
    world.set_queue(attempts_max=3)

    world.run(SetQueue(queue="q", paused=True, policy=QueuePolicy(), fields=()))

    assert world.store.live.queue("q") == Queue(
        "q", QueuePolicy(attempts_max=3), paused=True, declared=True
    )


def test_rule_29_a_policy_without_fields_replaces_all_of_it():
    world = World()
    world.set_queue(attempts_max=3)

    world.run(SetQueue(queue="q", policy=QueuePolicy(jobs_max=1)))

    assert world.store.live.queue("q").policy == QueuePolicy(jobs_max=1)


def test_rule_29_what_a_change_makes_of_the_whole_is_checked():
    world = World()
    world.set_queue(lease_ms=SECOND)
    forced = SetQueue(queue="q", policy=QueuePolicy(lease_forced=True), fields=("lease_forced",))
    without = SetQueue(queue="q", policy=QueuePolicy(), fields=("lease_ms",))
    world.run(forced)

    assert world.refused(without) is Why.BAD_POLICY
    assert world.refused(replace(forced, queue="other")) is Why.BAD_POLICY
    assert world.store.live.queue("q").policy == QueuePolicy(lease_ms=SECOND, lease_forced=True)


def test_rule_29_a_change_for_a_known_queue_creates_none():
    world = World()
    pause = SetQueue(queue="q", paused=True, only_known=True)

    unknown = world.refused(pause)
    world.submit()

    assert unknown is Why.UNKNOWN_QUEUE
    assert isinstance(world.run(pause), QueueSet)
    assert world.store.live.queue("q").paused


def test_rule_29_a_queue_that_workers_offer_is_not_dropped():
    world = World()
    world.set_queue("q", paused=False)

    offered = world.refused(ForgetQueue("q", offered=True))
    unknown = world.refused(ForgetQueue("unknown", offered=True))

    assert offered is unknown is Why.QUEUE_IN_USE
    assert world.accepted(ForgetQueue("q")) == 1
    assert world.store.live.queue("q") is None


# Rule 30: schedules that are set again.


def test_rule_30_a_schedule_that_is_set_again_is_due_one_new_interval_after_it_fired():
    world = World()
    world.run(PutSchedule(replace(a_schedule(), next_at=START + HOUR)))
    again = replace(a_schedule(), interval_ms=3 * HOUR, next_at=START + MINUTE)

    world.run(PutSchedule(again, in_step=True))
    in_step = world.store.live.view.schedule("5c").next_at
    world.run(PutSchedule(again))

    assert in_step == START + 3 * HOUR
    assert world.store.live.view.schedule("5c").next_at == START + MINUTE


@pytest.mark.parametrize("known", [None, replace(a_schedule(), interval_ms=None, cron="0 * * * *")])
def test_rule_30_a_schedule_without_an_earlier_interval_is_due_when_it_says(known):
    world = World()
    if known is not None:
        world.run(PutSchedule(known))

    world.run(PutSchedule(replace(a_schedule(), next_at=START + MINUTE), in_step=True))

    assert world.store.live.view.schedule("5c").next_at == START + MINUTE


def test_rule_30_a_cron_line_is_never_moved_into_step():
    world = World()
    world.run(PutSchedule(a_schedule()))
    cron = replace(a_schedule(), interval_ms=None, cron="0 * * * *", next_at=START + MINUTE)

    world.run(PutSchedule(cron, in_step=True))

    assert world.store.live.view.schedule("5c") == cron


def test_rule_30_a_schedule_is_paused_without_its_other_settings():
    world = World()
    paused = PutSchedule(replace(a_schedule(), queue="old", paused=True), fields=("paused",))

    unknown = world.refused(paused)
    world.run(PutSchedule(a_schedule()))
    world.run(paused)

    assert unknown is Why.UNKNOWN_SCHEDULE
    assert world.store.live.view.schedule("5c") == replace(a_schedule(), paused=True)

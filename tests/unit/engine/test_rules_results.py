"""Rules 20 to 26: payloads and results, who is interested, what is published."""

import pytest

from manyhands.engine.decide import decide
from manyhands.engine.endings import result_ms_of
from manyhands.engine.transitions import COMPLETED_FROM, ImpossibleMoveError
from manyhands.model.commands import (
    ByToken,
    Complete,
    Fail,
    Look,
    Move,
    NewJob,
    SendPartial,
    Submit,
)
from manyhands.model.job import Failure, Holder, Origin, State
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    DEFAULTS,
    NO_POLICY,
    TERMS,
    OnDuplicate,
    OnExpiry,
    QueuePolicy,
    Terms,
)
from manyhands.model.reasons import Reason
from manyhands.model.replies import Changed, Found, Submitted, Why
from manyhands.store.retention import Retention
from tests.unit.engine.world import HOUR, MINUTE, START, World, a_job, a_worker, by_holder

DAY = 24 * HOUR


def a_leased_job(world: World, **fields):
    job = world.submit(a_job(**fields))
    return world.claim(job.queue, term_ms=MINUTE)


# Rule 20: payload and result.


def test_rule_20_a_result_leaves_the_payload_alone():
    world = World()
    job = a_leased_job(world, payload=b"in", encoding=Encoding.TEXT)

    done = world.complete(job.job_id, result=b"{}", encoding=Encoding.JSON)

    assert (done.payload, done.encoding) == (b"in", Encoding.TEXT)
    assert (done.result, done.result_encoding) == (b"{}", Encoding.JSON)
    world.check()


def test_rule_20_a_result_may_replace_the_payload_too():
    world = World()
    job = a_leased_job(world, payload=b"in")

    done = world.complete(job.job_id, result=b"[1]", encoding=Encoding.JSON, replaces_payload=True)

    assert (done.payload, done.encoding) == (b"[1]", Encoding.JSON)
    assert (done.result, done.result_encoding) == (b"[1]", Encoding.JSON)
    world.check()


def test_rule_20_without_a_result_there_is_nothing_to_replace_the_payload_by():
    world = World()
    job = a_leased_job(world, payload=b"in")

    done = world.complete(job.job_id, replaces_payload=True)

    assert (done.payload, done.result) == (b"in", None)
    world.check()


def test_rule_20_into_the_next_queue_the_result_becomes_the_payload():
    world = World()
    job = a_leased_job(world, payload=b"in")

    moved = world.complete(job.job_id, result=b"out", encoding=Encoding.TEXT, next_queue="second")

    assert (moved.state, moved.queue, moved.lease) == (State.READY, "second", None)
    assert (moved.payload, moved.encoding, moved.result) == (b"out", Encoding.TEXT, None)
    assert world.reasons(job.job_id) == ["completed"]
    assert world.claim("second").job_id == job.job_id
    world.check()


def test_rule_20_each_queue_on_the_way_has_the_whole_budget():
    world = World()
    job = world.submit()
    world.claim(connection="s1/1")
    world.depart(connection="s1/1")
    world.claim()

    moved = world.complete(job.job_id, next_queue="second")

    assert (moved.attempts_used, moved.lease_number) == (0, 2)
    world.check()


def test_rule_20_a_step_may_wait_for_jobs_first_and_for_time_after_that():
    world = World()
    other = world.submit(queue="r")
    job = a_leased_job(world)

    moved = world.complete(
        job.job_id, next_queue="second", delay_ms=HOUR, depends_on=(other.job_id,)
    )
    world.claim("r")
    world.complete(other.job_id)

    assert (moved.state, moved.waits_for) == (State.BLOCKED, (other.job_id,))
    assert world.state(job.job_id) is State.DELAYED
    world.tick(HOUR)
    assert world.state(job.job_id) is State.READY
    world.check()


def test_rule_20_dependants_wait_for_the_last_queue():
    world = World()
    job = a_leased_job(world)
    dependant = world.submit(depends_on=(job.job_id,))

    world.complete(job.job_id, next_queue="second")
    between = world.state(dependant.job_id)
    world.claim("second")
    world.complete(job.job_id)

    assert (between, world.state(dependant.job_id)) == (State.BLOCKED, State.READY)
    world.check()


def test_rule_20_a_step_onto_a_lost_dependency_loses_the_job():
    world = World()
    other = a_leased_job(world, queue="r")
    world.fail(other.job_id)
    job = a_leased_job(world)

    moved = world.complete(job.job_id, next_queue="second", depends_on=(other.job_id,))

    assert (moved.state, moved.reason) == (State.CANCELLED, "dependency_failed")
    world.check()


def test_rule_20_a_delay_needs_a_next_queue():
    world = World()
    job = a_leased_job(world)
    command = Complete(job_id=job.job_id, proof=world.proof_of(job.job_id), delay_ms=1)

    why = world.refused(command)

    assert why is Why.BAD_TIME
    world.check()


def test_rule_20_a_failing_worker_may_leave_a_new_payload():
    world = World()
    job = a_leased_job(world, payload=b"in")

    back = world.fail(job.job_id, retry=True, delay_ms=0, payload=b'{"n":1}')

    assert (back.payload, back.encoding, back.state) == (b'{"n":1}', Encoding.JSON, State.READY)
    world.check()


def test_rule_20_a_renewing_worker_may_leave_a_new_payload():
    world = World()
    job = a_leased_job(world, payload=b"in")

    kept = world.renew(job.job_id, payload=b"{}")

    assert (kept.payload, kept.encoding) == (b"{}", Encoding.JSON)
    assert world.states(job.job_id) == [State.READY, State.LEASED]
    world.check()


# Rule 21: retention.


def test_rule_21_records_are_kept_seven_days_or_fifty_thousand_a_queue_and_outcome():
    retention = Retention()

    kept = (retention.record_ms_of(NO_POLICY), retention.records_max_of(NO_POLICY))

    assert kept == (7 * DAY, 50_000)


def test_rule_21_a_queue_may_keep_its_records_for_another_time():
    policy = QueuePolicy(record_ms=HOUR, records_max=3)

    kept = (Retention().record_ms_of(policy), Retention().records_max_of(policy))

    assert kept == (HOUR, 3)


def test_rule_21_results_are_kept_as_long_as_the_record_but_in_the_draft_an_hour():
    kept = {front: row.result_ms for front, row in DEFAULTS.items()}

    assert kept == dict.fromkeys(DEFAULTS) | {"draft": HOUR}


def test_rule_21_a_jobs_own_wish_for_its_result_goes_before_its_fronts():
    world = World()
    own = world.submit(terms=Terms(defaults=DEFAULTS["draft"], result_ms=0))
    fronts = world.submit(terms=TERMS["draft"])

    wishes = (result_ms_of(own.terms), result_ms_of(fronts.terms))

    assert wishes == (0, HOUR)
    world.check()


def test_rule_21_a_result_that_is_thrown_away_reaches_those_who_wait_and_no_record():
    world = World()
    job = a_leased_job(world, terms=Terms(result_ms=0), waiter="s1/1")

    done = world.complete(job.job_id, result=b"out")

    assert (done.state, done.result) == (State.COMPLETED, None)
    assert [signal.job.result for signal in world.told("ended")] == [b"out"]
    world.check()


def test_rule_21_a_result_outlives_its_time_no_longer_than_the_next_sweep():
    world = World()
    job = a_leased_job(world, terms=TERMS["draft"])
    world.complete(job.job_id, result=b"out")

    world.store.prune(world.now + HOUR - 1, 100)
    before = world.job(job.job_id).result
    world.store.prune(world.now + HOUR, 100)

    assert (before, world.job(job.job_id).result) == (b"out", None)
    assert world.state(job.job_id) is State.COMPLETED


# Rule 22: interest.


def test_rule_22_a_foreground_job_is_cancelled_when_its_last_waiter_leaves():
    world = World()
    job = world.submit(durable_interest=False, waiter="s1/1")

    left = world.detach("s1/1")

    ended = world.job(job.job_id)
    assert left == 1
    assert (ended.state, ended.reason) == (State.CANCELLED, "abandoned")
    assert world.claims_nothing()
    world.check()


def test_rule_22_nobodys_leaving_cancels_what_another_waits_for():
    world = World()
    job = world.submit(durable_interest=False, waiter="s1/1", unique_key=b"k")
    world.submit(durable_interest=False, waiter="s1/2", unique_key=b"k")

    world.detach("s1/1")
    kept = world.state(job.job_id)
    world.detach("s1/2")

    assert (kept, world.state(job.job_id)) == (State.READY, State.CANCELLED)
    world.check()


def test_rule_22_a_background_joiner_keeps_the_job_when_all_waiters_left():
    world = World()
    job = world.submit(durable_interest=False, waiter="s1/1", unique_key=b"k")
    joined = world.offer(a_job(durable_interest=True, unique_key=b"k"))

    world.detach("s1/1")

    assert isinstance(joined, Submitted)
    kept = world.job(job.job_id)
    assert (kept.state, kept.durable_interest, kept.waiters) == (State.READY, True, ())
    world.check()


def test_rule_22_a_waiter_that_joins_a_background_job_does_not_cancel_it_by_leaving():
    world = World()
    job = world.submit()
    world.attach(job.job_id, "s1/1")

    world.detach("s1/1")

    assert world.state(job.job_id) is State.READY
    world.check()


def test_rule_22_a_worker_may_finish_what_nobody_wants_any_more():
    world = World()
    job = a_leased_job(world, durable_interest=False, waiter="s1/1")

    world.detach("s1/1")
    still = world.state(job.job_id)
    done = world.complete(job.job_id)

    assert (still, done.state) == (State.LEASED, State.COMPLETED)
    world.check()


@pytest.mark.parametrize(
    "come_back",
    [
        lambda world, job: world.release(job.job_id),
        lambda world, job: world.fail(job.job_id, retry=True),
        lambda world, _: world.tick(MINUTE),
        lambda world, _: world.depart(holder=a_worker()),
        lambda world, job: world.expire_lease(job.job_id),
    ],
)
@pytest.mark.parametrize("on_expiry", list(OnExpiry))
def test_rule_22_what_nobody_wants_is_not_handed_out_again(come_back, on_expiry):
    world = World()
    terms = Terms(on_expiry=on_expiry)
    job = a_leased_job(world, durable_interest=False, waiter="s1/1", terms=terms)
    world.detach("s1/1")

    come_back(world, job)

    ended = world.job(job.job_id)
    assert (ended.state, ended.reason) == (State.CANCELLED, "abandoned")
    assert len(ended.attempts) == 1
    world.check()


def test_rule_22_waiters_of_a_dead_incarnation_are_gone():
    world = World()
    abandoned = world.submit(durable_interest=False, waiter="s1/1")
    wanted = world.submit(durable_interest=False, waiter="s2/1")
    durable = world.submit(durable_interest=True, waiter="s1/2")

    world.recover("s2")

    assert world.state(abandoned.job_id) is State.CANCELLED
    assert world.job(wanted.job_id).waiters == ("s2/1",)
    assert (world.state(durable.job_id), world.job(durable.job_id).waiters) == (State.READY, ())
    world.check()


def test_rule_22_an_abandoned_job_of_a_dead_worker_is_cancelled_at_start():
    world = World()
    job = world.submit(durable_interest=False, waiter="s1/1")
    world.claim(connection="s1/2")

    world.recover("s2")

    assert (world.state(job.job_id), world.job(job.job_id).reason) == (
        State.CANCELLED,
        "abandoned",
    )
    world.check()


def test_rule_22_those_who_wait_hear_of_progress_pieces_and_the_end():
    world = World()
    job = a_leased_job(world, waiter="s1/1")
    world.attach(job.job_id, "s1/2")
    proof = world.proof_of(job.job_id)

    world.report(job.job_id, 1, 3)
    world.changed(SendPartial(job_id=job.job_id, proof=proof, payload=b"piece"))
    world.changed(SendPartial(job_id=job.job_id, proof=proof, payload=b"!", warning=True))
    world.complete(job.job_id, result=b"out")

    heard = [(signal.what, signal.payload, signal.waiters) for signal in world.signals]
    both = ("s1/1", "s1/2")
    assert heard == [
        ("progress", b"", both),
        ("partial", b"piece", both),
        ("warning", b"!", both),
        ("ended", b"", both),
    ]
    assert [piece.payload for piece in world.store.partials(job.job_id)] == [b"piece", b"!"]
    world.check()


def test_rule_22_attaching_to_a_finished_job_shows_its_end():
    world = World()
    job = a_leased_job(world)
    world.complete(job.job_id, result=b"out")

    shown = world.attach(job.job_id, "s1/1")

    assert (shown.state, shown.result, shown.waiters) == (State.COMPLETED, b"out", ())
    world.check()


# Rules 23 to 25: answers and commits.


def test_rule_23_a_job_is_shown_to_the_next_command_of_the_same_batch():
    world = World()
    item = NewJob(job_id="a" * 32, queue="q")
    _, effects = decide(Submit((item,)), world.store.load(Look("")), world.now)
    world.store.write(effects)

    found, _ = decide(Look("a" * 32), world.store.load(Look("")), world.now)

    assert isinstance(found, Found)
    assert found.job is not None
    assert world.store.is_unsaved("a" * 32)


def test_rule_24_an_assertion_undoes_the_command_alone():
    world = World()
    job = a_leased_job(world)
    other = world.submit()
    command = Complete(job_id=job.job_id, proof=world.proof_of(job.job_id))
    after = COMPLETED_FROM.pop(State.LEASED)

    try:
        with pytest.raises(ImpossibleMoveError):
            decide(command, world.store.load(command), world.now)
    finally:
        COMPLETED_FROM[State.LEASED] = after

    assert world.job(job.job_id) == job
    assert world.job(other.job_id) == other
    world.check()


def test_rule_25_a_completion_nobody_waits_for_is_not_urgent():
    world = World()
    job = a_leased_job(world)

    world.complete(job.job_id)

    assert not world.urgent
    world.check()


def test_rule_25_a_completion_is_urgent_if_somebody_waits_or_work_becomes_ready():
    world = World()
    awaited = a_leased_job(world, waiter="s1/1")
    needed = a_leased_job(world)
    world.submit(depends_on=(needed.job_id,))

    world.complete(awaited.job_id)
    by_waiter = world.urgent
    world.complete(needed.job_id)
    by_dependant = world.urgent

    assert (by_waiter, by_dependant) == (True, True)
    world.check()


# Rule 26: events.


def test_rule_26_each_change_of_state_is_one_event():
    world = World()
    first = world.submit(queue="r")
    job = world.submit(depends_on=(first.job_id,), delay_ms=HOUR)
    world.claim("r")
    world.complete(first.job_id)
    world.tick(HOUR)
    world.claim()
    world.fail(job.job_id, retry=True, delay_ms=MINUTE)
    world.tick(MINUTE)
    world.claim()
    world.complete(job.job_id)

    states = world.states(job.job_id)

    assert [str(state) for state in states] == [
        "blocked",
        "delayed",
        "ready",
        "leased",
        "delayed",
        "ready",
        "leased",
        "completed",
    ]
    world.check()


def test_rule_26_renewing_reporting_and_attaching_publish_nothing():
    world = World()
    job = a_leased_job(world)
    before = len(world.events())

    world.renew(job.job_id)
    world.report(job.job_id, 1, 2)
    world.attach(job.job_id, "s1/1")
    world.set_priority(job.job_id, 3)

    assert len(world.events()) == before
    world.check()


def test_rule_26_an_event_is_a_snapshot_of_the_job_and_its_lease():
    world = World()
    origin = Origin("qless", "submitter", "10.0.0.9")
    job = world.submit(
        origin=origin, priority=2.5, deadline_at=START + DAY, terms=Terms(attempts_max=3)
    )
    world.now += MINUTE
    world.claim(holder=a_worker("ann"), term_ms=HOUR)
    world.now += MINUTE
    world.complete(job.job_id)

    ready, leased, completed = world.events(job.job_id)

    assert (ready.at, ready.state, ready.holder, ready.expires_at) == (
        START,
        State.READY,
        None,
        None,
    )
    assert (leased.holder, leased.expires_at) == (Holder("native", "ann"), START + MINUTE + HOUR)
    assert (leased.lease_number, leased.lasted_ms) == (1, MINUTE)
    assert (completed.holder, completed.lasted_ms) == (Holder("native", "ann"), MINUTE)
    for event in (ready, leased, completed):
        assert (event.queue, event.priority, event.origin) == ("q", 2.5, origin)
        assert (event.submitted_at, event.deadline_at) == (START, START + DAY)
        assert (event.attempts_max, event.attempts_used, event.incarnation) == (3, 0, 0)
    world.check()


def test_rule_26_a_cancelled_job_is_published_with_its_reason_and_the_words_given():
    world = World()
    job = world.submit()

    world.cancel(job.job_id, detail="not needed")

    events = world.events(job.job_id)
    assert [(event.state, event.reason, event.detail) for event in events] == [
        (State.READY, Reason.NONE, ""),
        (State.CANCELLED, Reason.CANCELLED, "not needed"),
    ]
    world.check()


def test_rule_26_the_holder_is_told_when_its_job_is_cancelled_or_moved():
    world = World()
    cancelled = a_leased_job(world, queue="a")
    moved = a_leased_job(world, queue="b")

    world.cancel(cancelled.job_id)
    world.run(Move(job_id=moved.job_id, queue="c"))

    told = [(signal.job.job_id, signal.lease.number) for signal in world.told("notice")]
    assert told == [(cancelled.job_id, 1), (moved.job_id, 1)]
    world.check()


def test_finished_exactly_once_a_repeated_completion_changes_nothing():
    world = World()
    job = a_leased_job(world)
    proof = world.proof_of(job.job_id)
    world.complete(job.job_id, proof, result=b"out")
    events = len(world.events())

    reply = world.run(Complete(job_id=job.job_id, proof=proof, result=b"out"))

    assert isinstance(reply, Changed)
    assert reply.repeated
    assert len(world.events()) == events
    late = Fail(job_id=job.job_id, proof=proof, failure=Failure("x"))
    assert world.refused(late) is Why.ALREADY_COMPLETED
    stranger = Complete(job_id=job.job_id, proof=ByToken("other"))
    assert world.refused(stranger) is Why.ALREADY_COMPLETED
    world.check()


def test_a_holder_may_repeat_a_completion_only_with_the_same_result():
    world = World()
    job = a_leased_job(world)
    proof = by_holder("worker")
    world.complete(job.job_id, proof, result=b"out")

    same = world.run(Complete(job_id=job.job_id, proof=proof, result=b"out"))
    other = world.refused(Complete(job_id=job.job_id, proof=proof, result=b"changed"))

    assert isinstance(same, Changed)
    assert same.repeated
    assert other is Why.ALREADY_COMPLETED
    assert world.claims_nothing()
    world.check()


def test_a_key_joined_with_a_waiter_twice_is_told_twice():
    world = World()
    job = world.submit(unique_key=b"k", waiter="s1/1")
    world.submit(unique_key=b"k", waiter="s1/1", on_duplicate=OnDuplicate.ATTACH)
    world.claim()

    world.complete(job.job_id)

    assert [signal.waiters for signal in world.told("ended")] == [("s1/1", "s1/1")]
    world.check()

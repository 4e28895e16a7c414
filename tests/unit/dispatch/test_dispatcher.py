"""Group commit, order of answers, early claims, time, waking; and what happens when it breaks."""

import pytest
from msgspec.structs import replace

from manyhands.dispatch import dispatcher as module
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.engine import graph, timers
from manyhands.model import limits
from manyhands.model.commands import (
    Attach,
    ByConnection,
    ByToken,
    Cancel,
    Conclude,
    Look,
    LookByKey,
    NewJob,
    Recover,
    Renew,
    SetLimit,
    Submit,
)
from manyhands.model.job import Holder, State
from manyhands.model.policy import OnExpiry, Rate, Terms
from manyhands.model.replies import Changed, Claimed, Found, Reply, SubmittedMany, Why
from manyhands.store.contract import StoreFailedError
from manyhands.store.memory import MemoryStore
from tests.captured_logs import capture_logs
from tests.unit.dispatch.desk import COMMIT_MS, Desk, Told

TWO_COMMITS_MS = 2 * COMMIT_MS


# Group commit.


def test_a_lone_client_waits_for_one_flush_and_no_more():
    desk = Desk()

    told = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert told.at_ms == COMMIT_MS


def test_whatever_arrives_in_one_turn_shares_a_commit():
    desk = Desk()

    told = [desk.ask(desk.a_submit()) for _ in range(5)]
    desk.run(TWO_COMMITS_MS)

    assert [t.at_ms for t in told] == [COMMIT_MS] * 5
    assert [len(batch.jobs) for batch in desk.batches] == [5]


def test_what_arrives_during_a_commit_gathers_in_the_next_one():
    desk = Desk()
    first = desk.ask(desk.a_submit())
    desk.run(1)

    later = [desk.ask(desk.a_submit()) for _ in range(3)]
    desk.run(3 * COMMIT_MS)

    assert first.at_ms == COMMIT_MS
    assert [t.at_ms for t in later] == [TWO_COMMITS_MS] * 3
    assert [len(batch.jobs) for batch in desk.batches] == [1, 3]


def test_bytes_that_nobody_waits_for_are_sent_on_as_soon_as_they_are_many():
    desk = Desk()
    desk.ask(desk.a_submit())
    desk.run(1)

    for _ in range(5):
        desk.tell(desk.a_submit(payload=bytes(module._FULL_BYTES // 2)))
    desk.run(3 * COMMIT_MS)

    assert [len(batch.jobs) for batch in desk.batches] == [1, 2, 2, 1]


def test_it_is_known_how_many_bytes_are_on_their_way_to_the_disk():
    desk = Desk()
    heard = []
    desk.dispatcher.on_progress.append(lambda: heard.append(desk.store.backlog_bytes()))
    desk.tell(desk.a_submit(payload=bytes(1_000)))
    desk.run(1)
    desk.tell(desk.a_submit(payload=bytes(100)))
    assert desk.store.backlog_bytes() == 1_100

    desk.run(3 * COMMIT_MS)

    assert heard[-1] == desk.store.backlog_bytes() == 0


def asks_in_turns(desk: Desk, count: int) -> None:
    """One request in each of the next turns of the loop, for as long as that goes on."""
    if count:
        desk.ask(desk.a_submit())
        desk.loop.call_soon(lambda: asks_in_turns(desk, count - 1))


def test_a_commit_of_several_waits_for_those_who_were_heard_meanwhile():
    desk = Desk()
    asks_in_turns(desk, 1)
    asks_in_turns(desk, 2)
    desk.run(TWO_COMMITS_MS)

    assert [len(batch.jobs) for batch in desk.batches] == [3]


def test_a_commit_does_not_wait_for_long_however_much_is_heard():
    desk = Desk()
    desk.ask(desk.a_submit())
    asks_in_turns(desk, 20)
    desk.run(3 * COMMIT_MS)

    first = 2 + module._LOOKS_MAX
    assert [len(batch.jobs) for batch in desk.batches] == [first, 21 - first]


def test_a_lone_client_is_not_kept_waiting_for_others():
    desk = Desk()
    asks_in_turns(desk, 2)
    desk.run(3 * COMMIT_MS)

    assert [len(batch.jobs) for batch in desk.batches] == [1, 1]


def test_a_store_that_commits_at_once_answers_in_the_next_turn():
    desk = Desk()
    dispatcher = Dispatcher(MemoryStore(), desk.clock, desk.loop)
    told = Told()

    dispatcher.ask(desk.a_submit(), lambda reply: setattr(told, "reply", reply))
    assert told.reply is None
    desk.run(0)

    assert isinstance(told.reply, SubmittedMany)


def test_what_an_answer_without_a_commit_brings_about_is_answered_too():
    desk = Desk()
    dispatcher = Dispatcher(MemoryStore(), desk.clock, desk.loop)
    replies: list[Reply] = []

    def submit_many(_: Reply) -> None:
        for _ in range(100):  # enough to be committed at once
            dispatcher.ask(desk.a_submit(), replies.append)

    # Behind an answer that is being delivered, so it has to wait, although nothing is written.
    dispatcher.ask(desk.a_submit(), lambda _: dispatcher.ask(LookByKey(b"", ""), submit_many))
    desk.run(100)

    assert len(replies) == 100


def test_a_busy_server_keeps_a_distance_between_commits():
    desk = Desk(pace_ms=50.0)
    for _ in range(20):
        desk.ask(desk.a_submit())
    desk.run(COMMIT_MS)

    told = desk.ask(desk.a_submit())
    desk.run(200)

    assert told.at_ms == 50 + COMMIT_MS


def test_the_distance_ends_when_all_have_asked_again_who_were_answered():
    desk = Desk(pace_ms=50.0)
    for _ in range(20):
        desk.ask(desk.a_submit())
    desk.run(COMMIT_MS)

    told = [desk.ask(desk.a_submit()) for _ in range(19)]
    desk.run(1)
    told.append(desk.ask(desk.a_submit()))
    desk.run(200)

    assert [one.at_ms for one in told] == [COMMIT_MS + 1 + COMMIT_MS] * 20


def have_answered(desk: Desk, count: int) -> float:
    """As many ask at once, and are answered; gives how long that took."""
    began_ms = desk.clock.monotonic_ms()
    told = [desk.ask(desk.a_submit()) for _ in range(count)]
    for _ in range(200):
        if told[-1].at_ms is not None:
            return told[-1].at_ms - began_ms
        desk.run(1)
    raise AssertionError("nobody was answered")


def test_who_is_late_for_a_commit_is_waited_for_by_the_next():
    desk = Desk(pace_ms=50.0)
    have_answered(desk, 8)
    assert have_answered(desk, 5) > COMMIT_MS  # three are late

    told = [desk.ask(desk.a_submit()) for _ in range(6)]
    desk.run(1)
    told.append(desk.ask(desk.a_submit()))
    desk.run(COMMIT_MS)

    assert [len(batch.jobs) for batch in desk.batches] == [8, 5, 7]


def test_who_does_not_come_back_is_not_waited_for_any_more():
    desk = Desk(pace_ms=50.0)
    have_answered(desk, 8)

    took_ms = [have_answered(desk, 5) for _ in range(4)]

    assert took_ms[0] > COMMIT_MS
    assert took_ms[-1] == COMMIT_MS


def test_three_at_a_time_are_few():
    desk = Desk(pace_ms=50.0)
    for _ in range(4):
        told = [desk.ask(desk.a_submit()) for _ in range(3)]
        desk.run(COMMIT_MS)
        assert None not in [one.at_ms for one in told]


def test_a_server_with_few_clients_keeps_no_distance():
    desk = Desk(pace_ms=50.0)
    desk.ask(desk.a_submit())
    desk.run(COMMIT_MS)

    told = desk.ask(desk.a_submit())
    desk.run(200)

    assert told.at_ms == TWO_COMMITS_MS


def test_few_are_answered_by_a_store_that_can_commit_at_once():
    desk = Desk()
    desk.store.at_once_share = 1.0

    few = [desk.ask(desk.a_submit()) for _ in range(module._FEW_COUNT)]
    desk.run(1)
    assert [t.at_ms for t in few] == [0] * len(few)

    desk.dispatcher.ask(desk.a_submit())  # by somebody who does not wait, and may have more to say
    many = [desk.ask(desk.a_submit()) for _ in range(module._FEW_COUNT + 1)]
    desk.run(TWO_COMMITS_MS)
    assert [t.at_ms for t in many] == [1 + COMMIT_MS] * len(many)


def test_many_are_answered_at_once_if_all_who_were_heard_of_wait():
    desk = Desk()
    desk.store.at_once_share = 1.0
    desk.ask(desk.a_submit())
    desk.dispatcher.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    many = [desk.ask(desk.a_submit()) for _ in range(20)]
    desk.run(1)

    assert [t.at_ms for t in many] == [TWO_COMMITS_MS] * len(many)


def test_those_who_were_answered_early_are_not_waited_for():
    desk = Desk()
    jobs = desk.submit(count=20)
    desk.store.at_once_share = 1.0
    claims = [desk.ask(desk.a_claim(early=True)) for _ in jobs]
    assert all(isinstance(told.reply, Claimed) for told in claims)

    began_ms = desk.now_ms
    many = [desk.ask(desk.a_complete(desk.job(job.job_id))) for job in jobs]
    desk.run(1)

    assert [told.at_ms for told in many] == [began_ms] * len(many)


def test_those_who_ask_again_when_they_are_answered_are_answered_at_once_too():
    desk = Desk()
    desk.store.at_once_share = 1.0
    again: list[Told] = []
    for _ in range(module._FULL_COUNT):  # enough for a commit while answers are given out
        desk.dispatcher.ask(desk.a_submit(), lambda _: again.append(desk.ask(desk.a_submit())))
    desk.run(1)

    assert [told.at_ms for told in again] == [0] * module._FULL_COUNT


def test_nothing_is_committed_at_once_while_something_is_on_its_way():
    desk = Desk()
    first = desk.ask(desk.a_submit())
    desk.run(1)
    desk.store.at_once_share = 1.0

    second = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert (first.at_ms, second.at_ms) == (COMMIT_MS, COMMIT_MS)


def test_a_commit_at_once_that_fails_is_the_end_and_answers_nobody():
    desk = Desk()
    desk.store.at_once_share = 1.0
    desk.store.fails_next = True

    told = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert told.reply is None
    assert desk.dispatcher.failed == "the disk said no"


def test_part_of_a_batch_that_found_no_room_is_sent_when_there_is_some():
    desk = Desk()
    desk.store._rng.random = lambda: 0.05  # it is held back once, then accepted

    told = desk.ask(desk.a_submit())
    desk.run(50)

    assert told.at_ms == pytest.approx(COMMIT_MS, abs=1)


def test_a_full_batch_is_sent_while_the_turn_goes_on():
    desk = Desk()

    told = [desk.ask(desk.a_submit()) for _ in range(150)]
    desk.run(3 * COMMIT_MS)

    assert [len(batch.jobs) for batch in desk.batches] == [64, 64, 22]
    assert all(isinstance(t.reply, SubmittedMany) for t in told)


def test_many_questions_still_wait_for_the_commit_that_they_saw():
    desk = Desk()
    desk.ask(desk.a_submit())
    desk.run(1)

    told = [desk.ask(Look("a")) for _ in range(200)]
    assert {t.reply for t in told} == {None}
    desk.run(TWO_COMMITS_MS)

    assert {t.at_ms for t in told} == {COMMIT_MS}


def test_many_questions_asked_while_answers_are_told_are_told_after_them():
    desk = Desk()
    order: list[str] = []

    def ask_many(_: object) -> None:
        for _ in range(100):
            desk.dispatcher.ask(Look("a"), lambda _: order.append("inside"))

    desk.dispatcher.ask(desk.a_submit(), ask_many)
    desk.dispatcher.ask(desk.a_submit(), lambda _: order.append("second"))
    desk.run(3 * COMMIT_MS)

    assert order == ["second"] + ["inside"] * 100


def test_a_store_that_commits_at_once_answers_full_batches_in_order():
    desk = Desk()
    dispatcher = Dispatcher(MemoryStore(), desk.clock, desk.loop)
    order: list[int] = []

    for number in range(200):
        dispatcher.ask(desk.a_submit(), lambda _, number=number: order.append(number))
    desk.run(5)

    assert order == list(range(200))


def test_a_failed_store_is_not_written_to_however_many_answers_wait():
    desk = Desk()
    desk.store.fails_next = True
    desk.ask(desk.a_submit())
    desk.run(1)
    for _ in range(63):
        desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)
    assert desk.dispatcher.failed is not None
    before = desk.store.unsaved_number()

    for _ in range(10):
        desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert desk.store.unsaved_number() == before


# Riding along (rule 25).


def test_rule_25_a_completion_nobody_waits_for_rides_for_at_most_ride_ms():
    desk = Desk(ride_ms=5.0)
    desk.submit()
    job = desk.claim()
    started_ms = desk.now_ms

    desk.tell(desk.a_complete(job))
    desk.run(4)
    assert len(desk.batches) == 2
    desk.run(1 + COMMIT_MS)

    assert desk.disk.job(job.job_id).state is State.COMPLETED
    assert desk.now_ms - started_ms == 5 + COMMIT_MS


def test_rule_25_a_completion_rides_with_whoever_commits_next():
    desk = Desk(ride_ms=5.0)
    desk.submit()
    job = desk.claim()

    desk.tell(desk.a_complete(job))
    desk.run(1)
    desk.ask(desk.a_submit())
    desk.run(COMMIT_MS)

    assert desk.disk.job(job.job_id).state is State.COMPLETED


def test_rule_25_a_completion_that_somebody_waits_for_does_not_ride():
    desk = Desk(ride_ms=5.0)
    (waited,) = desk.submit()
    desk.tell(Attach(job_id=waited.job_id, waiter="c/1"))
    job = desk.claim()

    desk.tell(desk.a_complete(job))
    desk.run(COMMIT_MS)

    assert desk.disk.job(job.job_id).state is State.COMPLETED


def test_rule_25_a_completion_that_frees_a_dependant_does_not_ride():
    desk = Desk(ride_ms=5.0)
    (first,) = desk.submit()
    desk.submit(depends_on=(first.job_id,))
    job = desk.claim()

    desk.tell(desk.a_complete(job))
    desk.run(COMMIT_MS)

    assert desk.disk.job(job.job_id).state is State.COMPLETED


# Early claims and reads (rule 23).


def test_rule_23_an_early_claim_of_a_job_on_disk_is_answered_at_once():
    desk = Desk()
    desk.submit()

    told = desk.ask(desk.a_claim(early=True))

    assert isinstance(told.reply, Claimed)
    assert len(told.reply.jobs) == 1


def test_rule_23_an_early_claim_waits_for_the_commit_of_the_job_it_hands_out():
    desk = Desk()
    desk.ask(desk.a_submit())
    desk.run(1)

    told = desk.ask(desk.a_claim(early=True))
    assert told.reply is None
    desk.run(3 * COMMIT_MS)

    assert isinstance(told.reply, Claimed)
    assert told.at_ms >= COMMIT_MS


def test_rule_23_a_claim_that_is_not_early_waits_for_its_own_commit():
    desk = Desk()
    desk.submit()
    started_ms = desk.now_ms

    told = desk.ask(desk.a_claim())
    assert told.reply is None
    desk.run(TWO_COMMITS_MS)

    assert told.at_ms == started_ms + COMMIT_MS


def test_rule_23_a_question_is_answered_at_once_when_nothing_is_on_its_way():
    desk = Desk()
    (job,) = desk.submit()

    told = desk.ask(Look(job.job_id))

    assert told.reply == Found(job)


def test_rule_23_a_question_waits_for_the_commit_that_it_saw():
    desk = Desk()
    submit = desk.a_submit()
    desk.tell(submit)
    desk.run(1)

    told = desk.ask(Look(submit.items[0].job_id))
    assert told.reply is None
    desk.run(TWO_COMMITS_MS)

    assert isinstance(told.reply, Found)
    assert told.at_ms == COMMIT_MS


def test_rule_23_questions_are_answered_in_the_order_of_asking_even_between_two_commits():
    desk = Desk()
    desk.ask(desk.a_submit())
    desk.run(1)
    order: list[str] = []
    desk.dispatcher.ask(Look("a"), lambda _: order.append("first"))

    # The commit is there, the answer that waited for it is not told yet: another one comes.
    while not desk.batches:
        desk.time.step()
    assert order == []
    desk.dispatcher.ask(Look("b"), lambda _: order.append("second"))
    desk.run(TWO_COMMITS_MS)

    assert order == ["first", "second"]


def test_rule_23_what_is_asked_while_answers_are_told_is_told_after_them():
    desk = Desk()
    order: list[str] = []

    def ask_more(_: object) -> None:
        order.append("first")
        desk.dispatcher.ask(Look("a"), lambda _: order.append("asked inside"))

    desk.dispatcher.ask(desk.a_submit(), ask_more)
    desk.dispatcher.ask(desk.a_submit(), lambda _: order.append("second"))
    desk.run(3 * COMMIT_MS)

    assert order == ["first", "second", "asked inside"]


def test_rule_23_what_is_asked_while_questions_are_answered_is_told_after_them():
    desk = Desk()
    order: list[str] = []

    def ask_more(_: object) -> None:
        order.append("first")
        desk.dispatcher.ask(Look("a"), lambda _: order.append("asked inside"))

    desk.ask(desk.a_submit())
    desk.run(1)
    desk.dispatcher.ask(Look("a"), ask_more)
    desk.dispatcher.ask(Look("a"), lambda _: order.append("second"))
    desk.run(3 * COMMIT_MS)

    assert order == ["first", "second", "asked inside"]


def test_rule_23_signals_leave_with_their_commit():
    desk = Desk()
    heard: list[str] = []
    desk.dispatcher.on_signal["c/1"] = lambda signal: heard.append(signal.what)
    desk.submit(waiter="c/1")
    job = desk.claim()

    desk.tell(desk.a_complete(job))
    desk.run(COMMIT_MS - 1)
    assert heard == []
    desk.run(1)

    assert heard == ["ended"]


def test_rule_22_news_of_a_job_that_only_its_waiters_want_need_not_wait_for_the_disk():
    desk = Desk()
    heard: list[str] = []
    desk.dispatcher.on_signal["c/1"] = lambda signal: heard.append(signal.what)
    desk.submit(waiter="c/1", durable_interest=False)
    job = desk.claim()

    desk.tell(desk.a_complete(job))

    assert heard == ["ended"]
    desk.run(50 + COMMIT_MS)
    assert desk.disk.job(job.job_id).state is State.COMPLETED


def a_foreground_life(desk: Desk) -> str:
    """A job that only its waiter wants, from its submit to its end."""
    command = desk.a_submit(waiter="c/1", durable_interest=False)
    desk.dispatcher.ask(replace(command, early=True), lambda _: None)
    job_id = command.items[0].job_id
    holder = Holder("gearman", "w", "")
    desk.time.run(2_000)
    desk.dispatcher.claim_at_once(command.items[0].queue, holder, "t", "w/1")
    desk.time.run(2_000)
    assert desk.dispatcher.complete_at_once(job_id, ByConnection("w/1"), b"r")
    return job_id


def test_rule_22_a_job_that_only_its_waiters_want_is_written_once_for_its_whole_life():
    desk = Desk(ride_ms=5.0, long_ride_ms=50.0)
    desk.submit()  # the queue is known
    desk.claim()
    desk.run(50)
    began_ms, before = desk.now_ms, len(desk.batches)

    job_id = a_foreground_life(desk)
    desk.run(45)
    assert len(desk.batches) == before
    desk.run(1 + COMMIT_MS)

    (batch,) = desk.batches[before:]
    assert [job.state for job in batch.jobs.values()] == [State.COMPLETED]
    assert [(event.state, event.at) for event in batch.events] == [
        (State.READY, desk.clock.now() - (desk.now_ms - began_ms)),
        (State.LEASED, desk.clock.now() - (desk.now_ms - began_ms) + 2),
        (State.COMPLETED, desk.clock.now() - (desk.now_ms - began_ms) + 4),
    ]
    assert desk.disk.job(job_id).state is State.COMPLETED


def test_rule_22_such_a_job_is_written_after_50_ms_at_the_latest():
    desk = Desk(ride_ms=5.0, long_ride_ms=50.0)
    desk.submit()
    desk.claim()
    desk.run(50)
    command = desk.a_submit(waiter="c/1", durable_interest=False)

    desk.dispatcher.ask(replace(command, early=True), lambda _: None)
    desk.run(50 + COMMIT_MS)

    assert desk.disk.job(command.items[0].job_id).state is State.READY


def test_rule_22_whoever_watches_events_does_not_wait_for_the_end_of_such_a_job():
    desk = Desk(ride_ms=5.0, long_ride_ms=50.0)
    desk.submit()
    desk.claim()
    desk.run(50)
    desk.dispatcher.events.watch(lambda: None)

    job_id = a_foreground_life(desk)
    desk.run(2 + COMMIT_MS)

    assert desk.disk.job(job_id) is not None


def test_rule_22_such_a_job_rides_no_longer_than_what_it_shares_the_commit_with():
    desk = Desk(ride_ms=5.0, long_ride_ms=50.0)
    desk.submit()
    job = desk.claim()
    desk.run(50)

    job_id = a_foreground_life(desk)
    desk.tell(desk.a_complete(job))
    desk.run(5 + COMMIT_MS)

    assert desk.disk.job(job_id).state is State.COMPLETED


def test_what_is_asked_on_hearing_early_news_goes_into_a_batch_of_its_own_right():
    desk = Desk()
    asked = desk.a_submit()
    desk.dispatcher.on_signal["c/1"] = lambda _: desk.dispatcher.ask(asked)
    desk.submit(waiter="c/1", durable_interest=False)
    job = desk.claim()

    told = desk.ask(desk.a_complete(job))
    desk.run(3 * COMMIT_MS)

    assert isinstance(told.reply, Changed)
    assert desk.disk.job(asked.items[0].job_id).state is State.READY


def test_rule_23_a_lease_taken_from_a_holder_without_connection_is_told_to_whoever_listens():
    desk = Desk()
    told: list[str] = []
    desk.dispatcher.on_notice.append(lambda signal: told.append(signal.job.job_id))
    desk.submit()
    job = desk.claim()

    desk.tell(Cancel(job_ids=(job.job_id,)))
    desk.run(TWO_COMMITS_MS)

    assert told == [job.job_id]


# Refusals.


def test_a_server_that_drains_refuses_new_work_and_claims_but_takes_completions():
    desk = Desk()
    desk.submit()
    job = desk.claim()
    desk.dispatcher.draining = True

    submit, claim = desk.ask(desk.a_submit()), desk.ask(desk.a_claim())
    complete = desk.ask(desk.a_complete(job))
    desk.run(TWO_COMMITS_MS)

    assert submit.reply.why is claim.reply.why is Why.SHUTTING_DOWN
    assert isinstance(complete.reply, Changed)


def test_a_full_disk_refuses_submits_only():
    desk = Desk()
    desk.submit()
    desk.dispatcher.store_full = True

    submit, claim = desk.ask(desk.a_submit()), desk.ask(desk.a_claim())
    desk.run(TWO_COMMITS_MS)

    assert submit.reply.why is Why.STORE_FULL
    assert isinstance(claim.reply, Claimed)


def test_submits_are_refused_while_the_jobs_that_wait_take_up_the_memory():
    desk = Desk()
    desk.submit(payload=bytes(1_000))
    desk.dispatcher.jobs_bytes_max = desk.store.live.unfinished_bytes - 1

    submit, claim = desk.ask(desk.a_submit()), desk.ask(desk.a_claim())
    desk.run(TWO_COMMITS_MS)
    assert submit.reply.why is Why.STORE_FULL
    assert "--memory" in submit.reply.sentence

    desk.tell(desk.a_complete(claim.reply.jobs[0]))
    again = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)
    assert isinstance(again.reply, SubmittedMany)


def test_a_payload_that_is_only_on_record_is_read_when_it_is_needed():
    desk = Desk()
    (job,) = desk.submit(payload=b"kept")
    assert (job.payload, job.stored_bytes) == (b"", 4)

    look, brief = desk.ask(Look(job.job_id)), desk.ask(Look(job.job_id, brief=True))
    claim = desk.ask(desk.a_claim())
    desk.run(TWO_COMMITS_MS)

    assert look.reply.job.payload == claim.reply.jobs[0].payload == b"kept"
    assert brief.reply.job.stored_bytes == 4
    assert desk.dispatcher.owed_bytes == 8


def test_no_job_is_handed_out_whose_payload_cannot_be_read(monkeypatch):
    desk = Desk()
    desk.submit(payload=b"kept")

    def fail(_job):
        raise StoreFailedError("it is not there")

    monkeypatch.setattr(desk.store, "whole", fail)
    claim = desk.ask(desk.a_claim())
    desk.run(TWO_COMMITS_MS)

    assert claim.reply is None
    assert desk.failures == ["it is not there"]


def test_a_refusal_does_not_overtake_an_answer_that_waits():
    desk = Desk()
    first = desk.ask(desk.a_submit())
    desk.dispatcher.draining = True

    second = desk.ask(desk.a_submit())
    assert second.reply is None
    desk.run(TWO_COMMITS_MS)

    assert isinstance(first.reply, SubmittedMany)
    assert second.reply.why is Why.SHUTTING_DOWN


def test_who_is_owed_no_answer_still_hears_of_a_refusal():
    desk = Desk()
    desk.submit()
    job = desk.claim()
    heard: list[Why] = []

    stranger = replace(desk.a_complete(job), proof=ByToken("another"))
    desk.dispatcher.ask(stranger, None, lambda: lambda reply: heard.append(reply.why))
    desk.dispatcher.ask(desk.a_complete(job), None, lambda: lambda reply: heard.append(reply.why))
    desk.dispatcher.ask(stranger, None, lambda: None)
    desk.run(TWO_COMMITS_MS)

    assert heard == [Why.NOT_YOUR_LEASE]
    assert desk.dispatcher.counts.refusals == {Why.NOT_YOUR_LEASE: 1, Why.ALREADY_COMPLETED: 1}


def test_a_refused_item_is_counted_as_a_refused_command_is():
    desk = Desk()
    desk.submit(2)
    job, other = desk.claim(), desk.claim()
    stranger = replace(desk.a_complete(other), proof=ByToken("another"))
    unknown = replace(stranger, job_id="f" * 32)
    again = NewJob(job_id=other.job_id, queue="q", id_chosen=True)

    desk.tell(Conclude((desk.a_complete(job), stranger, unknown)))
    desk.tell(Submit((again,)))
    desk.tell(Submit((again, again, *desk.a_submit().items)))
    desk.run(TWO_COMMITS_MS)

    assert desk.dispatcher.counts.refusals == {
        Why.NOT_YOUR_LEASE: 1,
        Why.UNKNOWN_JOB: 1,
        Why.DUPLICATE_JOB: 3,
    }


# Our own defects (rule 24).


def test_rule_24_an_assertion_in_a_decision_is_told_to_that_peer_and_leaves_nothing_half_done(
    monkeypatch,
):
    desk = Desk()
    desk.submit()
    real = module.decide

    def broken(command, view, now):
        reply, effects = real(command, view, now)
        assert not isinstance(command, Submit) or command.items[0].queue != "bad", "a defect"
        return reply, effects

    monkeypatch.setattr(module, "decide", broken)
    before = dict(desk.store.live.jobs)
    bad = desk.ask(desk.a_submit("bad"))
    assert desk.store.live.jobs == before
    good = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert bad.reply.why is Why.INTERNAL
    assert isinstance(good.reply, SubmittedMany)
    assert desk.dispatcher.counts.failures == 1
    assert desk.failures == []


def test_rule_24_a_tick_that_cannot_be_decided_is_tried_again_without_keeping_the_loop_busy(
    monkeypatch,
):
    desk = Desk()
    desk.submit(delay_ms=100)
    calls: list[float] = []

    def broken(*_):
        calls.append(desk.now_ms)
        raise AssertionError("a defect")

    monkeypatch.setattr(timers, "_pass_time", broken)
    desk.run(3_500)
    assert 2 <= len(calls) <= 5
    monkeypatch.undo()
    desk.run(2_000)

    assert [job.state for job in desk.store.live.live_jobs()] == [State.READY]


def test_rule_24_a_listener_that_breaks_keeps_nobody_else_waiting():
    desk = Desk()

    def broken(_: object) -> None:
        raise OSError("gone")

    desk.dispatcher.on_signal["c/1"] = broken
    desk.dispatcher.events.watch(lambda: broken(None))
    desk.dispatcher.on_batch.append(lambda *_: broken(None))
    desk.dispatcher.ask(desk.a_submit(), broken)
    others = desk.ask(desk.a_submit())
    desk.submit(waiter="c/1")
    wakes: list[str] = []
    desk.sleep(wakes=wakes)
    job = desk.claim()
    ended = desk.ask(desk.a_complete(job))
    desk.run(3 * COMMIT_MS)

    assert isinstance(others.reply, SubmittedMany)
    assert isinstance(ended.reply, Changed)


def test_rule_24_an_answer_that_cannot_be_told_at_once_does_not_keep_the_claim_from_the_disk():
    desk = Desk()
    (job,) = desk.submit()

    def broken(_: object) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        desk.dispatcher.ask(desk.a_claim(early=True), broken)
    desk.run(TWO_COMMITS_MS)

    assert desk.disk.job(job.job_id).state is State.LEASED


def test_rule_24_a_change_that_cannot_be_taken_in_ends_the_server(monkeypatch):
    desk = Desk()
    monkeypatch.setattr(desk.store.live, "change", lambda _, __: 1 / 0)

    told = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert told.reply is None
    assert len(desk.failures) == 1


# The store fails.


def test_when_a_commit_fails_nothing_is_acknowledged_any_more():
    desk = Desk()
    desk.store.fails_next = True

    lost = desk.ask(desk.a_submit())
    behind = None
    desk.run(1)
    behind = desk.ask(desk.a_submit())
    desk.run(5 * COMMIT_MS)
    after = desk.ask(desk.a_submit())
    early = desk.ask(desk.a_claim(early=True))

    assert lost.reply is None
    assert behind.reply is None
    assert after.reply.why is early.reply.why is Why.STORE_FAILED
    assert desk.failures == ["the disk said no"]
    assert desk.batches == []


@pytest.mark.parametrize("at_once", [True, False])
def test_a_batch_that_cannot_be_packed_is_never_acknowledged_with_the_next_one(at_once):
    desk = Desk()
    desk.store.at_once_share = 1.0 if at_once else 0.0
    desk.store.packing_fails_next = True

    with capture_logs() as logs:
        lost = desk.ask(desk.a_submit())
        desk.run(TWO_COMMITS_MS)
        after = desk.ask(desk.a_submit())
        desk.run(TWO_COMMITS_MS)

    assert lost.reply is None
    assert after.reply.why is Why.STORE_FAILED
    assert desk.failures == ["a batch could not be written (MemoryError: ); see the log"]
    assert desk.disk.rows == {}
    assert "MemoryError" in logs[0]["traceback"]


def test_an_answer_without_a_promise_does_not_leave_if_the_commit_it_started_fails():
    desk = Desk()
    item = NewJob(
        job_id=desk.ids.job_id(desk.clock.now()),
        queue="q",
        payload=bytes(module._FULL_BYTES),
        durable_interest=False,
        waiter="client",
    )
    desk.store.packing_fails_next = True

    told = desk.ask(Submit((item,), early=True))

    assert told.reply.why is Why.STORE_FAILED
    assert len(desk.failures) == 1


@pytest.mark.parametrize("step", ["send_more", "finish_commits"])
def test_whatever_a_step_of_a_commit_raises_ends_all_acknowledgement(step, monkeypatch):
    desk = Desk()
    desk.store._rng.random = lambda: 0.05  # it is held back once, then accepted
    monkeypatch.setattr(desk.store, step, lambda: 1 / 0)

    lost = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)
    behind = desk.ask(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert lost.reply is None
    assert behind.reply.why is Why.STORE_FAILED
    assert len(desk.failures) == 1


def test_a_failure_is_passed_on_even_if_it_cannot_be_logged(monkeypatch):
    desk = Desk()
    desk.store.packing_fails_next = True

    def out_of_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr(module._log, "critical", out_of_memory, raising=False)

    told = desk.ask(desk.a_submit())
    with pytest.raises(MemoryError):
        desk.run(TWO_COMMITS_MS)

    assert told.reply is None
    assert len(desk.failures) == 1


def test_who_waits_for_everything_to_be_on_disk_hears_of_a_failure():
    desk = Desk()
    desk.store.fails_next = True
    called: list[str] = []
    desk.tell(desk.a_submit())

    desk.dispatcher.when_idle(lambda: called.append("then"))
    desk.run(TWO_COMMITS_MS)
    desk.dispatcher.when_idle(lambda: called.append("later"))

    assert called == ["then", "later"]
    assert desk.dispatcher.failed is not None


# Idle.


def test_when_idle_calls_at_once_if_there_is_nothing_to_wait_for():
    desk = Desk()
    called: list[float] = []

    desk.dispatcher.when_idle(lambda: called.append(desk.now_ms))

    assert called == [0]


def test_when_idle_waits_for_what_rides_and_makes_it_go():
    desk = Desk(ride_ms=1_000.0)
    desk.submit()
    job = desk.claim()
    started_ms = desk.now_ms
    desk.tell(desk.a_complete(job))
    called: list[float] = []

    desk.dispatcher.when_idle(lambda: called.append(desk.now_ms - started_ms))
    desk.run(3 * COMMIT_MS)

    assert called == [COMMIT_MS]
    assert desk.disk.job(job.job_id).state is State.COMPLETED


# Time.


def test_a_delayed_job_becomes_ready_in_time_without_any_request():
    desk = Desk()
    (job,) = desk.submit(delay_ms=5_000)

    desk.run(4_900)
    assert desk.job(job.job_id).state is State.DELAYED
    desk.run(200)

    assert desk.job(job.job_id).state is State.READY


def test_a_lease_expires_in_time_without_any_request():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=3_000)

    desk.run(3_100)

    assert desk.job(job.job_id).state is State.READY


def test_an_earlier_instant_moves_the_timer_forward():
    desk = Desk()
    desk.submit(delay_ms=60_000)
    (soon,) = desk.submit(delay_ms=500)

    desk.run(600)

    assert desk.job(soon.job_id).state is State.READY


def test_what_is_due_after_a_restart_happens_without_any_request():
    desk = Desk()
    (job,) = desk.submit(delay_ms=5_000)

    again = Desk(desk.disk, desk.time)
    again.tell(Recover("another", 0))
    again.run(6_000)

    assert again.job(job.job_id).state is State.READY


def a_star(desk, count):
    """The command that completes a job, and those that wait for it."""
    (middle,) = desk.submit()
    waiting = desk.submit(count, depends_on=(middle.job_id,))
    return desk.a_complete(desk.claim()), waiting


def count_ready(desk, jobs):
    return sum(desk.job(job.job_id).state is State.READY for job in jobs)


def test_others_have_their_turn_while_very_many_hear_of_an_end(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    desk = Desk()
    done, waiting = a_star(desk, 9)
    seen: list[int] = []

    def look():
        seen.append(count_ready(desk, waiting))
        if seen[-1] < 9:
            desk.loop.call_soon(look)

    told = desk.ask(done)
    desk.loop.call_soon(look)
    desk.run(TWO_COMMITS_MS)

    assert seen == [4, 6, 8, 9]
    assert isinstance(told.reply, Changed)


def test_who_has_not_heard_of_an_end_hears_of_it_after_a_restart(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    desk = Desk()
    done, waiting = a_star(desk, 9)
    desk.ask(done)
    desk.dispatcher._spreading.end()
    desk.run(TWO_COMMITS_MS)
    assert count_ready(desk, waiting) == 2

    again = Desk(desk.disk, desk.time)
    again.tell(Recover("another", 0))
    again.run(100)

    assert count_ready(again, waiting) == 9


def test_others_have_their_turn_while_very_many_are_cancelled_with_a_job(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    desk = Desk()
    (middle,) = desk.submit()
    waiting = desk.submit(9, depends_on=(middle.job_id,))
    seen: list[int] = []

    def look():
        seen.append(sum(desk.job(job.job_id).state is State.CANCELLED for job in waiting))
        if seen[-1] < 9:
            desk.loop.call_soon(look)

    told = desk.ask(Cancel(job_ids=(middle.job_id,)))
    desk.loop.call_soon(look)
    desk.run(TWO_COMMITS_MS)

    assert seen == [2, 4, 6, 8, 9]
    assert [job.job_id for job in told.reply.jobs] == [middle.job_id]


def test_rule_24_a_slice_that_cannot_be_told_is_tried_again_without_keeping_the_loop_busy(
    monkeypatch,
):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    desk = Desk()
    done, waiting = a_star(desk, 9)
    desk.ask(done)
    calls: list[float] = []

    def broken(*_):
        calls.append(desk.now_ms)
        raise AssertionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(graph, "_notify_dependants", broken)
        desk.run(3_500)
    assert 2 <= len(calls) <= 5
    desk.run(2_000)

    assert count_ready(desk, waiting) == 9


def test_more_due_jobs_than_one_tick_takes_are_all_taken(monkeypatch):
    monkeypatch.setattr(limits, "TICK_COUNT_MAX", 3)
    desk = Desk()
    desk.submit(10, delay_ms=100)

    desk.run(500)

    assert {job.state for job in desk.store.live.live_jobs()} == {State.READY}


def test_a_standstill_of_the_server_costs_nobody_a_lease():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=3_000)
    token = job.lease.token

    desk.loop.stalled_until_us = desk.time.now_us + 60_000_000
    desk.run(60_000 + TWO_COMMITS_MS)
    assert desk.job(job.job_id).state is State.LEASED
    renewed = desk.ask(Renew(job_id=job.job_id, proof=ByToken(token)))
    desk.run(TWO_COMMITS_MS)

    assert isinstance(renewed.reply, Changed)


def test_a_standstill_is_made_up_for_once_whoever_notices_it():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=3_000)
    expires_at = job.lease.expires_at
    expected_ms = desk.now_ms + 1_000

    desk.loop.stalled_until_us = desk.time.now_us + 20_000_000
    desk.run(20_000 + TWO_COMMITS_MS)
    desk.dispatcher.notice_stall(expected_ms)

    prolonged_ms = desk.job(job.job_id).lease.expires_at - expires_at
    assert 17_000 <= prolonged_ms <= 20_000


def hold_the_disk(desk: Desk, ms: int) -> None:
    """Commits take that long, until they take as long as ever."""
    desk.store._commit_us = (ms * 1000, ms * 1000)


def test_rule_07_a_disk_that_stands_still_costs_nobody_a_lease():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=20_000)
    hold_the_disk(desk, 60_000)
    renewed = desk.ask(Renew(job_id=job.job_id, proof=ByToken(job.lease.token)))
    desk.run(30_000)  # who renewed has not been answered, and waits
    hold_the_disk(desk, COMMIT_MS)
    desk.run(30_000 + TWO_COMMITS_MS)

    assert isinstance(renewed.reply, Changed)
    lease = desk.job(job.job_id).lease
    assert lease.token == job.lease.token
    assert lease.expires_at - desk.clock.now() > 19_000
    desk.run(21_000)
    assert desk.job(job.job_id).state is State.READY


def test_a_disk_that_stands_still_is_made_up_for_once_however_many_commits_waited():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=3_000)
    hold_the_disk(desk, 60_000)
    for _ in range(3 * module._FULL_COUNT):
        desk.ask(desk.a_submit())
    desk.run(1)
    hold_the_disk(desk, COMMIT_MS)
    desk.run(60_000 + TWO_COMMITS_MS)

    prolonged_ms = desk.job(job.job_id).lease.expires_at - job.lease.expires_at
    assert 59_000 <= prolonged_ms <= 61_000


def test_a_disk_that_is_slow_prolongs_no_lease():
    desk = Desk()
    desk.submit()
    desk.claim(term_ms=3_000)
    hold_the_disk(desk, 2_000)
    for _ in range(3):
        desk.ask(desk.a_submit())
        desk.run(2_500)

    assert not desk.store.live.has_leases()


def test_a_disk_that_stands_still_is_told_once_in_the_log():
    desk = Desk()
    hold_the_disk(desk, 60_000)
    desk.ask(desk.a_submit())
    stalled = []
    with capture_logs() as log:
        for _ in range(65):
            desk.run(1_000)
            desk.dispatcher.keep_house()
            stalled.append(desk.dispatcher.stalled)

    assert (stalled[0], stalled[30], stalled[-1]) == (False, True, False)
    told = [line["event"] for line in log if line["log_level"] in ("error", "info")]
    assert told == [
        "the store does not answer; nothing is acknowledged meanwhile",
        "the store answers again",
    ]


def test_a_clock_that_is_set_leaves_leases_their_remaining_time():
    desk = Desk()
    desk.submit()
    job = desk.claim(term_ms=3_000)
    left_ms = job.lease.expires_at - desk.clock.now()

    desk.clock.follow(7_200_000)
    desk.dispatcher.prolong(7_200_000)
    assert desk.job(job.job_id).lease.expires_at - desk.clock.now() == left_ms
    desk.run(2_900)
    assert desk.job(job.job_id).state is State.LEASED
    desk.run(200)

    assert desk.job(job.job_id).state is State.READY


def test_a_clock_that_is_set_ahead_makes_delayed_jobs_ready_at_once():
    desk = Desk()
    (job,) = desk.submit(delay_ms=3_000_000)

    desk.clock.follow(7_200_000)
    desk.dispatcher.prolong(7_200_000)
    desk.run(1)

    assert desk.job(job.job_id).state is State.READY


def test_the_time_is_on_disk_every_few_seconds_while_somebody_holds_a_lease():
    desk = Desk()
    desk.submit()
    desk.claim()
    before = desk.disk.alive_at

    for _ in range(10):
        desk.run(1_000)
        desk.dispatcher.keep_house()
    desk.run(TWO_COMMITS_MS)

    assert desk.disk.alive_at - before >= 5_000


def test_an_idle_server_without_leases_writes_nothing():
    desk = Desk()
    desk.submit()
    before = desk.disk.alive_at

    for _ in range(10):
        desk.run(1_000)
        desk.dispatcher.keep_house()
    desk.run(TWO_COMMITS_MS)

    assert desk.disk.alive_at == before


# Waking.


def test_as_many_sleepers_are_woken_as_there_are_jobs():
    desk = Desk()
    wakes: list[str] = []
    for _ in range(5):
        desk.sleep(wakes=wakes)

    desk.submit(2)

    assert wakes == ["q", "q"]
    assert desk.dispatcher.sleepers.count == 3


def test_sleepers_are_woken_when_the_job_is_on_disk_not_before():
    desk = Desk()
    wakes: list[str] = []
    desk.sleep(wakes=wakes)
    desk.tell(desk.a_submit())

    desk.run(COMMIT_MS - 1)
    assert wakes == []
    desk.run(1)

    assert wakes == ["q"]


def test_nobody_is_woken_for_a_job_that_is_taken_already():
    desk = Desk()
    wakes: list[str] = []
    desk.sleep(wakes=wakes)

    desk.tell(desk.a_submit())
    desk.tell(desk.a_claim())
    desk.run(TWO_COMMITS_MS)

    assert wakes == []


def test_nobody_is_woken_for_a_paused_queue_and_somebody_when_it_is_resumed():
    desk = Desk()
    wakes: list[str] = []
    desk.set_queue(paused=True)
    desk.sleep(wakes=wakes)
    desk.submit()
    desk.dispatcher.keep_house()
    assert wakes == []

    desk.set_queue(paused=False)

    assert wakes == ["q"]


def test_a_sleeper_hears_when_a_concurrency_limit_leaves_room():
    desk = Desk()
    wakes: list[str] = []
    desk.set_queue(concurrency_max=1)
    desk.submit(2)
    job = desk.claim()
    desk.sleep(wakes=wakes)

    desk.tell(desk.a_complete(job))
    desk.run(3 * COMMIT_MS)

    assert wakes == ["q"]


def test_a_sleeper_hears_when_a_named_limit_leaves_room():
    desk = Desk()
    wakes: list[str] = []
    desk.tell(SetLimit("licences", 1))
    desk.submit(limits=("licences",))
    desk.submit(limits=("licences",), queue="other")
    job = desk.claim()
    desk.sleep("other", wakes=wakes)

    desk.tell(desk.a_complete(job))
    desk.run(3 * COMMIT_MS)

    assert wakes == ["other"]


def test_a_sleeper_hears_when_a_rate_limit_allows_more():
    desk = Desk()
    wakes: list[str] = []
    desk.set_queue(rate=Rate(1, 5_000))
    desk.submit(2)
    desk.claim()
    for _ in range(50):
        told = desk.ask(desk.a_claim())
    assert told.reply is not None
    assert told.reply.retry_at is not None
    desk.sleep(wakes=wakes)

    desk.run(4_900)
    assert wakes == []
    desk.run(200)

    assert wakes == ["q"]


def test_who_was_left_out_is_woken_by_the_housekeeping():
    desk = Desk()
    desk.submit()
    wakes: list[str] = []
    desk.sleep(wakes=wakes)

    desk.dispatcher.keep_house()

    assert wakes == ["q"]


def test_a_claim_that_finds_nothing_and_then_sleeps_misses_no_job():
    desk = Desk()
    wakes: list[str] = []
    desk.tell(Submit((NewJob(job_id="ab", queue="other", id_chosen=True),)))

    # Asked and answered in one batch with a submit that comes after it.
    desk.dispatcher.ask(desk.a_claim(), lambda _: desk.sleep(wakes=wakes))
    desk.tell(desk.a_submit())
    desk.run(TWO_COMMITS_MS)

    assert wakes == ["q"]


def test_a_lapsed_lease_wakes_somebody_else():
    desk = Desk()
    wakes: list[str] = []
    desk.submit(terms=Terms(on_expiry=OnExpiry.LAPSE))
    desk.claim(term_ms=1_000, holder=Holder("qless", "slow"))
    desk.sleep(wakes=wakes)

    desk.run(1_100)

    assert wakes == ["q"]


def test_counts_tell_what_was_done():
    desk = Desk()
    desk.ask(desk.a_submit())
    desk.ask(Look("ab"))
    desk.run(TWO_COMMITS_MS)
    counts = desk.dispatcher.counts

    assert (counts.commands, counts.answers, counts.batches, counts.jobs) == (2, 2, 1, 1)

"""A WMP manager without a socket: readiness, waking, handing out, and what becomes of reports."""

import pytest

from manyhands.model.commands import Cancel, Claim, Move, SetQueue
from manyhands.model.job import Holder, State
from manyhands.model.outcome import Why
from manyhands.model.policy import TERMS, QueuePolicy, Rate
from manyhands.protocols.wmp import readiness
from manyhands.protocols.wmp.words import CODES
from manyhands.wire.wmp import Command, Packet, encode, pack
from tests.unit.protocols.wmp_desk import Desk

READY, WAKE, GIVE, TAKE, NO = (
    Command.READY,
    Command.WAKE,
    Command.GIVE,
    Command.TAKE,
    Command.NO,
)
A, B, C = b"A", b"B", b"C"


# READY and WAKE.


def test_w22_a_worker_is_woken_when_work_appears_and_takes_it():
    desk = Desk()
    desk.say(A, READY, role="mail", slots=1)
    assert desk.heard(A) == []

    job_id = desk.add("mail", b"hello")
    woken = desk.one(A, WAKE)
    assert (woken["manager"], woken["role"], woken["count"]) == ("M1", "mail", "1")
    desk.say(A, GIVE, lock="L1", timeout=2000)
    taken = desk.one(A, TAKE)

    assert taken.payload == b"hello"
    facts = [taken[name] for name in ("manager", "job", "lock", "role", "timeout", "attempt")]
    assert facts == ["M1", job_id, "L1", "mail", "60000", "1"]
    assert len(taken.raw("lease")) >= 8
    assert desk.job(job_id).state is State.LEASED


def test_w22_ready_is_used_up_by_take_and_not_by_no():
    desk = Desk()
    desk.say(A, READY, role="mail")
    first = desk.add()
    assert desk.commands(A) == ["WAKE"]
    other = desk.take(B)  # somebody else was faster
    assert other["job"] == first
    desk.say(A, GIVE, lock="L1", role="mail")
    assert desk.one(A, NO)["lock"] == "L1"

    desk.add()
    assert desk.commands(A) == ["WAKE"]
    desk.take(A)
    desk.add()
    assert desk.commands(A) == []


def test_w21_one_ready_stands_for_a_path_however_often_it_is_said():
    desk = Desk()
    for _ in range(3):
        desk.say(A, READY, role="mail")
    desk.say(A, READY, role="mail", trail=(b"w1",))

    desk.add()
    desk.add()
    desk.add()

    assert [heard.route for heard in desk.heard(A)] == [(), (b"w1",)]


def test_w21_another_ready_changes_the_roles_and_wakes_a_woken_worker_again():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.say(A, READY, role="print")
    desk.add("mail")
    assert desk.heard(A) == []
    desk.add("print")
    assert desk.one(A, WAKE)["role"] == "print"

    desk.say(A, READY, role=["mail", "print"])

    assert desk.one(A, WAKE)["role"] == "mail"


def test_w21_a_ready_is_forgotten_after_its_time():
    desk = Desk()
    desk.say(A, READY, role="mail", ttl=2000)
    desk.say(B, READY, role="mail", ttl=60_000)
    desk.pass_time(2_500)

    desk.add()

    assert desk.commands(A) == []
    assert desk.commands(B) == ["WAKE"]
    desk.pass_time(61_000)
    assert not desk.session.readiness.entries


def test_w23_as_many_are_woken_as_there_are_jobs():
    desk = Desk()
    peers = [b"w%d" % number for number in range(10)]
    for peer in peers:
        desk.say(peer, READY, role="mail")

    desk.add()
    desk.add()
    assert [len(desk.heard(peer)) for peer in peers] == [1, 1, *[0] * 8]

    desk.take(peers[0])
    desk.take(peers[1])
    desk.add()
    assert [len(desk.heard(peer)) for peer in peers] == [0, 0, 1, *[0] * 7]


def test_w23_a_worker_with_many_slots_is_told_of_many_jobs():
    desk = Desk()
    for _ in range(3):
        desk.add()
    desk.say(A, READY, role="mail", slots=8)
    assert desk.one(A, WAKE)["count"] == "3"
    desk.say(B, READY, role="mail")
    assert desk.heard(B) == []

    desk.add()

    assert desk.commands(B) == ["WAKE"]


def test_w23_all_are_woken_if_that_is_wanted():
    desk = Desk(wake_all=True)
    peers = [b"w%d" % number for number in range(5)]
    for peer in peers:
        desk.say(peer, READY, role="mail")

    desk.add()

    assert [desk.commands(peer) for peer in peers] == [["WAKE"]] * 5


def test_w24_the_longest_ready_worker_that_has_the_role_is_woken():
    desk = Desk()
    desk.say(C, READY, role="other")
    desk.say(A, READY)
    desk.say(B, READY, role="mail")

    desk.add("mail")

    assert (desk.commands(A), desk.commands(B), desk.commands(C)) == (["WAKE"], [], [])


def test_w24_another_function_may_choose():
    def most_slots(candidates, role):
        assert role == "mail"
        return max(candidates, key=lambda entry: entry.slots, default=None)

    desk = Desk(choose=most_slots)
    desk.say(A, READY, role="mail", slots=1)
    desk.say(B, READY, role="mail", slots=9)
    desk.say(C, READY, role="mail", slots=4)

    desk.add()

    assert (desk.commands(A), desk.commands(B), desk.commands(C)) == ([], ["WAKE"], [])


def test_w25_a_worker_that_does_not_answer_is_left_alone_until_it_is_ready_again():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.say(B, READY, role="mail")
    desk.add()
    assert (desk.commands(A), desk.commands(B)) == (["WAKE"], [])

    desk.pass_time(600)
    assert (desk.commands(A), desk.commands(B)) == ([], ["WAKE"])
    desk.take(B)
    desk.add()
    desk.pass_time(1_000)
    assert desk.commands(A) == []

    desk.say(A, READY, role="mail")
    assert desk.commands(A) == ["WAKE"]


def test_w25_a_late_give_is_served_all_the_same():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.add()
    desk.pass_time(600)

    assert desk.take(A)["lock"] == "L1"


def test_w26_an_unreachable_worker_is_forgotten_and_another_is_woken():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.say(B, READY, role="mail")
    desk.unreachable.add(A)

    job_id = desk.add()

    assert desk.commands(B) == ["WAKE"]
    assert list(desk.session.readiness.entries) == [(B,)]
    assert desk.job(job_id).state is State.READY


def test_w26_a_take_that_cannot_be_delivered_costs_no_attempt():
    desk = Desk()
    job_id = desk.add()
    desk.unreachable.add(A)

    desk.say(A, GIVE, lock="L1", role="mail")

    job = desk.job(job_id)
    assert (job.state, job.attempts_used, job.lease_number) == (State.READY, 0, 1)
    assert len(desk.session.holdings) == 0
    assert desk.take(B)["attempt"] == "2"


def test_w27_a_worker_may_ask_without_being_woken_or_known():
    desk = Desk()
    job_id = desk.add("mail")
    desk.add("print")

    assert desk.take(A, role="mail")["job"] == job_id
    desk.say(B, GIVE, lock="any")
    assert desk.one(B, TAKE)["role"] == "print"
    desk.say(B, GIVE, lock="none")
    assert desk.one(B, NO)["lock"] == "none"


def test_w27_a_give_without_roles_is_for_those_of_its_ready():
    desk = Desk()
    desk.add("print")
    desk.say(A, READY, role="mail")

    desk.say(A, GIVE, lock="L1")

    assert desk.one(A, NO)["lock"] == "L1"


def test_w25_a_worker_that_asks_for_something_else_than_it_was_woken_for_is_not_woken_in_a_loop():
    desk = Desk()
    desk.add("mail")
    desk.say(A, READY)
    assert desk.commands(A) == ["WAKE"]

    desk.say(A, GIVE, lock="L1", role="other")

    assert desk.commands(A) == ["NO"]


def test_w23_work_that_came_while_a_no_was_on_its_way_is_not_overlooked():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.holding = True
    desk.say(A, GIVE, lock="L1", role="mail")
    desk.add("mail")

    desk.commit()

    assert desk.commands(A) == ["NO", "WAKE"]


def test_w23_nobody_is_woken_for_a_queue_that_hands_nothing_out():
    desk = Desk()
    desk.ask(SetQueue(queue="mail", paused=True))
    desk.add("mail")

    desk.say(A, READY, role="mail")

    assert desk.heard(A) == []


def test_w31_there_is_an_end_to_the_workers_that_are_remembered(monkeypatch):
    monkeypatch.setattr(readiness, "ENTRIES_COUNT_MAX", 3)
    monkeypatch.setattr(readiness, "ENTRIES_OF_PEER_MAX", 2)
    desk = Desk()

    for number in range(4):
        desk.say(A, READY, trail=(b"%d" % number,))
    desk.say(B, READY)
    desk.say(C, READY)

    assert len(desk.session.readiness.entries) == 3
    assert desk.dropped == [("full", A), ("full", A), ("full", C)]


# GIVE.


def test_w28_many_jobs_at_once_and_one_no_for_the_rest():
    desk = Desk()
    jobs = [desk.add() for _ in range(3)]

    desk.say(A, GIVE, lock="L1", role="mail", n=5)

    *taken, no = desk.heard(A)
    assert [each["job"] for each in taken] == jobs
    assert {each["lock"] for each in taken} == {"L1"}
    assert len({each.raw("lease") for each in taken}) == 3
    assert (no.command, no["n"], no["lock"]) == (NO, "2", "L1")


def test_w27_a_worker_of_any_role_reaches_every_queue_however_many_there_are(monkeypatch):
    monkeypatch.setattr("manyhands.model.limits.CLAIM_QUEUES_MAX", 3)
    desk = Desk()
    for number in range(10):
        desk.add(f"queue-{number}")

    for number in range(10):
        desk.say(A, GIVE, lock=f"L{number}")

    assert desk.commands(A) == ["TAKE"] * 10


def test_w29_a_give_may_wait_for_work():
    desk = Desk()
    desk.say(A, GIVE, lock="L1", role="mail", wait=3000)
    assert desk.heard(A) == []

    job_id = desk.add("mail")

    assert desk.one(A, TAKE)["job"] == job_id
    assert not desk.session.giving.held


def test_w29_a_give_that_waits_in_vain_is_told_so_in_time():
    desk = Desk()
    desk.say(A, GIVE, lock="L1", wait=3000)
    desk.pass_time(2_900)
    assert desk.heard(A) == []
    desk.pass_time(200)

    assert desk.one(A, NO)["lock"] == "L1"


def test_w29_nobody_waits_for_longer_than_the_lock_lasts():
    desk = Desk()
    desk.say(A, GIVE, lock="L1", wait=60_000, timeout=1000)
    desk.pass_time(1_100)

    assert desk.commands(A) == ["NO"]


def test_w29_the_same_give_twice_is_one_give():
    desk = Desk()
    for _ in range(2):
        desk.say(A, GIVE, lock="L1", role="mail", wait=3000)
    desk.add()
    desk.add()

    assert desk.commands(A) == ["TAKE"]


def test_w29_a_worker_of_any_role_may_wait_too():
    desk = Desk()
    desk.say(A, GIVE, lock="L1", wait=3000)

    desk.add("whatever")

    assert desk.one(A, TAKE)["role"] == "whatever"


def test_w30_nothing_is_handed_out_before_it_is_on_disk():
    desk = Desk()
    desk.add()
    desk.holding = True
    desk.say(A, GIVE, lock="L1", role="mail")
    assert desk.heard(A) == []
    claims = [command for command in desk.asked if isinstance(command, Claim)]
    assert not any(claim.early for claim in claims)

    desk.commit()

    assert desk.commands(A) == ["TAKE"]


def test_w30_take_names_the_worker_the_attempt_and_the_job():
    desk = Desk()
    job_id = desk.add("mail", b"", namespace="n", name="report-7")
    desk.say(A, GIVE, lock="L1", role="mail", identity="mailer", trail=(b"d", b"w"))
    taken = desk.one(A, TAKE)

    assert (taken.route, taken.trail) == ((b"d", b"w"), ())
    assert taken.payload is None
    assert taken["name"] == "report-7"
    lease = desk.job(job_id).lease
    assert lease is not None
    assert lease.holder == Holder("wmp", "mailer")


def test_w30_a_worker_without_a_name_is_known_by_where_its_path_begins():
    desk = Desk()
    job_id = desk.add()
    desk.say(A, GIVE, lock="L1", role="mail", trail=(b"device", b"\x01\x02"))

    lease = desk.job(job_id).lease
    assert lease is not None
    assert lease.holder.name == "0102"


def test_w30_a_rate_limit_says_when_to_ask_again():
    desk = Desk()
    policy = QueuePolicy(rate=Rate(1, 10_000))
    desk.ask(SetQueue(queue="mail", policy=policy))
    desk.add()
    desk.add()
    desk.take(A)

    desk.say(A, GIVE, lock="L2", role="mail")

    assert desk.one(A, NO)["retry-after"] == "10000"


def test_w42_a_manager_that_stops_hands_nothing_out_and_takes_reports_in():
    desk = Desk()
    desk.add()
    taken = desk.take(A)
    desk.say(B, GIVE, lock="L1", role="mail", wait=5000)
    desk.draining = True
    desk.session.drain()
    assert desk.one(B, NO)["retry-after"] == "1000"

    desk.done(A, taken)

    assert desk.reason(A) == "recorded"


# DONE.


@pytest.mark.parametrize(
    ("status", "state", "attempts"),
    [
        ("ok", State.COMPLETED, 0),
        ("error", State.DELAYED, 1),
        ("fail", State.FAILED, 0),
        ("refused", State.READY, 0),
    ],
)
def test_w32_each_status_ends_an_attempt_in_its_way(status, state, attempts):
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)

    desk.done(A, taken, b"out", status=status)

    job = desk.job(job_id)
    assert (job.state, job.attempts_used) == (state, attempts)
    assert desk.reason(A) == "recorded"
    if status == "ok":
        assert job.result == b"out"
    elif status != "refused":
        assert job.failure is not None
        assert (job.failure.message, job.failure.payload) == ("out", b"out")


def test_w32_ok_is_what_is_meant_without_a_status():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)

    desk.say(A, Command.DONE, manager="M1", job=job_id, lease=taken.raw("lease"))

    assert desk.job(job_id).state is State.COMPLETED
    assert desk.job(job_id).result is None


def test_w33_a_result_is_acknowledged_when_it_is_on_disk_and_only_if_asked_for():
    desk = Desk()
    desk.add()
    desk.add()
    first, second = desk.take(A), desk.take(A, lock="L2")
    desk.holding = True
    desk.done(A, first)
    desk.done(A, second, ack=0)
    assert desk.heard(A) == []

    desk.commit()

    answer = desk.one(A, Command.CANCEL)
    assert (answer["reason"], answer["job"]) == ("recorded", first["job"])
    assert answer.raw("lease") == first.raw("lease")


@pytest.mark.parametrize("status", ["ok", "error", "fail", "refused"])
def test_w34_the_same_report_again_is_recorded_and_changes_nothing(status):
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)
    desk.done(A, taken, b"first", status=status)
    assert desk.reason(A) == "recorded"
    before = desk.job(job_id)

    desk.done(A, taken, b"second", status=status)

    assert desk.reason(A) == "recorded"
    assert desk.job(job_id) == before


def test_w34_the_same_report_is_known_while_somebody_else_has_the_job():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)
    desk.done(A, taken, status="refused")
    desk.heard(A)
    other = desk.take(B)

    desk.done(A, taken, status="refused")

    assert desk.reason(A) == "recorded"
    lease = desk.job(job_id).lease
    assert lease is not None
    assert bytes.fromhex(lease.token) == other.raw("lease")


def test_w35_a_wrong_lease_ends_nothing():
    desk = Desk()
    job_id = desk.add()
    desk.take(A)

    for lease in (b"x" * 16, b"x", b"\0" * 500):
        desk.say(B, Command.DONE, b"evil", manager="M1", job=job_id, lease=lease, ack=1)
        assert desk.reason(B) == "lost"

    assert desk.job(job_id).state is State.LEASED


def test_w35_what_was_lost_cannot_be_reported():
    desk = Desk()
    job_id = desk.add()
    late = desk.take(A)
    desk.pass_time(60_100)
    assert desk.reason(A) == "lost"  # told at once, if it is still there
    other = desk.take(B)
    assert other["attempt"] == "2"
    assert other.raw("lease") != late.raw("lease")

    desk.done(A, late, b"late")
    assert desk.reason(A) == "lost"
    desk.status(A, late, progress="1/2")
    assert desk.reason(A) == "lost"

    desk.done(B, other, b"second")
    assert desk.job(job_id).result == b"second"
    assert desk.job(job_id).attempts_used == 1


def test_w35_a_job_that_is_not_known_is_unknown():
    desk = Desk()
    for job in ("f" * 32, b"\xff", "x" * 5000):
        desk.say(A, Command.DONE, manager="M1", job=job, lease=b"x" * 16)
        assert desk.reason(A) == "unknown"


def test_w36_a_report_may_come_another_way():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)

    desk.status(B, taken, progress="1/4")
    desk.done(C, taken, b"made it")

    assert desk.reason(C) == "recorded"
    assert desk.job(job_id).result == b"made it"


def test_w41_a_result_that_is_too_large_fails_the_job_with_a_sentence():
    desk = Desk(payload_bytes_max=10)
    job_id = desk.add()
    taken = desk.take(A)

    desk.done(A, taken, b"x" * 11)

    failure = desk.job(job_id).failure
    assert failure is not None
    assert failure.message == "a result of 11 bytes; 10 are allowed"


# STATUS, CANCEL, leases.


def test_w37_status_renews_the_lease_and_carries_progress():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)
    for _ in range(4):
        desk.pass_time(40_000)
        desk.status(A, taken, progress="3/4")
    assert desk.heard(A) == []

    job = desk.job(job_id)
    assert job.state is State.LEASED
    assert job.progress is not None
    assert (job.progress.numerator, job.progress.denominator) == (3, 4)


def test_w37_status_may_ask_for_more_time():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)
    desk.status(A, taken, timeout=300_000, progress="0/0")
    desk.pass_time(250_000)
    assert desk.job(job_id).state is State.LEASED
    desk.status(A, taken)

    desk.pass_time(61_000)

    assert desk.job(job_id).state is State.READY


def test_w37_a_payload_of_status_is_a_partial_result():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)

    desk.status(A, taken, b"page 1")
    desk.status(A, taken, b"page 2", progress="1/2")

    assert [part.payload for part in desk.store.partials(job_id)] == [b"page 1", b"page 2"]


def test_w38_a_lease_that_is_not_renewed_goes_to_another_and_is_counted():
    desk = Desk(lease_ms=5_000)
    job_id = desk.add()
    desk.take(A)
    desk.say(B, READY, role="mail")
    assert desk.heard(B) == []

    desk.pass_time(5_100)

    assert desk.commands(B) == ["WAKE"]
    assert desk.job(job_id).attempts_used == 1


def test_w39_a_cancelled_job_is_told_to_its_worker_along_its_path():
    desk = Desk()
    job_id = desk.add()
    desk.say(A, GIVE, lock="L1", role="mail", trail=(b"d", b"w"))
    taken = desk.one(A, TAKE)

    desk.ask(Cancel(job_ids=(job_id,)))

    told = desk.one(A, Command.CANCEL)
    assert (told["reason"], told.route) == ("cancelled", (b"d", b"w"))
    assert told.raw("lease") == taken.raw("lease")
    desk.done(A, taken)
    assert desk.reason(A) == "cancelled"
    assert len(desk.session.holdings) == 0


def test_w39_the_last_known_path_counts():
    desk = Desk()
    job_id = desk.add()
    taken = desk.take(A)
    desk.status(B, taken)

    desk.ask(Cancel(job_ids=(job_id,)))

    assert desk.heard(A) == []
    assert desk.reason(B) == "cancelled"


def test_w39_a_job_that_was_moved_away_is_lost_to_its_worker():
    desk = Desk()
    job_id = desk.add()
    desk.take(A)

    desk.ask(Move(job_id=job_id, queue="elsewhere"))

    assert desk.reason(A) == "lost"


def test_w40_after_a_restart_leases_are_good_and_paths_are_learned_again():
    desk = Desk()
    job_id, other_id = desk.add(), desk.add()
    taken, other = desk.take(A), desk.take(A, lock="L2")
    again = Desk(desk.store)
    again._ids = 1_000

    again.status(B, taken)
    again.ask(Cancel(job_ids=(job_id,)))
    assert again.reason(B) == "cancelled"
    again.done(B, other)

    assert again.reason(B) == "recorded"
    assert again.job(other_id).state is State.COMPLETED


def test_w40_a_result_that_follows_close_upon_a_status_is_recorded_and_nothing_else():
    desk = Desk()
    desk.add()
    taken = desk.take(A)
    again = Desk(desk.store)
    again.holding = True

    again.status(B, taken)
    again.done(B, taken)
    again.commit()

    assert again.reason(B) == "recorded"
    assert len(again.session.holdings) == 0


def test_w39_a_lapsed_lease_goes_on_until_another_worker_takes_the_job():
    desk = Desk(lease_ms=5_000)
    job_id = desk.add(terms=TERMS["http"])
    taken = desk.take(A)
    desk.pass_time(5_100)
    assert desk.heard(A) == []
    desk.status(A, taken)
    assert desk.heard(A) == []
    desk.pass_time(5_100)

    other = desk.take(B)

    assert desk.reason(A) == "lost"
    desk.done(B, other)
    assert desk.job(job_id).state is State.COMPLETED


def test_w43_jobs_of_every_front_are_worked_and_roles_are_queues():
    desk = Desk()
    desk.add("a", priority=1.0)
    high = desk.add("b", priority=5.0)

    desk.say(A, GIVE, lock="L1", role=["a", "b"])

    assert desk.one(A, TAKE)["job"] == high


def test_w43_roles_of_equal_priority_take_turns():
    desk = Desk()
    for _ in range(4):
        desk.add("a")
        desk.add("b")

    desk.say(A, GIVE, lock="L1", role=["a", "b"], n=4)

    assert sorted(heard["role"] or "" for heard in desk.heard(A)) == ["a", "a", "b", "b"]


# Bad input.


@pytest.mark.parametrize(
    ("command", "values", "kind"),
    [
        (GIVE, {}, "missing"),
        (GIVE, {"lock": ""}, "missing"),
        (GIVE, {"lock": "L", "n": 0}, "value"),
        (GIVE, {"lock": "L" * 256}, "value"),
        (GIVE, {"lock": "L", "n": "many"}, "value"),
        (GIVE, {"lock": "L", "role": ""}, "value"),
        (READY, {"role": "x" * 256}, "value"),
        (READY, {"role": b"\xff"}, "value"),
        (READY, {"role": [f"r{n}" for n in range(257)]}, "value"),
        (READY, {"slots": "-1"}, "value"),
        (READY, {"identity": "x" * 256}, "value"),
        (Command.DONE, {"job": "a", "lease": "b"}, "missing"),
        (Command.DONE, {"job": "a", "manager": "M1"}, "missing"),
        (Command.DONE, {"job": "a", "manager": "M1", "lease": "b", "status": "fine"}, "value"),
        (Command.DONE, {"job": ["a", "b"], "manager": "M1", "lease": "b"}, "value"),
        (Command.STATUS, {"job": "a", "manager": "M", "lease": "b", "progress": "half"}, "value"),
        (Command.STATUS, {"job": "a", "manager": "M", "lease": "b", "progress": "1/-2"}, "value"),
        (WAKE, {"manager": "M2"}, "signature"),
        (TAKE, {"manager": "M2"}, "signature"),
        (Command.REPLY, {"request": "1"}, "signature"),
        (Command.SUBMIT, {"role": "mail"}, "missing"),
        (Command.SUBMIT, {"role": "mail", "request": "r" * 256}, "value"),
    ],
)
def test_w9_a_message_that_makes_no_sense_is_dropped_and_counted(command, values, kind):
    desk = Desk()
    desk.say(A, command, **values)

    assert desk.dropped == [(kind, A)]
    assert desk.heard(A) == []
    assert not desk.session.readiness.entries


def test_w9_a_payload_where_none_belongs_and_a_route_that_leads_on_are_dropped():
    desk = Desk()
    desk.say(A, READY, b"payload")
    desk.say(A, GIVE, b"payload", lock="L")
    desk.tell(A, *pack(Packet((b"onward",), (), encode(READY))))
    desk.tell(A)
    desk.session.overflowed(A)

    kinds = [kind for kind, _ in desk.dropped]
    assert kinds == ["payload", "payload", "hops", "frames", "frames"]


def test_w8_the_reader_pauses_when_too_many_answers_are_owed(monkeypatch):
    monkeypatch.setattr("manyhands.protocols.wmp.session.AWAITED_COUNT_MAX", 2)
    desk = Desk()
    desk.holding = True
    for number in range(3):
        desk.say(A, GIVE, lock=f"L{number}")
    assert desk.session.is_overwhelmed()

    desk.commit()

    assert not desk.session.is_overwhelmed()


def test_every_refusal_has_a_code():
    assert set(CODES) == set(Why)

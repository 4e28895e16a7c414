"""A WMP manager without a socket: readiness, waking, handing out, and what becomes of reports."""

import itertools

import pytest

from manyhands.model.commands import Claim, SetQueue
from manyhands.model.job import Holder, State
from manyhands.model.policy import QueuePolicy, Rate
from manyhands.model.replies import Why
from manyhands.protocols.wmp import readiness
from manyhands.protocols.wmp.codec import Command, Packet, encode, pack
from manyhands.protocols.wmp.words import CODES
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


def test_w25_a_worker_whose_wake_was_lost_hears_again_of_work_that_waits_at_growing_distance():
    desk = Desk()
    desk.say(A, READY, role="mail", ttl=3_600_000)
    desk.add()
    woken_at = []
    for _ in range(400):  # of a tenth of a second each
        if "WAKE" in desk.commands(A):
            woken_at.append(desk.clock)
        desk.pass_time(100)

    gaps = [after - before for before, after in itertools.pairwise(woken_at)]
    assert gaps == [1_500, 2_500, 4_500, 8_500, 16_500]  # half a second of each for the answer

    desk.take(A)
    desk.say(A, READY, role="mail")
    desk.add()
    desk.heard(A)
    desk.pass_time(2_000)
    assert desk.commands(A) == ["WAKE"]


def test_w25_a_quiet_worker_is_left_alone_while_nothing_waits_or_others_are_told():
    desk = Desk()
    desk.say(A, READY, role="mail")
    job_id = desk.add()
    desk.pass_time(600)
    desk.say(B, READY, role="mail")
    taken = desk.take(B)
    assert taken["job"] == job_id
    desk.heard(A)
    desk.pass_time(10_000)
    assert desk.commands(A) == []

    desk.say(B, READY, role="mail")
    desk.add()
    assert (desk.commands(A), desk.commands(B)) == ([], ["WAKE"])


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
    desk.pass_time(500)
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


@pytest.mark.parametrize("is_prompt", [True, False])
def test_w25_a_wake_that_was_sent_after_a_give_outlasts_the_no_to_it(is_prompt):
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.holding = True
    desk.say(A, GIVE, lock="L1", role="mail")
    desk.add("mail")
    desk.say(A, READY, role="mail")
    desk.commit()
    desk.say(B, READY, role="mail")
    assert (desk.commands(A), desk.commands(B)) == (["WAKE", "NO"], [])

    if is_prompt:
        desk.take(A, lock="L2")
    else:
        desk.pass_time(1_000)

    assert desk.commands(B) == ([] if is_prompt else ["WAKE"])


def test_w23_work_that_a_woken_worker_does_not_ask_for_is_told_to_others():
    desk = Desk()
    for _ in range(3):
        desk.add()
    desk.say(A, READY, role="mail", slots=3)
    desk.say(B, READY, role="mail", slots=3)
    assert (desk.one(A, WAKE)["count"], desk.heard(B)) == ("3", [])

    desk.say(A, GIVE, lock="L1", role="mail")

    assert desk.one(B, WAKE)["count"] == "2"


def test_w42_nobody_is_woken_by_a_manager_that_stops():
    desk = Desk()
    desk.say(A, READY, role="mail")
    desk.add()
    assert desk.commands(A) == ["WAKE"]
    desk.draining = True

    desk.say(A, GIVE, lock="L1", role="mail")
    desk.say(A, READY, role="mail")

    assert desk.commands(A) == ["NO"]


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


def test_w30_take_tells_whether_there_is_more_that_nobody_was_told_of():
    desk = Desk()
    for _ in range(3):
        desk.add()
    assert desk.take(A)["more"] == "2"
    desk.say(B, READY, role="mail")  # is woken for one of them

    assert desk.take(A, lock="L2")["more"] is None


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

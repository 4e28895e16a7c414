"""What WMP workers report, and what becomes of their leases, without a socket."""

import pytest

from manyhands.model.commands import Cancel, Move
from manyhands.model.job import State
from manyhands.model.policy import TERMS
from manyhands.protocols.wmp.codec import Command
from tests.unit.protocols.wmp_desk import Desk

READY, GIVE, TAKE = Command.READY, Command.GIVE, Command.TAKE
A, B, C = b"A", b"B", b"C"


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
    job_id = desk.add(terms=TERMS["qless"])
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

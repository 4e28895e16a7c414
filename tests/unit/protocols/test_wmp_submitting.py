"""The companion commands of WMP: submit, look, wait, call off."""

import pytest

from manyhands.model.commands import Cancel, SetQueue
from manyhands.model.job import State
from manyhands.model.policy import QueuePolicy
from manyhands.protocols.wmp import submits
from manyhands.protocols.wmp.codec import Command
from tests.unit.protocols.wmp_desk import Desk, Heard

SUBMIT, FETCH, CLOSE, REPLY = Command.SUBMIT, Command.FETCH, Command.CLOSE, Command.REPLY
A, S = b"A", b"S"


def ask(desk: Desk, command: Command, payload: bytes | None = None, **values) -> Heard:
    desk.say(S, command, payload, **{"request": "r1", **values})
    reply = desk.one(S, REPLY)
    assert reply["request"] == "r1"
    return reply


def submit(desk: Desk, role: str = "mail", payload: bytes = b"x", **values) -> str:
    reply = ask(desk, SUBMIT, payload, role=role, **values)
    assert reply["code"] == "200", reply["reason"]
    return reply["job"] or ""


def test_w44_a_reply_carries_the_request_it_answers():
    desk = Desk()
    for number in (b"\0\1\2", b"seven"):
        desk.say(S, SUBMIT, b"", request=number, role="mail")
        assert desk.one(S, REPLY).raw("request") == number


def test_w44_submitters_speak_directly():
    desk = Desk()
    desk.say(S, SUBMIT, b"", request="r1", role="mail", trail=(b"w",))

    assert desk.dropped == [("hops", S)]
    assert desk.heard(S) == []


def test_w45_a_submitted_job_has_all_that_was_said_of_it():
    desk = Desk()
    job = desk.job(
        submit(
            desk,
            "print",
            b"data",
            name="poster",
            priority="2.5",
            delay=5000,
            key=b"k\xff",
            attempts=2,
            deadline=60_000,
            identity="shop",
        )
    )

    assert (job.queue, job.payload, job.state) == ("print", b"data", State.DELAYED)
    assert (job.priority, job.unique_key, job.terms.attempts_max) == (2.5, b"k\xff", 2)
    assert job.deadline_at == desk.clock + 60_000
    assert (job.origin.realm, job.origin.name) == ("wmp", "shop")
    desk.pass_time(5_000)
    assert desk.take(A, role="print")["name"] == "poster"


def test_w45_a_submit_is_acknowledged_when_it_is_on_disk():
    desk = Desk()
    desk.holding = True
    desk.say(S, SUBMIT, b"x", request="r1", role="mail")
    assert desk.heard(S) == []

    desk.commit()

    assert desk.one(S, REPLY)["code"] == "200"


def test_w45_with_a_key_a_submit_may_be_repeated():
    desk = Desk()

    assert submit(desk, key="photo-17") == submit(desk, key="photo-17")


def test_w45_a_submit_that_is_repeated_when_its_job_has_ended_does_not_run_it_again():
    desk = Desk()
    job = submit(desk, key="photo-17")
    desk.ask(Cancel(job_ids=(job,)))

    assert submit(desk, key="photo-17") == job
    assert submit(desk, key="photo-18") != job
    desk.pass_time(24 * 3600 * 1000)
    assert submit(desk, key="photo-17") != job


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "role is missing in SUBMIT"),
        ({"role": "x" * 300}, "the queue's name"),
        ({"role": "mail", "priority": "high"}, "the priority is no number"),
        ({"role": "mail", "priority": "nan"}, "the priority is no number"),
        ({"role": "mail", "delay": "-5"}, "delay is no number of 0 or more"),
        ({"role": "mail", "name": "n" * 5000}, "a name has at most 4096 bytes"),
        ({"role": "mail", "identity": "i" * 256}, "the identity is too long"),
        ({"role": ["mail", "print"]}, "role is given twice"),
        ({"role": b"\xff"}, "role is not UTF-8"),
    ],
)
def test_w49_a_submit_that_makes_no_sense_is_refused_with_a_sentence(values, sentence):
    desk = Desk()
    reply = ask(desk, SUBMIT, b"", **values)

    assert reply["code"] == "400"
    assert sentence in (reply["reason"] or "")
    assert not desk.store.live.jobs


def test_w49_a_payload_that_is_too_large_is_refused():
    desk = Desk(payload_bytes_max=10)

    reply = ask(desk, SUBMIT, b"x" * 11, role="mail")

    assert (reply["code"], reply["reason"]) == ("400", "11 bytes are more than the 10 allowed")


def test_w46_what_is_the_managers_trouble_has_another_code():
    desk = Desk()
    desk.ask(SetQueue(queue="full", policy=QueuePolicy(jobs_max=1)))
    submit(desk, "full")
    assert ask(desk, SUBMIT, b"", role="full")["code"] == "500"

    desk.draining = True

    assert ask(desk, SUBMIT, b"", role="mail")["code"] == "500"


def test_w47_a_job_can_be_followed_to_its_end():
    desk = Desk()
    job = submit(desk)
    waits = ask(desk, FETCH, job=job)
    assert (waits["code"], waits["state"], waits["progress"]) == ("300", "ready", None)
    taken = desk.take(A)
    desk.status(A, taken, progress="1/2")
    runs = ask(desk, FETCH, job=job)
    assert (runs["code"], runs["state"], runs["progress"]) == ("300", "leased", "1/2")
    desk.done(A, taken, b"RESULT")

    ended = ask(desk, FETCH, job=job)

    assert (ended["code"], ended["state"], ended.payload) == ("200", "completed", b"RESULT")


@pytest.mark.parametrize(("status", "payload"), [("fail", b"no paper"), ("fail", None)])
def test_w47_a_failed_job_says_why(status, payload):
    desk = Desk()
    job = submit(desk)
    desk.done(A, desk.take(A), payload, status=status)

    ended = ask(desk, FETCH, job=job)

    assert (ended["code"], ended["state"]) == ("200", "failed")
    assert ended["reason"] == (payload.decode() if payload else "failed")
    assert ended.payload == payload


def test_w47_a_fetch_may_wait_for_the_end():
    desk = Desk()
    job = submit(desk)
    desk.say(S, FETCH, request="f", job=job, wait=5000)
    desk.say(b"T", FETCH, request="f", job=job, wait=5000)
    assert desk.heard(S) == []
    desk.done(A, desk.take(A), b"R")

    assert desk.one(S, REPLY).payload == b"R"
    assert desk.one(b"T", REPLY).payload == b"R"
    assert desk.session.submitting.watches_count == 0


def test_w47_a_fetch_that_waits_in_vain_says_how_the_job_is():
    desk = Desk()
    job = submit(desk)
    desk.say(S, FETCH, request="f", job=job, wait=5000)
    desk.pass_time(5_100)

    assert desk.one(S, REPLY)["code"] == "300"
    desk.done(A, desk.take(A), b"R")
    assert desk.heard(S) == []


def test_w47_a_stopping_manager_lets_nobody_wait():
    desk = Desk()
    job = submit(desk)
    desk.say(S, FETCH, request="f", job=job, wait=5000)
    desk.draining = True

    desk.session.drain()

    assert desk.one(S, REPLY)["code"] == "300"


def test_w47_there_is_an_end_to_those_who_wait(monkeypatch):
    monkeypatch.setattr(submits, "WATCHES_COUNT_MAX", 1)
    desk = Desk()
    job = submit(desk)
    desk.say(S, FETCH, request="f", job=job, wait=5000)
    assert desk.heard(S) == []

    desk.say(b"T", FETCH, request="f", job=job, wait=5000)

    assert desk.one(b"T", REPLY)["code"] == "300"


@pytest.mark.parametrize("command", [FETCH, CLOSE])
def test_w47_w48_an_unknown_job_is_refused(command):
    """W46, W47 and W48."""
    desk = Desk()
    for job in ("f" * 32, b"\xff\xff", "x" * 1000):
        reply = ask(desk, command, job=job)
        assert reply["code"] == "400"
        assert "there is no job" in (reply["reason"] or "")
    assert ask(desk, command)["reason"] == f"job is missing in {command.name}"


def test_w48_a_closed_job_is_cancelled_and_its_worker_is_told():
    desk = Desk()
    job = submit(desk)
    desk.take(A)

    assert ask(desk, CLOSE, job=job)["code"] == "200"

    assert desk.job(job).state is State.CANCELLED
    assert desk.reason(A) == "cancelled"
    ended = ask(desk, FETCH, job=job)
    assert (ended["code"], ended["state"], ended["reason"]) == ("200", "cancelled", "cancelled")


def test_w48_closing_what_has_ended_changes_nothing():
    desk = Desk()
    job = submit(desk)
    desk.done(A, desk.take(A), b"R")

    assert ask(desk, CLOSE, job=job)["code"] == "200"

    assert desk.job(job).state is State.COMPLETED

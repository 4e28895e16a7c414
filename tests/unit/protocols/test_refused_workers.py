"""A peer that may not work on a queue is refused when it offers to, and is not woken for it."""

import pytest

from manyhands.model.replies import Found, Refusal, Why
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft
from manyhands.protocols.wmp.codec import Command
from tests.unit.protocols.gearman_room import Room
from tests.unit.protocols.wmp_desk import Desk

NO = Refusal(Why.NOT_ALLOWED, "x may not")


def only_mail(queue: str) -> Refusal | None:
    return None if queue == "mail" else NO


@pytest.fixture
def room():
    return Room()


@pytest.mark.parametrize("more", [(wire.CAN_DO,), (wire.CAN_DO_TIMEOUT, b"5")])
def test_an_ability_that_is_not_allowed_is_refused_and_the_others_stay(room, more):
    worker = room.gearman()
    worker.refusal_to_work = only_mail
    worker.can_do(b"mail")

    said = worker.tell(more[0], b"vault", *more[1:])

    assert said == [(wire.ERROR, [b"NOT_ALLOWED", b"x may not"])]
    assert list(worker.session.abilities) == ["mail"]
    assert "vault" not in room.hall.functions


def test_a_draft_worker_with_one_forbidden_name_keeps_what_it_had(room):
    worker = room.draft()
    worker.refusal_to_work = only_mail
    worker.connect(b"mail")

    (said,) = worker.tell(draft.WorkerConnect((b"mail", b"vault")))

    assert said == draft.Error(draft.REFUSED, draft.TYPES[draft.WorkerConnect], b"x may not")
    assert list(worker.session.abilities) == ["mail"]


def refuse_looks(line) -> None:
    """Has every look refused, as the gate does for a job that the caller may not see."""

    def ask(command, settle=None, refused=None):
        room_ask(command, settle and (lambda r: settle(NO if isinstance(r, Found) else r)), refused)

    room_ask, line.ask = line.ask, ask


def test_the_status_of_a_job_that_may_not_be_seen_is_an_error_and_not_unknown(room):
    handle = room.gearman().submit(unique=b"u")
    line, early = room.gearman(), room.draft()
    refuse_looks(line)
    refuse_looks(early)

    for packet in ((wire.GET_STATUS, handle), (wire.GET_STATUS_UNIQUE, b"u")):
        assert line.tell(*packet) == [(wire.ERROR, [b"NOT_ALLOWED", b"x may not"])]
    for packet in (draft.JobStatusReq(handle), draft.JobCompleteReq(handle)):
        (said,) = early.tell(packet)
        assert (said.code, said.text) == (draft.REFUSED, b"x may not")


def test_an_announcement_that_is_not_allowed_is_dropped_and_gets_no_wake():
    desk = Desk()
    desk.refusal_to_work = lambda queues: "x may not" if "vault" in queues else None

    desk.say(b"W", Command.READY, role=["mail", "vault"])
    desk.add("mail")
    assert desk.dropped == [("not_allowed", b"W")]
    assert desk.commands(b"W") == []

    desk.say(b"W", Command.READY, role="mail")
    assert desk.commands(b"W") == ["WAKE"]

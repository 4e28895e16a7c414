"""The shipped protocol, packet by packet. G… are clauses of docs/protocols/gearman.md."""

import time
from types import SimpleNamespace

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Claim,
    Complete,
    Fail,
    NewJob,
    Requeue,
    SetQueue,
    Submit,
)
from manyhands.model.job import EndReason, Failure, Holder, State, failure_from_bytes
from manyhands.model.payload import Encoding
from manyhands.model.policy import QueuePolicy
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import shipped as gearman
from manyhands.protocols.gearman.shipped import error_packet
from manyhands.protocols.gearman.words import ERROR_CODES
from tests.unit.protocols.gearman_room import START_AT, Room

FOREGROUND = (wire.SUBMIT_JOB, wire.SUBMIT_JOB_HIGH, wire.SUBMIT_JOB_LOW)
BACKGROUND = (wire.SUBMIT_JOB_BG, wire.SUBMIT_JOB_HIGH_BG, wire.SUBMIT_JOB_LOW_BG)
GRABS = (wire.GRAB_JOB, wire.GRAB_JOB_UNIQ, wire.GRAB_JOB_ALL)


@pytest.fixture
def room() -> Room:
    return Room()


def error(answers: list) -> bytes:
    """The code of the only answer, which is an error."""
    ((kind, args),) = answers
    assert kind == wire.ERROR
    assert args[1], "an error has a sentence"
    return args[0]


# Framing and the connection.


def test_text_and_packets_alternate_on_one_connection(room):
    """G1"""
    peer = room.gearman()

    peer.give(b"version\n" + wire.encode_request(wire.ECHO_REQ, b"a\0b") + b"getpid\r\n")
    room.run()

    echo = wire.encode_response(wire.ECHO_RES, b"a\0b")
    assert peer.take() == b"OK 9.9\n" + echo + b"OK 42\n"


def test_one_byte_at_a_time_is_as_good_as_all_at_once(room):
    """G2"""
    peer = room.gearman()

    for byte in wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"u", b"\0d\0"):
        peer.give(bytes((byte,)))
    room.run()

    ((kind, (handle,)),) = peer.heard()
    assert kind == wire.JOB_CREATED
    assert room.job(handle).payload == b"\0d\0"


def test_trailing_nuls_of_a_last_argument_that_is_no_data_are_dropped(room):
    """G2"""
    worker = room.gearman()
    worker.give(b"\0REQ" + wire.CAN_DO.to_bytes(4, "big") + b"\0\0\0\x03f\0\0")
    handle = room.gearman().submit()

    assert worker.grab()[0] == handle


@pytest.mark.parametrize(
    "packet",
    [
        (wire.SUBMIT_JOB_BG, b"f\0u"),
        (wire.WORK_COMPLETE, b"H:x:1"),
        (wire.SUBMIT_REDUCE_JOB, b"f\0u\0r"),
        (wire.WORK_STATUS, b"H:x:1\x001"),
        (wire.CAN_DO_TIMEOUT, b"f"),
        (wire.GET_STATUS, b"H:x\0:1"),
    ],
)
def test_wrong_arguments_are_an_error_and_the_stream_stays_in_step(room, packet):
    """G3"""
    kind, body = packet
    peer = room.gearman()

    peer.give(b"\0REQ" + kind.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    peer.give(wire.encode_request(wire.ECHO_REQ, b"still here"))
    room.run()

    (fault, echo) = peer.heard()
    assert error([fault]) == b"INVALID_PACKET"
    assert echo == (wire.ECHO_RES, [b"still here"])
    assert not peer.closed


def test_a_body_where_none_belongs_is_no_offence(room):
    """G3"""
    peer = room.worker()

    peer.give(b"\0REQ" + wire.GRAB_JOB.to_bytes(4, "big") + b"\0\0\0\x01x")
    room.run()

    assert peer.heard() == [(wire.NO_JOB, [])]


@pytest.mark.parametrize("kind", [0, 5, 43, 255, 2**32 - 1])
def test_an_unknown_type_is_an_error_and_is_skipped_by_its_length(room, kind):
    """G4"""
    peer = room.gearman()

    peer.give(b"\0REQ" + kind.to_bytes(4, "big") + b"\0\0\0\x03abc")

    assert error(peer.tell(wire.ECHO_REQ, b"")[:1]) == b"INVALID_COMMAND"
    assert not peer.closed


@pytest.mark.parametrize("kind", [kind for kind, _, way, _ in wire.PACKETS if way == wire.RESPONSE])
def test_a_response_type_sent_as_a_request_is_an_error(room, kind):
    """G4"""
    peer = room.gearman()

    peer.give(b"\0REQ" + kind.to_bytes(4, "big") + b"\0\0\0\x01x")

    assert error(peer.heard()) == b"INVALID_COMMAND"
    assert not peer.closed


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (wire.ALL_YOURS, ()),
        (wire.SUBMIT_JOB_SCHED, (b"f", b"u", b"1", b"2", b"3", b"4", b"5", b"d")),
    ],
)
def test_what_no_server_ever_did_is_an_error(room, kind, args):
    """G4"""
    peer = room.gearman()

    assert error(peer.tell(kind, *args)) == b"INVALID_COMMAND"
    assert not peer.closed


def test_the_magic_of_the_other_direction_is_an_error_and_no_more(room):
    """G5"""
    peer = room.gearman()

    peer.give(wire.encode_response(wire.NOOP))

    assert error(peer.heard()) == b"INVALID_MAGIC"
    assert not peer.closed


def test_a_wrong_magic_ends_the_connection_after_an_error(room):
    """G5"""
    peer = room.gearman()

    peer.give(b"\0WAT" + bytes(100))

    assert error(peer.heard()) == b"INVALID_MAGIC"
    assert peer.closed


def test_a_packet_above_the_limit_ends_the_connection_before_its_body_comes(room):
    """G6"""
    peer = room.gearman(payload_bytes_max=1000)

    peer.give(b"\0REQ" + wire.SUBMIT_JOB.to_bytes(4, "big") + (15 * 2**28).to_bytes(4, "big"))

    assert error(peer.heard()) == b"ARGUMENT_TOO_LARGE"
    assert peer.closed


@pytest.mark.parametrize("kind", [wire.SUBMIT_JOB_BG, wire.SUBMIT_JOB, wire.SUBMIT_JOB_HIGH_BG])
def test_a_payload_may_have_all_the_bytes_it_is_allowed_and_come_back_as_the_result(room, kind):
    """G6"""
    client, worker = room.gearman(payload_bytes_max=1000), room.gearman(payload_bytes_max=1000)
    payload = bytes(1000)
    worker.can_do(b"f" * 255)

    handle = client.submit(b"f" * 255, b"u" * 64, payload, kind)
    assert worker.grab(wire.GRAB_JOB_ALL)[3] == payload
    assert worker.tell(wire.WORK_DATA, handle, payload) == []
    assert worker.tell(wire.WORK_COMPLETE, handle, payload) == []

    assert room.job(handle).result == payload
    assert worker.tell(wire.ECHO_REQ, payload) == [(wire.ECHO_RES, [payload])]


def test_a_payload_of_a_byte_too_much_is_refused_and_the_connection_goes_on(room):
    """G6"""
    client = room.gearman(payload_bytes_max=1000)

    for args in ((b"f", b""), (b"f" * 255, b"u" * 64)):
        assert error(client.tell(wire.SUBMIT_JOB, *args, bytes(1001))) == b"ARGUMENT_TOO_LARGE"
    reduce_job = (b"f", b"u", b"reducer", bytes(1001))
    assert error(client.tell(wire.SUBMIT_REDUCE_JOB, *reduce_job)) == b"ARGUMENT_TOO_LARGE"
    assert client.tell(wire.ECHO_REQ, b"alive") == [(wire.ECHO_RES, [b"alive"])]
    assert client.text(b"status") == b".\n"


@pytest.mark.parametrize("size", [1001, 5000, 1_000_000])
@pytest.mark.parametrize("kind", [wire.WORK_COMPLETE, wire.WORK_DATA, wire.WORK_EXCEPTION])
def test_a_result_above_the_limit_fails_the_job_at_once_and_says_why(room, kind, size):
    """G6"""
    client, worker = room.gearman(), room.gearman(payload_bytes_max=1000).can_do(b"f")
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()
    packet = wire.encode_request(kind, handle, bytes(size)) + wire.encode_request(wire.GRAB_JOB)

    for start in range(0, len(packet), 700):
        worker.give(packet[start : start + 700])
    room.run()

    (_, (code, _)), (answer, _) = worker.heard()
    assert (code, answer) == (b"ARGUMENT_TOO_LARGE", wire.NO_JOB)
    assert client.heard()[-1][1][0] == handle
    job = room.job(handle)
    assert (job.state, job.failure.code) == (State.FAILED, "result_too_large")
    assert job.failure.message.endswith(f" of {size} bytes, the limit is 1000")
    assert len(job.attempts) == 1
    assert not worker.closed


def test_a_result_above_the_limit_of_somebody_elses_job_changes_nothing(room):
    """G6 and G29"""
    handle = room.gearman().submit()
    holder, other = room.worker(), room.gearman(payload_bytes_max=1000)
    holder.grab()

    assert error(other.tell(wire.WORK_COMPLETE, handle, bytes(1001))) == b"JOB_NOT_FOUND"
    assert room.job(handle).state is State.LEASED
    assert other.tell(wire.ECHO_REQ, b"alive") == [(wire.ECHO_RES, [b"alive"])]


def test_answers_wait_for_the_commit_and_keep_their_order(room):
    """G7"""
    peer = room.worker()
    peer.give(
        wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"")
        + wire.encode_request(wire.ECHO_REQ, b"1")
        + wire.encode_request(wire.GRAB_JOB)
        + wire.encode_request(wire.GET_STATUS, b"H:nobody:0")
        + b"version\n"
    )
    before = peer.take()

    room.run()

    assert before == b""
    kinds = [kind for kind, _ in peer.heard()]
    assert kinds == [
        wire.JOB_CREATED,
        wire.ECHO_RES,
        wire.JOB_ASSIGN,
        wire.STATUS_RES,
        wire.ADMIN_LINE,
    ]


def in_one_go(*packets: tuple) -> bytes:
    return b"".join(wire.encode_request(*packet) for packet in packets)


def test_background_jobs_that_arrive_together_get_an_answer_each_in_order(room):
    """G7"""
    client = room.gearman()
    client.submit(b"f")
    counts = room.dispatcher.counts
    commands, answers = counts.commands, counts.answers

    client.give(in_one_go(*((kind, b"f", b"", bytes([kind])) for kind in BACKGROUND)))
    before = client.take()
    room.run()

    assert before == b""
    created = client.heard()
    assert [kind for kind, _ in created] == [wire.JOB_CREATED] * 3
    assert [room.job(args[0]).payload for _, args in created] == [bytes([k]) for k in BACKGROUND]
    assert [room.job(args[0]).priority for _, args in created] == [0.0, 10.0, -10.0]
    assert (counts.commands - commands, counts.answers - answers) == (3, 3)


def test_background_jobs_with_one_unique_that_arrive_together_are_one_job(room):
    client = room.gearman()

    client.give(in_one_go(*((wire.SUBMIT_JOB_BG, b"f", b"one", b"") for _ in range(3))))
    room.run()

    assert len({args[0] for _, args in client.heard()}) == 1


def test_a_bad_packet_among_background_jobs_is_answered_in_its_turn(room):
    client = room.gearman()

    client.give(
        in_one_go(
            (wire.SUBMIT_JOB_BG, b"f", b"", b"1"),
            (wire.SUBMIT_JOB_BG, b"", b"", b"2"),
            (wire.SUBMIT_JOB_BG, b"f", b"u" * 65, b"3"),
            (wire.SUBMIT_JOB_BG, b"f", b"", b"4"),
        )
    )
    room.run()

    heard = client.heard()
    created, error_kind = wire.JOB_CREATED, wire.ERROR
    assert [kind for kind, _ in heard] == [created, error_kind, error_kind, created]
    assert [args[0] for kind, args in heard if kind == error_kind] == [
        b"INVALID_FUNCTION_NAME",
        b"ARGUMENT_TOO_LARGE",
    ]


def test_background_jobs_of_different_functions_that_arrive_together_are_decided_apart(room):
    client = room.gearman()
    asked = []
    ask = client.ask
    client.ask = lambda command, *rest: (asked.append(command), ask(command, *rest))[1]
    client.shortcut = SimpleNamespace(submit_at_once=lambda *_, **__: False)

    functions = (b"f", b"f", b"g", b"f")
    client.give(in_one_go(*((wire.SUBMIT_JOB_BG, name, b"", b"") for name in functions)))
    room.run()

    queues = [[item.queue for item in command.items] for command in asked]
    assert queues == [["f", "f"], ["g"], ["f"]]
    created = client.heard()
    assert [room.job(args[0]).queue.encode() for _, args in created] == list(functions)


def test_each_of_several_background_jobs_is_refused_if_all_are(room):
    """G11"""
    client = room.gearman()
    room.dispatcher.draining = True

    client.give(in_one_go(*((wire.SUBMIT_JOB_BG, b"f", b"", b"") for _ in range(3))))
    room.run()

    assert [args[0] for _, args in client.heard()] == [b"SHUTTING_DOWN"] * 3
    assert room.dispatcher.counts.refusals == {Why.SHUTTING_DOWN: 3}


def test_a_long_row_of_background_jobs_is_done_in_turns(room):
    client = room.gearman()
    count = 2 * limits.TURN_REQUESTS_MAX + 1

    client.give(in_one_go(*((wire.SUBMIT_JOB_BG, b"f", b"", b"") for _ in range(count))))
    first = room.dispatcher.counts.commands
    room.run()

    assert first == limits.TURN_REQUESTS_MAX
    assert [kind for kind, _ in client.heard()] == [wire.JOB_CREATED] * count


def test_a_refused_report_is_answered_in_its_turn(room):
    """G7"""
    client, worker = room.gearman(), room.worker()
    client.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"g", b"", b""))

    worker.give(
        wire.encode_request(wire.WORK_FAIL, b"H:nobody:0")
        + wire.encode_request(wire.ECHO_REQ, b"1")
        + wire.encode_request(wire.GRAB_JOB)
    )
    room.run()

    assert [kind for kind, _ in worker.heard()] == [wire.ERROR, wire.ECHO_RES, wire.NO_JOB]


def test_a_refused_report_is_answered_before_the_end(room):
    """G7"""
    client, worker = room.gearman(), room.worker()
    client.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"g", b"", b""))

    worker.give(wire.encode_request(wire.WORK_COMPLETE, b"H:nobody:0", b""))
    worker.session.ended()
    was_closed = worker.closed
    room.run()

    assert not was_closed
    assert error(worker.heard()) == b"JOB_NOT_FOUND"
    assert worker.closed


def test_what_was_asked_before_a_fatal_fault_is_still_answered(room):
    """G7"""
    peer = room.gearman()

    peer.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"") + b"\0WAT")
    was_closed = peer.closed
    room.run()

    assert not was_closed
    created, fault = peer.heard()
    assert created[0] == wire.JOB_CREATED
    assert error([fault]) == b"INVALID_MAGIC"
    assert peer.closed


def test_one_connection_holds_many_jobs_and_is_client_and_worker_at_once(room):
    """G8"""
    peer = room.worker()
    handles = [peer.submit(kind=wire.SUBMIT_JOB) for _ in range(3)]
    assert [peer.grab()[0] for _ in handles] == handles

    answers = [peer.tell(wire.WORK_COMPLETE, handle, handle) for handle in reversed(handles)]

    assert answers == [[(wire.WORK_COMPLETE, [h, h])] for h in reversed(handles)]


def test_a_peer_with_too_many_unanswered_requests_is_not_read_on(room, monkeypatch):
    """G9"""
    monkeypatch.setattr(gearman, "AWAITED_COUNT_MAX", 3)
    peer = room.gearman()

    peer.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"") * 4)
    overwhelmed = peer.session.is_overwhelmed()
    room.run()

    assert overwhelmed
    assert not peer.session.is_overwhelmed()


def test_a_server_that_stops_refuses_submits_and_hands_nothing_out(room):
    """G11"""
    client, worker = room.gearman(), room.worker()
    client.submit()
    room.dispatcher.draining = True

    assert error(client.tell(wire.SUBMIT_JOB, b"f", b"", b"")) == b"SHUTTING_DOWN"
    assert worker.grab() == []


def test_jobs_of_a_worker_that_the_server_let_go_are_not_charged(room):
    """G11"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit()
    worker.grab()

    worker.hang_up(blameless=True)

    job = room.job(handle)
    assert (job.state, job.attempts_used) == (State.READY, 0)
    assert job.attempts[-1].reason is EndReason.RELEASED


# Submitting.


@pytest.mark.parametrize("kind", FOREGROUND)
def test_a_foreground_client_hears_everything_up_to_the_end(room, kind):
    """G12"""
    client, worker = room.gearman(), room.worker()

    handle = client.submit(b"f", b"u", b"data", kind)
    worker.grab()
    worker.tell(wire.WORK_DATA, handle, b"piece")
    worker.tell(wire.WORK_WARNING, handle, b"oh")
    worker.tell(wire.WORK_STATUS, handle, b"1", b"2")
    worker.tell(wire.WORK_COMPLETE, handle, b"done")

    assert client.heard() == [
        (wire.WORK_DATA, [handle, b"piece"]),
        (wire.WORK_WARNING, [handle, b"oh"]),
        (wire.WORK_STATUS, [handle, b"1", b"2"]),
        (wire.WORK_COMPLETE, [handle, b"done"]),
    ]


def test_an_end_is_never_told_before_the_handle_of_its_job(room):
    """G12"""
    client, worker = room.gearman(), room.worker()

    # The answer to the first waits for the disk, and the second one's handle waits behind it.
    client.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"other", b"", b""))
    client.give(wire.encode_request(wire.SUBMIT_JOB, b"f", b"", b""))
    worker.give(wire.encode_request(wire.GRAB_JOB))
    ((_, (handle, _, _)),) = worker.heard()
    worker.give(wire.encode_request(wire.WORK_COMPLETE, handle, b"done"))
    assert client.heard() == []
    room.run()

    kinds = [kind for kind, _ in client.heard()]
    assert kinds == [wire.JOB_CREATED, wire.JOB_CREATED, wire.WORK_COMPLETE]


@pytest.mark.parametrize("kind", BACKGROUND)
def test_a_background_client_hears_nothing_but_the_handle(room, kind):
    """G13"""
    client, worker = room.gearman(), room.worker()

    handle = client.submit(b"f", b"u", b"data", kind)
    worker.grab()
    worker.tell(wire.WORK_DATA, handle, b"piece")
    worker.tell(wire.WORK_COMPLETE, handle, b"done")

    assert client.heard() == []
    assert room.job(handle).result == b"done"


@pytest.mark.parametrize("kind", BACKGROUND)
def test_a_background_job_is_not_acknowledged_before_the_commit(room, kind):
    """G13"""
    client = room.gearman()

    client.give(wire.encode_request(kind, b"f", b"", b""))
    before = client.take()
    room.run()

    assert before == b""
    assert client.heard()[0][0] == wire.JOB_CREATED


def test_a_handle_names_the_server_and_the_job_and_fits_in_63_bytes(room):
    """G14"""
    handle = room.gearman().submit()

    prefix, server, uid = handle.split(b":")
    assert (prefix, server, len(uid)) == (b"H", b"test", 32)
    assert len(b"H:" + b"s" * 24 + b":" + uid) <= 63


def test_the_server_in_a_handle_is_not_compared(room):
    """G14"""
    client = room.gearman()
    handle = client.submit()

    ((_, args),) = client.tell(wire.GET_STATUS, b"H:another:" + handle[-32:].upper())

    assert args[1] == b"1"


@pytest.mark.parametrize("name", [b"", b"x" * 256, "é".encode() * 128, b"\xe9" * 64])
@pytest.mark.parametrize("kind", [wire.CAN_DO, wire.SUBMIT_JOB_BG])
def test_a_function_without_a_name_or_with_too_long_a_name_is_refused(room, kind, name):
    """G15"""
    peer = room.gearman()
    args = (name,) if kind == wire.CAN_DO else (name, b"", b"")

    assert error(peer.tell(kind, *args)) == b"INVALID_FUNCTION_NAME"
    assert not peer.session.abilities


@pytest.mark.parametrize(
    "name",
    [
        *(
            b"x" * 255,
            "größe".encode(),
            b"a b",
            b"reverse::v2",
            b"\xc2\xad",
            b"gr\xf6\xdfe",
            b"a\nb",
        ),
        *(b"staging\trev", rb"App\Jobs\Mail", rb"App\xdebug", rb"App\x5cxdebug", b"\x7f"),
    ],
)
def test_any_other_name_is_a_function(room, name):
    """G15"""
    handle = room.gearman().submit(name)

    assert room.worker(name).grab()[:2] == [handle, name]


def test_a_unique_has_at_most_64_bytes(room):
    """G15"""
    client = room.gearman()

    assert client.submit(b"f", b"u" * 64)
    assert error(client.tell(wire.SUBMIT_JOB, b"f", b"u" * 65, b"")) == b"ARGUMENT_TOO_LARGE"


def test_a_second_submit_of_a_unique_joins_the_first_and_loses_its_data(room):
    """G16"""
    client, worker = room.gearman(), room.worker(b"f", b"g")
    handle = client.submit(b"f", b"u", b"first")

    while_queued = client.submit(b"f", b"u", b"second")
    other_function = client.submit(b"g", b"u", b"third")
    assert worker.grab()[2] in (b"first", b"third")
    worker.grab()
    while_running = client.submit(b"f", b"u", b"fourth")
    worker.tell(wire.WORK_COMPLETE, handle, b"")
    after_the_end = client.submit(b"f", b"u", b"fifth")

    assert while_queued == while_running == handle
    assert other_function != handle
    assert after_the_end != handle
    assert room.job(handle).payload == b"first"


def test_a_foreground_joiner_gets_the_rest_of_the_stream(room):
    """G17"""
    first, late, background = room.gearman(), room.gearman(), room.gearman()
    worker = room.worker()
    handle = first.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    worker.grab()
    worker.tell(wire.WORK_DATA, handle, b"1")

    assert late.submit(b"f", b"u", b"", wire.SUBMIT_JOB) == handle
    assert background.submit(b"f", b"u", b"") == handle
    worker.tell(wire.WORK_DATA, handle, b"2")
    worker.tell(wire.WORK_COMPLETE, handle, b"end")

    assert [args[1] for _, args in first.heard()] == [b"1", b"2", b"end"]
    assert [args[1] for _, args in late.heard()] == [b"2", b"end"]
    assert background.heard() == []


def test_a_client_that_submits_twice_hears_everything_twice(room):
    """G17"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    client.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    worker.grab()

    worker.tell(wire.WORK_COMPLETE, handle, b"r")

    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])] * 2


@pytest.mark.parametrize(
    ("unique", "data", "other_data", "joined"),
    [
        (b"", b"same", b"same", False),
        (b"-", b"same", b"same", True),
        (b"-", b"one", b"two", False),
        (b"-", b"", b"", False),
        (b"#", b"one", b"two", True),
    ],
)
def test_which_uniques_join(room, unique, data, other_data, joined):
    """G18"""
    client = room.gearman()

    first = client.submit(b"f", unique, data)

    assert (client.submit(b"f", unique, other_data) == first) is joined


def test_a_dash_is_shown_to_the_worker_as_it_was_sent(room):
    """G18"""
    room.gearman().submit(b"f", b"-", b"data")

    assert room.worker().grab(wire.GRAB_JOB_UNIQ)[2] == b"-"


def test_a_unique_is_bytes(room):
    """G19"""
    raw = bytes(range(240, 256))
    client, worker = room.gearman(), room.worker()

    handle = client.submit(b"f", raw)

    assert client.submit(b"f", raw) == handle
    assert client.submit(b"f", raw[::-1]) != handle
    assert worker.grab(wire.GRAB_JOB_UNIQ)[2] == raw


def test_a_queued_job_whose_last_client_left_is_cancelled_visibly(room):
    """G20"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)

    client.hang_up()

    job = room.job(handle)
    assert (job.state, job.reason) == (State.CANCELLED, "abandoned")
    assert worker.grab() == []


def test_a_running_job_whose_last_client_left_may_be_finished(room):
    """G20"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    client.hang_up()

    assert worker.tell(wire.WORK_COMPLETE, handle, b"") == []
    assert room.job(handle).state is State.COMPLETED


def test_an_abandoned_job_that_loses_its_worker_is_not_handed_out_again(room):
    """G20"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    client.hang_up()
    worker.hang_up()

    assert room.job(handle).reason == "abandoned"


@pytest.mark.parametrize("joiner_first", [True, False])
def test_a_foreground_joiner_who_leaves_does_not_take_a_background_job_along(room, joiner_first):
    """G20"""
    background, foreground, worker = room.gearman(), room.gearman(), room.worker()
    submits = [(background, wire.SUBMIT_JOB_BG), (foreground, wire.SUBMIT_JOB)]
    for client, kind in reversed(submits) if joiner_first else submits:
        handle = client.submit(b"f", b"u", b"", kind)

    foreground.hang_up()
    background.hang_up()

    assert worker.grab()[0] == handle


def test_a_second_waiting_client_keeps_the_job_alive(room):
    """G20"""
    one, two, worker = room.gearman(), room.gearman(), room.worker()
    handle = one.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    two.submit(b"f", b"u", b"", wire.SUBMIT_JOB)

    one.hang_up()
    worker.grab()
    worker.tell(wire.WORK_COMPLETE, handle, b"r")

    assert two.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])]


def test_a_job_for_later_wakes_a_sleeping_worker_on_its_second(room):
    """G21"""
    client, worker = room.gearman(), room.worker()
    at = b"%d" % (START_AT // 1000 + 30)
    client.tell(wire.SUBMIT_JOB_EPOCH, b"f", b"", at, b"later")
    assert worker.grab() == []
    worker.tell(wire.PRE_SLEEP)

    room.run_for(29_990)
    before = worker.heard()
    room.run_for(10)

    assert before == []
    assert worker.heard() == [(wire.NOOP, [])]
    assert worker.grab()[2] == b"later"


@pytest.mark.parametrize("at", [b"1", b"", b"soon", b"-5", b"0", b"1e9"])
def test_a_time_that_is_past_or_no_number_is_now(room, at):
    """G21"""
    client, worker = room.gearman(), room.worker()

    client.tell(wire.SUBMIT_JOB_EPOCH, b"f", b"", at, b"now")

    assert worker.grab()[2] == b"now"


@pytest.mark.parametrize("at", [b"9999999999999", b"9" * 5000])
def test_a_time_beyond_a_hundred_years_is_refused(room, at):
    """G21"""
    answers = room.gearman().tell(wire.SUBMIT_JOB_EPOCH, b"f", b"", at, b"")

    assert error(answers) == b"INVALID_ARGUMENT"


@pytest.mark.parametrize("kind", [wire.SUBMIT_REDUCE_JOB, wire.SUBMIT_REDUCE_JOB_BACKGROUND])
@pytest.mark.parametrize("aggregator", [b"", b"\0"], ids=["documented", "as sent by libgearman"])
def test_a_reduce_job_hands_its_reducer_to_who_can_take_it(room, kind, aggregator):
    """G22"""
    client, worker = room.gearman(), room.worker()
    body = b"f\0u\0sum\0" + aggregator + b"data"
    client.give(b"\0REQ" + kind.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    room.run()
    ((_, (handle,)),) = client.heard()

    ((answer, args),) = worker.tell(wire.GRAB_JOB_ALL)
    worker.tell(wire.WORK_COMPLETE, handle, b"r")

    assert (answer, args) == (wire.JOB_ASSIGN_ALL, [handle, b"f", b"u", b"sum", b"data"])
    assert bool(client.heard()) is (kind == wire.SUBMIT_REDUCE_JOB)


def test_a_reduce_job_is_a_plain_job_to_other_workers(room):
    """G22"""
    room.gearman().tell(wire.SUBMIT_REDUCE_JOB, b"f", b"u", b"sum", b"data")

    ((answer, args),) = room.worker().tell(wire.GRAB_JOB_UNIQ)

    assert (answer, args[1:]) == (wire.JOB_ASSIGN_UNIQ, [b"f", b"u", b"data"])


@pytest.mark.parametrize("metadata", [b"not json", b"[]", b'{"reducer": 1}', b'{"a": "b"}'])
def test_metadata_of_other_fronts_is_no_reducer(room, metadata):
    """G22"""
    item = NewJob(job_id="0" * 32, queue="f", metadata=metadata)
    room.ask(Submit((item,)))

    ((answer, _),) = room.worker().tell(wire.GRAB_JOB_ALL)

    assert answer == wire.JOB_ASSIGN_UNIQ


def test_high_goes_before_normal_before_low_and_first_come_first_served(room):
    """G23"""
    client, worker = room.gearman(), room.worker(b"f", b"g")
    for kind, data in [
        (wire.SUBMIT_JOB_LOW_BG, b"5"),
        (wire.SUBMIT_JOB_BG, b"3"),
        (wire.SUBMIT_JOB_HIGH_BG, b"1"),
        (wire.SUBMIT_JOB_BG, b"4"),
        (wire.SUBMIT_JOB_HIGH_BG, b"2"),
    ]:
        client.submit(b"f", b"", data, kind)

    assert [worker.grab()[2] for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]


def test_priority_counts_across_functions_and_equals_take_turns(room):
    """G23"""
    client, worker = room.gearman(), room.worker(b"f", b"g")
    for _ in range(2):
        client.submit(b"f", b"", b"")
        client.submit(b"g", b"", b"")
    client.submit(b"g", b"", b"", wire.SUBMIT_JOB_HIGH_BG)

    functions = [worker.grab()[1] for _ in range(5)]

    assert functions[0] == b"g"
    assert functions[1:] in ([b"f", b"g", b"f", b"g"], [b"g", b"f", b"g", b"f"])


def test_every_refusal_of_the_engine_has_gearmans_word():
    """G24"""
    assert set(ERROR_CODES) == set(Why)
    for code in ERROR_CODES.values():
        assert code.replace(b"_", b"").isupper()


@pytest.mark.parametrize("why", Why)
def test_every_refusal_becomes_an_error_packet(why):
    """G24"""
    packet = error_packet(Refusal(why, "because\u2026"))

    assert error(wire.Decoder(responses=True).feed(packet)) == ERROR_CODES[why]


def test_a_full_queue_refuses_but_a_joiner_passes(room):
    """G24"""
    client = room.gearman()
    handle = client.submit(b"f", b"u")
    assert client.text(b"maxqueue f 1") == b"OK\r\n"

    assert error(client.tell(wire.SUBMIT_JOB_BG, b"f", b"v", b"")) == b"QUEUE_ERROR"
    assert client.submit(b"f", b"u") == handle


def test_a_full_disk_is_a_queue_error(room):
    """G24"""
    room.dispatcher.store_full = True

    assert error(room.gearman().tell(wire.SUBMIT_JOB_BG, b"f", b"", b"")) == b"QUEUE_ERROR"


def test_data_above_the_engines_bound_is_refused_with_a_word(room, monkeypatch):
    """G24"""
    monkeypatch.setattr("manyhands.model.limits.PAYLOAD_BYTES_MAX", 10)

    answers = room.gearman().tell(wire.SUBMIT_JOB_BG, b"f", b"", b"x" * 11)

    assert error(answers) == b"ARGUMENT_TOO_LARGE"


# Working.


def test_a_worker_gets_jobs_of_what_it_can_do_and_no_other(room):
    """G25"""
    client, worker = room.gearman(), room.worker(b"f", b"g")
    handles = {function: client.submit(function) for function in (b"f", b"g", b"h")}

    worker.tell(wire.CANT_DO, b"f")
    first = worker.grab()
    second = worker.grab()
    worker.tell(wire.CAN_DO, b"f")
    third = worker.grab()
    worker.tell(wire.RESET_ABILITIES)
    worker.tell(wire.CAN_DO, b"h")

    assert first[0] == handles[b"g"]
    assert second == []
    assert third[0] == handles[b"f"]
    assert worker.grab()[0] == handles[b"h"]


@pytest.mark.parametrize("kind", GRABS)
def test_a_worker_that_can_do_nothing_gets_nothing(room, kind):
    """G25"""
    room.gearman().submit()

    assert room.gearman().grab(kind) == []


@pytest.mark.parametrize("goodbye", [(wire.CANT_DO, b"f"), (wire.RESET_ABILITIES,)])
def test_a_worker_that_drops_a_function_may_finish_what_it_holds(room, goodbye):
    """G25"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    worker.tell(*goodbye)

    assert worker.tell(wire.WORK_COMPLETE, handle, b"r") == []
    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])]


def test_a_worker_has_at_most_a_thousand_functions(room, monkeypatch):
    """G25"""
    monkeypatch.setattr("manyhands.model.limits.CLAIM_QUEUES_MAX", 2)
    worker = room.worker(b"f", b"g")

    assert error(worker.tell(wire.CAN_DO, b"h")) == b"TOO_MANY_FUNCTIONS"
    assert worker.tell(wire.CAN_DO, b"f") == []
    assert room.gearman().submit(b"g") == worker.grab()[0]


@pytest.mark.parametrize(
    ("given", "milliseconds"), [(b"2500", 2500), (b"1000", 1000), (b"999", 1000), (b"30", 1000)]
)
def test_a_timeout_of_a_second_or_more_gives_the_job_back(room, given, milliseconds):
    """G26: many libraries hand on seconds; like gearmand we never take a job back before one."""
    client, slow, other = room.gearman(), room.gearman(), room.worker()
    slow.tell(wire.CAN_DO_TIMEOUT, b"f", given)
    handle = client.submit(kind=wire.SUBMIT_JOB)
    slow.grab()
    other.tell(wire.PRE_SLEEP)

    room.run_for(milliseconds - 1)
    early = other.heard()
    room.run_for(1)

    assert early == []
    assert other.heard() == [(wire.NOOP, [])]
    assert other.grab()[0] == handle
    assert error(slow.tell(wire.WORK_COMPLETE, handle, b"late")) == b"JOB_NOT_FOUND"
    other.tell(wire.WORK_COMPLETE, handle, b"r")
    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])]
    assert room.job(handle).attempts[0].reason is EndReason.EXPIRED


def test_a_job_that_times_out_too_often_fails(room):
    """G26"""
    client, worker = room.gearman(), room.gearman()
    worker.tell(wire.CAN_DO_TIMEOUT, b"f", b"2000")
    handle = client.submit(kind=wire.SUBMIT_JOB)

    for _ in range(5):
        assert client.heard() == []
        assert worker.grab()[0] == handle
        room.run_for(2000)

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    assert room.job(handle).reason == "out_of_attempts"


def test_a_status_report_prolongs_the_timeout(room):
    """G26"""
    client, worker = room.gearman(), room.gearman()
    worker.tell(wire.CAN_DO_TIMEOUT, b"f", b"2000")
    handle = client.submit()
    worker.grab()

    for _ in range(5):
        room.run_for(1900)
        assert worker.tell(wire.WORK_STATUS, handle, b"1", b"2") == []

    assert room.job(handle).state is State.LEASED


@pytest.mark.parametrize("timeout", [b"0", b"", b"never", b"-1", b"9" * 30, b"9" * 5000])
def test_a_timeout_that_is_none_or_beyond_all_bounds_never_comes(room, timeout):
    """G26"""
    client, worker = room.gearman(), room.gearman()
    assert worker.tell(wire.CAN_DO_TIMEOUT, b"f", timeout) == []
    handle = client.submit()
    worker.grab()

    room.run_for(10 * 365 * 24 * 3600 * 1000)

    job = room.job(handle)
    assert job.state is State.LEASED
    assert (job.lease.expires_at or 0) < 2**63


def test_functions_of_one_worker_have_timeouts_of_their_own(room):
    """G26"""
    client, worker = room.gearman(), room.worker(b"f")
    worker.tell(wire.CAN_DO_TIMEOUT, b"g", b"2000")
    patient, hasty = client.submit(b"f"), client.submit(b"g")
    worker.grab()
    worker.grab()

    room.run_for(2000)

    assert room.job(patient).state is State.LEASED
    assert room.job(hasty).state is State.READY


def test_who_goes_to_sleep_keeps_its_jobs_without_a_timeout(room):
    """G26: a worker that sleeps is not stuck in its job; gearmand stops its timer as well."""
    client, worker = room.gearman(), room.gearman()
    worker.tell(wire.CAN_DO_TIMEOUT, b"f", b"2000")
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    room.run_for(1900)
    worker.tell(wire.PRE_SLEEP)
    room.run_for(3_600_000)
    worker.tell(wire.WORK_COMPLETE, handle, b"late, and in time")

    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"late, and in time"])]


def test_the_next_job_of_who_has_slept_has_a_timeout_again(room):
    """G26"""
    client, worker = room.gearman(), room.gearman()
    worker.tell(wire.CAN_DO_TIMEOUT, b"f", b"2000")
    worker.tell(wire.PRE_SLEEP)
    handle = client.submit()
    assert worker.heard() == [(wire.NOOP, [])]
    worker.grab()

    room.run_for(2000)

    assert room.job(handle).state is State.READY


def test_the_term_that_a_queue_forces_binds_sleepers_too(room):
    """G26"""
    policy = QueuePolicy(lease_ms=3000, lease_forced=True)
    room.ask(SetQueue(queue="f", policy=policy))
    client, worker = room.gearman(), room.gearman()
    worker.tell(wire.CAN_DO_TIMEOUT, b"f", b"2000")
    handle = client.submit()
    worker.grab()
    worker.tell(wire.PRE_SLEEP)

    room.run_for(3000)

    assert room.job(handle).state is State.READY


@pytest.mark.parametrize("attempts_max", [1, 3])
def test_the_operator_sets_how_often_a_job_is_tried(attempts_max):
    """G37"""
    room = Room(attempts_max=attempts_max)
    client = room.gearman()
    handle = client.submit(kind=wire.SUBMIT_JOB)

    for _ in range(attempts_max):
        assert client.heard() == []
        worker = room.worker()
        assert worker.grab()[0] == handle
        worker.hang_up()

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    assert room.job(handle).reason == "out_of_attempts"


def test_attempts_may_have_no_end():
    """G37"""
    room = Room(attempts_max=-1)
    handle = room.gearman().submit()

    for _ in range(20):
        worker = room.worker()
        assert worker.grab()[0] == handle
        worker.hang_up()

    assert room.job(handle).state is State.READY


def test_what_a_queue_allows_counts_more_than_the_default_of_the_operator():
    """G37"""
    room = Room(attempts_max=-1)
    room.ask(SetQueue(queue="f", policy=QueuePolicy(attempts_max=1)))
    handle = room.gearman().submit()
    worker = room.worker()
    worker.grab()
    worker.hang_up()

    assert room.job(handle).state is State.FAILED


def test_exceptions_reach_all_clients_where_the_operator_says_so():
    """G34"""
    room = Room(exceptions=True)
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()
    worker.tell(wire.WORK_EXCEPTION, handle, b"boom")

    assert client.heard() == [(wire.WORK_EXCEPTION, [handle, b"boom"])]


def test_who_goes_to_sleep_beside_work_is_woken_at_once(room):
    """G27"""
    worker = room.worker()
    room.gearman().submit()

    assert worker.tell(wire.PRE_SLEEP) == [(wire.NOOP, [])]


def test_who_goes_to_sleep_after_an_error_is_woken_once(room):
    """G27"""
    worker = room.worker()
    assert error(worker.tell(wire.WORK_COMPLETE, b"H:here:" + b"0" * 32, b"late"))

    assert worker.tell(wire.PRE_SLEEP) == [(wire.NOOP, [])]
    assert worker.tell(wire.PRE_SLEEP) == []


def test_one_wake_up_until_the_next_sleep(room):
    """G27"""
    client, worker = room.gearman(), room.worker()
    assert worker.tell(wire.PRE_SLEEP) == []

    client.submit()
    client.submit()

    assert worker.heard() == [(wire.NOOP, [])]


def test_as_many_sleepers_wake_as_there_are_jobs(room):
    """G27"""
    client = room.gearman()
    workers = [room.worker() for _ in range(3)]
    for worker in workers:
        worker.tell(wire.PRE_SLEEP)

    client.submit()

    assert [worker.heard() for worker in workers] == [[(wire.NOOP, [])], [], []]


def test_sleepers_left_out_are_woken_when_nobody_takes_the_job(room):
    """G27"""
    client, lazy, keen = room.gearman(), room.worker(), room.worker()
    lazy.tell(wire.PRE_SLEEP)
    keen.tell(wire.PRE_SLEEP)
    client.submit()
    assert lazy.heard() == [(wire.NOOP, [])]

    room.dispatcher.keep_house()  # the server does this once a second

    assert keen.heard() == [(wire.NOOP, [])]


def test_a_grab_ends_the_sleep(room):
    """G27"""
    client, worker = room.gearman(), room.worker()
    worker.tell(wire.PRE_SLEEP)
    worker.grab()

    client.submit()

    assert worker.heard() == []


def test_a_sleeper_hears_of_functions_it_learns_in_its_sleep(room):
    """G27"""
    client, worker = room.gearman(), room.worker(b"f")
    worker.tell(wire.PRE_SLEEP)
    worker.tell(wire.CAN_DO, b"g")
    worker.tell(wire.CANT_DO, b"f")

    client.submit(b"f")
    forgotten = worker.heard()
    client.submit(b"g")

    assert forgotten == []
    assert worker.heard() == [(wire.NOOP, [])]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_sleeper_without_functions_hears_of_the_first_it_learns_and_of_no_other(room, forgets):
    """G27"""
    client = room.gearman()
    worker = room.worker(b"f") if forgets else room.gearman()
    worker.tell(wire.PRE_SLEEP)
    worker.tell(wire.RESET_ABILITIES)

    client.submit(b"f")
    client.submit(b"other")
    deaf = worker.heard()
    worker.tell(wire.CAN_DO, b"g")
    client.submit(b"g")

    assert deaf == []
    assert worker.heard() == [(wire.NOOP, [])]


def test_a_grab_ends_the_sleep_of_a_worker_without_functions(room):
    """G27"""
    client, worker = room.gearman(), room.worker()
    worker.tell(wire.RESET_ABILITIES)
    worker.tell(wire.PRE_SLEEP)
    worker.grab()
    worker.tell(wire.CAN_DO, b"g")

    client.submit(b"g")

    assert worker.heard() == []


def test_a_wake_up_comes_behind_the_answer_that_made_the_worker_sleep(room):
    """G7, G27: else it takes the wake-up for an old one, and sleeps beside work."""
    client, peer = room.gearman(), room.worker()
    peer.give(
        wire.encode_request(wire.SUBMIT_JOB_BG, b"other", b"", b"")
        + wire.encode_request(wire.GRAB_JOB)
        + wire.encode_request(wire.PRE_SLEEP)
    )

    client.give(wire.encode_request(wire.SUBMIT_JOB, b"f", b"", b""))
    room.run()

    assert [kind for kind, _ in peer.heard()] == [wire.JOB_CREATED, wire.NO_JOB, wire.NOOP]


def test_a_sleeper_of_a_paused_queue_is_woken_when_it_goes_on(room):
    """G27"""
    client, worker = room.gearman(), room.worker()
    client.submit()
    room.ask(SetQueue(queue="f", paused=True))
    assert worker.grab() == []
    assert worker.tell(wire.PRE_SLEEP) == []

    room.ask(SetQueue(queue="f", paused=False))

    assert worker.heard() == [(wire.NOOP, [])]


@pytest.mark.parametrize(
    ("kind", "answer", "shown"),
    [
        (wire.GRAB_JOB, wire.JOB_ASSIGN, [b"f", b"d\0d"]),
        (wire.GRAB_JOB_UNIQ, wire.JOB_ASSIGN_UNIQ, [b"f", b"u", b"d\0d"]),
        (wire.GRAB_JOB_ALL, wire.JOB_ASSIGN_UNIQ, [b"f", b"u", b"d\0d"]),
    ],
)
def test_each_grab_has_its_own_assignment(room, kind, answer, shown):
    """G28"""
    handle = room.gearman().submit(b"f", b"u", b"d\0d")

    assert room.worker().tell(kind) == [(answer, [handle, *shown])]


@pytest.mark.parametrize("kind", GRABS)
def test_no_job_is_said_where_there_is_none(room, kind):
    """G28"""
    assert room.worker().tell(kind) == [(wire.NO_JOB, [])]


REPORTS = [
    (wire.WORK_STATUS, b"1", b"2"),
    (wire.WORK_DATA, b"x"),
    (wire.WORK_WARNING, b"x"),
    (wire.WORK_COMPLETE, b"x"),
    (wire.WORK_FAIL,),
    (wire.WORK_EXCEPTION, b"x"),
]


@pytest.mark.parametrize("report", REPORTS)
def test_nobody_reports_on_a_job_of_another(room, report):
    """G29"""
    client, worker, thief = room.gearman(), room.worker(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    assert error(thief.tell(report[0], handle, *report[1:])) == b"JOB_NOT_FOUND"
    assert client.heard() == []
    assert room.job(handle).state is State.LEASED


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("handle", [b"", b"H:x:1", b"H:x:" + b"0" * 32, b"\xff" * 40, b"x" * 5000])
def test_a_report_on_no_job_is_an_error(room, report, handle):
    """G29"""
    assert error(room.worker().tell(report[0], handle, *report[1:])) == b"JOB_NOT_FOUND"


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_after_the_end_is_an_error(room, report):
    """G29"""
    worker = room.worker()
    handle = room.gearman().submit()
    worker.grab()
    worker.tell(wire.WORK_COMPLETE, handle, b"")

    assert error(worker.tell(report[0], handle, *report[1:])) == b"JOB_NOT_FOUND"


@pytest.mark.parametrize(
    ("numerator", "denominator", "stored"),
    [
        (b"1", b"10", (b"1", b"10")),
        (b"0.5", b"1.0", (b"0", b"1")),
        (b"", b"", (b"0", b"0")),
        (b"12x", b"-3", (b"12", b"0")),
        (b"9" * 5000, b"1", (b"9" * 18, b"1")),
    ],
)
def test_a_status_is_passed_on_as_sent_and_stored_as_whole_numbers(
    room, numerator, denominator, stored
):
    """G30"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    worker.tell(wire.WORK_STATUS, handle, numerator, denominator)

    assert client.heard() == [(wire.WORK_STATUS, [handle, numerator, denominator])]
    answer = client.tell(wire.GET_STATUS, handle)
    assert answer == [(wire.STATUS_RES, [handle, b"1", b"1", *stored])]


def test_pieces_and_warnings_arrive_in_order_and_untouched(room):
    """G31"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    worker.give(
        wire.encode_request(wire.WORK_DATA, handle, b"\0one\0")
        + wire.encode_request(wire.WORK_WARNING, handle, b"")
        + wire.encode_request(wire.WORK_DATA, handle, b"two")
        + wire.encode_request(wire.WORK_COMPLETE, handle, b"")
    )
    room.run()

    assert client.heard() == [
        (wire.WORK_DATA, [handle, b"\0one\0"]),
        (wire.WORK_WARNING, [handle, b""]),
        (wire.WORK_DATA, [handle, b"two"]),
        (wire.WORK_COMPLETE, [handle, b""]),
    ]


def test_the_result_reaches_every_client_that_waits(room):
    """G32"""
    clients = [room.gearman() for _ in range(3)]
    (handle,) = {client.submit(b"f", b"u", b"", wire.SUBMIT_JOB) for client in clients}
    worker = room.worker()
    worker.grab()

    worker.tell(wire.WORK_COMPLETE, handle, b"a\0b")

    assert [client.heard() for client in clients] == [[(wire.WORK_COMPLETE, [handle, b"a\0b"])]] * 3


def test_a_reported_failure_is_final(room):
    """G33"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    worker.give(b"\0REQ\0\0\0\x0e" + (len(handle) + 1).to_bytes(4, "big") + handle + b"\0")
    room.run()

    assert client.take() == b"\0RES\0\0\0\x0e" + len(handle).to_bytes(4, "big") + handle
    assert worker.grab() == []
    assert room.job(handle).state is State.FAILED


def test_an_exception_is_sent_to_who_asked_for_exceptions(room):
    """G34"""
    keen, plain, worker = room.gearman(), room.gearman(), room.worker()
    assert keen.tell(wire.OPTION_REQ, b"exceptions") == [(wire.OPTION_RES, [b"exceptions"])]
    handle = keen.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    plain.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    worker.grab()

    worker.tell(wire.WORK_EXCEPTION, handle, b"it broke")

    assert keen.heard() == [(wire.WORK_EXCEPTION, [handle, b"it broke"])]
    assert plain.take() == b"\0RES\0\0\0\x0e" + len(handle).to_bytes(4, "big") + handle


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (Failure("broken", "it broke: größer"), "it broke: größer".encode()),
        (Failure("broken", "", b"\xff\x00"), b"\xff\x00"),
        (Failure("broken", "it broke", b'{"line":7}'), b"it broke"),
        (failure_from_bytes("broken", b"\xff\x00 it broke"), b"\xff\x00 it broke"),
        (failure_from_bytes("broken", "é".encode() * 50_000), "é".encode() * 50_000),
    ],
)
@pytest.mark.parametrize("retry", [False, True])
def test_what_a_worker_of_another_protocol_says_of_a_failure_is_an_exception(
    room, failure, text, retry
):
    """G34: as soon as it is the end."""
    keen, plain = room.gearman(), room.gearman()
    keen.tell(wire.OPTION_REQ, b"exceptions")
    handle = keen.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    plain.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    room.ask(SetQueue(queue="f", policy=QueuePolicy(attempts_max=1)))
    room.ask(Claim(queues=("f",), holder=Holder("native", "w"), tokens=("t",)))

    job_id = room.job(handle).job_id
    room.ask(Fail(job_id=job_id, proof=ByToken("t"), failure=failure, retry=retry))

    assert keen.heard() == [(wire.WORK_EXCEPTION, [handle, text])]
    assert plain.heard() == [(wire.WORK_FAIL, [handle])]


def test_a_failure_without_a_reason_is_no_exception(room):
    """G33, G34"""
    keen, worker = room.gearman(), room.worker()
    keen.tell(wire.OPTION_REQ, b"exceptions")
    handle = keen.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    worker.tell(wire.WORK_FAIL, handle)

    assert keen.heard() == [(wire.WORK_FAIL, [handle])]


def test_a_job_that_ran_out_of_attempts_is_no_exception(room):
    """G34, G37: no worker said anything."""
    keen = room.gearman()
    keen.tell(wire.OPTION_REQ, b"exceptions")
    handle = keen.submit(kind=wire.SUBMIT_JOB)
    room.ask(SetQueue(queue="f", policy=QueuePolicy(attempts_max=1)))
    worker = room.worker()
    worker.grab()

    worker.hang_up()

    assert keen.heard() == [(wire.WORK_FAIL, [handle])]


def test_a_failure_after_an_exception_is_not_held_against_the_worker(room):
    """G35"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    assert worker.tell(wire.WORK_EXCEPTION, handle, b"it broke") == []
    assert worker.tell(wire.WORK_FAIL, handle) == []

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    assert error(worker.tell(wire.WORK_FAIL, handle)) == b"JOB_NOT_FOUND"


def test_a_failure_counts_when_the_job_is_handed_out_once_more(room):
    """G35"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit()
    worker.grab()
    worker.tell(wire.WORK_EXCEPTION, handle, b"it broke")
    room.ask(Requeue(job_id=room.job(handle).job_id))
    assert worker.grab()[0] == handle

    assert worker.tell(wire.WORK_FAIL, handle) == []

    assert room.job(handle).state is State.FAILED


def test_exceptions_are_remembered_for_a_bounded_number_of_jobs(room):
    """G35"""
    worker = room.worker()

    for number in range(500):
        worker.tell(wire.WORK_EXCEPTION, b"H:x:%032d" % number, b"")

    assert len(worker.session._excepted) <= 64


def test_a_cancelled_job_has_one_ending_and_its_worker_is_refused(room):
    """G36"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()

    room.ask(Cancel(job_ids=(room.job(handle).job_id,)))
    answers = worker.tell(wire.WORK_COMPLETE, handle, b"too late")

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    assert error(answers) == b"JOB_NOT_FOUND"
    assert room.job(handle).state is State.CANCELLED


def test_a_lost_worker_gives_its_job_back_at_once(room):
    """G37"""
    client, worker, other = room.gearman(), room.worker(), room.worker()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    last = client.submit()
    worker.grab()
    worker.tell(wire.WORK_STATUS, handle, b"5", b"10")
    client.heard()
    assert other.grab()[0] == last
    other.tell(wire.PRE_SLEEP)

    worker.hang_up()

    assert other.heard() == [(wire.NOOP, [])]
    status = client.tell(wire.GET_STATUS, handle)
    assert status == [(wire.STATUS_RES, [handle, b"1", b"0", b"0", b"0"])]
    assert other.grab()[0] == handle
    other.tell(wire.WORK_COMPLETE, handle, b"r")
    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])]
    reasons = [attempt.reason for attempt in room.job(handle).attempts]
    assert reasons == [EndReason.LOST, EndReason.COMPLETED]


def test_a_job_that_came_back_stands_at_the_tail_of_its_priority(room):
    """G37"""
    client, worker, other = room.gearman(), room.worker(), room.worker()
    first = client.submit()
    second = client.submit()
    worker.grab()

    worker.hang_up()

    assert [other.grab()[0], other.grab()[0]] == [second, first]


def test_the_fifth_lost_worker_is_the_last(room):
    """G37"""
    client = room.gearman()
    handle = client.submit(kind=wire.SUBMIT_JOB)

    for _ in range(5):
        assert client.heard() == []
        worker = room.worker()
        assert worker.grab()[0] == handle
        worker.hang_up()

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    job = room.job(handle)
    assert (job.state, job.reason, job.attempts_used) == (State.FAILED, "out_of_attempts", 5)


def test_a_queue_may_allow_attempts_without_end(room):
    """G37"""
    room.ask(SetQueue(queue="f", policy=QueuePolicy(attempts_max=-1)))
    handle = room.gearman().submit()

    for _ in range(20):
        worker = room.worker()
        assert worker.grab()[0] == handle
        worker.hang_up()

    assert room.job(handle).state is State.READY


def test_all_jobs_of_a_lost_connection_come_back(room):
    """G37"""
    client, worker = room.gearman(), room.worker()
    handles = {client.submit() for _ in range(10)}
    for _ in handles:
        worker.grab()

    worker.hang_up()

    other = room.worker()
    assert {other.grab()[0] for _ in handles} == handles


def test_a_job_that_never_reached_its_worker_is_not_charged(room):
    """G38"""
    client, worker = room.gearman(), room.worker()
    client.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b""))
    worker.give(wire.encode_request(wire.GRAB_JOB))  # answered when the submit is on disk

    worker.hang_up()

    ((_, (handle,)),) = client.heard()
    job = room.job(handle)
    assert worker.take() == b""
    assert (job.state, job.attempts_used) == (State.READY, 0)
    assert [attempt.reason for attempt in job.attempts] == [EndReason.RELEASED]


def test_a_lost_connection_is_forgotten_whole(room):
    """G37"""
    worker = room.worker()
    worker.tell(wire.PRE_SLEEP)

    worker.hang_up()
    worker.session.lost()

    assert not room.hall.sessions
    assert room.dispatcher.sleepers.count == 0


def test_a_client_id_is_the_workers_name_and_is_cut(room):
    """G39"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit()

    assert worker.tell(wire.SET_CLIENT_ID, b"n" * 200) == []
    worker.grab()

    assert room.job(handle).lease.holder == Holder("gearman", "n" * 127, "10.0.0.2")


# Asking.


@pytest.mark.parametrize(
    "handle",
    [b"", b"H:x:1", b"H:x:" + b"f" * 32, b"H:x:" + b"g" * 32, b"\xff" * 36, b"x" * 64, b"y" * 9999],
)
def test_of_an_unknown_handle_nothing_is_known(room, handle):
    """G40"""
    answer = room.gearman().tell(wire.GET_STATUS, handle)

    assert answer == [(wire.STATUS_RES, [handle, b"0", b"0", b"0", b"0"])]


def test_status_tells_queued_running_and_nothing_after_the_end(room):
    """G40"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit()

    def status():
        ((kind, args),) = client.tell(wire.GET_STATUS, handle)
        assert kind == wire.STATUS_RES
        return args[1:]

    queued = status()
    worker.grab()
    running = status()
    worker.tell(wire.WORK_STATUS, handle, b"3", b"7")
    reported = status()
    worker.tell(wire.WORK_COMPLETE, handle, b"")

    assert queued == [b"1", b"0", b"0", b"0"]
    assert running == [b"1", b"1", b"0", b"0"]
    assert reported == [b"1", b"1", b"3", b"7"]
    assert status() == [b"0", b"0", b"0", b"0"]


def test_status_by_unique_counts_waiting_clients(room):
    """G41"""
    clients = [room.gearman() for _ in range(2)]
    for client in clients:
        handle = client.submit(b"f", b"u\xff", b"", wire.SUBMIT_JOB)
    worker = room.worker()
    worker.grab()
    worker.tell(wire.WORK_STATUS, handle, b"1", b"4")

    answer = worker.tell(wire.GET_STATUS_UNIQUE, b"u\xff")

    expected = [b"u\xff", b"1", b"1", b"1", b"4", b"2"]
    assert answer == [(wire.STATUS_RES_UNIQUE, expected)]


@pytest.mark.parametrize("unique", [b"", b"-", b"nobody", b"x" * 100])
def test_of_an_unknown_unique_nothing_is_known(room, unique):
    """G41"""
    client = room.gearman()
    client.submit(b"f", b"-", b"data")
    client.submit(b"f", b"", b"data")

    answer = client.tell(wire.GET_STATUS_UNIQUE, unique)

    assert answer == [(wire.STATUS_RES_UNIQUE, [unique, b"0", b"0", b"0", b"0", b"0"])]


@pytest.mark.parametrize("data", [b"", b"x", b"\0\0", bytes(range(256))])
def test_an_echo_comes_back_as_it_was(room, data):
    """G42"""
    assert room.gearman().tell(wire.ECHO_REQ, data) == [(wire.ECHO_RES, [data])]


def test_options(room):
    """G43"""
    peer = room.gearman()

    assert peer.tell(wire.OPTION_REQ, b"Exceptions") == [(wire.OPTION_RES, [b"Exceptions"])]
    assert error(peer.tell(wire.OPTION_REQ, b"colour")) == b"UNKNOWN_OPTION"


# What other fronts put in and take out.


def test_a_job_of_another_front_reaches_a_gearman_worker_as_its_bytes(room):
    """G59"""
    item = NewJob(
        job_id="ab12", queue="f", payload=b'{"a": 1}', encoding=Encoding.JSON, id_chosen=True
    )
    room.ask(Submit((item,)))
    worker = room.worker()

    handle, _, data = worker.grab()
    status = worker.tell(wire.GET_STATUS, handle)
    answers = worker.tell(wire.WORK_COMPLETE, handle, b"r")

    assert data == b'{"a": 1}'
    assert status[0][1][1:3] == [b"1", b"1"]
    assert answers == []
    assert room.dispatcher.store.find("ab12").result == b"r"


def test_a_gearman_client_hears_of_work_done_by_another_front(room):
    """G59"""
    client = room.gearman()
    handle = client.submit(kind=wire.SUBMIT_JOB)
    claim = Claim(queues=("f",), holder=Holder("native", "w"), tokens=("t",), term_ms=1000)
    job_id = room.ask(claim).jobs[0].job_id

    room.ask(Complete(job_id=job_id, proof=ByToken("t"), result=b"r"))

    assert client.heard() == [(wire.WORK_COMPLETE, [handle, b"r"])]


def test_thousands_of_clients_may_wait_for_one_job(room):
    """G17: what a client costs may not grow with the square of their number."""
    began = time.process_time()  # other work of this machine does not count
    clients = [room.gearman() for _ in range(3000)]
    for client in clients:
        client.give(wire.encode_request(wire.SUBMIT_JOB, b"f", b"u", b""))
    room.run()
    for client in clients[::2]:
        client.session.lost()
    worker = room.worker()
    handle = worker.grab()[0]

    worker.tell(wire.WORK_COMPLETE, handle, b"r")

    ends = [client.heard()[1:] for client in clients[1::2]]
    assert ends == [[(wire.WORK_COMPLETE, [handle, b"r"])]] * 1500
    assert time.process_time() - began < 20


def test_of_many_requests_in_one_packet_a_turn_does_only_so_many(room):
    """G9"""
    client = room.gearman()
    client.give(wire.encode_request(wire.ECHO_REQ, b"x") * 1_000)
    assert len(client.heard()) == limits.TURN_REQUESTS_MAX

    room.run()

    assert len(client.heard()) == 1_000 - limits.TURN_REQUESTS_MAX


def test_of_many_grabs_in_one_packet_a_turn_does_those_that_make_a_mebibyte(room):
    """G9"""
    client = room.gearman()
    for _ in range(10):
        client.submit(data=bytes(600_000))
    worker = room.worker()

    worker.give(wire.encode_request(wire.GRAB_JOB) * 10)

    assert [kind for kind, _ in worker.heard()] == [wire.JOB_ASSIGN] * 2
    room.run()
    assert [kind for kind, _ in worker.heard()] == [wire.JOB_ASSIGN] * 8

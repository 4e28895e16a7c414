"""Whatever arrives at the Gearman port, its sender gets an answer, and the server goes on."""

import contextlib
import resource
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft_wire
from tests.e2e.gearman_talk import (
    DraftTalk,
    GearmanTalk,
    Talk,
    address_of,
    resident_bytes,
    wait_until,
)
from tests.e2e.serving import serving

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

MIB = 1 << 20
IDLE_COUNT = 10_000
IDLE_COUNT_MIN = 2_000


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):  # noqa: ARG001 - which is chosen first
    folder = tmp_path_factory.mktemp("gearman")
    with serving(folder, "--store", "memory", "--http", "off", "--gearman", "127.0.0.1:0") as it:
        yield it
        assert "internal error" not in it.log()


@pytest.fixture
def talk(served):
    with GearmanTalk(served) as connection:
        yield connection
        assert connection.is_alive()


def header(kind: int, size: int, magic: bytes = b"\0REQ") -> bytes:
    return magic + struct.pack(">II", kind, size)


def code(message) -> bytes:
    kind, args = message
    assert kind == wire.ERROR
    return args[0]


@pytest.mark.parametrize("method", [b"POST", b"GET", b"OPTIONS"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_web_page_cannot_have_a_browser_send_commands(served, talk, method, pieces):
    """G1"""
    submit = wire.encode_request(wire.SUBMIT_JOB_BG, b"evil", b"", b"x")
    body = b"create function evil\r\n" + submit + b"create function evil\r\n"
    head = b"%s / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (method, len(body))
    with GearmanTalk(served) as browser:
        with contextlib.suppress(ConnectionError):
            for piece in (head[:1], head[1:6], head[6:] + body) if pieces > 1 else (head + body,):
                browser.send(piece)
        said = browser.rest()
    talk.send(b"status\r\n")
    shown: list[bytes] = []
    while shown[-1:] != [b"."]:
        shown += talk.next()[1]

    assert said.startswith(b"HTTP/1.1 400 ")
    assert not any(b"evil" in line for line in shown)


@pytest.mark.usefixtures("talk")
def test_a_wrong_magic_is_told_so_and_closed(served):
    """G5"""
    with GearmanTalk(served) as bad:
        bad.send(b"\0NOT a packet, and a lot of what follows" * 1000)

        assert code(bad.next()) == b"INVALID_MAGIC"
        assert bad.is_closed_by_server()


def test_an_unknown_type_and_a_response_are_skipped(talk):
    """G4"""
    talk.send(header(99, 5) + b"12345" + header(wire.NOOP, 0))

    assert [code(talk.next()), code(talk.next())] == [b"INVALID_COMMAND"] * 2


@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize("dialect", ["shipped", "draft"])
def test_a_packet_of_four_gigabytes_costs_no_memory(served, dialect):
    """G6"""
    before = resident_bytes(served)
    size = 15 << 28
    announced = header(7, size) if dialect == "shipped" else b"\0GM0\x04" + struct.pack(">I", size)

    for _ in range(3):
        with GearmanTalk(served) if dialect == "shipped" else DraftTalk(served) as bad:
            bad.send(announced + bytes(100_000))
            answer = bad.next()
            told = code(answer) if dialect == "shipped" else answer.code
            assert told in (b"ARGUMENT_TOO_LARGE", draft_wire.TOO_LARGE)
            assert bad.is_closed_by_server()

    assert resident_bytes(served) - before < 16 * MIB


def test_an_announced_packet_takes_memory_only_as_it_comes(served, talk):
    """G6"""
    before = resident_bytes(served)

    waiting = [GearmanTalk(served) for _ in range(20)]
    for connection in waiting:
        connection.send(header(wire.SUBMIT_JOB, 60 * MIB) + b"f\0u\0")
    assert talk.is_alive()

    assert resident_bytes(served) - before < 16 * MIB
    for connection in waiting:
        connection.close()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.SUBMIT_JOB, b""),
        (wire.SUBMIT_JOB_BG, b"only a function"),
        (wire.WORK_COMPLETE, b""),
        (wire.CAN_DO, b"a\0b"),
        (wire.GET_STATUS, b"\0\0H"),
        (wire.SET_CLIENT_ID, b"a\0b\0c"),
        (wire.SUBMIT_JOB_EPOCH, b"f\0u\0001"),
        (wire.OPTION_REQ, b"\0exceptions"),
    ],
)
def test_missing_arguments_and_nuls_in_odd_places_are_refused(talk, kind, body):
    """G3"""
    talk.send(header(kind, len(body)) + body)

    assert code(talk.next()) == b"INVALID_PACKET"


def test_text_in_the_middle_of_packets_is_answered_as_text(talk):
    """G1"""
    talk.send(header(wire.ECHO_REQ, 1) + b"a" + b"nonsense\r\n" + header(wire.ECHO_REQ, 1) + b"b")

    assert talk.next() == (wire.ECHO_RES, [b"a"])
    assert talk.next()[1][0].startswith(b"ERR UNKNOWN_COMMAND")
    assert talk.next() == (wire.ECHO_RES, [b"b"])


@pytest.mark.usefixtures("talk")
def test_a_line_without_end_is_refused_and_closed(served):
    """G47"""
    with Talk(served) as bad:
        bad.send(b"status" * 5000)

        assert bad.rest().startswith(b"ERR LINE_TOO_LONG ")


def test_a_job_that_one_does_not_hold_cannot_be_completed(served, talk):
    """G29"""
    handle = talk.submit(b"held")
    with GearmanTalk(served).can_do(b"held") as worker:
        worker.grab()

        assert code(talk.tell(wire.WORK_COMPLETE, handle, b"stolen")) == b"JOB_NOT_FOUND"
        assert talk.tell(wire.GET_STATUS, handle)[1][2] == b"1"
        worker.put(wire.WORK_COMPLETE, handle, b"")
        assert worker.is_alive()


@pytest.mark.parametrize("number", [b"9" * 5000, b"-1", b"\xff", b""])
def test_numbers_that_are_none_or_endless_do_no_harm(talk, number):
    """G21 and G26"""
    talk.put(wire.CAN_DO_TIMEOUT, b"numbers", number)
    kind, _ = talk.tell(wire.SUBMIT_JOB_EPOCH, b"numbers", b"", number, b"")
    talk.grab()
    talk.put(wire.RESET_ABILITIES)

    assert kind in (wire.JOB_CREATED, wire.ERROR)


def test_a_client_that_never_reads_is_not_read_on_and_harms_nobody(served, talk):
    """G9"""
    before = resident_bytes(served)
    echo = wire.encode_request(wire.ECHO_REQ, bytes(MIB))

    with GearmanTalk(served, SO_RCVBUF=64 * 1024) as deaf:
        deaf.socket.settimeout(0.5)  # so long without progress: the server has stopped reading
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64:
                deaf.send(echo)
                sent += 1

        assert sent < 64
        assert talk.is_alive()
        assert resident_bytes(served) - before < 64 * MIB


def test_listings_that_nobody_reads_are_not_made(served, talk):
    """G9"""
    submit = wire.encode_request(wire.SUBMIT_JOB_BG, b"listed", b"", b"")
    handles = []
    for _ in range(10):
        talk.send(submit * 200)
        handles += [talk.next()[1][0] for _ in range(200)]
    before = resident_bytes(served)

    with GearmanTalk(served, SO_RCVBUF=64 * 1024) as deaf:
        deaf.send(b"show jobs\n" * 3_000)  # more than 200 MiB of answers

        assert deaf.socket.recv(1, socket.MSG_PEEK)
        assert talk.is_alive()
        assert resident_bytes(served) - before < 64 * MIB
    for handle in handles:
        talk.send(b"cancel job " + handle + b"\n")
    assert {talk.next()[1][0] for _ in handles} == {b"OK"}


def test_a_client_that_lets_results_pile_up_is_closed(served, talk):
    """G9"""
    big = bytes(30 * MIB)
    with (
        GearmanTalk(served, SO_RCVBUF=64 * 1024) as deaf,
        GearmanTalk(served).can_do(b"pile") as worker,
    ):
        deaf.send(wire.encode_request(wire.SUBMIT_JOB, b"pile", b"same", b"") * 12)
        handle = deaf.next()[1][0]
        assert worker.grab()[0] == handle
        worker.put(wire.WORK_COMPLETE, handle, big)
        assert worker.is_alive()

        assert len(deaf.rest()) < 12 * len(big)
        assert talk.is_alive()


def test_one_byte_at_a_time(talk):
    """G2"""
    talk.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet = wire.encode_request(wire.SUBMIT_JOB_BG, b"slowly", b"u", b"data")

    for byte in packet + b"version\n":
        talk.send(bytes((byte,)))

    assert talk.next()[0] == wire.JOB_CREATED
    assert talk.next()[1][0].startswith(b"OK ")


@pytest.mark.parametrize("part", [1, 4, 9, 12, 20])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_in_the_middle_of_a_packet_is_forgotten(served, talk, part, reset):
    """G6"""
    packet = wire.encode_request(wire.SUBMIT_JOB_BG, b"half", b"u", b"data")
    count = len(talk.text(b"workers"))

    bad = GearmanTalk(served)
    if reset:
        bad.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    bad.send(packet[:part])
    bad.close()

    wait_until(lambda: len(talk.text(b"workers")) <= count, "it is gone")
    assert not any(line.startswith(b"half\t") for line in talk.text(b"status"))


@pytest.mark.usefixtures("talk")
def test_a_client_that_closes_its_half_still_gets_its_answers(served):
    """G7"""
    with GearmanTalk(served) as brief:
        brief.put(wire.SUBMIT_JOB_BG, b"brief", b"", b"")
        brief.send(b"status\n")
        brief.socket.shutdown(socket.SHUT_WR)

        assert brief.next()[0] == wire.JOB_CREATED
        assert (
            b"brief\t1\t0\t0\n"
            in brief.rest() + b"\n".join(args[0] for _, args in brief.messages) + b"\n"
        )


def test_ten_thousand_idle_connections_harm_nobody(served, talk):
    """G9"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(IDLE_COUNT, hard - 500)
    assert count >= IDLE_COUNT_MIN, f"the system allows {hard} open files only"
    before = resident_bytes(served)
    idle = []
    try:
        while len(idle) < count:
            idle.append(socket.create_connection(address_of(served), timeout=90))

        wait_until(lambda: len(talk.text(b"workers")) > count, "all are accepted")
        assert talk.is_alive()
        assert resident_bytes(served) - before < count * 16 * 1024
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: len(talk.text(b"workers")) < 100, "all are gone")


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\0REQ", b"\0RES", b"\0GM0", b"\0", b"\n", b"status\n", b"show jobs\n"]),
    st.builds(
        lambda kind, body, extra: header(kind, max(0, len(body) + extra)) + body,
        st.integers(0, 50),
        st.lists(st.sampled_from([b"f", b"u", b"1", b"", b"H:x:1"]), max_size=6).map(b"\0".join),
        st.sampled_from([0, 0, 0, 0, 1, -1, 2**31]),
    ),
    st.builds(
        lambda kind, body: b"\0GM0" + struct.pack(">BI", kind, len(body)) + body,
        st.integers(0, 16),
        st.binary(max_size=20),
    ),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(PIECES, min_size=1, max_size=8))
def test_noise_is_survived(served, pieces):
    """G3, G4 and G5"""
    with Talk(served) as noisy:
        try:
            noisy.send(b"".join(pieces))
            noisy.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was closed already
        noisy.rest()

    with GearmanTalk(served) as control:
        assert control.is_alive()
    assert served.process.poll() is None

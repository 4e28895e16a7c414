"""A WebSocket as nobody should speak it, byte by byte. Silence and stalls are in
tests/unit/net/test_websocket_session.py, where time is ours.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from tests.e2e.serving import SECONDS_MAX, Served, connections_count, wait_until
from tests.e2e.stream_talk import (
    ANSWER,
    HELLO,
    JOBS,
    LOOK,
    SUBMIT,
    WANT,
    WATCH,
    WORK,
    new_id,
    talking,
)
from tests.e2e.test_http_framing import last_request, nginx, place_of  # noqa: F401 - a fixture
from tests.e2e.test_http_hostile import _no_defects  # noqa: F401 - for all tests here, too

UPGRADE = (
    b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: manyhands.1\r\n\r\n"
)


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(Opcode(opcode), data, fin).serialize(mask=mask)


def notes(*found: list) -> bytes:
    """A message, in one frame."""
    return frame(2, msgspec.msgpack.encode(found))


GREETING = notes([HELLO, 1, 1, "hostile"])


class Raw:
    """One end of a connection, of which only bytes are known."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._unread = b""

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.peer.sendall(packet)

    def _read(self, count: int) -> bytes:
        while len(self._unread) < count:
            piece = self.peer.recv(65536)
            if not piece:
                raise EOFError
            self._unread += piece
        found, self._unread = self._unread[:count], self._unread[count:]
        return found

    def head(self) -> bytes:
        """The head of an answer of HTTP."""
        found = b""
        while not found.endswith(b"\r\n\r\n"):
            found += self._read(1)
        return found

    def frame(self) -> tuple[int, bytes]:
        """The next frame of the server's: its opcode and its data."""
        first, length = self._read(2)
        if length >= 126:
            length = int.from_bytes(self._read(2 if length == 126 else 8), "big")
        return first & 15, self._read(length)

    def closing(self) -> tuple[int, str]:
        """The code and the sentence of the close that ends all; then the server hangs up."""
        while True:
            opcode, data = self.frame()
            if opcode == 8:
                with pytest.raises(EOFError):
                    self._read(1)
                return int.from_bytes(data[:2], "big"), data[2:].decode()

    def answers(self, count: int) -> list[list]:
        """So many notes."""
        found: list[list] = []
        while len(found) < count:
            found += msgspec.msgpack.decode(self.frame()[1])
        return found


@contextmanager
def connected(served: Served, *packets: bytes) -> Iterator[Raw]:
    with socket.create_connection(place_of(served), SECONDS_MAX) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw = Raw(peer)
        raw.send(*packets)
        yield raw


@contextmanager
def opened(served: Served) -> Iterator[Raw]:
    """A stream that has said hello."""
    with connected(served, UPGRADE + GREETING) as raw:
        assert raw.head().startswith(b"HTTP/1.1 101 ")
        assert raw.answers(1)[0][:3] == [ANSWER, 1, None]
        yield raw


# Opening.


@pytest.mark.parametrize(
    ("found", "instead", "status"),
    [
        (b"HTTP/1.1", b"HTTP/1.0", 426),
        (b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 12", 426),
        (b"Sec-WebSocket-Version: 13\r\n", b"", 426),
        (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Key: short", 400),
        (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"", 400),
        (b"manyhands.1", b"manyhands.9", 426),
        (b"Sec-WebSocket-Protocol: manyhands.1\r\n", b"", 426),
        (b"Upgrade: websocket", b"Upgrade: nonsense", 426),
        (b"Upgrade: websocket", b"Upgrade: h2c, websocket/13", 426),
        (b"Connection: Upgrade", b"Connection: close, Upgrade", 426),
        (b"Connection: Upgrade\r\n", b"", 426),
        (b"GET", b"POST", 405),
        (b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nhello", 426),
        (b"\r\n\r\n", b"\r\nOrigin: https://evil.example\r\n\r\n", 403),
        (b"Host: localhost", b"Host: evil.example", 421),
        (b"/api/stream", b"/api/streams", 404),
    ],
)
def test_st1_what_is_no_opening_of_a_stream_is_refused(served, found, instead, status):
    with connected(served, UPGRADE.replace(found, instead, 1)) as raw:
        head = raw.head()

    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (b"upgrade: websocket" in head) == (status == 426)
    assert (b"sec-websocket-version: 13" in head) == (status == 426)


def test_a_stream_is_opened_on_a_connection_where_another_request_was_declined(served):
    declined = UPGRADE.replace(b"manyhands.1", b"manyhands.9")
    with connected(served, declined) as raw:
        head = raw.head()
        length = int(head.partition(b"content-length: ")[2].split()[0])
        raw._read(length)
        raw.send(UPGRADE + GREETING)

        assert raw.head().startswith(b"HTTP/1.1 101 ")
        assert raw.answers(1)[0][0] == ANSWER


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bytes_right_behind_the_request_are_part_of_the_stream(served, queue, size):
    data = UPGRADE + GREETING + notes([SUBMIT, 2, [[new_id(), queue, b"x"]]])
    with connected(served, *(data[at : at + size] for at in range(0, len(data), size))) as raw:
        assert raw.head().startswith(b"HTTP/1.1 101 ")
        assert [note[1:3] for note in raw.answers(2)] == [[1, None], [2, None]]


def test_an_upgrade_may_stand_behind_other_requests(served):
    plain = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(served, plain * 3 + UPGRADE + GREETING) as raw:
        for _ in range(3):
            head = raw.head()
            assert head.startswith(b"HTTP/1.1 200 ")
            raw._read(int(head.partition(b"content-length: ")[2].split()[0]))

        assert raw.head().startswith(b"HTTP/1.1 101 ")
        assert raw.answers(1)[0][1] == 1


def test_a_request_behind_an_accepted_upgrade_is_no_request(served, api, queue):
    """It is read as a frame, which it is not."""
    body = b'{"queue":"%s"}' % queue.encode()
    smuggled = (
        b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    with connected(served, UPGRADE + smuggled + last_request()) as raw:
        assert raw.head().startswith(b"HTTP/1.1 101 ")
        assert raw.closing()[0] == 1002

    assert queue not in [row["name"] for row in api.get("queues")]


# Frames.

_LARGE = (1 << 40).to_bytes(8, "big")


FORBIDDEN = [
    (frame(2, b"x", mask=False), 1002),
    (b"\xc2\x81\0\0\0\0x", 1002),
    (b"\xa2\x81\0\0\0\0x", 1002),
    (b"\x92\x81\0\0\0\0x", 1002),
    (b"\x83\x80\0\0\0\0", 1002),
    (b"\x8f\x80\0\0\0\0", 1002),
    (frame(0, b"x"), 1002),
    (frame(2, b"x", fin=False) + frame(2, b"y"), 1002),
    (b"\x89\xfe\x00\x7e", 1002),
    (b"\x09\x80\0\0\0\0", 1002),
    (b"\x82\xff" + _LARGE, 1009),
    (b"\x82\xff" + b"\xff" * 8, 1009),
    (frame(1, b"\xff\xfe"), 1007),
    (frame(1, b"text"), 1002),
    (frame(8, b"\x00\x01"), 1002),
    (frame(8, b"\x03\xe8\xff\xff"), 1007),
    (frame(2, b""), 1002),
    (frame(2, b"\x93\x01\x02"), 1002),
]


@pytest.mark.parametrize(("sent", "code"), FORBIDDEN, ids=map(str, range(len(FORBIDDEN))))
def test_st2_what_the_standard_forbids_ends_the_stream_with_a_code(served, sent, code):
    with opened(served) as raw:
        raw.send(sent + notes([LOOK, 2, []]))

        found, sentence = raw.closing()

    assert (found, bool(sentence)) == (code, True)


def test_st2_fragments_without_end_are_cut_off(served):
    with opened(served) as raw:
        raw.send(frame(2, b"\x91", fin=False))
        raw.send(frame(0, fin=False) * 10_001)

        assert raw.closing()[0] == 1009


def test_st2_a_message_in_fragments_with_pings_between_them_is_a_message(served):
    message = msgspec.msgpack.encode([[LOOK, 2, []]])
    with opened(served) as raw:
        for at in range(len(message)):
            raw.send(frame(0 if at else 2, message[at : at + 1], fin=False))
            raw.send(frame(9, b"%d" % at))
            assert raw.frame() == (10, b"%d" % at)
        raw.send(frame(0))

        assert raw.answers(1) == [[ANSWER, 2, None, []]]


def test_st2_a_flood_of_pings_keeps_nobody_else_waiting(served, api):
    flood = frame(9, b"x" * 100) * 20_000 + frame(9, b"last")
    with opened(served) as raw:
        sender = threading.Thread(target=raw.send, args=(flood,))
        sender.start()
        assert api.get("queues") is not None
        while raw.frame() != (10, b"last"):
            pass
        sender.join(SECONDS_MAX)
        raw.send(notes([LOOK, 2, []]))

        assert raw.answers(1) == [[ANSWER, 2, None, []]]


def test_a_flood_of_empty_messages_keeps_nobody_else_waiting(served, api):
    flood = notes() * 50_000 + notes([LOOK, 2, []])
    with opened(served) as raw:
        sender = threading.Thread(target=raw.send, args=(flood,))
        sender.start()
        assert api.get("queues") is not None
        assert raw.answers(1) == [[ANSWER, 2, None, []]]
        sender.join(SECONDS_MAX)


def test_a_message_with_very_many_notes_is_dealt_with_in_turns(served, api):
    many = [[LOOK, number, []] for number in range(1, 20_001)]
    with opened(served) as raw:
        raw.send(notes(*many))
        assert api.get("queues") is not None

        assert [note[1] for note in raw.answers(20_000)] == [note[1] for note in many]


# Peers that do not read.


@contextmanager
def small_window(served: Served) -> Iterator[Raw]:
    """A stream whose peer takes little before it has to read."""
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(SECONDS_MAX)
        peer.connect(place_of(served))
        raw = Raw(peer)
        raw.send(UPGRADE + GREETING)
        assert raw.head().startswith(b"HTTP/1.1 101 ")
        raw.answers(1)
        yield raw


def test_a_worker_that_does_not_read_is_given_no_more_than_it_takes(served, api, queue):
    with small_window(served) as raw, talking(served) as client:
        for _ in range(10):
            client.submit(*([new_id(), queue, bytes(100_000)] for _ in range(10)))
        raw.send(notes([WANT, 2, [queue]], [WORK, 3, [], [], [], [], [100, 0]]))
        wait_until(lambda: api.get(f"queues/{queue}")["counts"]["leased"] > 0)

        def settled() -> bool:
            before = api.get(f"queues/{queue}")["counts"]["leased"]
            client.result(LOOK, [])
            return api.get(f"queues/{queue}")["counts"]["leased"] == before

        wait_until(settled)
        assert api.get(f"queues/{queue}")["counts"]["leased"] < 100
        jobs: list = []
        while len(jobs) < 100:
            for note in raw.answers(1):
                jobs += note[1] if note[0] == JOBS else []
        assert len({row[0] for row in jobs}) == 100


def test_st19_a_watcher_that_does_not_read_gets_all_ends_when_it_does(served, api, queue):
    with small_window(served) as raw, talking(served, "w1") as talk:
        ids = talk.submit(*([new_id(), queue, b"x"] for _ in range(60)))
        raw.send(notes([WATCH, 2, ids]))
        assert raw.answers(1) == [[ANSWER, 2, None, None]]
        talk.result(WANT, [queue])
        talk.result(WORK, [], [], [], [], [60, 0])
        for row in talk.jobs(60):
            assert talk.result(WORK, [[row[0], row[2], bytes(200_000), "binary"]]) == []

        assert api.get("about")["memory"]["held_bytes"]["answers"] < 4 * 1024 * 1024
        ended: list = []
        while len(ended) < 60:
            ended += [note[1] for note in raw.answers(1)]
        assert sorted(row[0] for row in ended) == sorted(ids)
        assert {len(row[2]) for row in ended} == {200_000}


def test_notes_of_a_peer_that_never_reads_its_answers_are_bounded(served, api):
    """It is not read from while it leaves its answers."""
    many = notes(*([99, number, None] for number in range(1, 2_000)))
    with small_window(served) as raw:
        raw.peer.settimeout(0.5)
        with pytest.raises(TimeoutError):
            raw.peer.sendall(many * 2_000)

        assert api.get("about")["memory"]["held_bytes"]["answers"] < 64 * 1024 * 1024
        assert api.get("queues") is not None


# Ends.


def test_a_close_right_behind_a_request_comes_after_its_answer(served, queue):
    with opened(served) as raw:
        raw.send(notes([SUBMIT, 2, [[new_id(), queue, b"x"]]]) + frame(8, b"\x03\xe8bye"))

        assert raw.answers(1) == [[ANSWER, 2, None, []]]
        assert raw.closing()[0] == 1000


def test_frames_behind_a_close_are_not_read(served, api, queue):
    with opened(served) as raw:
        raw.send(frame(8) + notes([SUBMIT, 2, [[new_id(), queue, b"x"]]]))

        assert raw.frame() == (8, b"")
        with pytest.raises(EOFError):
            raw.frame()
    assert queue not in [row["name"] for row in api.get("queues")]


def test_a_peer_that_closes_its_half_gets_its_answers(served, queue):
    with opened(served) as raw:
        raw.send(notes([SUBMIT, 2, [[new_id(), queue, b"x"]]]))
        raw.peer.shutdown(socket.SHUT_WR)

        assert raw.answers(1) == [[ANSWER, 2, None, []]]
        assert raw.closing()[0] == 1000


@pytest.mark.parametrize("count", [0, 1, 5, 50])
def test_a_peer_that_resets_is_forgotten(served, count):
    address = served.addresses["http"]
    before = connections_count(address)
    with opened(served) as raw:
        assert connections_count(address) == before + 1
        raw.send(frame(2, b"x" * 90)[:count])
        linger = struct.pack("ii", 1, 0)
        raw.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    wait_until(lambda: connections_count(address) <= before)


def test_a_stream_goes_through_a_proxy(nginx, queue):  # noqa: F811 - the fixture
    host, port = nginx
    behind = SimpleNamespace(addresses={"http": f"{host}:{port}"})
    with talking(behind, "w1") as talk:
        ids = talk.submit([new_id(), queue, bytes(500_000)], watch=True)
        talk.result(WANT, [queue])
        talk.result(WORK, [], [], [], [], [1, 0])
        row = talk.jobs(1)[0]
        talk.result(WORK, [[row[0], row[2], b"done", "text"]])

        assert row[5] == bytes(500_000)
        assert talk.next(23)[1][:3] == [ids[0], "completed", b"done"]

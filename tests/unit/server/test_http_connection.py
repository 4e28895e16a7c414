"""One HTTP connection with time and sockets of its own: slow peers, and the short way."""

import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from manyhands.server.http_connection import TURN_BYTES, Connection, ErrorCount
from manyhands.server.http_peer import Proxies
from manyhands.server.http_short_way import Request, ShortWay


class Socket(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 5), "sockname": ("127.0.0.1", 7700)})
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Room:
    """A connection whose short way leads to a list of requests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: 1_000.0  # it stands still, however long a test takes
        self.asked: list[Request] = []
        config = uvicorn.Config(lambda *_: None, http=Connection, ws="none", log_config=None)
        self.socket = Socket()
        self.connection = Connection(
            short_way=ShortWay({b"add": self.asked.append}, 100),
            proxies=Proxies(None),
            errors=ErrorCount(),
            config=config,
            server_state=ServerState(),
            app_state={},
            _loop=self.loop,
        )
        self.connection.connection_made(self.socket)

    def turn(self) -> None:
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def answer(self) -> tuple[int, str]:
        head, _, body = self.socket.written.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.fixture
def room():
    found = Room()
    yield found
    tasks = asyncio.all_tasks(found.loop)  # of requests that took the long way
    for task in tasks:
        task.cancel()
    found.loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
    found.loop.close()


def post(length: int, body: bytes = b"") -> bytes:
    return b"POST /add/q HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + body


def test_a_whole_request_takes_the_short_way(room):
    room.connection.data_received(post(5, b"hel"))
    assert room.asked == []
    room.connection.data_received(b"lo")

    [request] = room.asked
    assert (request.head.method, request.head.path) == ("POST", b"/add/q")
    assert request.body == b"hello"
    request.send(200, b"{}", ((b"x-a", b"b"),))
    assert room.socket.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert room.socket.written.endswith(b"\r\n\r\n{}")
    assert b"x-a: b\r\n" in room.socket.written
    assert not room.socket.closed


def test_a_second_answer_to_the_same_request_is_not_sent(room):
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"1", ())
    before = room.socket.written
    room.asked[0].send(200, b"2", ())

    assert room.socket.written == before


def test_a_slow_body_is_given_up(room):
    room.connection.data_received(post(50, b"x"))
    now = room.loop.time()

    room.connection.lose_patience(now + 29)
    assert room.socket.written == b""
    room.connection.lose_patience(now + 32)

    assert room.answer() == (408, "too_slow")
    assert room.socket.closed
    assert room.asked == []


def test_a_slow_head_is_given_up(room):
    room.connection.data_received(b"POST /add/q HTTP/1.1\r\nHo")

    room.connection.lose_patience(room.loop.time() + 31)

    assert room.answer() == (408, "too_slow")


def test_a_request_that_is_being_answered_may_take_its_time(room):
    room.connection.data_received(post(0))

    room.connection.lose_patience(room.loop.time() + 1000)

    assert room.socket.written == b""


def test_a_body_longer_than_allowed_is_refused_as_soon_as_it_is(room):
    head = b"POST /add/q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    room.connection.data_received(head + b"65\r\n" + b"x" * 101 + b"\r\n")

    assert room.answer() == (413, "too_large")
    assert room.asked == []


@pytest.mark.parametrize(("error", "broken"), [(ConnectionResetError(), True), (None, False)])
def test_a_connection_that_breaks_right_after_an_answer_is_told_of(room, error, broken):
    told = []
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    room.connection.expect_receipt(lambda: told.append(1))

    room.connection.connection_lost(error)

    assert bool(told) is broken


def test_who_asks_again_has_read_the_last_answer(room):
    told = []
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    room.connection.expect_receipt(lambda: told.append(1))
    room.connection.data_received(post(0))

    room.connection.connection_lost(ConnectionResetError())

    assert told == []


def test_every_answer_that_a_broken_connection_swallowed_is_told_of(room):
    told = []
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    for number in (1, 2):
        room.connection.expect_receipt(lambda number=number: told.append(number))

    room.connection.connection_lost(ConnectionResetError())

    assert told == [1, 2]


def test_a_connection_that_rests_too_long_is_closed_and_one_that_is_used_is_not(room):
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    now = room.loop.time()

    room.connection.lose_patience(now + room.connection.timeout_keep_alive - 1)
    assert not room.socket.closed
    room.connection.data_received(post(0))
    room.connection.lose_patience(now + 1000)
    assert not room.socket.closed
    room.asked[1].send(200, b"{}", ())
    room.connection.lose_patience(now + 1000)

    assert room.socket.closed


@pytest.mark.parametrize("path", [b"/add/q", b"/queues"])
def test_two_hosts_are_one_too_many(room, path):
    room.connection.data_received(b"GET %s HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" % path)

    assert room.answer() == (400, "invalid_request")
    assert room.asked == []
    assert room.socket.closed


def test_what_comes_after_a_close_is_not_listened_to(room):
    head = b"GET /add/q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    room.connection.data_received(head)
    room.asked[0].send(200, b"{}", ())
    assert room.socket.closed
    room.connection.data_received(post(0))

    assert len(room.asked) == 1


def test_a_body_in_many_pieces_is_put_together(room):
    room.connection.data_received(post(60))
    for number in range(20):
        room.connection.data_received(b"%03d" % number)

    assert room.asked[0].body == b"".join(b"%03d" % number for number in range(20))


def test_an_ordinary_answer_has_the_same_head_as_any_other(room):
    room.connection.short_way.set_date(b"today")
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    first, room.socket.written = room.socket.written, b""
    room.connection.server_state.default_headers = [(b"date", b"today")]
    room.connection.data_received(post(0))
    room.asked[1].send(200, b"{}", ((b"x-a", b"b"),))

    lines = set(room.socket.written.split(b"\r\n")) - {b"x-a: b"}
    assert set(first.split(b"\r\n")) == lines


# Heads that were seen before are not read again.


def test_the_same_head_once_more_is_the_same_request_with_another_body(room):
    for body in (b"first", b"again"):
        room.connection.data_received(post(5, body))
        room.asked[-1].send(200, b"{}", ())

    assert [request.body for request in room.asked] == [b"first", b"again"]
    assert room.asked[0].head is room.asked[1].head


@pytest.mark.parametrize(
    "cut", [1, 20, len(post(5)), len(post(5)) + 2], ids=["begun", "head", "body", "half"]
)
def test_a_known_head_that_comes_in_pieces_is_the_same_request(room, cut):
    for _ in range(3):
        data = post(5, b"hello")
        room.connection.data_received(data[:cut])
        room.connection.data_received(data[cut:])
        room.asked[-1].send(200, b"{}", ())
        room.connection.data_received(data)
        room.asked[-1].send(200, b"{}", ())

    assert [request.body for request in room.asked] == [b"hello"] * 6
    assert room.socket.written.count(b"200 OK") == 6
    assert not room.socket.closed


def test_a_known_head_with_more_behind_it_is_two_requests(room):
    room.connection.data_received(post(2, b"ab"))
    room.asked[0].send(200, b"{}", ())
    room.connection.data_received(post(2, b"cd") + post(2, b"ef"))

    assert [request.body for request in room.asked] == [b"ab", b"cd"]
    assert len(room.connection.pipeline) == 1


def test_bytes_of_a_body_are_not_taken_for_a_known_head(room):
    request = post(0)
    room.connection.data_received(request)
    room.asked[0].send(200, b"{}", ())
    room.connection.data_received(post(len(request)))
    room.connection.data_received(request)

    assert [found.body for found in room.asked] == [b"", request]


@pytest.mark.parametrize(
    "line", [b"Connection: close", b"Transfer-Encoding: chunked"], ids=["close", "chunked"]
)
def test_what_is_unusual_about_a_head_is_read_every_time(room, line):
    room.connection.data_received(b"POST /add/q HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % line)
    room.connection.data_received(b"0\r\n\r\n")

    assert len(room.asked) == 1
    assert room.connection.short_way._known == {}


def test_a_known_head_before_the_last_answer_has_to_wait(room):
    room.connection.data_received(post(0))
    room.connection.data_received(post(0))

    assert len(room.asked) == 1
    assert room.socket.written == b""


def test_a_known_head_after_a_close_is_not_listened_to(room):
    room.connection.data_received(post(0))
    room.asked[0].send(200, b"{}", ())
    room.socket.close()
    room.connection.data_received(post(0))

    assert len(room.asked) == 1


def test_no_more_than_a_thousand_heads_are_kept_and_no_long_ones(room):
    for number in range(1_001):
        room.connection.data_received(b"GET /add/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        room.asked[-1].send(200, b"{}", ())
    long = b"GET /add/q HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n" % (b"x" * 2000)
    room.connection.data_received(long)

    assert len(room.connection.short_way._known) == 1
    assert len(room.asked) == 1_002


# Whoever asks without waiting for answers.


def test_a_flood_of_requests_is_looked_at_piece_by_piece_and_nothing_more_is_read_meanwhile(room):
    served = []

    def serve(request):
        served.append(request.body)
        request.send(200, b"", ())

    room.connection.short_way.routes[b"add"] = serve
    bodies = [b"%04d" % number for number in range(2_000)]
    room.connection.data_received(b"".join(post(4, body) for body in bodies))

    counts = [len(served)]
    while len(served) < len(bodies):
        assert not room.socket.reading
        room.turn()
        assert len(counts) < 100
        counts.append(len(served))
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) <= TURN_BYTES // 50
    assert served == bodies
    assert room.socket.written.count(b"HTTP/1.1 200") == len(bodies)
    room.turn()
    assert room.socket.reading


def test_nothing_more_is_read_before_the_requests_that_came_are_answered(room):
    room.connection.data_received(post(1, b"a") + post(1, b"b") + post(1, b"c") * 1_000)
    for _ in range(10):
        room.turn()
    waiting = len(room.connection.pipeline)
    assert waiting <= TURN_BYTES // 50

    for _ in range(10):  # over TLS some may be on its way
        room.connection.data_received(post(1, b"d"))
        room.turn()

    assert len(room.connection.pipeline) == waiting
    assert not room.socket.reading


def test_a_large_body_of_a_request_is_taken_as_it_comes(room):
    body = b"x" * 90
    room.connection.short_way.body_bytes_max = 1_000_000
    large = body * 10_000
    room.connection.data_received(post(len(large), large))
    room.turn()

    assert [request.body for request in room.asked] == [large]
    assert room.socket.reading


def test_what_was_not_looked_at_is_forgotten_when_the_peer_is_gone(room):
    room.connection.data_received(post(1, b"a") * 1_000)
    room.connection.connection_lost(None)
    room.turn()

    assert len(room.asked) == 1

"""One HTTP connection with time and sockets of its own: slow peers, and the short way."""

import gc
import weakref
from types import SimpleNamespace

import pytest

from manyhands.net.http import HEADS_TURN_BYTES
from manyhands.net.http_short_way import Head, ShortWay
from manyhands.web.exchange import HungUpError
from tests.unit.net.http_room import Room


@pytest.fixture
def room():
    found = Room()
    yield found
    found.loop.close()


def post(length: int, body: bytes = b"") -> bytes:
    return b"POST /add/q HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + body


def test_a_whole_request_takes_the_short_way(room):
    room.receive(post(5, b"hel"))
    assert room.asked == []
    room.receive(b"lo")

    [request] = room.asked
    assert (request.head.method, request.head.path) == ("POST", b"/add/q")
    assert request.body == b"hello"
    request.send(200, b"{}", ((b"x-a", b"b"),))
    assert room.written().startswith(b"HTTP/1.1 200 OK\r\n")
    assert room.written().endswith(b"\r\n\r\n{}")
    assert b"x-a: b\r\n" in room.socket.written
    assert not room.socket.closed


def test_a_second_answer_to_the_same_request_is_not_sent(room):
    room.receive(post(0))
    room.asked[0].send(200, b"1", ())
    before = room.written()
    room.asked[0].send(200, b"2", ())

    assert room.written() == before


def test_a_slow_body_is_given_up(room):
    room.receive(post(50, b"x"))
    now = room.loop.time()

    room.session.lose_patience(now + 29)
    assert room.written() == b""
    room.session.lose_patience(now + 32)

    assert room.answer() == (408, "too_slow")
    assert room.socket.closed
    assert room.asked == []


def test_a_slow_head_is_given_up(room):
    room.receive(b"POST /add/q HTTP/1.1\r\nHo")

    room.session.lose_patience(room.loop.time() + 31)

    assert room.answer() == (408, "too_slow")


def test_a_request_that_is_being_answered_may_take_its_time(room):
    room.receive(post(0))

    room.session.lose_patience(room.loop.time() + 1000)

    assert room.written() == b""


def test_a_body_longer_than_allowed_is_refused_as_soon_as_it_is(room):
    head = b"POST /add/q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    room.receive(head + b"65\r\n" + b"x" * 101 + b"\r\n")

    assert room.answer() == (413, "too_large")
    assert room.asked == []


@pytest.mark.parametrize(("error", "broken"), [(ConnectionResetError(), True), (None, False)])
def test_a_connection_that_breaks_right_after_an_answer_is_told_of(room, error, broken):
    told = []
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    room.session.expect_receipt(lambda: told.append(1))

    room.connection.connection_lost(error)

    assert bool(told) is broken


def test_who_asks_again_has_read_the_last_answer(room):
    told = []
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    room.session.expect_receipt(lambda: told.append(1))
    room.receive(post(0))

    room.connection.connection_lost(ConnectionResetError())

    assert told == []


def test_every_answer_that_a_broken_connection_swallowed_is_told_of(room):
    told = []
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    for number in (1, 2):
        room.session.expect_receipt(lambda number=number: told.append(number))

    room.connection.connection_lost(ConnectionResetError())

    assert told == [1, 2]


def test_a_connection_that_rests_too_long_is_closed_and_one_that_is_used_is_not(room):
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    now = room.loop.time()

    room.session.lose_patience(now + 75 - 1)
    assert not room.socket.closed
    room.receive(post(0))
    room.session.lose_patience(now + 1000)
    assert not room.socket.closed
    room.asked[1].send(200, b"{}", ())
    room.session.lose_patience(now + 1000)

    assert room.socket.closed


@pytest.mark.parametrize("path", [b"/add/q", b"/queues"])
def test_two_hosts_are_one_too_many(room, path):
    room.receive(b"GET %s HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" % path)

    assert room.answer() == (400, "invalid_request")
    assert room.asked == []
    assert room.socket.closed


def test_what_comes_after_a_close_is_not_listened_to(room):
    head = b"GET /add/q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    room.receive(head)
    room.asked[0].send(200, b"{}", ())
    assert room.socket.closed
    room.receive(post(0))

    assert len(room.asked) == 1


def test_a_body_in_many_pieces_is_put_together(room):
    room.receive(post(60))
    for number in range(20):
        room.receive(b"%03d" % number)

    assert room.asked[0].body == b"".join(b"%03d" % number for number in range(20))


def test_an_ordinary_answer_has_the_same_head_as_any_other(room):
    room.site.date = b"today"
    room.site.short_way.set_date(b"today")
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    first, room.socket.written = room.written(), b""
    room.receive(post(0))
    room.asked[1].send(200, b"{}", ((b"x-a", b"b"),))

    lines = set(room.written().split(b"\r\n")) - {b"x-a: b"}
    assert set(first.split(b"\r\n")) == lines


# Heads that were seen before are not read again.


def test_the_same_head_once_more_is_the_same_request_with_another_body(room):
    for body in (b"first", b"again"):
        room.receive(post(5, body))
        room.asked[-1].send(200, b"{}", ())

    assert [request.body for request in room.asked] == [b"first", b"again"]
    assert room.asked[0].head is room.asked[1].head


@pytest.mark.parametrize(
    "cut", [1, 20, len(post(5)), len(post(5)) + 2], ids=["begun", "head", "body", "half"]
)
def test_a_known_head_that_comes_in_pieces_is_the_same_request(room, cut):
    for _ in range(3):
        data = post(5, b"hello")
        room.receive(data[:cut])
        room.receive(data[cut:])
        room.asked[-1].send(200, b"{}", ())
        room.receive(data)
        room.asked[-1].send(200, b"{}", ())

    assert [request.body for request in room.asked] == [b"hello"] * 6
    assert room.written().count(b"200 OK") == 6
    assert not room.socket.closed


def test_a_known_head_with_more_behind_it_is_two_requests(room):
    room.receive(post(2, b"ab"))
    room.asked[0].send(200, b"{}", ())
    room.receive(post(2, b"cd") + post(2, b"ef"))

    assert [request.body for request in room.asked] == [b"ab", b"cd"]
    assert len(room.session._queue) == 1


def test_bytes_of_a_body_are_not_taken_for_a_known_head(room):
    request = post(0)
    room.receive(request)
    room.asked[0].send(200, b"{}", ())
    room.receive(post(len(request)))
    room.receive(request)

    assert [found.body for found in room.asked] == [b"", request]


@pytest.mark.parametrize(
    "line", [b"Connection: close", b"Transfer-Encoding: chunked"], ids=["close", "chunked"]
)
def test_what_is_unusual_about_a_head_is_read_every_time(room, line):
    room.receive(b"POST /add/q HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % line)
    room.receive(b"0\r\n\r\n")

    assert len(room.asked) == 1
    assert room.site.short_way._known == {}


def test_a_known_head_before_the_last_answer_has_to_wait(room):
    room.receive(post(0))
    room.receive(post(0))

    assert len(room.asked) == 1
    assert room.written() == b""


def test_a_known_head_after_a_close_is_not_listened_to(room):
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    room.connection.close()
    room.receive(post(0))

    assert len(room.asked) == 1


def test_no_more_than_a_thousand_heads_are_kept_and_no_long_ones(room):
    for number in range(1_001):
        room.receive(b"GET /add/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        room.asked[-1].send(200, b"{}", ())
    long = b"GET /add/q HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n" % (b"x" * 2000)
    room.receive(long)

    assert len(room.site.short_way._known) == 1
    assert len(room.asked) == 1_002


# Whoever asks without waiting for answers.


def test_a_flood_of_requests_is_looked_at_piece_by_piece_and_nothing_more_is_read_meanwhile(room):
    served = []

    def serve(request):
        served.append(request.body)
        request.send(200, b"", ())

    room.site.short_way.routes[b"add"] = serve
    bodies = [b"%04d" % number for number in range(2_000)]
    room.receive(b"".join(post(4, body) for body in bodies))

    counts = [len(served)]
    while len(served) < len(bodies):
        assert not room.socket.reading
        room.turn()
        assert len(counts) < 100
        counts.append(len(served))
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) <= HEADS_TURN_BYTES // 50
    assert served == bodies
    assert room.written().count(b"HTTP/1.1 200") == len(bodies)
    room.turn()
    assert room.socket.reading


def test_nothing_more_is_read_before_the_requests_that_came_are_answered(room):
    room.receive(post(1, b"a") + post(1, b"b") + post(1, b"c") * 1_000)
    for _ in range(10):
        room.turn()
    waiting = len(room.session._queue)
    assert waiting <= HEADS_TURN_BYTES // 50

    for _ in range(10):  # over TLS some may be on its way
        room.receive(post(1, b"d"))
        room.turn()

    assert len(room.session._queue) == waiting
    assert not room.socket.reading


def test_a_large_body_of_a_request_is_taken_as_it_comes(room):
    body = b"x" * 90
    room.site.short_way.body_bytes_max = 1_000_000
    large = body * 10_000
    room.receive(post(len(large), large))
    room.turn()

    assert [request.body for request in room.asked] == [large]
    assert room.socket.reading


def test_what_was_not_looked_at_is_forgotten_when_the_peer_is_gone(room):
    room.receive(post(1, b"a") * 1_000)
    room.connection.connection_lost(None)
    room.turn()

    assert len(room.asked) == 1


# Requests with a handler of their own.


def long(method: bytes = b"POST", more: bytes = b"") -> bytes:
    return method + b" /api/x?a=b HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n"


def finish(room, coroutine):
    return room.loop.run_until_complete(coroutine)


def test_a_handler_gets_the_request_at_its_head_and_the_body_as_it_arrives(room):
    room.receive(long(more=b"Content-Type: application/json\r\nContent-Length: 4\r\n"))
    [exchange] = room.handled
    reading = room.loop.create_task(exchange.body())
    room.turn()
    room.receive(b"[1")
    room.turn()
    assert not reading.done()
    room.receive(b"2]")

    assert finish(room, reading) == b"[12]"
    assert (exchange.path, exchange.query_string) == ("/api/x", b"a=b")


@pytest.mark.parametrize("cut", [0, 1, 5], ids=["one packet", "with a byte", "apart"])
def test_an_upgrade_is_declined_and_the_body_stays_the_body(room, cut):
    head = long(more=b"Connection: Upgrade\r\nUpgrade: anything\r\nContent-Length: 38\r\n")
    smuggled = b"GET /add/x HTTP/1.1\r\nHost: x\r\nX: yyyy\r\n"[:38]
    data = head + smuggled + post(0)
    room.receive(data[: len(head) + cut])
    room.receive(data[len(head) + cut :])
    [exchange] = room.handled

    async def answer():
        body = b"".join([piece async for piece in exchange.pieces()])
        await exchange.send_bytes(200, [], body)

    finish(room, answer())

    assert room.written().endswith(smuggled)
    assert [request.head.path for request in room.asked] == [b"/add/q"]  # the one behind it


def test_an_upgrade_of_a_request_without_a_body_is_declined(room):
    room.receive(long(b"GET", b"Connection: Upgrade\r\nUpgrade: anything\r\n") + post(0))
    [exchange] = room.handled
    finish(room, exchange.send_bytes(200, [], b"yes"))

    assert b"\r\n\r\nyes" in room.written()
    assert len(room.asked) == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused_and_the_connection_closed(
    room, request_bytes, status
):
    room.receive(request_bytes + b"GET /add/q HTTP/1.1\r\nHost: x\r\n\r\n")

    assert int(room.written().split()[1]) == status
    assert room.socket.closed
    assert (room.asked, room.handled) == ([], [])


def test_what_cannot_be_read_is_refused_after_the_requests_before_it_are_answered(room):
    room.receive(long(b"GET") + b"nonsense\r\n\r\n")
    [exchange] = room.handled
    assert room.written() == b""
    finish(room, exchange.send_bytes(200, [], b"first"))

    first, _, second = room.written().partition(b"first")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 400 ")
    assert room.socket.closed


def test_a_body_that_breaks_off_in_nonsense_ends_its_handler(room):
    room.receive(long(more=b"Transfer-Encoding: chunked\r\n") + b"2\r\nab\r\n")
    [exchange] = room.handled
    reading = room.loop.create_task(_drain(exchange))
    room.turn()
    room.receive(b"zz\r\n")

    with pytest.raises(HungUpError):
        finish(room, reading)
    assert room.written().startswith(b"HTTP/1.1 400 ")


async def _drain(exchange):
    return [piece async for piece in exchange.pieces()]


def test_a_client_that_asks_may_send_its_body(room):
    room.receive(long(more=b"Expect: 100-continue\r\nContent-Length: 2\r\n"))
    [exchange] = room.handled
    assert room.written() == b""
    reading = room.loop.create_task(_drain(exchange))
    room.turn()
    assert room.written() == b"HTTP/1.1 100 Continue\r\n\r\n"
    room.receive(b"ok")

    assert finish(room, reading) == [b"ok"]


def test_an_answer_before_the_body_was_read_closes_the_connection(room):
    room.receive(long(more=b"Content-Length: 100\r\n") + b"abc")
    [exchange] = room.handled
    finish(room, exchange.send_bytes(413, [], b""))

    assert b"connection: close\r\n" in room.written()
    assert room.socket.closed


def test_head_has_the_length_and_no_body(room):
    room.receive(long(b"HEAD"))
    finish(room, room.handled[0].send_bytes(200, [], b"12345"))

    assert b"content-length: 5\r\n" in room.written()
    assert room.written().endswith(b"\r\n\r\n")


def test_a_stream_is_sent_in_chunks_and_the_next_request_follows_it(room):
    room.receive(long(b"GET") + long(b"GET"))

    async def stream(exchange):
        await exchange.begin_stream(200, [])
        await exchange.send_piece(b"abc")
        await exchange.end_stream()

    finish(room, stream(room.handled[0]))
    assert len(room.handled) == 2

    head, _, body = room.written().partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\nabc\r\n0\r\n\r\n"


def test_an_old_client_gets_a_stream_that_ends_with_the_connection(room):
    room.receive(b"GET /x HTTP/1.0\r\n\r\n")

    async def stream(exchange):
        await exchange.begin_stream(200, [])
        await exchange.send_piece(b"abc")
        await exchange.end_stream()

    finish(room, stream(room.handled[0]))

    assert b"chunked" not in room.written()
    assert room.written().endswith(b"\r\n\r\nabc")
    assert room.socket.closed


def test_a_header_with_a_line_break_never_leaves(room):
    room.receive(long(b"GET"))

    with pytest.raises(ValueError, match="one line"):
        finish(room, room.handled[0].send_bytes(200, [(b"x", b"a\r\nb: c")], b""))


def test_a_large_body_that_nobody_reads_is_not_read_from_the_peer(room):
    room.receive(long(more=b"Content-Length: 9000000\r\n"))
    for _ in range(20):
        if room.socket.reading:
            room.receive(b"x" * 100_000)

    assert not room.socket.reading
    assert room.handled[0].body_bytes < 500_000


def test_nothing_refers_to_a_connection_that_is_gone(room):
    room.receive(long(b"GET"))
    finish(room, room.handled.pop().send_bytes(200, [], b""))
    gone = weakref.ref(room.session)
    gc.disable()
    try:
        room.connection.connection_lost(ConnectionResetError())
        room.session = None
        room.connection = None

        assert gone() is None
    finally:
        gc.enable()


def test_the_next_request_is_begun_when_the_peer_takes_its_answers(room):
    room.receive(long(b"GET") + long(b"GET"))
    room.connection.pause_writing()
    finish(room, room.handled[0].send_bytes(200, [], b""))
    assert len(room.handled) == 1

    room.connection.resume_writing()

    assert len(room.handled) == 2


def answered(room, unread_bytes: int) -> float:
    """A peer that has not taken all of its answer; gives the time."""
    room.receive(post(0))
    room.asked[0].send(200, b"{}", ())
    room.socket.unread_bytes = unread_bytes
    now = room.loop.time()
    room.session.lose_patience(now)
    return now


def test_a_peer_that_takes_nothing_of_its_answer_is_let_go(room):
    now = answered(room, 5_000_000)

    room.session.lose_patience(now + 59)
    assert not room.socket.closed
    room.session.lose_patience(now + 61)

    assert room.socket.closed


def test_a_peer_that_takes_its_answer_slowly_may_do_so(room):
    now = answered(room, 5_000_000)

    for number in range(1, 20):
        room.socket.unread_bytes -= 1_000
        room.session.lose_patience(now + 50 * number)
    assert not room.socket.closed
    room.session.lose_patience(now + 50 * 19 + 61)

    assert room.socket.closed


def test_a_peer_that_waits_for_room_is_not_slow(room):
    room.receive(post(50, b"x"))
    now = room.loop.time()
    room.connection.waits_for_room = True

    for second in range(100):
        room.session.lose_patience(now + second)
    assert room.written() == b""
    room.connection.waits_for_room = False
    room.session.lose_patience(now + 100 + 32)

    assert room.answer() == (408, "too_slow")


@pytest.mark.parametrize(
    ("more", "is_remembered"),
    [({}, True), ({b"idempotency-key": b"k"}, False), ({b"transfer-encoding": b"chunked"}, False)],
)
def test_a_head_is_remembered_unless_nobody_sends_it_twice(more, is_remembered):
    way = ShortWay({}, 1_000)
    data = b"POST /add/q HTTP/1.1\r\nHost: a\r\n\r\n{}"
    head = Head("POST", (b"/add/q", b""), {b"host": b"a", **more})

    way.learn(data, SimpleNamespace(head=head, body=b"{}", keep_alive=True, serve=None))

    assert (way.known(data) is not None) is is_remembered

"""How a connection becomes a WebSocket, and how one ends."""

import gc
import weakref

import pytest
from websockets.frames import Frame, Opcode

from manyhands.net.websocket import answer_headers, read_offer
from manyhands.net.websocket_session import WebSocketSession
from manyhands.web.exchange import HungUpError
from tests.unit.net.http_room import Room

UPGRADE = (
    b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
POST = b"POST /add/q HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
GONE_AWAY = b"\x88\x12\x03\xe9the server stops"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(Opcode(opcode), data, fin).serialize(mask=True)


class Conversation:
    """Notes what it is told."""

    def __init__(self, socket: WebSocketSession) -> None:
        self.socket = socket
        self.heard: list[bytes] = []
        self.ends: list[str] = []
        self.is_busy = False

    def receive(self, messages: list[bytes]) -> None:
        self.heard += messages

    def ended(self) -> None:
        self.ends.append("ended")
        if not self.is_busy:
            self.socket.close()

    def lost(self, *, blameless: bool = False) -> None:
        self.ends.append("blameless" if blameless else "lost")

    def is_overwhelmed(self) -> bool:
        return False

    def held_bytes(self) -> int:
        return 0

    def go_on(self) -> None:
        self.heard.append(b"it reads again")


class UpgradingRoom(Room):
    """A room whose handler may hand its connection over."""

    conversation: Conversation

    def accept(self) -> None:
        exchange = self.handled[-1]
        assert exchange.connection.may_hand_over(exchange)
        socket = WebSocketSession(self.connection, 1_000)
        self.conversation = Conversation(socket)
        socket.begin(self.conversation)
        exchange.upgrade(answer_headers(read_offer(exchange.headers), "x"), socket)
        self.turn()

    def decline(self) -> None:
        self.loop.run_until_complete(self.handled[-1].send_bytes(404, [], b"no"))
        self.turn()

    def said(self) -> bytes:
        """Everything behind the answer of HTTP."""
        return self.written().partition(b"\r\n\r\n")[2]

    def wait(self, seconds: int) -> None:
        """Time goes by, and the listener looks every second."""
        for _ in range(seconds):
            self.now += 1.0
            if self.connection.session is not None:
                self.connection.session.lose_patience(self.now)

    now = 1_000.0


@pytest.fixture
def room():
    found = UpgradingRoom()
    yield found
    found.loop.close()


@pytest.fixture
def open_room(room):
    room.receive(UPGRADE)
    room.accept()
    return room


# From HTTP to WebSocket.


def test_a_request_is_answered_with_101_and_the_key(open_room):
    head = open_room.written()

    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    assert b"content-length" not in head
    assert b"connection: close" not in head


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_bytes_right_behind_the_request_are_frames_once_it_is_accepted(room, cut):
    behind = frame(2, b"first") + frame(2, b"second")
    room.receive(UPGRADE + behind[:cut])
    room.receive(behind[cut:])
    assert not room.socket.reading  # until it is known what they are

    room.accept()

    assert room.conversation.heard == [b"first", b"second"]
    assert room.socket.reading


def test_bytes_right_behind_the_request_are_http_if_it_is_declined(room):
    room.receive(UPGRADE + POST)
    assert room.asked == []

    room.decline()

    assert [request.head.path for request in room.asked] == [b"/add/q"]
    assert room.socket.reading


def test_a_peer_that_sends_much_behind_its_request_is_not_read_on(room):
    room.receive(UPGRADE + bytes(100_000))

    assert not room.socket.reading
    assert room.session.held_bytes() < 20_000


def test_a_request_behind_others_is_accepted_in_its_turn(room):
    room.receive(POST + UPGRADE + frame(2, b"hi"))
    assert room.handled == []

    room.asked[0].send(200, b"{}", ())
    room.accept()

    assert room.written().startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 101" in room.written()
    assert room.conversation.heard == [b"hi"]


def test_a_second_request_for_a_websocket_waits_for_the_first(room):
    room.receive(UPGRADE + UPGRADE)
    assert len(room.handled) == 1

    room.decline()
    assert len(room.handled) == 2
    room.accept()

    assert b"HTTP/1.1 101" in room.written()


@pytest.mark.parametrize(
    ("found", "instead"),
    [(b"HTTP/1.1", b"HTTP/1.0"), (b"websocket", b"h2c"), (b"GET", b"PUT"), (b"Upgrade\r", b"x\r")],
)
def test_only_a_get_of_http_1_1_that_asks_for_it_becomes_one(room, found, instead):
    room.receive(UPGRADE.replace(found, instead, 1))
    [exchange] = room.handled

    assert exchange.is_old or not exchange.connection.may_hand_over(exchange)


def test_a_peer_that_has_closed_its_half_is_not_upgraded(room):
    room.receive(UPGRADE)
    room.connection.eof_received()

    with pytest.raises(HungUpError):
        room.accept()

    assert b"101" not in room.written()
    assert room.socket.closed


def test_nothing_refers_to_a_connection_that_is_gone(room):
    room.receive(UPGRADE)
    room.accept()
    socket = weakref.ref(room.connection.session)
    room.connection.connection_lost(None)
    connection = weakref.ref(room.connection)
    del room.connection, room.conversation, room.session
    room.handled.clear()
    gc.collect()

    assert socket() is None
    assert connection() is None


# Frames.


def test_pings_are_answered_the_last_of_many_alone(open_room):
    open_room.receive(b"".join(frame(9, b"%d" % number) for number in range(500)))

    assert open_room.said() == b"\x8a\x03499"


def test_a_text_message_ends_the_connection_with_1002(open_room):
    open_room.receive(frame(2, b"first") + frame(1, b"text") + frame(2, b"after"))

    assert open_room.conversation.heard == [b"first"]
    assert open_room.said()[2:4] == b"\x03\xea"
    assert open_room.socket.closed


def test_a_fault_ends_the_connection_with_a_sentence(open_room):
    open_room.receive(frame(0, b"nothing to continue"))

    assert open_room.said() == b"\x88\x21\x03\xeathere is no message to continue"
    assert open_room.socket.closed


def test_a_large_frame_is_taken_in_larger_pieces(open_room):
    assert open_room.connection.turn_bytes == 32 * 1024
    room = UpgradingRoom()
    room.receive(UPGRADE)
    exchange = room.handled[-1]
    socket = WebSocketSession(room.connection, 10_000_000)
    socket.begin(Conversation(socket))
    exchange.upgrade(answer_headers(read_offer(exchange.headers), "x"), socket)
    whole = frame(2, bytes(1_000_000))

    room.receive(whole[:1_000])
    assert room.connection.turn_bytes == 256 * 1024
    room.receive(whole[1_000:])
    for _ in range(10):
        room.turn()

    assert room.connection.turn_bytes == 32 * 1024
    room.loop.close()


# The end.


def test_a_close_is_answered_with_its_code_when_all_is_said(open_room):
    open_room.conversation.is_busy = True
    open_room.receive(frame(8, b"\x0b\xb8bye"))
    assert open_room.said() == b""

    open_room.conversation.socket.send(b"the answer")
    open_room.conversation.socket.close()

    assert open_room.said() == b"\x82\x0athe answer\x88\x02\x0b\xb8"
    assert open_room.socket.closed


def test_a_close_without_a_code_is_answered_with_none(open_room):
    open_room.receive(frame(8))

    assert open_room.said() == b"\x88\x00"


def test_both_may_close_at_the_same_time(open_room):
    open_room.conversation.socket.close(1000, "enough")
    open_room.receive(frame(8, b"\x03\xe8"))
    open_room.conversation.socket.send(b"too late")

    assert open_room.said() == b"\x88\x08\x03\xe8enough"


def test_a_peer_that_closes_its_half_without_a_word_is_let_go(open_room):
    open_room.connection.eof_received()

    assert open_room.conversation.ends == ["ended"]
    assert open_room.socket.closed


def test_a_server_that_stops_closes_with_1001(open_room):
    open_room.connection.hang_up()

    assert open_room.said() == GONE_AWAY
    assert open_room.socket.closed
    open_room.connection.connection_lost(None)
    assert open_room.conversation.ends == ["blameless"]


def test_a_server_that_stops_adds_nothing_to_a_close(open_room):
    open_room.conversation.socket.close(1000)
    open_room.connection.hang_up()

    assert open_room.said() == b"\x88\x02\x03\xe8"


# Silence.


def test_st3_a_silent_peer_is_asked_once_and_given_up_after_30_seconds(open_room):
    """P30, from the server's side."""
    open_room.wait(10)
    assert open_room.said() == b""
    open_room.wait(2)
    assert open_room.said() == b"\x89\x00"
    open_room.wait(18)
    assert not open_room.socket.closed

    open_room.wait(2)

    assert open_room.said() == b"\x89\x00"
    assert open_room.socket.closed


def test_st3_any_frame_is_a_sign_of_life(open_room):
    for _ in range(10):
        open_room.wait(20)
        open_room.receive(frame(10))

    assert not open_room.socket.closed


def test_st3_a_peer_that_is_not_read_from_is_not_silent(open_room):
    open_room.connection.pause_reading()

    open_room.wait(100)

    assert not open_room.socket.closed


def test_st3_a_peer_that_takes_nothing_is_given_up(open_room):
    open_room.socket.unread_bytes = 1_000_000
    open_room.connection.pause_writing()
    assert open_room.conversation.socket.is_behind

    open_room.wait(63)

    assert open_room.socket.closed


def test_st3_a_peer_that_takes_what_it_left_is_given_more(open_room):
    open_room.connection.pause_writing()
    open_room.connection.resume_writing()

    assert open_room.conversation.heard == [b"it reads again"]

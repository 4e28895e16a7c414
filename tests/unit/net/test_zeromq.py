"""The ROUTER socket: who is heard, who is answered, who is let go, and when."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from manyhands.access.callers import Callers, Entry, new_password
from manyhands.access.curve_keys import new_keys
from manyhands.access.logins import Failure
from manyhands.config import Address
from manyhands.dispatch.ids import Ids
from manyhands.model import limits
from manyhands.model.identity import own_routing_id
from manyhands.model.roles import ANYBODY, Caller, Role
from manyhands.net import zeromq
from manyhands.net.curve import CurveHandshake
from manyhands.net.tcp import Connection
from manyhands.net.zeromq import Places, RouterSocket
from manyhands.net.zmtp import (
    GREETING,
    PING,
    Decoder,
    command,
    encode,
    properties,
    ready,
)
from manyhands.store.batch import Batch
from tests.unit.net.transport import Transport, ample_budget

HELLO = GREETING + b"\1" + b"NULL".ljust(20, b"\0") + bytes(32)
OLD_HELLO = GREETING[:10] + b"\1\3\0\2me"
MIB = 1024 * 1024


class Session:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[list[bytes]] = []
        self.overflows: list[bytes] = []
        self.room = 1_000_000
        self.owes = 0  # bytes in the answer to each request
        self.dispatcher = SimpleNamespace(owed_bytes=0)

    def receive(self, frames):
        if frames[-1] == b"defect":
            raise RuntimeError("a defect of ours")
        self.heard.append(frames)
        self.dispatcher.owed_bytes += self.owes

    def receive_short(self, route, body):
        self.receive([*route, body])

    def overflowed(self, peer):
        self.overflows.append(peer)

    def is_overwhelmed(self):
        return len(self.heard) >= self.room

    def drain(self):
        pass


class House:
    """A socket without a network."""

    def __init__(self, loop) -> None:
        self.loop = loop
        self.session = Session()
        self.callers = Callers()
        self.dispatcher = SimpleNamespace(
            ask=self._ask,
            on_signal={},
            draining=False,
            failed=None,
            on_batch=[],
            owed_bytes=0,
            clock=None,
        )
        self.session.dispatcher = self.dispatcher
        self.awaited: list = []
        backplane = SimpleNamespace(
            ids=Ids(),
            dispatcher=self.dispatcher,
            budget=ample_budget(),
            callers=self.callers,
            logins=SimpleNamespace(
                callers=self.callers, failed=lambda *_: None, identify=self._identify
            ),
            gate=SimpleNamespace(guard=lambda *_: None),
        )
        self.ids = backplane.ids
        self.router = self._run(self._make(backplane))
        self.router.session = self.session
        self.transports: list[Transport] = []

    def _identify(self, shown, _protocol, then):
        then(self.callers.identify(shown) or Failure.WRONG)

    def _ask(self, _command, settle):
        self.awaited.append(settle)

    def answer(self) -> None:
        """Everything that was asked so far."""
        awaited, self.awaited = self.awaited, []
        for settle in awaited:
            settle(None)

    async def _make(self, backplane):
        return RouterSocket(backplane, "test", 100_000, Places(Address("127.0.0.1", 0)))

    def _run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def turn(self, count: int = 3) -> None:
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def connect(self, first: bytes = b"") -> Transport:
        transport = Transport()
        transport.protocol = transport.connection = Connection(self.router._plain)
        transport.protocol.connection_made(transport)
        self.say(transport, first)
        self.transports.append(transport)
        return transport

    def join(self, identity: bytes = b"", kind: bytes = b"DEALER") -> Transport:
        transport = self.connect(HELLO + ready(kind, identity))
        transport.written = b""
        return transport

    def say(self, transport: Transport, data: bytes) -> None:
        transport.protocol.data_received(data)
        self.turn()

    def look(self, count: int) -> None:
        """As time goes by."""
        for _ in range(count):
            for peer in list(self.router.everybody):
                peer.look()
            self.turn()
            for transport in self.transports:
                if transport.state == "aborted" and transport.connection._session is not None:
                    transport.connection.connection_lost(None)


@pytest.fixture
def house():
    loop = asyncio.new_event_loop()
    house = House(loop)
    yield house
    for transport in house.transports:
        transport.connection.connection_lost(None)
    loop.close()


def message(*frames: bytes) -> bytes:
    return encode((b"", *frames[:-1]), frames[-1])


def test_z1_a_peer_is_greeted_before_it_says_anything(house):
    transport = house.connect()
    assert transport.written == GREETING

    house.say(transport, HELLO + ready(b"REQ", b"me") + message(b"", b"x"))
    assert transport.written == HELLO + ready(b"ROUTER", b"")
    assert house.session.heard == [[b"me", b"", b"x"]]


def test_z2_a_peer_that_is_refused_hears_why_and_is_closed(house):
    transport = house.connect(HELLO + ready(b"SUB", b"") + message(b"", b"x"))

    said = b"a socket of type 'SUB' cannot talk to a ROUTER"
    assert transport.written.endswith(command(b"ERROR", bytes((len(said),)) + said))
    assert transport.state == "closed"
    assert house.session.heard == []
    assert house.router.connections_count == 0
    house.say(transport, message(b"", b"x"))
    assert house.session.heard == []


def test_z2_refused_peers_that_try_again_do_not_fill_the_log(house, caplog):
    for _ in range(100):
        house.connect(HELLO + ready(b"SUB", b""))
    assert caplog.text.count("a peer was refused") == 7


@pytest.mark.parametrize("wish", [b"", b"\0", b"\0\0\0\0\1", b"\0abc"])
def test_z3_an_identity_of_ours_has_five_octets_that_nobody_can_guess_or_take(house, wish):
    house.say(house.join(wish), message(b"", b"x"))
    given = house.session.heard[0][0]
    house.say(house.join(given), message(b"", b"y"))
    other = house.session.heard[1][0]

    assert len(given) == len(other) == 5
    assert given[0] == other[0] == 0
    assert given not in (other, wish)


def test_z3_identities_of_ours_are_never_given_twice_at_a_time(house, monkeypatch):
    tokens = iter(["00000001" * 4] * 5 + ["00000002" * 4])
    monkeypatch.setattr(house.ids, "token", lambda: next(tokens))
    for _ in range(2):
        house.say(house.join(), message(b"", b"x"))
    assert [heard[0] for heard in house.session.heard] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]


def test_z4_who_comes_back_takes_its_place_and_its_former_self_is_closed(house):
    former = house.join(b"me")
    latter = house.join(b"me")
    assert former.state == "aborted"

    house.router.send((b"me", b""), b"x", None)
    former.connection.connection_lost(None)
    house.router.send((b"me", b""), b"y", None)
    house.turn()
    assert latter.written == message(b"", b"x") + message(b"", b"y")
    assert former.written == b""


def test_z4_a_former_self_is_not_heard_any_more(house):
    former = house.join(b"me")
    former.protocol.data_received(message(b"", b"x" * 200) * 500)  # more than one turn takes
    heard = len(house.session.heard)
    assert heard < 500
    house.join(b"me")
    house.turn(10)
    assert len(house.session.heard) == heard


def test_z4_a_former_self_that_was_heard_before_is_not_heard_any_more(house):
    former = house.join(b"me")
    for _ in range(2):
        house.say(former, message(b"", b"x"))
    house.join(b"me")
    house.say(former, message(b"", b"y"))
    assert [heard[-1] for heard in house.session.heard] == [b"x", b"x"]


def test_z5_a_message_of_too_many_frames_is_told_and_the_next_one_is_heard(house):
    transport = house.join(b"me")
    house.say(transport, b"\1\0" * 100 + b"\0\0" + message(b"", b"x"))
    assert house.session.overflows == [b"me"]
    assert house.session.heard == [[b"me", b"", b"x"]]


def test_z5_a_message_that_is_too_large_ends_the_connection_after_what_came_before(house):
    transport = house.join(b"me")
    size = house.router.message_bytes_max + 1
    house.say(transport, message(b"", b"x") + b"\2" + size.to_bytes(8, "big"))
    assert house.session.heard == [[b"me", b"", b"x"]]
    assert transport.state == "closed"


def test_z6_a_silent_peer_with_heartbeats_is_asked_every_ten_seconds_and_let_go_after_thirty(
    house,
):
    transport = house.join(b"me")
    house.say(transport, command(b"PING", b"\0\0"))
    transport.written = b""
    house.look(6)  # of five seconds each
    assert transport.written == PING * 3
    assert transport.state == "open"

    house.look(1)
    assert transport.state == "aborted"
    assert house.router.connections_count == 0


@pytest.mark.parametrize("sign", [command(b"PONG", b""), b"\1", message(b"", b"x")])
def test_z6_any_sign_of_life_will_do(house, sign):
    transport = house.join(b"me")
    house.say(transport, command(b"PING", b"\0\0"))
    for _ in range(10):
        house.look(6)
        house.say(transport, sign)
        if sign == b"\1":
            house.say(transport, b"\0")
    assert transport.state == "open"


def test_z6_a_peer_that_sits_on_half_a_message_is_let_go_after_a_minute(house):
    transport = house.join(b"me")
    house.say(transport, message(b"", b"x")[:-1])
    house.look(12)
    assert transport.state == "open"

    house.look(1)
    assert transport.state == "aborted"
    assert house.router.connections_count == 0


def test_z6_a_ping_is_answered(house):
    transport = house.join(b"me")
    house.say(transport, command(b"PING", b"\0\0ctx"))
    assert transport.written == command(b"PONG", b"ctx")


@pytest.mark.parametrize("hello", [OLD_HELLO, HELLO, HELLO.replace(b"\3\1NULL", b"\3\0NULL")])
def test_z6_a_peer_without_heartbeats_of_its_own_gets_no_ping_and_is_not_let_go(house, hello):
    transport = house.connect(hello if hello is OLD_HELLO else hello + ready(b"REQ", b"me"))
    transport.written = b""
    house.look(20)
    assert transport.state == "open"
    assert transport.written == b""


@pytest.mark.parametrize("size", [100, 10_000])
def test_z11_a_reply_to_a_connection_that_was_reset_is_taken_back_whatever_its_size(house, size):
    transport = house.join(b"me")
    house.say(transport, message(b"", b"x"))
    transport.state = "aborted"  # and nobody was told yet
    taken_back = []
    house.router.send_alone((b"me", b""), bytes(size), lambda: taken_back.append(size))
    house.turn()
    transport.protocol.connection_lost(ConnectionResetError())
    house.turn()
    assert taken_back == [size]


def test_z7_half_a_greeting_is_closed_after_the_time_for_it(house, caplog):
    transport = house.connect(HELLO[:30])
    for byte in HELLO[30:32]:
        house.look(1)
        assert transport.state == "open"
        house.say(transport, bytes((byte,)))
    house.look(1)
    assert transport.state == "closed"
    assert "the handshake took too long" in caplog.text


def test_z8_what_a_peer_does_not_read_is_bounded_and_the_rest_counts_as_undelivered(house):
    transport = house.join(b"me")
    told: list[str] = []
    transport.connection.pause_writing()
    assert not transport.reading
    transport.unread_bytes = 128 * MIB
    house.router.send((b"me", b""), b"fits", lambda: told.append("fits"))
    house.router.send((b"me", b""), b"x", lambda: told.append("too much"))
    house.router.send((b"me", b""), b"x", None)
    house.turn()
    assert told == ["too much"]
    assert transport.written == message(b"", b"fits")

    transport.unread_bytes = 0
    transport.connection.resume_writing()
    house.router.send((b"me", b""), b"y", lambda: told.append("y"))
    house.turn()
    assert transport.written == message(b"", b"fits") + message(b"", b"y")
    assert told == ["too much"]
    assert transport.reading


def test_z8_what_is_said_in_one_turn_is_bounded_too(house, monkeypatch):
    monkeypatch.setattr(zeromq, "_UNREAD_BYTES_MAX", 128_000)
    house.join(b"me")
    told: list[int] = []
    body = bytes(20_000)
    for number in range(10):
        house.router.send((b"me",), body, lambda number=number: told.append(number))
    house.turn()
    assert told == [7, 8, 9]


def test_z8_a_peer_that_neither_reads_nor_speaks_is_let_go(house):
    transport = house.connect(OLD_HELLO)
    transport.connection.pause_writing()
    house.look(7)
    assert transport.state == "aborted"


def test_z9_nobody_is_read_while_too_much_is_asked_and_everything_is_heard_in_the_end(house):
    first, second = house.join(b"1"), house.join(b"2")
    house.session.room = 3
    house.say(first, b"".join(message(b"", b"%d" % number) for number in range(5)))
    house.say(second, message(b"", b"x"))
    assert [heard[-1] for heard in house.session.heard] == [b"0", b"1", b"2"]
    third = house.join(b"3")
    third.protocol.data_received(b"\1")
    assert (first.reading, second.reading, third.reading) == (False, False, False)
    house.look(20)
    states = {transport.state for transport in (first, second, third)}
    assert states == {"open"}  # it is not their fault

    house.session.room = 4
    house.router.send((b"1", b""), b"reply", None)
    house.turn()
    assert len(house.session.heard) == 4
    house.session.room = 100
    house.dispatcher.on_batch.append(house.router._on_batch)
    for each in house.dispatcher.on_batch:  # some are answered without a word
        each(Batch(1), 0.0)
    house.turn()
    assert [heard[-1] for heard in house.session.heard] == [b"0", b"1", b"2", b"3", b"4", b"x"]
    assert (first.reading, second.reading, third.reading) == (True, True, True)


def test_z9_a_peer_whose_request_was_one_too_many_is_not_read_further(house):
    first, second = house.join(b"1"), house.join(b"2")
    house.session.room = 4
    for transport in (first, second, first):
        house.say(transport, message(b"", b"x"))
        assert transport.reading
    house.say(first, message(b"", b"y"))
    assert len(house.session.heard) == 4
    assert (first.reading, second.reading) == (False, True)
    house.say(second, message(b"", b"z"))
    assert len(house.session.heard) == 4
    assert (first.reading, second.reading) == (False, False)

    house.session.room = 100
    house.router.send((b"1", b""), b"reply", None)
    house.turn()
    assert house.session.heard[4:] == [[b"2", b"", b"z"]]
    assert (first.reading, second.reading) == (True, True)


def test_z9_a_fault_behind_messages_that_wait_is_met_after_them(house):
    transport = house.join(b"1")
    house.session.room = 1
    house.say(transport, message(b"x") + message(b"y") + b"\xff\0")
    assert transport.state == "open"
    house.session.room = 100
    house.router._go_on()
    house.turn()
    assert [heard[-1] for heard in house.session.heard] == [b"x", b"y"]
    assert transport.state == "closed"


def test_z10_a_flood_is_heard_in_slices(house):
    flood, other = house.join(b"1"), house.join(b"2")
    flood.protocol.data_received(message(b"", b"x") * 100_000)
    other.protocol.data_received(message(b"", b"y"))
    assert house.session.heard[-1] == [b"2", b"", b"y"]
    assert len(house.session.heard) == 1 + limits.TURN_REQUESTS_MAX
    house.turn(600)
    assert len(house.session.heard) == 100_001


@pytest.mark.parametrize("apart", [False, True])
def test_z10_a_peer_whose_answers_are_large_is_not_heard_before_it_has_them(house, apart):
    transport = house.join(b"1")
    house.say(transport, message(b"", b"first"))
    house.session.owes = 2 * MIB  # for each request
    requests = [message(b"", b"x")] * 5
    for request in requests if apart else [b"".join(requests)]:
        if transport.reading:
            house.say(transport, request)
    assert len(house.session.heard) == 2
    assert not transport.reading

    house.turn(10)
    assert len(house.session.heard) == 2

    for count in range(3, 6):
        house.answer()
        house.turn(10)
        if apart:
            assert transport.reading
            house.say(transport, requests[0])
        assert len(house.session.heard) == count


def test_z11_a_reply_to_a_peer_that_is_gone_is_told_as_undelivered(house):
    told: list[str] = []
    transport = house.join(b"me")
    house.router.send((b"nobody", b""), b"x", lambda: told.append("never there"))
    house.router.send((b"me", b""), b"x", lambda: told.append("lost in this turn"))
    house.router.send((b"me", b""), b"x", None)
    transport.connection.connection_lost(None)
    house.router.send((b"me", b""), b"x", lambda: told.append("gone"))
    assert told == []  # never while somebody speaks
    house.turn()
    assert told == ["never there", "lost in this turn", "gone"]


def test_z11_what_left_before_the_end_of_a_connection_is_not_told_as_undelivered(house):
    told: list[str] = []
    transport = house.join(b"me")
    house.router.send((b"me", b""), b"x", lambda: told.append("x"))
    house.turn()
    transport.connection.connection_lost(None)
    house.turn()
    assert told == []


def test_replies_of_one_turn_to_one_peer_are_one_write(house, monkeypatch):
    transport = house.join(b"me")
    writes: list[bytes] = []
    monkeypatch.setattr(transport, "write", writes.append)
    house.router.send((b"me", b""), b"x", None)
    house.router.send((b"me", b"hop" * 100, b""), b"y" * 300, None)
    house.turn()

    assert len(writes) == 1
    heard = Decoder(b"", MIB).feed(writes[0])
    assert heard == [[b"", b"", b"x"], [b"", b"hop" * 100, b"", b"y" * 300]]


def test_replies_and_pongs_of_one_turn_are_one_write(house, monkeypatch):
    transport = house.join(b"me")
    writes: list[bytes] = []
    monkeypatch.setattr(transport, "write", writes.append)
    transport.protocol.data_received(command(b"PING", b"\0\0a") + command(b"PING", b"\0\0b"))
    house.router.send((b"me", b""), b"x", None)
    assert writes == []
    house.turn()

    pongs = command(b"PONG", b"a") + command(b"PONG", b"b")
    assert writes == [pongs + message(b"", b"x")]


def test_a_write_that_fails_by_a_defect_of_ours_keeps_nobody_else_waiting(house, monkeypatch):
    first, second = house.join(b"1"), house.join(b"2")

    def fail(_data):
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(first, "write", fail)
    house.router.send((b"1", b""), b"x", None)
    house.router.send((b"2", b""), b"y", None)
    house.turn()

    assert first.state == "aborted"
    assert (second.state, second.written) == ("open", message(b"", b"y"))


def test_z12_the_only_reply_that_is_owed_leaves_at_once(house):
    transport = house.join(b"me")
    house.router.send_alone((b"me", b""), b"x", None)

    assert transport.written == message(b"", b"x")


def test_z12_behind_what_is_said_in_this_turn_a_reply_keeps_its_place(house, monkeypatch):
    transport = house.join(b"me")
    writes: list[bytes] = []
    monkeypatch.setattr(transport, "write", writes.append)
    house.router.send((b"me", b""), b"x", None)
    house.router.send_alone((b"me", b""), b"y", None)
    assert writes == []
    house.turn()

    assert writes == [message(b"", b"x") + message(b"", b"y")]


@pytest.mark.parametrize("route", [(b"me", b""), (b"me", b"hop", b"")])
@pytest.mark.parametrize("size", [0, 255, 256, 70_000])
def test_z12_a_reply_is_the_same_whichever_way_it_leaves(house, route, size):
    transport = house.join(b"me")
    house.router.send_alone(route, b"x" * size, None)
    house.turn()

    assert transport.written == message(*route[1:], b"x" * size)


def test_z12_a_peer_that_does_not_read_is_written_to_as_before(house):
    transport = house.join(b"me")
    transport.protocol.pause_writing()
    house.router.send_alone((b"me", b""), b"x", None)
    assert transport.written == b""
    house.turn()

    assert transport.written == message(b"", b"x")


def test_z12_a_protocol_without_a_short_way_is_written_to_as_before(house):
    house.session.receive_short = None
    transport = house.join(b"me")
    assert transport.protocol is transport.connection
    house.router.send_alone((b"me", b""), b"x", None)
    assert transport.written == b""
    house.turn()

    assert transport.written == message(b"", b"x")


def test_z12_a_reply_that_cannot_be_written_any_more_is_told_as_undelivered(house):
    told: list[str] = []
    transport = house.join(b"me")
    house.router.send_alone((b"nobody", b""), b"x", lambda: told.append("never there"))
    transport.state = "closed"  # by the system, which nobody has heard of yet
    house.router.send_alone((b"me", b""), b"x", lambda: told.append("just gone"))
    transport.protocol.connection_lost(None)
    house.router.send_alone((b"me", b""), b"x", lambda: told.append("gone"))
    assert told == []
    house.turn()

    assert told == ["never there", "just gone", "gone"]


def test_z12_peers_that_wait_are_read_again_when_a_reply_leaves_at_once(house):
    first, second = house.join(b"1"), house.join(b"2")
    house.session.room = 1
    house.say(first, message(b"", b"x"))
    house.say(second, message(b"", b"y"))
    assert (first.reading, second.reading) == (False, False)

    house.session.room = 100
    house.router.send_alone((b"1", b""), b"reply", None)
    house.turn()
    assert (first.reading, second.reading) == (True, True)
    assert house.session.heard[1:] == [[b"2", b"", b"y"]]


def test_a_defect_of_ours_harms_neither_the_peer_nor_others(house, caplog):
    first, second = house.join(b"1"), house.join(b"2")
    house.say(first, message(b"defect") + message(b"fine"))
    house.say(second, message(b"fine"))
    for body in (b"fine", b"defect", b"fine"):
        house.say(first, message(b"", body))
    assert house.session.heard == [
        [b"1", b"fine"],
        [b"2", b"fine"],
        [b"1", b"", b"fine"],
        [b"1", b"", b"fine"],
    ]
    assert caplog.text.count("internal error listener='test'") == 2
    assert first.reading
    assert first.state == "open"


@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from([b"", GREETING, HELLO]))
def test_z5_any_bytes_are_heard_or_end_the_connection(pieces, first):
    loop = asyncio.new_event_loop()
    house = House(loop)
    house.session.receive = house.session.heard.append
    try:
        transport = house.connect(first)
        for piece in (*pieces, ready(b"REQ", b""), *pieces):
            house.say(transport, piece)
        house.look(1)
        assert house.router.connections_count == (transport.state == "open")
        assert all(type(frame) is bytes for heard in house.session.heard for frame in heard)
        transport.connection.connection_lost(None)
        assert house.router.connections_count == 0
        assert house.router._peers == {}
    finally:
        loop.close()


short = st.binary(max_size=3).map(lambda body: message(b"", body))
parts = (
    short
    | short.map(lambda one: one * 2)
    | st.integers(250, 260).map(lambda size: message(b"", bytes(size)))
    | st.lists(st.binary(max_size=2), min_size=1, max_size=4).map(lambda some: message(*some))
    | st.sampled_from(
        [
            command(b"PING", b"\0\0"),
            b"\1\0" * 65,
            b"\1\1x",
            b"\0\0",
            b"\2" + bytes(7) + b"\1",
            message(b"", b"defect"),
            message(b"", b"x" * 50_000),
        ]
    )
    | st.binary(max_size=6)
)


@given(
    st.lists(st.tuples(parts, st.integers(0, 12), st.integers(0, 2), st.booleans()), max_size=12),
    st.integers(0, 6),
)
@example([(message(b"", b"") * 9_000, 0, 0, True), (message(b"", b"x"), 0, 0, True)], 10_000)
@example([(message(b"", b"kept"), 0, 1, True), (message(b"", b"x"), 0, 0, True)], 0)
def test_z5_the_short_way_of_usual_messages_leads_where_the_long_one_does(steps, room):
    loop = asyncio.new_event_loop()
    houses = House(loop), House(loop)
    try:
        transports = [house.join(b"me") for house in houses]
        ways = transports[0].protocol, transports[1].connection
        assert ways[0] is not transports[0].connection

        def told(house: House) -> tuple:
            (transport,) = house.transports
            session, peers = house.session, len(house.router.waiting)
            seen = (transport.written, transport.reading, transport.state)
            return (session.heard, session.overflows, peers, *seen)

        for house in houses:
            house.session.room = room
        for part, cut, more_room, at_once in steps:
            for piece in (part[:cut], part[cut:]):
                for way in ways if piece else ():
                    way.data_received(piece)
                houses[0].turn(0 if at_once else 3)
                assert told(houses[0]) == told(houses[1])
            for house in houses:
                house.session.room += more_room
                if more_room > 1:  # else nobody is told yet
                    house.router._go_on()
        for house in houses:
            house.session.room = 1_000_000
            house.router._go_on()
        houses[0].turn(10)
        assert told(houses[0]) == told(houses[1])
        for transport in transports:
            transport.protocol.connection_lost(None)
        assert [house.router.connections_count for house in houses] == [0, 0]
    finally:
        loop.close()


def test_a_peer_that_hangs_up_is_forgotten_at_once(house):
    transport = house.join(b"me")
    transport.protocol.eof_received()
    assert house.router.connections_count == 0
    assert transport.state == "closed"


def test_time_is_looked_at_as_often_as_it_says():
    assert zeromq._LOOK_SECONDS * zeromq._LOOKS_BETWEEN_PINGS == 10.0
    assert zeromq._LOOK_SECONDS * (zeromq._LOOKS_OF_SILENCE_MAX - 1) == 30.0
    assert zeromq._LOOK_SECONDS * (zeromq._LOOKS_OF_HANDSHAKE_MAX - 1) == 10.0


# Who a peer is.

PLAIN_HELLO = GREETING + b"\1" + b"PLAIN".ljust(20, b"\0") + bytes(32)
ADA = Entry(caller=Caller("ada", Role.WORKER), password=new_password("secret"))


def password(text: bytes, user: bytes = b"ada") -> bytes:
    return command(b"HELLO", bytes((len(user),)) + user + bytes((len(text),)) + text)


def test_a_password_from_another_machine_is_refused_unless_it_is_asked_for(house):
    """The transport of these tests has no address, so it is none of this machine."""
    transport = house.connect(PLAIN_HELLO + password(b"secret"))
    assert transport.written.startswith(HELLO)
    assert b"WELCOME" not in transport.written
    assert transport.state != "open"

    house.router._places = house.router._places._replace(is_plain_anywhere=True)
    transport = house.connect(PLAIN_HELLO + password(b"secret"))
    assert b"WELCOME" in transport.written


def test_a_peer_that_is_not_accepted_gets_an_error_at_the_handshake(house):
    house.callers.asks_everyone = True
    house.callers.replace([ADA])
    house.router._places = house.router._places._replace(is_plain_anywhere=True)
    introduction = command(b"INITIATE", properties(b"REQ", b"me"))

    nameless = house.connect(HELLO + ready(b"REQ", b"me"))
    wrong = house.connect(PLAIN_HELLO + password(b"wrong") + introduction)
    right = house.connect(PLAIN_HELLO + password(b"secret") + introduction)

    refused = command(b"ERROR", b"\x03400")
    assert nameless.written == HELLO + refused
    assert wrong.written.endswith(refused)
    assert b"READY" not in wrong.written
    assert b"READY" in right.written
    assert house.router.caller_of(own_routing_id("ada", b"me")) == ADA.caller


def test_an_old_peer_that_is_not_accepted_is_let_go(house):
    house.callers.asks_everyone = True

    transport = house.connect(OLD_HELLO)

    assert transport.state != "open"
    assert house.router.caller_of(b"me") is None


def test_z4_peers_of_different_callers_may_choose_one_identity_and_stay_apart(house):
    house.callers.asks_everyone = True
    eve = replace(ADA, caller=Caller("eve", Role.SUBMIT))
    house.callers.replace([ADA, eve])
    house.router._places = house.router._places._replace(is_plain_anywhere=True)

    def join(user: bytes, wish: bytes) -> Transport:
        introduction = command(b"INITIATE", properties(b"DEALER", wish))
        transport = house.connect(PLAIN_HELLO + password(b"secret", user) + introduction)
        house.say(transport, message(b"", user))
        transport.written = b""
        return transport

    mine = join(b"ada", b"me")
    mine_of_ada = house.session.heard[0][0]
    others = [join(b"eve", wish) for wish in (b"me", mine_of_ada)]
    house.router.send((mine_of_ada, b""), b"for ada", None)
    house.turn()
    assert mine.state == "open"
    assert mine.written == message(b"", b"for ada")

    mine.connection.connection_lost(None)
    house.router.send((mine_of_ada, b""), b"held for ada", None)
    house.turn()
    assert [other.written for other in others] == [b"", b""]


def test_a_caller_that_is_removed_is_disconnected(house):
    house.callers.asks_everyone = True
    house.callers.replace([ADA])
    house.router._places = house.router._places._replace(is_plain_anywhere=True)
    hello = PLAIN_HELLO + password(b"secret")
    transport = house.connect(hello + command(b"INITIATE", properties(b"REQ", b"me")))
    house.callers.subscribe(house.router._look_at_callers)

    house.callers.replace([ADA])
    assert transport.state == "open"
    house.callers.replace([])

    assert transport.state == "aborted"
    assert house.router.caller_of(b"me") is None


def test_keys_of_peers_count_once_there_is_a_file_that_can_list_them(house):
    transport = house.join(b"me")
    peer = transport.connection._session
    mechanism = CurveHandshake(new_keys())
    mechanism.peer_key = new_keys().public
    listed = Entry(caller=Caller("node", Role.WORKER), curve=mechanism.peer_key)

    house.callers.replace([ADA])  # as with a file of tokens
    assert house.callers.identify(house.router.shown_by(peer, mechanism)) is ANYBODY
    house.callers.asks_everyone = True
    assert house.callers.identify(house.router.shown_by(peer, mechanism)) is None
    house.callers.replace([listed])
    assert house.callers.identify(house.router.shown_by(peer, mechanism)) == listed.caller

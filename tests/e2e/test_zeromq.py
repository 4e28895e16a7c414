"""The ROUTER socket beside real peers of libzmq, and beside raw bytes that libzmq never sends."""

import asyncio
import contextlib
import socket
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import uvloop
import zmq
from zmq.utils.monitor import recv_monitor_message

from manyhands.access.callers import Callers
from manyhands.config import Address
from manyhands.dispatch.ids import Ids
from manyhands.net import tcp, zeromq
from manyhands.net.zeromq import Places, RouterSocket
from manyhands.net.zmtp import GREETING, Decoder, command, encode, ready
from tests.e2e.serving import SECONDS_MAX
from tests.e2e.wmp_talk import wait_until
from tests.unit.net.transport import ample_budget

MIB = 1024 * 1024
HELLO = GREETING + b"\1" + b"NULL".ljust(20, b"\0") + bytes(32)
OLD_HELLO = GREETING[:10] + b"\1\5\0\2me"
SIZES = (0, 1, 255, 256, 65_536, 10 * MIB)


class Echo:
    """Answers with what it heard, and with who said it where that is asked."""

    def __init__(self) -> None:
        self.router: RouterSocket | None = None
        self.quiet_count = 0

    def receive(self, frames):
        if frames[-1].startswith(b"quiet"):
            self.quiet_count += 1
            return
        body = frames[0] if frames[-1] == b"who am I?" else frames[-1]
        self.router.send(tuple(frames[:-1]), body, None)

    def receive_short(self, route, body):
        if body.startswith(b"quiet"):
            self.quiet_count += 1
            return
        self.router.send_alone(route, route[0] if body == b"who am I?" else body, None)

    def overflowed(self, peer):
        self.router.send((peer,), b"too many frames", None)

    def is_overwhelmed(self):
        return False

    def drain(self):
        pass


class Echoing:
    """The socket, in a thread of its own."""

    def __init__(self, new_loop=asyncio.new_event_loop, address=None) -> None:
        address = address or Address("127.0.0.1", 0)
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        try:
            self.router, self.address = self.run(self._start(address))
        except BaseException:
            self._end()
            raise
        self.url = f"tcp://{self.address}"

    async def _start(self, address):
        dispatcher = SimpleNamespace(
            ask=None,
            on_signal={},
            on_batch=[],
            draining=False,
            failed=None,
            owed_bytes=0,
            when_idle=lambda then: then(),
            clock=None,
        )
        backplane = SimpleNamespace(
            ids=Ids(),
            dispatcher=dispatcher,
            budget=ample_budget(),
            callers=(callers := Callers()),
            logins=SimpleNamespace(callers=callers, failed=lambda *_: None),
            gate=SimpleNamespace(guard=lambda *_: None),
            condition=SimpleNamespace(failure=None, on_failure=[]),
        )
        session = Echo()
        session.router = RouterSocket(backplane, "echo", 16 * MIB, Places(address))
        return session.router, (await session.router.start(session)).plain

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS_MAX)

    def call(self, function, *arguments):
        async def inside():
            return function(*arguments)

        return self.run(inside())

    def peers(self) -> list[zeromq.Peer]:
        return self.call(lambda: list(self.router.everybody))

    def stop(self) -> None:
        self.run(self.router.drain())
        self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SECONDS_MAX)
        self.loop.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def echoing(request):
    echoing = Echoing(request.param)
    yield echoing
    echoing.stop()


def test_z12_the_only_reply_that_is_owed_leaves_while_the_loop_is_still_busy(echoing):
    with socket.create_connection(tuple(str(echoing.address).rsplit(":", 1))) as peer:
        peer.settimeout(SECONDS_MAX)
        peer.sendall(HELLO + ready(b"REQ", b"me"))
        answer = b""
        while not answer.endswith(ready(b"ROUTER", b"")):
            answer += peer.recv(1000)

        def answer_and_wait() -> bytes:
            echoing.router.send_alone((b"me", b""), b"now", None)
            return peer.recv(1000)  # in the loop's own thread: nothing else can write it

        assert echoing.call(answer_and_wait) == encode((b"", b""), b"now")


@pytest.fixture
def context():
    context = Context()
    yield context
    context.destroy(linger=0)


class Context(zmq.Context):
    """Keeps its sockets until its own end."""

    kept: list[zmq.Socket]

    def __init__(self) -> None:
        super().__init__()
        self.set(zmq.MAX_SOCKETS, 4_000)
        self.__dict__["kept"] = []  # else it would be an option of libzmq

    def socket(self, *arguments, **options):
        made = super().socket(*arguments, **options)
        self.kept.append(made)
        return made


def connect(context, kind, url, **options):
    peer = context.socket(kind)
    peer.setsockopt(zmq.RCVTIMEO, int(SECONDS_MAX * 1000))
    peer.setsockopt(zmq.SNDTIMEO, int(SECONDS_MAX * 1000))
    for name, value in options.items():
        peer.setsockopt(getattr(zmq, name), value)
    if kind == zmq.ROUTER:
        peer.setsockopt(zmq.CONNECT_ROUTING_ID, b"server")
    peer.connect(url)
    return peer


def is_served(echoing: Echoing, context) -> bool:
    peer = connect(context, zmq.REQ, echoing.url)
    peer.send(b"still there?")
    return peer.recv() == b"still there?"


def monitor(peer, *events: int):
    """Tells of these events."""
    return peer.get_monitor_socket(sum(events))


def await_event(monitoring) -> int:
    assert monitoring.poll(SECONDS_MAX * 1000), "the event did not come"
    return recv_monitor_message(monitoring)["event"]


class Raw:
    """A peer that says whatever it likes."""

    def __init__(self, echoing: Echoing, first: bytes = b"") -> None:
        where = (echoing.address.host, echoing.address.port)
        self.socket = socket.create_connection(where, timeout=SECONDS_MAX)
        self.socket.sendall(first)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            piece = self.socket.recv(size - len(read))
            assert piece, f"closed after {read!r}"
            read += piece
        return read

    def read_to_end(self) -> bytes:
        read = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(65_536):
                read += piece
        return read


# Peers as they should be.


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER, zmq.ROUTER])
def test_z2_three_kinds_of_sockets_are_served_with_payloads_of_any_size(echoing, context, kind):
    peer = connect(context, kind, echoing.url)
    first = {zmq.REQ: [], zmq.DEALER: [b"", b"hop" * 100], zmq.ROUTER: [b"server", b""]}[kind]
    for size in SIZES * 2:
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        peer.send_multipart([*first, body])
        assert peer.recv_multipart() == [*first, body]


def test_z2_three_hundred_peers_at_once_each_hear_their_own(echoing, context):
    peers = [connect(context, zmq.DEALER, echoing.url) for _ in range(300)]
    for number in range(10):
        for index, peer in enumerate(peers):
            peer.send_multipart([b"", b"%d of %d" % (number, index)])
    for index, peer in enumerate(peers):
        heard = [peer.recv_multipart() for _ in range(10)]
        assert heard == [[b"", b"%d of %d" % (number, index)] for number in range(10)]
    assert echoing.router.connections_count == 300


def test_z2_a_peer_may_pipeline_ten_thousand_messages(echoing, context):
    peer = connect(context, zmq.DEALER, echoing.url, SNDHWM=0, RCVHWM=0)
    for number in range(10_000):
        peer.send_multipart([b"", b"%d" % number])
    assert [int(peer.recv_multipart()[1]) for _ in range(10_000)] == list(range(10_000))


def test_z10_everything_is_heard_that_a_peer_said_before_it_left(echoing, context):
    peer = connect(context, zmq.DEALER, echoing.url)
    for _ in range(300):
        peer.send(b"quiet".ljust(100_000))
    peer.close(linger=int(SECONDS_MAX * 1000))
    wait_until(lambda: echoing.router.session.quiet_count == 300, "all are heard")
    wait_until(lambda: echoing.router.connections_count == 0, "it is forgotten")


def test_z1_peers_come_back_after_a_restart(context):
    echoing = Echoing()
    peers = [connect(context, zmq.DEALER, echoing.url) for _ in range(5)]
    for number in range(3):
        for peer in peers:
            # What was said before the end was noticed is lost: it is said again.
            wait_until(partial(is_echoed, peer, b"%d" % number), "it is back")
        echoing.stop()
        echoing = again(echoing.address)
    echoing.stop()


def is_echoed(peer, body: bytes) -> bool:
    peer.send(body)
    while peer.poll(300):
        if peer.recv() == body:
            return True
    return False


def again(address: Address) -> Echoing:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return Echoing(address=address)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_z1_a_peer_of_version_2_is_served(echoing):
    with Raw(echoing, OLD_HELLO) as raw:
        assert raw.read(14) == GREETING + b"\6\0\0"
        raw.socket.sendall(b"\1\0" + b"\0\x09who am I?")
        assert raw.read(6) == b"\1\0" + b"\0\2me"


@pytest.mark.parametrize("host", ["::1", "::"])
def test_z1_ipv6_is_served_and_all_addresses_are_those_of_ipv4_too(context, host):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    echoing = Echoing(address=Address(host, 0))
    try:
        for at in ["[::1]"] if host == "::1" else ["[::1]", "127.0.0.1"]:
            peer = connect(context, zmq.REQ, f"tcp://{at}:{echoing.address.port}", IPV6=1)
            peer.send(b"hello")
            assert peer.recv() == b"hello"
    finally:
        echoing.stop()


def test_an_address_that_is_taken_is_told_in_a_sentence(echoing):
    with pytest.raises(OSError, match=f"echo cannot listen on {echoing.address}: Address already"):
        Echoing(address=echoing.address)


# Identities.


def test_z3_identities_are_chosen_by_peers_or_made_up(echoing, context):
    heard = []
    for wish in (b"chosen", b"c" * 255, b"", b"", b"\0zero"):
        options = {"ROUTING_ID": wish} if wish else {}
        peer = connect(context, zmq.DEALER, echoing.url, **options)
        peer.send(b"who am I?")
        heard.append(peer.recv())
    assert heard[:2] == [b"chosen", b"c" * 255]
    assert [(len(given), given[0]) for given in heard[2:]] == [(5, 0)] * 3
    assert len(set(heard)) == 5


def test_z4_a_peer_takes_over_the_identity_of_another_whose_connection_ends(echoing, context):
    options = {"ROUTING_ID": b"me", "RECONNECT_IVL": -1}
    former = connect(context, zmq.DEALER, echoing.url, **options)
    events = monitor(former, zmq.EVENT_DISCONNECTED)
    former.send(b"hello")
    assert former.recv() == b"hello"

    latter = connect(context, zmq.DEALER, echoing.url, **options)
    latter.send(b"who am I?")
    assert latter.recv() == b"me"
    assert await_event(events) == zmq.EVENT_DISCONNECTED
    wait_until(lambda: echoing.router.connections_count == 1, "the former is forgotten")


# Signs of life.


def test_z6_a_peer_that_asks_for_signs_of_life_gets_them(echoing, context, monkeypatch):
    said: list[bytes] = []
    send = zeromq.Connection.send
    monkeypatch.setattr(
        zeromq.Connection, "send", lambda self, data: (said.append(data), send(self, data))
    )
    options = {"HEARTBEAT_IVL": 20, "HEARTBEAT_TIMEOUT": 60_000, "HEARTBEAT_TTL": 60_000}
    peer = connect(context, zmq.DEALER, echoing.url, **options)
    events = monitor(peer, zmq.EVENT_DISCONNECTED)
    wait_until(lambda: said.count(command(b"PONG", b"")) >= 10, "it is answered ten times")
    assert not events.poll(0)


def test_z6_a_peer_that_gets_no_signs_of_life_leaves(echoing, context, monkeypatch):
    """So the test above could fail."""
    monkeypatch.setattr(Decoder, "_take_command", lambda *given: len(given[1]))
    options = {"HEARTBEAT_IVL": 20, "HEARTBEAT_TIMEOUT": 100, "HEARTBEAT_TTL": 60_000}
    peer = connect(context, zmq.DEALER, echoing.url, **options)
    assert await_event(monitor(peer, zmq.EVENT_DISCONNECTED)) == zmq.EVENT_DISCONNECTED


def test_z6_a_peer_with_heartbeats_answers_our_pings(echoing, context, monkeypatch):
    received: list[bytes] = []
    take = Decoder._take_command

    def note(decoder, data, at):
        received.append(data[at:])
        return take(decoder, data, at)

    monkeypatch.setattr(Decoder, "_take_command", note)
    options = {"HEARTBEAT_IVL": 3_000, "HEARTBEAT_TIMEOUT": 60_000, "HEARTBEAT_TTL": 60_000}
    connect(context, zmq.DEALER, echoing.url, **options)
    wait_until(lambda: echoing.peers() and echoing.peers()[0]._decoder, "it is there")
    (known,) = echoing.peers()
    wait_until(lambda: known._decoder.pings_count > 0, "it asks for a sign of life")
    for _ in range(2):
        echoing.call(known.look)
    wait_until(lambda: any(b"\x04PONG" in said for said in received), "it answers")


# Peers that cannot be served.


def test_z1_peers_with_encryption_are_refused_where_there_is_none(echoing, context):
    public, secret = zmq.curve_keypair()
    curve = {"CURVE_SERVERKEY": public, "CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret}
    peer = context.socket(zmq.DEALER)
    events = monitor(peer, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    for name, value in curve.items():
        peer.setsockopt(getattr(zmq, name), value)
    peer.connect(echoing.url)
    assert await_event(events) == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    assert is_served(echoing, context)
    assert echoing.router._refused_count >= 1


@pytest.mark.parametrize("kind", [zmq.SUB, zmq.PUB, zmq.REP, zmq.PUSH, zmq.PAIR])
def test_z2_other_kinds_of_sockets_are_refused_and_others_are_served(echoing, context, kind):
    peer = context.socket(kind)
    events = monitor(peer, zmq.EVENT_DISCONNECTED)
    peer.connect(echoing.url)
    assert await_event(events) == zmq.EVENT_DISCONNECTED
    assert is_served(echoing, context)


def test_z2_data_before_the_introduction_is_answered_with_an_error(echoing, context):
    with Raw(echoing, HELLO + encode((b"", b""), b"early")) as raw:
        said = b"a message before READY"
        assert raw.read_to_end().endswith(command(b"ERROR", bytes((len(said),)) + said))
    assert is_served(echoing, context)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\1\0\0\5hello", bytes(5000)])
def test_z1_who_speaks_something_else_is_closed(echoing, context, first):
    with Raw(echoing, first) as raw:
        assert raw.read_to_end() == GREETING
    assert is_served(echoing, context)


def test_z7_half_a_greeting_is_closed_in_time(monkeypatch, context):
    monkeypatch.setattr(zeromq, "_LOOK_SECONDS", 0.02)
    echoing = Echoing()
    try:
        with Raw(echoing, HELLO[:20]) as raw, Raw(echoing) as silent:
            assert raw.read_to_end() == GREETING
            assert silent.read_to_end() == GREETING
        monkeypatch.setattr(zeromq, "_LOOK_SECONDS", 60.0)  # others have time
        assert is_served(echoing, context)
    finally:
        echoing.stop()


def test_z5_frames_without_end_are_cut_off(echoing, context):
    with Raw(echoing, HELLO + ready(b"DEALER", b"")) as raw:
        piece = (b"\1\xff" + bytes(255)) * 4_000
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200 * MIB:
                raw.socket.sendall(piece)
                sent += len(piece)
        assert sent < 100 * MIB  # 17 count, and some are on their way
        heard = raw.read_to_end()
    assert b"too many frames" in heard or heard == b""
    assert is_served(echoing, context)


def test_z8_a_peer_that_does_not_read_is_not_read_and_gets_everything_later(echoing, context):
    count, body = 150, bytes(MIB)
    with Raw(echoing, HELLO + ready(b"DEALER", b"me")) as raw:
        raw.read(len(HELLO + ready(b"ROUTER", b"")))
        writing = threading.Thread(
            target=raw.socket.sendall, args=(encode((b"", b""), body) * count,)
        )
        writing.start()
        (known,) = echoing.peers()
        wait_until(lambda: known.connection.writing_paused, "nothing more is read from it")
        assert is_served(echoing, context)
        assert writing.is_alive()
        assert known.connection.unread_bytes() < 20 * MIB

        decoder = Decoder(b"", 2 * MIB)
        heard: list[list[bytes]] = []
        while len(heard) < count:
            heard += decoder.feed(raw.socket.recv(MIB))
        writing.join()
    assert heard == [[b"", b"", body]] * count


def test_z8_a_peer_that_is_told_far_more_than_it_reads_is_closed(echoing, context, monkeypatch):
    """In one word, even: the write that is too much is the first that it does not read."""
    monkeypatch.setattr(tcp, "OUTPUT_BYTES_MAX", 8 * MIB)
    with Raw(echoing, HELLO + ready(b"DEALER", b"me")) as raw:
        raw.read(len(HELLO + ready(b"ROUTER", b"")))
        echoing.call(echoing.router.send, (b"me", b""), bytes(64 * MIB), None)
        wait_until(lambda: echoing.router.connections_count == 0, "it is let go")
    assert is_served(echoing, context)


def test_a_peer_that_vanishes_is_forgotten(echoing, context):
    with Raw(echoing, HELLO + ready(b"DEALER", b"me")) as raw:
        raw.read(11)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    wait_until(lambda: echoing.router.connections_count == 0, "it is forgotten")
    assert is_served(echoing, context)


def test_a_socket_that_stops_lets_go_of_its_address():
    echoing = Echoing()
    echoing.stop()
    with pytest.raises(ConnectionRefusedError):
        Raw(echoing)

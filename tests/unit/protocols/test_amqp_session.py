"""An AMQP connection fed with anything: it answers or closes, and never breaks."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.commands import Basic, Channel, Connection, Queue

from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.session import AmqpSession
from manyhands.wire.amqp import PROTOCOL_HEADER, FrameReader, Message

EXCHANGE = "task_pending_v1"


class Log:
    """Ten messages of ten bytes."""

    first_seq, last_seq = 1, 10

    def read(self, seq, count_max, exchanges):
        if exchanges is not None and EXCHANGE not in exchanges:
            return [], self.last_seq
        last = min(self.last_seq, seq + count_max)
        found = range(seq + 1, last + 1)
        header = struct.pack(">HHQH", 60, 0, 10, 0)
        return [Message(n, EXCHANGE, f"a.{n}", header, b"0123456789") for n in found], last

    def seq_before(self, at):  # noqa: ARG002
        return 5


class Welcome:
    product, version, server_name = "Test", "0", "server"
    connections_max = 1

    def refusal_of(self, user, password, address):  # noqa: ARG002
        return None if user == "guest" else "no"

    def is_full(self):
        return False


class Peer:
    connection, address = "c/1", "127.0.0.1"

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False
        self._tokens = 0

    def send(self, data):
        self.sent += data

    def close(self):
        self.closed = True

    def is_congested(self):
        return False

    def now(self):
        return 1_700_000_000_000

    def token(self):
        self._tokens += 1
        return f"{self._tokens:032x}"


def a_session():
    peer = Peer()

    def ask(command, settle=None, refused=None):  # noqa: ARG001
        if settle is not None:
            settle(command)

    broker = Broker((EXCHANGE,), Log(), ask, lambda: None)
    return AmqpSession(peer, broker, Welcome()), peer, broker


def open_session():
    session, peer, broker = a_session()
    session.receive(PROTOCOL_HEADER)
    for channel, method in (
        (0, Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")),
        (0, Connection.TuneOk(0, 0, 0)),
        (0, Connection.Open("/")),
        (1, Channel.Open()),
    ):
        session.receive(frame.marshal(method, channel))
    return session, peer, broker


def frames_of(peer: Peer) -> list[tuple[int, object]]:
    """What was said is whole frames, whatever was heard."""
    reader = FrameReader(1 << 20)
    found = list(reader.feed(peer.sent))
    assert not reader._bytes
    return found


METHODS = [
    kind
    for index, kind in commands.INDEX_MAPPING.items()
    if index >> 16 in (10, 20, 40, 50, 60, 85, 90)
    and kind is not Basic.RecoverAsync  # old, and the codec complains about it
]
ARGUMENTS = st.dictionaries(
    st.sampled_from(
        ["x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-stream-offset", "x"]
    ),
    st.one_of(
        st.integers(-5, 50), st.sampled_from(["first", "last", "next", "drop-head"]), st.booleans()
    ),
    max_size=2,
)


# The codec lets nobody set these.
RESERVED = {"ticket", "capabilities", "insist", "out_of_band", "channel_id", "cluster_id"}
RESERVED |= {"known_hosts", "virtual_host"}


@st.composite
def a_method(draw):
    """A method with arguments of the right kinds, if not of any sense."""
    method = draw(st.sampled_from(METHODS))()
    for name in method.attributes():
        if name in RESERVED:
            continue
        kind = method.amqp_type(name)
        if kind == "bit":
            value = draw(st.booleans())
        elif kind == "table":
            value = draw(ARGUMENTS)
        elif kind in ("shortstr", "longstr"):
            value = draw(st.sampled_from(["", "q", "q2", EXCHANGE, "topic"]))
            if name == "routing_key":
                value = draw(st.sampled_from(["", "#", "a.*", "a.3"]))
        else:
            value = draw(st.integers(0, 3))
        setattr(method, name, value)
    return method


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), a_method()), max_size=12))
def test_methods_in_any_order_are_answered_or_refused(methods):
    """T27."""
    session, peer, broker = open_session()
    for channel, method in methods:
        try:
            data = frame.marshal(method, channel)
        except Exception:  # noqa: BLE001 - the other codec has limits, too
            continue
        session.receive(data)
        broker.feed()
        session.tick(peer.now())
    session.lost()

    frames_of(peer)
    assert not [queue for queue in broker.queues.values() if queue.consumers]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_bytes_in_any_order_are_answered_or_refused(pieces, opened):
    session, _, _ = open_session() if opened else a_session()
    for piece in pieces:
        session.receive(piece)
    session.lost()


def test_a_bounded_queue_hands_out_the_newest_after_a_rewind():
    """T45."""
    session, peer, broker = open_session()
    for method in (
        Queue.Declare(0, "q", exclusive=True, arguments={"x-max-length": 3}),
        Queue.Bind(0, "q", EXCHANGE, "a.#"),
        Basic.Consume(0, "q", "t", no_ack=True, arguments={"x-stream-offset": "first"}),
    ):
        session.receive(frame.marshal(method, 1))
    broker.feed()

    said = [method for _, method in frames_of(peer)]
    keys = [method.routing_key for method in said if isinstance(method, Basic.Deliver)]
    assert keys == ["a.8", "a.9", "a.10"]
    assert broker.overflow_count == 7

"""An AMQP session without a socket: a log of ten messages, a peer that keeps what it is told."""

import struct

from pamqp import frame
from pamqp.commands import Channel, Connection

from manyhands.net.amqp import PROTOCOL_HEADER, FrameReader, Message
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.session import AmqpSession

EXCHANGE = "task_pending_v1"


class Log:
    """Ten messages of ten bytes, unless somebody wants more."""

    first_seq, last_seq = 1, 10
    looked_count = 0  # messages that somebody read

    def read(self, seq, count_max, exchanges):
        if exchanges is not None and EXCHANGE not in exchanges:
            return [], self.last_seq
        last = min(self.last_seq, seq + count_max)
        found = range(seq + 1, last + 1)
        self.looked_count += len(found)
        header = struct.pack(">HHQH", 60, 0, 10, 0)
        return [Message(n, EXCHANGE, f"a.{n}", header, b"0123456789") for n in found], last

    def seq_before(self, at):  # noqa: ARG002
        return 5


class Welcome:
    product, version, server_name = "Test", "0", "server"
    connections_max = 1

    def let_in(self, user, password, peer, then):  # noqa: ARG002
        then(user == "guest")

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.headers: list[bytes] = []

    def is_full(self):
        return False

    def report_fault(self, address, error):  # noqa: ARG002
        self.faults.append(error.code)

    def report_header(self, address, header):  # noqa: ARG002
        self.headers.append(header)


class Peer:
    connection, address, certificate = "c/1", "127.0.0.1", None
    seen = ()

    def __init__(self) -> None:
        self.sent = b""
        self.at = 1_700_000_000_000
        self.closed = False
        self._tokens = 0

    def send(self, data):
        self.sent += data

    def close(self):
        self.closed = True

    def is_congested(self):
        return False

    def now(self):
        return self.at

    def token(self):
        self._tokens += 1
        return f"{self._tokens:032x}"


def a_session(ask=None):
    """``ask``: what stands for the dispatcher; without one, everything is on disk at once."""
    peer = Peer()

    def settle_at_once(command, settle=None, refused=None):  # noqa: ARG001
        if settle is not None:
            settle(command)

    broker = Broker((EXCHANGE,), Log(), ask or settle_at_once, lambda: None)
    return AmqpSession(peer, broker, Welcome()), peer, broker


def open_session(ask=None):
    session, peer, broker = a_session(ask)
    shake_hands(session)
    return session, peer, broker


def open_another(broker: Broker):
    """A second connection to the same broker."""
    peer = Peer()
    peer.connection = "c/2"
    session = AmqpSession(peer, broker, Welcome())
    shake_hands(session)
    return session, peer


def shake_hands(session: AmqpSession, heartbeat: int = 0) -> None:
    session.receive(PROTOCOL_HEADER)
    for channel, method in (
        (0, Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")),
        (0, Connection.TuneOk(0, 0, heartbeat)),
        (0, Connection.Open("/")),
        (1, Channel.Open()),
    ):
        session.receive(frame.marshal(method, channel))


def frames_of(peer: Peer) -> list[tuple[int, object]]:
    """What was said is whole frames, whatever was heard."""
    reader = FrameReader(1 << 20)
    found = list(reader.feed(peer.sent))
    assert not reader._bytes
    return found

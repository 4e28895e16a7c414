"""An AMQP connection fed with anything: it answers or closes, and never breaks."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, encode, frame
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from manyhands.net.amqp import PROTOCOL_HEADER
from tests.unit.protocols.amqp_room import (
    EXCHANGE,
    a_session,
    frames_of,
    open_session,
    shake_hands,
)

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


# Whatever fits into a short string; the codec's own check would let few of these pass.
NAMES = st.text(min_size=1, max_size=255).filter(
    lambda name: len(name.encode(errors="replace")) <= 255 and not name.startswith("amq.")
)


def said_by(peer) -> list:
    return [method for _, method in frames_of(peer)]


@settings(max_examples=200, deadline=None)
@given(NAMES, NAMES, st.text(max_size=60), st.booleans())
def test_queues_consumers_and_keys_may_have_any_name(name, tag, key, durable):
    """T17."""
    session, peer, broker = open_session()
    for pack in (
        lambda: declare(name, durable=durable),
        lambda: with_texts(Queue.Bind(0, "", EXCHANGE, ""), routing_key=key),
        lambda: with_texts(Basic.Consume(0, ""), consumer_tag=tag),
        lambda: with_texts(Basic.Cancel(), consumer_tag=tag),
        lambda: with_texts(Exchange.Declare(0, EXCHANGE, passive=True), exchange=name),
    ):
        session.receive(pack())
    broker.feed()
    said = said_by(peer)[-5:]

    kept = name.replace("\r", "").replace("\n", "")
    assert [method.name for method in said] == [
        "Queue.DeclareOk",
        "Queue.BindOk",
        "Basic.ConsumeOk",
        "Basic.CancelOk",
        "Channel.Close",
    ]
    assert said[0].queue == kept or not kept
    assert said[2].consumer_tag == said[3].consumer_tag == tag
    assert said[4].reply_code == 404


def with_texts(method, **texts: str) -> bytes:
    """A frame of channel 1 as a client writes it that does not check names."""
    for name, text in texts.items():
        setattr(method, name, text)
    parts = []
    bits = 0
    for name in method.attributes():
        kind, value = method.amqp_type(name), getattr(method, name)
        if kind == "bit":
            bits += 1
            continue
        if bits:
            parts.append(b"\x01" if getattr(method, "passive", False) else b"\x00")
            bits = 0
        parts.append(encode.by_type(value, kind))
    if bits:
        parts.append(b"\x00")
    payload = method.index.to_bytes(4, "big") + b"".join(parts)
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def declare(name: str, *, durable: bool = False) -> bytes:
    packed = name.encode()
    payload = struct.pack(">HHH", 50, 10, 0) + bytes((len(packed),)) + packed
    payload += (b"\x02" if durable else b"\x00") + b"\x00" * 4
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


def test_an_answer_that_cannot_be_made_closes_the_connection_with_a_sentence(monkeypatch):
    """T27."""
    settled = []
    session, peer, broker = open_session(
        lambda command, settle=None, refused=None: settled.append((command, settle))  # noqa: ARG005
    )
    session.receive(declare("q", durable=True))
    monkeypatch.setattr(broker.queues["q"], "count", lambda: 1 // 0, raising=False)
    command, settle = settled[-1]
    settle(command)

    close = said_by(peer)[-1]
    assert isinstance(close, Connection.Close)
    assert close.reply_code == 541
    assert "internal error" in close.reply_text
    assert not session.is_overwhelmed()


def test_a_defect_while_a_request_is_handled_is_an_answer_too(monkeypatch):
    """T27."""
    session, peer, broker = open_session()
    monkeypatch.setattr(broker, "declare", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        session.receive(declare("q"))

    close = said_by(peer)[-1]
    assert isinstance(close, Connection.Close)
    assert close.reply_code == 541


def test_an_opened_channel_is_answered_in_the_bytes_that_rabbitmq_sends():
    """T15."""
    session, peer, _ = open_session()
    before = len(peer.sent)
    session.receive(frame.marshal(Channel.Open(), 2))

    assert peer.sent[before:].hex() == "010002" + "00000008" + "0014000b" + "00000000" + "ce"


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"])
def test_the_header_of_both_names_of_the_version_opens_a_connection(header):
    """T15."""
    session, peer, _ = a_session()
    session.receive(header)

    [(_, start)] = frames_of(peer)
    assert isinstance(start, Connection.Start)
    assert (start.version_major, start.version_minor) == (0, 9)


@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x00\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_another_header_is_reported_and_answered_with_ours(header):
    """T16."""
    session, peer, broker = a_session()
    session.receive(header)

    assert peer.sent == PROTOCOL_HEADER
    assert peer.closed
    assert session._welcome.headers == [header]
    assert broker.faults_count == 1


def test_what_a_silent_peer_held_goes_back_before_its_connection_is_closed():
    """T26."""
    session, peer, broker = a_session()
    shake_hands(session, heartbeat=2)
    for method in (Queue.Declare(0, "q"), Queue.Bind(0, "q", EXCHANGE, "a.#")):
        session.receive(frame.marshal(method, 1))
    rewound = Basic.Consume(0, "q", "t", arguments={"x-stream-offset": "first"})
    session.receive(frame.marshal(rewound, 1))
    broker.feed()
    held_at = []
    peer.close = lambda: held_at.append(broker.queues["q"].take())
    session.tick(peer.at + 4_000)
    kept_until_then = not held_at
    session.tick(peer.at + 4_001)

    assert kept_until_then
    [(message, redelivered)] = held_at
    assert message.seq == 1
    assert redelivered


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

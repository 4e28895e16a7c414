"""An AMQP connection fed with anything: it answers or closes, and never breaks."""

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.commands import Basic, Queue

from tests.unit.protocols.amqp_room import EXCHANGE, a_session, frames_of, open_session

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

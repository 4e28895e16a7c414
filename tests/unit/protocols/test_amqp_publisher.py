"""The publisher without a socket: what it says, and what it believes to be confirmed."""

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange

from manyhands.protocols.amqp.publisher import BrokerError, Publisher
from manyhands.wire.amqp import HEARTBEAT, PROTOCOL_HEADER, Message

EXCHANGES = ("one", "two")


class Broker:
    """Answers the hand-shake and keeps what was said."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.publisher = Publisher(self.said.append, EXCHANGES, ("me", "secret"), "/", 0)

    def say(self, method, channel: int = 1, now: int = 0) -> None:
        self.publisher.receive(frame.marshal(method, channel), now)

    def heard(self) -> list[str]:
        methods = [data for data in self.said if data != PROTOCOL_HEADER]
        self.said.clear()
        return [frame.unmarshal(data)[2].name for data in methods]

    def shake_hands(self) -> None:
        self.say(Connection.Start(), 0)
        self.say(Connection.Tune(0, 131072, 60), 0)
        self.say(Connection.OpenOk(), 0)
        self.say(Channel.OpenOk())
        self.say(Confirm.SelectOk())
        for _ in EXCHANGES:
            self.say(Exchange.DeclareOk())


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def ready(broker) -> Broker:
    broker.shake_hands()
    broker.said.clear()
    return broker


def messages(*numbers: int) -> list[Message]:
    return [Message(number, "one", "a.b", b"\0" * 14, b"{}") for number in numbers]


def test_exchanges_are_declared_before_anything_is_published(broker):
    assert broker.said == [PROTOCOL_HEADER]
    broker.shake_hands()

    assert broker.publisher.is_ready
    assert broker.heard() == [
        "Connection.StartOk",
        "Connection.TuneOk",
        "Connection.Open",
        "Channel.Open",
        "Confirm.Select",
        "Exchange.Declare",
        "Exchange.Declare",
    ]


def test_confirmed_is_what_is_confirmed_without_a_gap(ready):
    publisher = ready.publisher
    publisher.publish(messages(11, 12, 15, 16), 17)
    assert publisher.confirmed_to == 10

    ready.say(Basic.Ack(3))
    assert publisher.confirmed_to == 10
    ready.say(Basic.Ack(1))
    assert publisher.confirmed_to == 11
    ready.say(Basic.Ack(2))
    assert publisher.confirmed_to == 15
    ready.say(Basic.Ack(4, multiple=True))
    assert publisher.confirmed_to == 17
    assert publisher.unconfirmed_count == 0


def test_events_without_messages_are_dealt_with_at_once(ready):
    ready.publisher.publish([], 5)
    assert ready.publisher.confirmed_to == 5


def test_a_blocked_broker_says_so_and_when_it_is_over(ready):
    ready.say(Connection.Blocked("low on memory"), 0)
    assert ready.publisher.blocked_for == "low on memory"
    ready.say(Connection.Unblocked(), 0)
    assert ready.publisher.blocked_for is None


@pytest.mark.parametrize(
    ("method", "lasting"),
    [
        (Basic.Nack(1), False),
        (Channel.Close(404, "no exchange", 60, 40), False),
        (Channel.Close(406, "other type", 40, 10), True),
        (Connection.Close(403, "no", 0, 0), True),
        (Connection.Close(320, "shutdown", 0, 0), False),
        (Connection.Secure("?"), False),
    ],
)
def test_troubles_end_the_connection_and_tell_if_they_will_last(ready, method, lasting):
    with pytest.raises(BrokerError) as trouble:
        ready.say(method)
    assert trouble.value.lasting is lasting


def test_another_version_of_the_protocol_and_nonsense(broker):
    with pytest.raises(BrokerError, match="another version"):
        broker.publisher.receive(b"AMQP\x00\x01\x00\x00", 0)
    with pytest.raises(BrokerError, match="nonsense"):
        broker.publisher.receive(b"\x01\x00\x00\x00\x00\x00\x01x\x00", 0)


def test_a_silent_broker_is_noticed(broker):
    with pytest.raises(BrokerError, match="hand-shake"):
        broker.publisher.tick(30_000)
    broker.shake_hands()
    broker.said.clear()
    broker.publisher.tick(20_000)
    assert len(broker.said) == 1
    with pytest.raises(BrokerError, match="silent"):
        broker.publisher.tick(61_000)


def beat_until(ready, *instants: int) -> None:
    """A broker that is there, at these instants."""
    for now in instants:
        ready.publisher.receive(HEARTBEAT, now)
        ready.publisher.tick(now)


def test_a_broker_that_beats_but_does_not_confirm_is_given_up(ready):
    """T32."""
    beat_until(ready, 50_000)
    ready.publisher.publish(messages(1, 2), 2)
    beat_until(ready, 60_000, 90_000)
    ready.say(Basic.Ack(1), now=100_000)
    beat_until(ready, 110_000, 130_000, 160_000)

    with pytest.raises(BrokerError, match="confirm"):
        beat_until(ready, 160_001)


def test_nobody_waits_for_confirms_of_nothing_or_of_a_blocked_broker(ready):
    """T34."""
    beat_until(ready, 50_000, 100_000)
    ready.publisher.publish(messages(1), 1)
    ready.say(Connection.Blocked("low on memory"), 0, now=100_000)
    beat_until(ready, 130_000, 160_000, 190_000)
    ready.say(Connection.Unblocked(), 0, now=200_000)
    beat_until(ready, 230_000, 250_000)

    assert ready.publisher.unconfirmed_count == 1

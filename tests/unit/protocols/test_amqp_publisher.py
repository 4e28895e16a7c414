"""The publisher without a socket: what it says, and what it believes to be confirmed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange

from manyhands.net.amqp import HEARTBEAT, PROTOCOL_HEADER, Message
from manyhands.protocols.amqp.publisher import BrokerError, Publisher
from manyhands.protocols.amqp.rejections import Rejections

EXCHANGES = ("one", "two")


class Broker:
    """Answers the hand-shake and keeps what was said."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.rejections = Rejections()
        self.publisher = Publisher(
            self.said.append, EXCHANGES, ("me", "secret"), "/", 0, rejections=self.rejections
        )

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
    with pytest.raises(BrokerError, match="invalid data"):
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


def sent_again(ready, now: int) -> list[int]:
    """What is due now, after it was published again."""
    found = ready.rejections.due(now)
    ready.publisher.publish_again(messages(*found))
    return found


def test_a_message_that_the_broker_rejects_is_sent_again_alone(ready):
    """T34."""
    ready.publisher.publish(messages(1, 2, 3, 4), 4)
    ready.say(Basic.Nack(2), now=1_000)
    ready.say(Basic.Ack(4, multiple=True), now=1_000)
    confirmed_first = ready.publisher.confirmed_to
    early = sent_again(ready, 1_249)
    on_time = sent_again(ready, 1_250)
    ready.say(Basic.Ack(5), now=1_300)

    assert confirmed_first == 1
    assert early == []
    assert on_time == [2]
    assert ready.publisher.confirmed_to == 4
    assert ready.rejections.given_up_count == 0


def test_the_others_follow_when_the_oldest_rejected_one_was_taken(ready):
    """T34."""
    ready.publisher.publish(messages(*range(1, 9)), 8)
    ready.say(Basic.Nack(8, multiple=True), now=0)
    bursts = []
    tag, now = 8, 250
    while ready.rejections.held_count:
        bursts.append(sent_again(ready, now))
        tag += len(bursts[-1])
        ready.say(Basic.Ack(tag, multiple=True), now=now)

    assert bursts == [[1], [2, 3], [4, 5, 6, 7], [8]]
    assert ready.publisher.confirmed_to == 8


def reject_all(ready, tag: int, now: int) -> list[int]:
    """The instants of further tries, all in vain, until nothing is held any more."""
    instants = []
    while ready.rejections.held_count:
        now += 50
        if sent_again(ready, now):
            instants.append(now)
            tag += 1
            ready.say(Basic.Nack(tag), now=now)
    return instants


def test_what_is_never_taken_is_given_up_after_rests_that_double(ready):
    """T34."""
    ready.publisher.publish(messages(1, 2, 3), 3)
    ready.say(Basic.Nack(3, multiple=True), now=0)
    instants = reject_all(ready, 3, 0)
    ready.publisher.publish(messages(4), 4)
    ready.say(Basic.Nack(9), now=10_000)
    later = reject_all(ready, 9, 10_000)

    assert instants == [250, 750, 1_750, 3_750, 7_750]
    assert later == [18_000]  # only a message that is taken makes the rests short again
    assert ready.rejections.given_up_count == 4
    assert ready.publisher.confirmed_to == 4


def test_a_rejected_message_that_is_taken_at_last_makes_the_rests_short_again(ready):
    """T34."""
    ready.publisher.publish(messages(1), 1)
    ready.say(Basic.Nack(1), now=0)
    reject_all(ready, 1, 0)
    ready.publisher.publish(messages(2), 2)
    ready.say(Basic.Nack(7), now=20_000)
    taken = sent_again(ready, 28_000)
    ready.say(Basic.Ack(8), now=28_000)
    ready.publisher.publish(messages(3), 3)
    ready.say(Basic.Nack(9), now=30_000)

    assert taken == [2]
    assert sent_again(ready, 30_250) == [3]


def test_rejected_messages_hold_up_no_more_than_a_window(ready):
    """T31, T34."""
    ready.publisher.publish(messages(1, 2, 3), 3)
    ready.say(Basic.Nack(2, multiple=True), now=0)
    sent_again(ready, 250)
    ready.rejections.give_up_to(1)
    ready.say(Basic.Nack(4), now=300)

    assert ready.rejections.given_up_count == 1
    assert ready.rejections.oldest == 2
    assert ready.publisher.confirmed_to == 1


def test_a_message_that_is_taken_after_it_was_given_up_holds_up_no_other(ready):
    """T34."""
    ready.publisher.publish(messages(1, 2), 2)
    ready.say(Basic.Nack(1), now=0)
    sent_again(ready, 250)
    ready.rejections.give_up_to(1)
    ready.say(Basic.Ack(3), now=300)
    ready.say(Basic.Nack(2), now=400)

    assert sent_again(ready, 650) == [2]


def test_a_rejected_message_that_the_log_has_let_go_of_is_counted(ready):
    """T34."""
    ready.publisher.publish(messages(1, 2), 2)
    ready.say(Basic.Nack(2, multiple=True), now=0)
    [first] = ready.rejections.due(250)
    ready.rejections.lose(first, 250)

    assert ready.rejections.given_up_count == 1
    assert sent_again(ready, 250) == [2]


def test_a_new_connection_publishes_rejected_messages_anew(ready):
    """T34."""
    ready.publisher.publish(messages(1, 2), 2)
    ready.say(Basic.Nack(2, multiple=True), now=0)
    again = Publisher(
        ready.said.append, EXCHANGES, ("me", "secret"), "/", 0, rejections=ready.rejections
    )

    assert ready.rejections.held_count == 0
    assert ready.rejections.due(1_000_000) == []
    assert again.confirmed_to == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.booleans(), max_size=60),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10)), max_size=3),
)
def test_whatever_a_broker_rejects_everything_is_dealt_with_in_the_end(answers, given_up):
    """T34."""
    broker = Broker()
    broker.shake_hands()
    taken: set[int] = set()
    flying = dict(enumerate(range(1, 11), 1))
    broker.publisher.publish(messages(*flying.values()), 10)
    tag, now, turns = 10, 0, 0
    giving_up = dict(given_up)
    while broker.publisher.confirmed_to < 10:
        turns += 1
        broker.rejections.give_up_to(giving_up.get(turns, 0))
        for number, seq in flying.items():
            took = answers.pop() if answers else True
            taken |= {seq} if took else set()
            broker.say(Basic.Ack(number) if took else Basic.Nack(number), now=now)
        now += 250
        again = sent_again(broker, now)
        flying = dict(enumerate(again, tag + 1))
        tag += len(again)
        assert turns < 2_000

    assert broker.rejections.held_count == 0
    assert len(taken) + broker.rejections.given_up_count >= 10

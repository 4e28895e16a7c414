"""What the methods of a channel do, and what they are refused for, without a socket."""

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

from manyhands.model.commands import RemoveCursor
from manyhands.net.amqp import PROTOCOL_HEADER
from manyhands.protocols.amqp.broker import BINDINGS_COUNT_MAX
from manyhands.protocols.amqp.channel import CONSUMERS_COUNT_MAX
from tests.unit.protocols.amqp_room import (
    EXCHANGE,
    a_session,
    frames_of,
    open_another,
    open_session,
)

BIND = Queue.Bind(0, "q", EXCHANGE, "a.#")


class Room:
    """One open connection with one channel."""

    def __init__(self, ask=None) -> None:
        self.session, self.peer, self.broker = open_session(ask)
        self.faults = self.session._welcome.faults
        self.peer.sent = b""

    def hear(self, *methods, channel: int = 1) -> list:
        """What is answered, and delivered by the way."""
        self.peer.sent = b""
        for method in methods:
            self.session.receive(frame.marshal(method, channel))
        self.broker.feed()
        return [method for _, method in frames_of(self.peer)]

    def refusal(self, *methods, channel: int = 1) -> tuple[int, str]:
        closed = self.hear(*methods, channel=channel)[-1]
        assert isinstance(closed, Channel.Close | Connection.Close), closed
        return closed.reply_code, closed.reply_text


@pytest.fixture
def room() -> Room:
    found = Room()
    found.hear(Queue.Declare(0, "q"), BIND)
    return found


def kept_count(heard: list) -> int:
    return sum(isinstance(method, Basic.Deliver) for method in heard)


def from_start(tag: str, **more) -> Basic.Consume:
    return Basic.Consume(0, "q", tag, arguments={"x-stream-offset": "first"}, **more)


def test_an_exclusive_consumer_has_its_queue_alone(room):
    """T21."""
    room.hear(Basic.Consume(0, "q", "first", exclusive=True))

    code, text = room.refusal(Basic.Consume(0, "q", "second"))
    assert code == 403
    assert "exclusive" in text


def test_a_queue_is_free_again_when_its_exclusive_consumer_leaves(room):
    """T21."""
    room.hear(Basic.Consume(0, "q", "first", exclusive=True), Basic.Cancel("first"))

    assert isinstance(room.hear(Basic.Consume(0, "q", "second"))[0], Basic.ConsumeOk)


def test_nobody_consumes_alone_where_others_consume(room):
    """T21."""
    room.hear(Basic.Consume(0, "q", "first"))

    assert room.refusal(Basic.Consume(0, "q", "second", exclusive=True))[0] == 403


def test_global_prefetch_counts_for_all_consumers_of_a_channel(room):
    """T21."""
    room.hear(Basic.Qos(prefetch_count=3, global_=True), Queue.Declare(0, "r"))
    room.hear(Queue.Bind(0, "r", EXCHANGE, "#"))
    heard = room.hear(
        from_start("one"), Basic.Consume(0, "r", "two", arguments={"x-stream-offset": "first"})
    )
    assert kept_count(heard) == 3

    assert kept_count(room.hear(Basic.Ack(2, multiple=True))) == 2


def test_a_peer_that_wants_no_flow_gets_none_until_it_does(room):
    heard = room.hear(Channel.Flow(active=False), from_start("one"))
    assert kept_count(heard) == 0

    assert kept_count(room.hear(Channel.Flow(active=True))) == 10


def test_a_place_in_the_log_is_chosen_only_where_nobody_else_reads(room):
    """T23."""
    room.hear(Basic.Consume(0, "q", "first"))

    code, text = room.refusal(from_start("second"))
    assert code == 406
    assert "consumers" in text


LONG = 10_000


def a_long_log(room: Room) -> None:
    room.broker.log.last_seq = LONG


def looked_at_most(room: Room, act) -> int:
    """How many messages were read meanwhile."""
    before = room.broker.log.looked_count
    act()
    return room.broker.log.looked_count - before


def test_a_choosy_consumer_reads_a_long_log_in_turns_with_others(room):
    """T28."""
    room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#"), Queue.Bind(0, "q", EXCHANGE, f"a.{LONG - 5}"))
    a_long_log(room)
    heard = room.hear(from_start("one"))
    turns = 0
    while not kept_count(heard):
        assert looked_at_most(room, room.broker.feed) <= 2_500
        heard = [method for _, method in frames_of(room.peer)]
        turns += 1
        assert turns < 100

    assert turns >= LONG // 2_500


def test_many_queues_that_are_behind_share_a_turn_and_none_is_left_out(room):
    """T28."""
    names = [f"behind-{number}" for number in range(8)]
    for name in names:
        room.hear(Queue.Declare(0, name), Queue.Bind(0, name, EXCHANGE, f"a.{LONG - 5}"))
    a_long_log(room)
    for name in names:
        room.session.receive(frame.marshal(Basic.Consume(0, name, name), 1))
    room.peer.sent = b""
    told = set()
    for _ in range(1_000):
        assert looked_at_most(room, room.broker.feed) <= 5_000
        told = {
            method.consumer_tag
            for _, method in frames_of(room.peer)
            if isinstance(method, Basic.Deliver)
        }
        if len(told) == len(names):
            break
    assert told == set(names)


def test_who_asks_a_queue_that_is_behind_is_answered_when_its_message_is_found(room):
    """T22."""
    room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#"), Queue.Bind(0, "q", EXCHANGE, f"a.{LONG - 5}"))
    a_long_log(room)

    before = room.broker.log.looked_count
    assert room.hear(Basic.Get(0, "q"), Basic.Get(0, "q")) == []
    assert room.broker.log.looked_count - before <= 5_000
    for _ in range(100):
        assert looked_at_most(room, room.broker.feed) <= 5_000
    said = [method for _, method in frames_of(room.peer)]
    first, second = [one for one in said if isinstance(one, Basic.GetOk | Basic.GetEmpty)]

    assert isinstance(first, Basic.GetOk)
    assert first.routing_key == f"a.{LONG - 5}"
    assert isinstance(second, Basic.GetEmpty)


def test_each_of_several_who_ask_at_once_gets_one_however_far_they_lie_apart(room):
    """T22."""
    wanted = [f"a.{LONG // 2}", f"a.{LONG - 5}"]
    room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#"))
    room.hear(*(Queue.Bind(0, "q", EXCHANGE, key) for key in wanted))
    a_long_log(room)

    room.hear(Basic.Get(0, "q"), Basic.Get(0, "q"), Basic.Get(0, "q"))
    for _ in range(100):
        room.broker.feed()
    said = [method for _, method in frames_of(room.peer)]
    answers = [one for one in said if isinstance(one, Basic.GetOk | Basic.GetEmpty)]

    assert [one.routing_key for one in answers[:2]] == wanted
    assert isinstance(answers[2], Basic.GetEmpty)


def test_who_waits_for_a_message_of_a_queue_that_goes_is_told_that_there_is_none(room):
    """T22."""
    room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#"), Queue.Bind(0, "q", EXCHANGE, f"a.{LONG - 5}"))
    a_long_log(room)
    assert room.hear(Basic.Get(0, "q")) == []

    room.broker.delete(room.broker.queues["q"])

    assert [type(method) for _, method in frames_of(room.peer)] == [Basic.GetEmpty]


def test_what_waits_behind_many_others_is_counted_in_the_end(room):
    """T24."""
    room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#"), Queue.Bind(0, "q", EXCHANGE, f"a.{LONG - 5}"))
    a_long_log(room)
    counts = [room.hear(Queue.Declare(0, "q", passive=True))[0].message_count for _ in range(20)]

    assert counts[-1] == 1
    assert looked_at_most(room, lambda: room.hear(Queue.Declare(0, "q", passive=True))) <= 5_000


def test_what_waits_is_counted_once_however_often_somebody_asks(room):
    """T24."""
    log = room.broker.log
    log.last_seq = 900
    for left in range(889, 0, -1):
        answer, *_ = room.hear(Basic.Get(0, "q", no_ack=True))
        assert answer.message_count == left
        if left % 300 == 0:
            room.hear(Queue.Declare(0, "q", passive=True))
    assert log.looked_count <= 3 * 900

    log.last_seq = 950
    assert room.hear(Queue.Declare(0, "q", passive=True))[0].message_count == 51


@pytest.mark.parametrize(
    "changed",
    [
        lambda room: room.hear(Queue.Unbind(0, "q", EXCHANGE, "a.#")),
        lambda room: room.hear(Queue.Bind(0, "q", EXCHANGE, "#")),
    ],
)
def test_bindings_change_nothing_in_the_count_of_what_waits(room, changed):
    """T17, T24."""
    room.broker.log.last_seq = 300
    asked = Queue.Declare(0, "q", passive=True)
    assert room.hear(asked)[0].message_count == 290
    changed(room)
    assert room.hear(asked)[0].message_count == 290

    room.hear(Queue.Purge(0, "q"))
    assert room.hear(asked)[0].message_count == 0


def test_the_count_follows_a_queue_that_starts_elsewhere(room):
    """T23, T24."""
    asked = Queue.Declare(0, "q", passive=True)
    assert room.hear(asked)[0].message_count == 0
    room.hear(Basic.Qos(prefetch_count=1), from_start("one"))

    assert room.hear(asked)[0].message_count == 9


def test_what_streams_are_declared_with_is_accepted(room):
    """T19."""
    arguments = {"x-queue-type": "stream", "x-max-age": "7D"}
    declared = room.hear(Queue.Declare(0, "s", durable=True, arguments=arguments))

    assert isinstance(declared[0], Queue.DeclareOk)
    assert room.refusal(Queue.Declare(0, "t", arguments={"x-max-age": 7}))[0] == 406


def test_a_queue_has_so_many_bindings_and_no_more(room):
    """T29."""
    keys = (str(number) for number in range(BINDINGS_COUNT_MAX - 1))
    room.hear(*(Queue.Bind(0, "q", EXCHANGE, key) for key in keys))

    assert room.refusal(Queue.Bind(0, "q", EXCHANGE, "more"))[0] == 406


def test_a_channel_has_so_many_consumers_and_no_more(room):
    """T29."""
    tags = (f"tag-{number}" for number in range(CONSUMERS_COUNT_MAX))
    room.hear(*(Basic.Consume(0, "q", tag) for tag in tags))

    assert room.refusal(Basic.Consume(0, "q", "more"))[0] == 406


def test_a_queue_that_is_not_empty_is_not_deleted_if_it_has_to_be(room):
    room.hear(from_start("one"), Basic.Cancel("one"), Basic.Recover(requeue=True))

    assert room.refusal(Queue.Delete(0, "q", if_empty=True))[0] == 406


def test_who_waits_for_no_answer_gets_none(room):
    heard = room.hear(
        Queue.Declare(0, "r", nowait=True),
        Queue.Bind(0, "r", EXCHANGE, "#", nowait=True),
        Basic.Consume(0, "r", "one", nowait=True),
        Basic.Cancel("one", nowait=True),
        Queue.Purge(0, "r", nowait=True),
        Queue.Delete(0, "r", nowait=True),
    )
    assert heard == []


def test_a_channel_is_opened_once(room):
    """T27."""
    code, text = room.refusal(Channel.Open())
    assert code == 504
    assert "channel 1" in text


def test_methods_of_the_connection_have_no_place_on_a_channel(room):
    """T27."""
    assert room.refusal(Connection.Open("/"))[0] == 503


def test_methods_of_channels_have_no_place_on_channel_0(room):
    """T27."""
    code, text = room.refusal(Queue.Declare(0, "r"), channel=0)
    assert code == 503
    assert "channel 0" in text


def test_a_connection_that_is_closed_for_an_error_is_reported_and_counted_once(room):
    """T27."""
    room.refusal(Basic.Qos(prefetch_size=1))
    room.hear(Connection.Open("/"), channel=0)

    assert room.faults == [540]
    assert room.broker.faults_count == 1


def test_the_server_leaving_is_nobodys_fault(room):
    room.session.shut_down()

    assert frames_of(room.peer)[-1][1].reply_code == 320
    assert room.faults == []
    assert room.broker.faults_count == 0


def test_the_hand_shake_takes_ten_seconds_at_most():
    """T26."""
    session, peer, _ = a_session()
    session.receive(PROTOCOL_HEADER)
    session.tick(peer.at + 10_000)
    assert not peer.closed

    session.tick(peer.at + 10_001)
    assert peer.closed


class SlowDisk:
    """Keeps what was asked until somebody says that it is on disk."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def __call__(self, command, settle=None, refused=None):  # noqa: ARG002
        self.asked.append((command, settle))

    def flush(self) -> None:
        asked, self.asked = self.asked, []
        for command, settle in asked:
            if settle is not None:
                settle(command)


def test_a_durable_queue_is_on_disk_before_its_answers_and_gone_from_it_before_that():
    """T18."""
    disk = SlowDisk()
    room = Room(disk)
    for method, answer in (
        (Queue.Declare(0, "q", durable=True), Queue.DeclareOk),
        (BIND, Queue.BindOk),
        (Queue.Unbind(0, "q", EXCHANGE, "a.#"), Queue.UnbindOk),
        (Queue.Delete(0, "q"), Queue.DeleteOk),
    ):
        assert room.hear(method) == []
        last = disk.asked[-1][0]
        disk.flush()
        assert [type(method) for _, method in frames_of(room.peer)] == [answer]
    assert isinstance(last, RemoveCursor)


@pytest.mark.parametrize("passive", [False, True])
def test_a_durable_queue_is_on_disk_before_anybody_hears_that_it_is_there(passive):
    """T18: not only whoever declared it first."""
    disk = SlowDisk()
    first = Room(disk)
    session, peer = open_another(first.broker)
    assert first.hear(Queue.Declare(0, "q", durable=True)) == []

    peer.sent = b""
    session.receive(frame.marshal(Queue.Declare(0, "q", durable=True, passive=passive), 1))
    assert frames_of(peer) == []

    disk.flush()
    assert [type(method) for _, method in frames_of(first.peer)] == [Queue.DeclareOk]
    assert [type(method) for _, method in frames_of(peer)] == [Queue.DeclareOk]
    peer.sent = b""
    session.receive(frame.marshal(Queue.Declare(0, "q", durable=True, passive=passive), 1))
    assert [type(method) for _, method in frames_of(peer)] == [Queue.DeclareOk]
    assert disk.asked == []


def test_a_durable_queue_is_gone_from_disk_before_anybody_hears_that_it_is_not_there():
    """T18."""
    disk = SlowDisk()
    first = Room(disk)
    session, peer = open_another(first.broker)
    first.hear(Queue.Declare(0, "q", durable=True))
    disk.flush()
    assert first.hear(Queue.Delete(0, "q")) == []

    peer.sent = b""
    session.receive(frame.marshal(Queue.Delete(0, "q"), 1))
    assert frames_of(peer) == []

    disk.flush()
    assert [type(method) for _, method in frames_of(peer)] == [Queue.DeleteOk]

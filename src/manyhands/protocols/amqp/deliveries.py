"""The deliveries of a channel: tags, limits on unacknowledged ones, and giving back."""

from collections.abc import Callable
from itertools import takewhile
from typing import Final, Protocol

from pamqp import base

from manyhands.net.amqp import AmqpError, Code, Delivery, Message, pack_deliver, short
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.queues import WatchQueue

# Unacknowledged deliveries on one channel, whatever its prefetch.
UNACKED_COUNT_MAX: Final = 10_000


class Line(Protocol):
    """The connection, as a channel sees it."""

    connection: str
    frame_bytes_max: int

    @property
    def seen(self) -> tuple[str, ...]:
        """Patterns of the jobs' queues that the peer may see; empty: all."""

    def say(self, data: bytes) -> None:
        """Sends to the peer, in order."""

    def hold(self) -> Callable[[Callable[[], bytes]], None]:
        """Reserves a place for an answer that is not known yet; returns a function to call with
        what makes the answer.
        """

    def is_congested(self) -> bool:
        """Whether the peer is slow to read."""

    def token(self) -> str:
        """A random text."""

    def now(self) -> int:
        """Server time."""

    def fail(self, error: AmqpError) -> None:
        """Ends the connection with an error."""


class Subscription:
    """A consumer."""

    __slots__ = (
        "_deliveries",
        "_packed_tag",
        "exclusive",
        "no_ack",
        "prefetch",
        "queue",
        "tag",
        "unacked_count",
    )

    def __init__(
        self,
        deliveries: "Deliveries",
        tag: str,
        queue: WatchQueue,
        *,
        exclusive: bool,
        no_ack: bool,
        prefetch: int,
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.exclusive = exclusive
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.unacked_count = 0
        self._deliveries = deliveries
        self._packed_tag = short(tag)

    def can_take(self) -> bool:
        """Whether the peer and its limits allow a delivery."""
        if not self._deliveries.can_take():
            return False
        if self.no_ack:
            return True
        return self._deliveries.has_room() and not 0 < self.prefetch <= self.unacked_count

    def deliver(self, message: Message, *, redelivered: bool) -> None:
        """Sends one message."""
        self._deliveries.send(self, self._packed_tag, message, redelivered=redelivered)

    def end(self) -> None:
        """The queue was deleted."""
        self._deliveries.on_lost_queue(self)


class Deliveries:
    """The deliveries of one channel."""

    def __init__(
        self,
        number: int,
        line: Line,
        broker: Broker,
        on_lost_queue: Callable[[Subscription], None],
    ) -> None:
        self.closing = False  # the channel is closing
        self.flowing = True  # the peer wants deliveries
        self.prefetch_all = 0  # for all consumers together; 0: no limit
        self.on_lost_queue = on_lost_queue
        self._number = number
        self._line = line
        self._broker = broker
        # In order of their tags, which is the order of sending.
        self._unacked: dict[int, tuple[WatchQueue, int, Subscription | None]] = {}
        self._tag = 0

    def can_take(self) -> bool:
        """Whether anything may be delivered here now."""
        return self.flowing and not self.closing and not self._line.is_congested()

    def has_room(self) -> bool:
        """Whether one more delivery may be unacknowledged."""
        count = len(self._unacked)
        return count < UNACKED_COUNT_MAX and not 0 < self.prefetch_all <= count

    def send(
        self, consumer: Subscription, packed_tag: bytes, message: Message, *, redelivered: bool
    ) -> None:
        """Sends one message to a consumer, whose tag is already packed."""
        queue, no_ack = consumer.queue, consumer.no_ack
        delivery = self.note(queue, message, consumer, redelivered=redelivered, no_ack=no_ack)
        line = self._line
        line.say(pack_deliver(self._number, packed_tag, delivery, line.frame_bytes_max))

    def note(
        self,
        queue: WatchQueue,
        message: Message,
        consumer: Subscription | None,
        *,
        redelivered: bool,
        no_ack: bool,
    ) -> Delivery:
        """Assigns a tag to a message, and notes it as unacknowledged unless no acknowledgement is
        needed.
        """
        tag = self._tag = self._tag + 1
        if no_ack:
            queue.settle(message.seq)
        else:
            self._unacked[tag] = (queue, message.seq, consumer)
            if consumer is not None:
                consumer.unacked_count += 1
        return Delivery(tag, redelivered, message)

    def tags(self, tag: int, method: base.Frame, *, multiple: bool) -> list[int]:
        """The tags that an acknowledgement covers."""
        if multiple:
            tags = list(self._unacked)
            if tag != 0:
                tags = list(takewhile(tag.__ge__, tags))
            if tags or tag == 0:
                return tags
        elif tag in self._unacked:
            return [tag]
        raise AmqpError(Code.PRECONDITION_FAILED, f"there is no delivery with tag {tag}", method)

    def settle(self, tags: list[int]) -> None:
        """Acknowledged, or rejected for good."""
        for tag in tags:
            queue, seq, consumer = self._unacked.pop(tag)
            queue.settle(seq)
            self._release(queue, consumer)

    def give_back(self, tags: list[int]) -> None:
        """To be delivered again, to any consumer."""
        for tag in tags:
            queue, seq, consumer = self._unacked.pop(tag)
            queue.give_back(seq)
            self._release(queue, consumer)

    def give_back_all(self) -> None:
        """Gives back all unacknowledged messages."""
        self.give_back(list(self._unacked))

    def _release(self, queue: WatchQueue, consumer: Subscription | None) -> None:
        if consumer is not None:
            consumer.unacked_count -= 1
        if self._broker.queues.get(queue.name) is queue:
            self._broker.changed(queue)
            self._broker.feed_soon(queue)

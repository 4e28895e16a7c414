"""One channel: declare, bind, consume, acknowledge. Nothing can be published here."""

from collections.abc import Callable
from typing import Any, Final

from pamqp import base
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue
from pamqp.header import ContentHeader

from manyhands.model.replies import Refusal
from manyhands.net.amqp import AmqpError, Code, pack_declare_ok, pack_get_ok, pack_method
from manyhands.protocols.amqp.broker import BINDINGS_COUNT_MAX, Broker, Then
from manyhands.protocols.amqp.deliveries import Deliveries, Line, Subscription
from manyhands.protocols.amqp.log import offset_of
from manyhands.protocols.amqp.queues import Traits, WatchQueue

CONSUMERS_COUNT_MAX: Final = 1_000  # per channel
_OFFSET: Final = "x-stream-offset"
_CONNECTION_CLASS: Final = 10


class AmqpChannel:
    """Handles the methods of one channel. Raises AmqpError for a peer's mistakes."""

    def __init__(self, number: int, line: Line, broker: Broker) -> None:
        self.number = number
        self._line = line
        self._broker = broker
        self._queue_name = ""  # the one declared last, meant where no name is given
        self._consumers: dict[str, Subscription] = {}
        self._deliveries = Deliveries(number, line, broker, self._lost_queue)
        self._prefetch = 0  # of each new consumer

    @property
    def closing(self) -> bool:
        """Whether the server has sent close: all but the peer's answer is ignored."""
        return self._deliveries.closing

    def handle(self, method: base.Frame | ContentHeader | ContentBody) -> None:
        """Handles one frame."""
        if isinstance(method, ContentHeader | ContentBody):
            raise AmqpError(Code.UNEXPECTED_FRAME, "content without a method before it")
        action = _ACTIONS.get(type(method))
        if action is None:
            if method.index >> 16 == _CONNECTION_CLASS:
                raise AmqpError(Code.COMMAND_INVALID, f"{method.name} is for channel 0", method)
            raise AmqpError(Code.NOT_IMPLEMENTED, f"{method.name} is not supported here", method)
        action(self, method)

    def say(self, method: base.Frame) -> None:
        """Sends a method to the peer."""
        self._line.say(pack_method(self.number, method))

    def close(self) -> None:
        """Ends the channel: unacknowledged messages go back, consumers leave."""
        self._deliveries.closing = True
        for consumer in tuple(self._consumers.values()):
            self._cancel(consumer)
        self._deliveries.give_back_all()

    # Channel and exchanges.

    def _flow(self, method: Channel.Flow) -> None:
        self._deliveries.flowing = bool(method.active)
        self.say(Channel.FlowOk(active=bool(method.active)))
        self.resume()

    def _select(self, method: Confirm.Select) -> None:
        if not method.nowait:
            self.say(Confirm.SelectOk())

    def _declare_exchange(self, method: Exchange.Declare) -> None:
        name = method.exchange
        if name not in self._broker.exchanges:
            if method.passive:
                raise AmqpError(Code.NOT_FOUND, f"there is no exchange '{name}'", method)
            raise AmqpError(
                Code.ACCESS_REFUSED,
                f"exchange '{name}' cannot be declared: the exchanges of this server are fixed",
                method,
            )
        same = method.exchange_type == "topic" and method.durable and not method.auto_delete
        if not method.passive and (not same or method.internal or method.arguments):
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                f"exchange '{name}' is a durable topic exchange without arguments",
                method,
            )
        if not method.nowait:
            self.say(Exchange.DeclareOk())

    def _refuse(self, method: base.Frame) -> None:
        raise AmqpError(
            Code.ACCESS_REFUSED, f"{method.name} is refused: this server is for watching", method
        )

    # Queues.

    def _find(self, name: str) -> WatchQueue:
        if not name and not self._queue_name:
            raise AmqpError(Code.NOT_FOUND, "no queue was declared on this channel")
        name = _without_line_ends(name) or self._queue_name
        self._broker.adopt(name, self._line.now())
        return self._broker.find(name, self._line.connection, self._line.seen)

    def _declare(self, method: Queue.Declare) -> None:
        broker, line = self._broker, self._line
        name = _without_line_ends(method.queue)
        if method.passive:
            queue = self._find(name)
            queue.used_at = line.now()
            self._answer_declare(queue, method)
            return
        if not name:
            name = f"amq.gen-{line.token()}"
        elif name.startswith("amq.") and name not in broker.queues:
            raise AmqpError(
                Code.ACCESS_REFUSED, f"queue '{name}' has a prefix that is reserved", method
            )
        broker.adopt(name, line.now())
        seen = line.seen
        if name in broker.queues:
            # It may be exclusive to another connection.
            known = broker.find(name, line.connection, seen)
            seen = seen or known.traits.seen
        traits = Traits(
            durable=bool(method.durable) and not method.exclusive,
            owner=line.connection if method.exclusive else None,
            auto_delete=bool(method.auto_delete),
            arguments=dict(method.arguments or {}),
            seen=seen,
        )
        self._answer_declare(broker.declare(name, traits, line.now()), method)

    def _answer_declare(self, queue: WatchQueue, method: Queue.Declare) -> None:
        self._queue_name = queue.name
        if queue.is_saved:
            self._line.say(self._declared(queue, method))
        else:
            self._save_then(queue, method, lambda: self._declared(queue, method))

    def _declared(self, queue: WatchQueue, method: Queue.Declare) -> bytes:
        if method.nowait:
            return b""
        count = queue.count()
        self._broker.feed_soon(queue)  # makes the next count more exact
        return pack_declare_ok(self.number, queue.name, count, len(queue.consumers))

    def _save_then(
        self, queue: WatchQueue, method: base.Frame, answer: Callable[[], bytes]
    ) -> None:
        self._broker.save(queue, self._when_saved(method, answer))

    def _when_saved(self, method: base.Frame, answer: Callable[[], bytes]) -> Then:
        """Changes of a durable queue are on disk before the answer leaves."""
        fill = self._line.hold()

        def go_on(refusal: Refusal | None) -> None:
            fill(_nothing if self.closing or refusal is not None else answer)
            if refusal is not None:
                self._line.fail(AmqpError(Code.INTERNAL_ERROR, refusal.sentence, method))

        return go_on

    def _bind(self, method: Queue.Bind) -> None:
        queue = self._find(method.queue)
        exchange = self._exchange(method.exchange, method)
        if method.arguments:
            raise AmqpError(Code.PRECONDITION_FAILED, "bindings take no arguments here", method)
        if len(queue.bindings) >= BINDINGS_COUNT_MAX:
            raise AmqpError(
                Code.PRECONDITION_FAILED, f"a queue has at most {BINDINGS_COUNT_MAX} bindings"
            )
        queue.bind(exchange, method.routing_key or "")
        self._bound(queue, method, Queue.BindOk(), nowait=bool(method.nowait))

    def _unbind(self, method: Queue.Unbind) -> None:
        queue = self._find(method.queue)
        exchange = self._exchange(method.exchange, method)
        queue.unbind(exchange, method.routing_key or "")
        self._bound(queue, method, Queue.UnbindOk(), nowait=False)

    def _bound(
        self, queue: WatchQueue, method: base.Frame, answer: base.Frame, *, nowait: bool
    ) -> None:
        packed = b"" if nowait else pack_method(self.number, answer)
        if queue.traits.durable:
            self._save_then(queue, method, lambda: packed)
        else:
            self._line.say(packed)
        self._broker.feed_soon(queue)

    def _exchange(self, name: str, method: base.Frame) -> str:
        found = self._broker.exchanges.get(name)
        if found is None:
            raise AmqpError(Code.NOT_FOUND, f"there is no exchange '{name}'", method)
        return found

    def _purge(self, method: Queue.Purge) -> None:
        queue = self._find(method.queue)
        count = queue.purge()
        self._broker.changed(queue)
        if not method.nowait:
            self.say(Queue.PurgeOk(count))

    def _delete(self, method: Queue.Delete) -> None:
        name = _without_line_ends(method.queue) or self._queue_name
        self._broker.adopt(name, self._line.now())
        if name not in self._broker.queues:  # deleting an unknown queue is no error
            then = self._when_saved(method, lambda: self._deleted(method, 0))
            self._broker.when_gone(name, then)
            return
        queue = self._find(name)
        count = queue.count()
        if method.if_unused and queue.consumers:
            raise AmqpError(Code.PRECONDITION_FAILED, f"queue '{name}' is in use", method)
        if method.if_empty and count:
            raise AmqpError(Code.PRECONDITION_FAILED, f"queue '{name}' is not empty", method)
        self._broker.delete(queue, self._when_saved(method, lambda: self._deleted(method, count)))

    def _deleted(self, method: Queue.Delete, count: int) -> bytes:
        return b"" if method.nowait else pack_method(self.number, Queue.DeleteOk(count))

    # Consuming.

    def _lost_queue(self, consumer: Subscription) -> None:
        """The queue was deleted: notifies the peer."""
        if self._consumers.pop(consumer.tag, None) is not None and not self.closing:
            self.say(Basic.Cancel(consumer.tag, nowait=True))

    def _qos(self, method: Basic.Qos) -> None:
        if method.prefetch_size:
            raise AmqpError(Code.NOT_IMPLEMENTED, "prefetch_size is not supported", method)
        if method.global_:
            self._deliveries.prefetch_all = method.prefetch_count or 0
        else:
            self._prefetch = method.prefetch_count or 0
        self.say(Basic.QosOk())
        self.resume()

    def _consume(self, method: Basic.Consume) -> None:
        queue = self._find(method.queue)
        tag = method.consumer_tag or f"ctag-{self._line.token()}"
        if tag in self._consumers:
            raise AmqpError(Code.NOT_ALLOWED, f"consumer tag '{tag}' is in use", method)
        if len(self._consumers) >= CONSUMERS_COUNT_MAX:
            raise AmqpError(
                Code.PRECONDITION_FAILED, f"a channel has at most {CONSUMERS_COUNT_MAX} consumers"
            )
        if method.exclusive and queue.consumers:
            raise AmqpError(Code.ACCESS_REFUSED, f"queue '{queue.name}' has consumers", method)
        if queue.consumers and queue.consumers[0].exclusive:
            sentence = f"queue '{queue.name}' has an exclusive consumer"
            raise AmqpError(Code.ACCESS_REFUSED, sentence, method)
        offset = (method.arguments or {}).get(_OFFSET)
        if offset is not None:
            self._rewind(queue, offset, method)
        consumer = Subscription(
            self._deliveries,
            tag,
            queue,
            exclusive=bool(method.exclusive),
            no_ack=bool(method.no_ack),
            prefetch=self._prefetch,
        )
        self._consumers[tag] = consumer
        queue.consumers.append(consumer)
        queue.had_consumers = True
        if not method.nowait:
            self.say(Basic.ConsumeOk(tag))
        self._broker.feed_soon(queue)

    def _rewind(self, queue: WatchQueue, offset: Any, method: Basic.Consume) -> None:  # noqa: ANN401
        """Replays the log. A queue has one position, so it may have no other reader."""
        if queue.consumers:
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                f"queue '{queue.name}' has consumers, so it cannot start elsewhere",
                method,
            )
        seq = offset_of(self._broker.log, offset)
        if seq is None:
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                "x-stream-offset is first, last, next, a number or a timestamp",
                method,
            )
        queue.rewind(seq)
        self._broker.changed(queue)

    def _cancel_method(self, method: Basic.Cancel) -> None:
        consumer = self._consumers.get(method.consumer_tag or "")
        if consumer is not None:
            self._cancel(consumer)
        if not method.nowait:
            self.say(Basic.CancelOk(method.consumer_tag))

    def _cancel(self, consumer: Subscription) -> None:
        del self._consumers[consumer.tag]
        queue = consumer.queue
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
        self._broker.leave(queue, self._line.now())

    def _get(self, method: Basic.Get) -> None:
        queue = self._find(method.queue)
        queue.used_at = self._line.now()
        if not self._deliveries.has_room():
            self.say(Basic.GetEmpty())
        elif queue.is_searching():
            fill = self._line.hold()
            self._broker.when_found(queue, lambda: fill(lambda: self._got(queue, method)))
        else:
            self._line.say(self._got(queue, method))

    def _got(self, queue: WatchQueue, method: Basic.Get) -> bytes:
        taken = None if self.closing else queue.take()
        self._broker.changed(queue)
        if taken is None:
            return pack_method(self.number, Basic.GetEmpty())
        message, redelivered = taken
        delivery = self._deliveries.note(
            queue, message, None, redelivered=redelivered, no_ack=bool(method.no_ack)
        )
        return pack_get_ok(self.number, delivery, queue.count(), self._line.frame_bytes_max)

    def resume(self) -> None:
        """The peer reads again, or more may be delivered to it."""
        for consumer in self._consumers.values():
            self._broker.feed_soon(consumer.queue)

    # Acknowledging.

    def _ack(self, method: Basic.Ack) -> None:
        tag = method.delivery_tag or 0
        deliveries = self._deliveries
        deliveries.settle(deliveries.tags(tag, method, multiple=bool(method.multiple)))

    def _nack(self, method: Basic.Nack) -> None:
        tag = method.delivery_tag or 0
        tags = self._deliveries.tags(tag, method, multiple=bool(method.multiple))
        if method.requeue:
            self._deliveries.give_back(tags)
        else:
            self._deliveries.settle(tags)

    def _reject(self, method: Basic.Reject) -> None:
        tags = self._deliveries.tags(method.delivery_tag or 0, method, multiple=False)
        if method.requeue:
            self._deliveries.give_back(tags)
        else:
            self._deliveries.settle(tags)

    def _recover(self, method: Basic.Recover) -> None:
        self._deliveries.give_back_all()
        self.say(Basic.RecoverOk())

    def _recover_silently(self, method: Basic.RecoverAsync) -> None:
        self._deliveries.give_back_all()


def _nothing() -> bytes:
    return b""


def _without_line_ends(name: str) -> str:
    """Like RabbitMQ. Any other character may be in the name of a queue."""
    return name.replace("\r", "").replace("\n", "")


_ACTIONS: Final[dict[type, Callable[[AmqpChannel, Any], None]]] = {
    Channel.Flow: AmqpChannel._flow,  # noqa: SLF001 - this table is part of the class
    Confirm.Select: AmqpChannel._select,  # noqa: SLF001
    Exchange.Declare: AmqpChannel._declare_exchange,  # noqa: SLF001
    Exchange.Delete: AmqpChannel._refuse,  # noqa: SLF001
    Exchange.Bind: AmqpChannel._refuse,  # noqa: SLF001
    Exchange.Unbind: AmqpChannel._refuse,  # noqa: SLF001
    Queue.Declare: AmqpChannel._declare,  # noqa: SLF001
    Queue.Bind: AmqpChannel._bind,  # noqa: SLF001
    Queue.Unbind: AmqpChannel._unbind,  # noqa: SLF001
    Queue.Purge: AmqpChannel._purge,  # noqa: SLF001
    Queue.Delete: AmqpChannel._delete,  # noqa: SLF001
    Basic.Qos: AmqpChannel._qos,  # noqa: SLF001
    Basic.Consume: AmqpChannel._consume,  # noqa: SLF001
    Basic.Cancel: AmqpChannel._cancel_method,  # noqa: SLF001
    Basic.Get: AmqpChannel._get,  # noqa: SLF001
    Basic.Ack: AmqpChannel._ack,  # noqa: SLF001
    Basic.Nack: AmqpChannel._nack,  # noqa: SLF001
    Basic.Reject: AmqpChannel._reject,  # noqa: SLF001
    Basic.Recover: AmqpChannel._recover,  # noqa: SLF001
    Basic.RecoverAsync: AmqpChannel._recover_silently,  # noqa: SLF001
    Basic.Publish: AmqpChannel._refuse,  # noqa: SLF001
}

"""What all AMQP connections share: the exchanges, the queues, and the turns in which they
are fed.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from manyhands.dispatch.session import Ask, Settle
from manyhands.model.commands import RemoveCursor, SetCursor
from manyhands.model.events import Cursor
from manyhands.model.replies import Refusal, Reply
from manyhands.net.amqp import AmqpError, Code
from manyhands.protocols.amqp.arguments import check_arguments, expires_ms_of
from manyhands.protocols.amqp.homes import Homes
from manyhands.protocols.amqp.log import Log
from manyhands.protocols.amqp.queues import LOOK_COUNT, Traits, WatchQueue, restored, server_of

QUEUES_COUNT_MAX: Final = 1_000  # each reads every message
BINDINGS_COUNT_MAX: Final = 1_000  # per queue
_CURSOR_PREFIX: Final = "amqp.queue:"
_FED_COUNT: Final = 100  # messages to one queue before the next one's turn
# Messages read or delivered in one go, before other work gets its turn.
_TURN_COUNT: Final = 2_000
_SAVE_MS: Final = 1_000  # acknowledgements are on disk after at most this time

# Called once something is on disk, or with the reason why it could not be written.
Then = Callable[[Refusal | None], None]


class Broker:
    """The queues and their consumers; it knows no connections."""

    def __init__(
        self,
        exchanges: Iterable[str],
        log: Log,
        ask: Ask,
        wake: Callable[[], None],
        aliases: Mapping[str, str] = MappingProxyType({}),
        homes: Homes | None = None,
    ) -> None:
        """``homes``: where the durable queues of several servers are served."""
        # The exchange name in messages, for each name that a peer may use.
        self.exchanges = {name: name for name in exchanges} | dict(aliases)
        self.log = log
        self.queues: dict[str, WatchQueue] = {}
        self.delivered_count = 0
        self._gone_dropped_count = self._gone_overflow_count = 0  # of deleted queues
        self.faults_count = 0  # connections and channels closed because of an error
        self._ask = ask
        self._wake = wake  # has `feed` called soon
        self._hungry: dict[WatchQueue, None] = {}
        # Callbacks that wait until it is known whether a queue has a message.
        self._searches: dict[WatchQueue, list[Callable[[], None]]] = {}
        self._unsaved: dict[WatchQueue, None] = {}
        self._saved_at = 0
        self._homes = homes

    def restore(self, cursors: Iterable[Cursor], now: int) -> None:
        """Restores durable queues when the server starts."""
        for cursor in cursors:
            if cursor.name.startswith(_CURSOR_PREFIX):
                name = cursor.name.removeprefix(_CURSOR_PREFIX)
                queue = self.queues[name] = restored(name, cursor.notes, self.log)
                queue.used_at = now

    # Several servers.

    def adopt(self, name: str, now: int) -> None:
        """Takes on a durable queue whose server is gone. Raises AmqpError if it is served
        elsewhere.
        """
        homes, queue = self._homes, self.queues.get(name)
        if homes is None or (queue is not None and not queue.traits.durable):
            return
        cursor = homes.cursors().get(_CURSOR_PREFIX + name)
        if cursor is None:
            return
        server = server_of(cursor.notes)
        other = homes.others().get(server)
        if other is not None:
            raise AmqpError(
                Code.RESOURCE_LOCKED, f"queue '{name}' is served by server {other}; consume there"
            )
        if queue is None:
            queue = self.queues[name] = restored(name, cursor.notes, self.log)
            queue.used_at = now
        if server != homes.here:
            self._ask(SetCursor(self._cursor_of(queue)))

    def note(self, cursors: Mapping[str, Cursor | None]) -> None:
        """Cursors were written: if two servers took on a queue at once, the later one has it."""
        if self._homes is None:
            return
        for key, cursor in cursors.items():
            if cursor is None or not key.startswith(_CURSOR_PREFIX):
                continue
            queue = self.queues.get(key.removeprefix(_CURSOR_PREFIX))
            if queue is None or not queue.traits.durable:
                continue
            if server_of(cursor.notes) in self._homes.others():
                self._drop(queue)

    # Queues.

    def declare(self, name: str, traits: Traits, now: int) -> WatchQueue:
        """Creates a queue, or returns the existing one if it is the same."""
        queue = self.queues.get(name)
        if queue is not None:
            if queue.traits != traits:
                raise AmqpError(
                    Code.PRECONDITION_FAILED, f"queue '{name}' was declared with other properties"
                )
            queue.used_at = now
            return queue
        check_arguments(traits.arguments)
        if len(self.queues) >= QUEUES_COUNT_MAX:
            raise AmqpError(
                Code.PRECONDITION_FAILED, f"there are {QUEUES_COUNT_MAX} queues already"
            )
        queue = self.queues[name] = WatchQueue(name, traits, self.log)
        queue.used_at = now
        return queue

    def find(self, name: str, connection: str, seen: tuple[str, ...]) -> WatchQueue:
        """A queue that this connection may use; ``seen``: the patterns of its caller."""
        queue = self.queues.get(name)
        if queue is None:
            raise AmqpError(Code.NOT_FOUND, f"there is no queue '{name}'")
        if queue.traits.owner not in (None, connection):
            raise AmqpError(
                Code.RESOURCE_LOCKED, f"queue '{name}' is exclusive to another connection"
            )
        if seen and queue.traits.seen != seen:
            raise AmqpError(
                Code.ACCESS_REFUSED, f"queue '{name}' is of a caller that sees other jobs"
            )
        return queue

    def delete(self, queue: WatchQueue, then: Then | None = None) -> None:
        """Deletes a queue and notifies its consumers; calls back when it is deleted on
        disk, too.
        """
        if self.queues.get(queue.name) is not queue:
            return
        self._drop(queue)
        if queue.traits.durable:
            command = RemoveCursor(_CURSOR_PREFIX + queue.name)
            self._ask(command, None if then is None else _settling(then))
        elif then is not None:
            then(None)

    def _drop(self, queue: WatchQueue) -> None:
        del self.queues[queue.name]
        self._hungry.pop(queue, None)
        self._unsaved.pop(queue, None)
        self._gone_dropped_count += queue.dropped_count
        self._gone_overflow_count += queue.overflow_count
        for consumer in tuple(queue.consumers):
            consumer.end()
        queue.consumers.clear()
        self._end_searches(queue)

    def save(self, queue: WatchQueue, then: Then) -> None:
        """Saves a durable queue in its current state, then calls back."""
        self._unsaved.pop(queue, None)

        def go_on(refusal: Refusal | None) -> None:
            queue.is_saved = queue.is_saved or refusal is None
            then(refusal)

        self._ask(SetCursor(self._cursor_of(queue)), _settling(go_on))

    def when_gone(self, name: str, then: Then) -> None:
        """Calls back once an already deleted queue of that name is no longer on disk."""
        self._ask(RemoveCursor(_CURSOR_PREFIX + name), _settling(then))

    def leave(self, queue: WatchQueue, now: int) -> None:
        """A consumer left: an auto-delete queue goes with its last one."""
        queue.used_at = now
        if queue.traits.auto_delete and queue.had_consumers and not queue.consumers:
            self.delete(queue)

    def disconnect(self, connection: str) -> None:
        """Deletes the exclusive queues of a connection."""
        for queue in tuple(self.queues.values()):
            if queue.traits.owner == connection:
                self.delete(queue)

    # Feeding.

    def changed(self, queue: WatchQueue) -> None:
        """Messages of the queue were read, acknowledged or given back."""
        if queue.traits.durable:
            self._unsaved[queue] = None

    def feed_soon(self, queue: WatchQueue) -> None:
        """The queue may have a message and a consumer for it."""
        if not self._hungry:
            self._wake()
        self._hungry[queue] = None

    def when_found(self, queue: WatchQueue, then: Callable[[], None]) -> None:
        """Calls back when it is known whether the queue has a message."""
        self._searches.setdefault(queue, []).append(then)
        self.feed_soon(queue)

    def _end_searches(self, queue: WatchQueue) -> None:
        """Calls the waiting callbacks in order, until the queue needs another search."""
        waiting = self._searches.pop(queue, None)
        while waiting:
            waiting.pop(0)()
            if waiting and self.queues.get(queue.name) is queue and queue.is_searching():
                self._searches[queue] = waiting
                self.feed_soon(queue)
                return

    def news(self) -> None:
        """There are new messages."""
        for queue in self.queues.values():
            if queue.bindings and (queue.consumers or queue.bounds is not None):
                self.feed_soon(queue)

    def feed(self) -> None:
        """Feeds some messages to each waiting queue, in turns."""
        hungry, self._hungry = self._hungry, {}
        again = []
        cost = 0
        for queue in hungry:
            if cost >= _TURN_COUNT:
                self.feed_soon(queue)  # before those that had their turn
                continue
            position, delivered_count = queue.position, self.delivered_count
            more = self._feed(queue)
            if more:
                again.append(queue)
            if queue.consumers or not more:
                self._end_searches(queue)
            cost += 1 + queue.position - position + self.delivered_count - delivered_count
        for queue in again:
            self.feed_soon(queue)

    def _feed(self, queue: WatchQueue) -> bool:
        """Returns whether there is more to do for the queue now."""
        if not queue.consumers:
            return queue.look_on()
        if queue.bounds is not None and not queue.catch_up():
            return True
        stop = queue.position + LOOK_COUNT
        for _ in range(_FED_COUNT):
            consumer = queue.next_consumer() if queue.has_news() else None
            if consumer is None:
                return False
            taken = queue.take()
            self.changed(queue)
            if taken is None:
                return queue.has_news()
            message, redelivered = taken
            consumer.deliver(message, redelivered=redelivered)
            self.delivered_count += 1
            if queue.position >= stop:
                break  # most of what it read was not for it
        return True

    @property
    def dropped_count(self) -> int:
        """Messages that left the log before a queue read them."""
        found = sum(queue.dropped_count for queue in self.queues.values())
        return found + self._gone_dropped_count

    @property
    def overflow_count(self) -> int:
        """Messages dropped by bounded queues."""
        found = sum(queue.overflow_count for queue in self.queues.values())
        return found + self._gone_overflow_count

    # Time.

    def tick(self, now: int) -> None:
        """Called periodically: saves the positions of queues and deletes unused ones."""
        if now - self._saved_at >= _SAVE_MS:
            self._saved_at = now
            self.save_all()
        for queue in tuple(self.queues.values()):
            unused_ms = expires_ms_of(queue.traits.arguments)
            if unused_ms is None or queue.consumers:
                continue
            if now - queue.used_at >= unused_ms:
                self.delete(queue)

    def save_all(self) -> None:
        """Saves the positions of all queues that moved."""
        unsaved, self._unsaved = self._unsaved, {}
        for queue in unsaved:
            self._ask(SetCursor(self._cursor_of(queue)))

    def _cursor_of(self, queue: WatchQueue) -> Cursor:
        seq, notes = queue.save("" if self._homes is None else self._homes.here)
        return Cursor(_CURSOR_PREFIX + queue.name, seq, notes)


def _settling(then: Then) -> Settle:
    def settle(reply: Reply) -> None:
        then(reply if isinstance(reply, Refusal) else None)

    return settle

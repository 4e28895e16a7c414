"""A queue is a cursor on the log: bindings, a position, and unacknowledged messages.

No message is ever copied into a queue. A binding applies to messages after it, as with a broker:
each remembers from where to where it was in place.
"""

import heapq
from collections import deque
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from manyhands.model.roles import fits_any
from manyhands.net.amqp import Message
from manyhands.protocols.amqp.arguments import Bounds, bounds_of
from manyhands.protocols.amqp.log import Log
from manyhands.protocols.topic_patterns import Pattern, words_of

READ_COUNT: Final = 100  # messages read in one go
# Waiting messages are counted by reading them. Beyond these bounds the count is a lower bound: one
# on messages read, one on positions passed over.
_COUNTED_MAX: Final = 1_000
_PASSED_MAX: Final = 20_000
# Positions that a queue reads before others get their turn; then those of a bounded queue.
LOOK_COUNT: Final = 1_000
_CATCH_UP_COUNT: Final = 2_000
ALWAYS: Final = 1 << 63


class Consumer(Protocol):
    """A consumer of a queue."""

    tag: str
    exclusive: bool  # the only consumer of its queue

    def can_take(self) -> bool:
        """Whether one more message may be sent now."""

    def deliver(self, message: Message, *, redelivered: bool) -> None:
        """Sends one more message."""

    def end(self) -> None:
        """The queue was deleted."""


class Binding(Struct, gc=False):
    """A pattern on an exchange, for the messages after ``since``, up to ``until``."""

    exchange: str
    pattern: Pattern
    since: int
    until: int = ALWAYS


class SavedBinding(Struct, frozen=True, array_like=True):
    """A binding as stored."""

    exchange: str
    key: str
    since: int
    until: int


class Saved(Struct, frozen=True, omit_defaults=True):
    """A durable queue as stored. Unacknowledged messages are delivered again."""

    position: int
    bindings: tuple[SavedBinding, ...] = ()
    owed: tuple[int, ...] = ()
    arguments: dict[str, Any] = {}
    auto_delete: bool = False
    server: str = ""  # the incarnation of the one that serves it, among several
    seen: tuple[str, ...] = ()


_decode_saved = msgspec.json.Decoder(Saved).decode


class _Counted(Struct, frozen=True, gc=False):
    """The number of wanted messages after ``start``, up to ``stop``."""

    start: int
    stop: int
    wanted: int


class Traits(Struct, frozen=True):
    """What a queue was declared as; a repeated declaration must be equal."""

    durable: bool = False
    owner: str | None = None  # the only connection that may use it; the queue ends with it
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    # Patterns of the jobs' queues that whoever declared it may see; empty: all.
    seen: tuple[str, ...] = ()


class WatchQueue:
    """One queue."""

    def __init__(self, name: str, traits: Traits, log: Log) -> None:
        self.name = name
        self.traits = traits
        self.bindings: list[Binding] = []
        self.consumers: list[Consumer] = []
        self.is_saved = not traits.durable  # as far as it must be
        self.position = log.last_seq  # everything up to here was read
        self.dropped_count = 0  # messages that left the log before they were read
        self.bounds = bounds_of(traits.arguments)
        self.overflow_count = 0  # messages dropped by its bounds
        self.used_at = 0  # when it was last consumed from, declared or queried
        self.had_consumers = False
        self._log = log
        self._exchanges: frozenset[str] = frozenset()
        self._ahead: deque[Message] = deque()  # read, not handed out
        # The same for a bounded queue, which must know everything that waits: numbers and sizes.
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._owed: set[int] = set()  # handed out, not acknowledged
        self._returned: list[int] = []  # handed out and given back, lowest first
        self._counted = _Counted(self.position, self.position, 0)
        self._turn = 0

    # Bindings.

    def bind(self, exchange: str, key: str) -> None:
        """Binds from now on. Binding twice is the same as once."""
        for binding in self.bindings:
            same = binding.exchange == exchange and binding.pattern.text == key
            if same and binding.until == ALWAYS:
                return
        self._bind(Binding(exchange, Pattern(key), self._log.last_seq))

    def _bind(self, binding: Binding) -> None:
        self.bindings.append(binding)
        self._exchanges = frozenset(binding.exchange for binding in self.bindings)

    def unbind(self, exchange: str, key: str) -> None:
        """Earlier messages may still be waiting: the binding holds until those were read."""
        for binding in self.bindings:
            if (binding.exchange, binding.pattern.text, binding.until) == (exchange, key, ALWAYS):
                binding.until = self._log.last_seq
        self._forget_old_bindings()

    def _forget_old_bindings(self) -> None:
        kept = [binding for binding in self.bindings if binding.until > self.position]
        if len(kept) != len(self.bindings):
            self.bindings = kept
            self._exchanges = frozenset(binding.exchange for binding in kept)

    def _wants(self, message: Message) -> bool:
        if not fits_any(self.traits.seen, message.queue):
            return False
        if message.also is not None and self._fits(message, message.also):
            return True
        return self._fits(message, message.key)

    def _fits(self, message: Message, key: str) -> bool:
        words: list[str] | None = None
        for binding in self.bindings:
            if binding.exchange != message.exchange:
                continue
            if not binding.since < message.seq <= binding.until:
                continue
            if words is None:
                words = words_of(key)
            if binding.pattern.matches(words):
                return True
        return False

    # Reading.

    def has_news(self) -> bool:
        """Whether there may be something to hand out."""
        return bool(self._returned or self._ahead or self._waiting) or (
            self.position < self._log.last_seq and bool(self.bindings)
        )

    def take(self) -> tuple[Message, bool] | None:
        """The next message, and whether it was handed out before. None if there is none, or if what
        may wait is not known yet.
        """
        if self.bounds is not None and not self.catch_up():
            return None
        while self._returned:
            message = self._read(heapq.heappop(self._returned))
            if message is not None:
                return message, True
        while self._waiting:
            seq, size = self._waiting.popleft()
            self._waiting_bytes -= size
            message = self._read(seq)
            if message is not None:
                return message, False
        if self.bounds is not None:
            return None
        if not self._ahead and not self._look_ahead():
            return None
        message = self._ahead.popleft()
        self._owed.add(message.seq)
        return message, False

    def _read(self, seq: int) -> Message | None:
        """A message that was read before, to be handed out."""
        found, _ = self._log.read(seq - 1, 1, None)
        if found and found[0].seq == seq:
            self._owed.add(seq)
            return found[0]
        self.dropped_count += 1
        return None

    def is_searching(self) -> bool:
        """Whether it is not known yet if there is a message: nothing read so far is for this queue,
        and there is more. With consumers it would be handed to them.
        """
        return not self.consumers and self.look_on()

    def look_on(self) -> bool:
        """Looks for the first waiting message; returns whether the search must go on."""
        if self.bounds is not None:
            return not self.catch_up()
        return not (self._returned or self._ahead or self._look_ahead()) and self.has_news()

    def _look_ahead(self) -> bool:
        last = self._log.last_seq
        stop = self.position + LOOK_COUNT
        while self.position < last:
            if self.position >= stop:
                return False
            self._ahead.extend(self._look_at_more(last))
            if self._ahead:
                return True
        self._forget_old_bindings()
        return False

    def _look_at_more(self, last: int) -> list[Message]:
        """The wanted messages of the next part of the log."""
        first = self._log.first_seq
        if self.position < first - 1:
            # The log is bounded, and so is what may wait in a queue.
            self.dropped_count += first - 1 - self.position
            self.position = first - 1
        if not self.bindings:
            self.position = last
            return []
        found, position = self._log.read(self.position, READ_COUNT, self._exchanges)
        wanted = [message for message in found if self._wants(message)]
        counted = self._counted
        if counted.start == self.position and counted.stop >= position:
            self._counted = _Counted(position, counted.stop, counted.wanted - len(wanted))
        self.position = position
        return wanted

    def catch_up(self) -> bool:
        """Reads more of the log: a bounded queue must know everything that waits in order to drop
        the oldest. Returns whether everything was read.
        """
        bounds = self.bounds
        assert bounds is not None
        last = self._log.last_seq
        stop = self.position + _CATCH_UP_COUNT
        while self.position < last:
            if self.position >= stop:
                return False
            for message in self._look_at_more(last):
                size = len(message.body)
                self._waiting.append((message.seq, size))
                self._waiting_bytes += size
            self._let_go(bounds)
        self._forget_old_bindings()
        return True

    def _let_go(self, bounds: Bounds) -> None:
        """Drops the oldest messages until the rest is within bounds. Messages handed out do not
        count.
        """
        waiting, returned = self._waiting, self._returned
        count_max, bytes_max = bounds.count_max or 0, bounds.bytes_max
        while len(waiting) + len(returned) > count_max or (
            bytes_max is not None and self._waiting_bytes > bytes_max
        ):
            if returned:
                heapq.heappop(returned)
            else:
                self._waiting_bytes -= waiting.popleft()[1]
            self.overflow_count += 1

    def next_consumer(self) -> Consumer | None:
        """The consumer whose turn it is, among those that can take a message."""
        consumers = self.consumers
        count = len(consumers)
        for step in range(count):
            index = (self._turn + step) % count
            consumer = consumers[index]
            if consumer.can_take():
                self._turn = index + 1
                return consumer
        return None

    def settle(self, seq: int) -> None:
        """Acknowledged, or rejected for good."""
        self._owed.discard(seq)

    def give_back(self, seq: int) -> None:
        """Not acknowledged by its consumer: others get it."""
        if seq in self._owed:
            self._owed.discard(seq)
            heapq.heappush(self._returned, seq)
            if self.bounds is not None:
                self._let_go(self.bounds)

    def count(self) -> int:
        """The number of waiting messages, or a lower bound."""
        if self.bounds is not None:
            self.catch_up()
            return len(self._returned) + len(self._waiting)
        self.look_on()
        return len(self._returned) + len(self._ahead) + self._count_beyond()

    def _count_beyond(self) -> int:
        """The messages not read yet. Continues where the last count ended."""
        start, looked_at = self.position, 0
        counted = self._counted
        stop, wanted = (counted.stop, counted.wanted) if counted.start == start else (start, 0)
        last = min(start + _PASSED_MAX, self._log.last_seq)
        while stop < last and looked_at < _COUNTED_MAX and self.bindings:
            found, stop = self._log.read(stop, READ_COUNT, self._exchanges)
            looked_at += len(found)
            wanted += sum(1 for message in found if self._wants(message))
        self._counted = _Counted(start, stop, wanted)
        return wanted

    def purge(self) -> int:
        """Drops all waiting messages; returns how many."""
        count = self.count()
        self._forget_waiting()
        self.position = self._log.last_seq
        self._forget_old_bindings()
        return count

    def rewind(self, seq: int) -> None:
        """Continues after that position, applying the current bindings to everything there."""
        self._forget_waiting()
        self.position = seq
        self.bindings = [binding for binding in self.bindings if binding.until == ALWAYS]
        for binding in self.bindings:
            binding.since = 0

    def _forget_waiting(self) -> None:
        self._ahead.clear()
        self._returned.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._counted = _Counted(-1, -1, 0)

    # At rest.

    def save(self, server: str = "") -> tuple[int, str]:
        """The position up to which everything is done, and the notes to continue from."""
        position = self.position
        if self._ahead:
            position = self._ahead[0].seq - 1
        elif self._waiting:
            position = self._waiting[0][0] - 1
        owed = tuple(sorted((*self._owed, *self._returned)))
        saved = Saved(
            position,
            tuple(
                SavedBinding(b.exchange, b.pattern.text, b.since, b.until) for b in self.bindings
            ),
            owed,
            self.traits.arguments,
            self.traits.auto_delete,
            server,
            self.traits.seen,
        )
        return owed[0] - 1 if owed else position, msgspec.json.encode(saved).decode()


def server_of(notes: str) -> str:
    """Which server serves a durable queue."""
    return _decode_saved(notes).server


def restored(name: str, notes: str, log: Log) -> WatchQueue:
    """A durable queue as it was saved."""
    saved = _decode_saved(notes)
    traits = Traits(
        durable=True,
        auto_delete=saved.auto_delete,
        arguments=saved.arguments,
        seen=saved.seen,
    )
    queue = WatchQueue(name, traits, log)
    queue.is_saved = True
    queue.position = saved.position
    for binding in saved.bindings:
        queue._bind(  # noqa: SLF001 - made here
            Binding(binding.exchange, Pattern(binding.key), binding.since, binding.until)
        )
    queue._returned = list(saved.owed)  # noqa: SLF001 - sorted, so it is a heap
    return queue

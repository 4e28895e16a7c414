"""Messages that a broker rejected: sent again, a few at a time, and eventually given up.

A broker rejects a message if one of the queues it is routed to is full. All other queues have it by
then, and get it again with every retry. So only the oldest one is retried, after pauses that
double, and the others follow once it is accepted.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Final

_REST_MS: Final = (250, 30_000)  # between two tries, doubling from the first to the second
# Failed tries in a row: with their pauses these take eight seconds.
_TRIES_MAX: Final = 5
_TOGETHER_MAX: Final = 200


class Rejections:
    """The rejections of one broker. What was learned about it outlives a connection."""

    def __init__(self) -> None:
        self.given_up_count = 0
        self._held: list[int] = []  # sequence numbers, in order
        self._under_way: set[int] = set()  # those of them sent again
        self._together_count = 1  # how many of them to send again next
        self._turned_down = False  # one of those in flight was rejected
        self._taken = False  # one of them was accepted
        self._tries_count = 0
        self._rest_ms = _REST_MS[0]
        self._due_at = 0

    @property
    def held_count(self) -> int:
        """Messages waiting to be accepted."""
        return len(self._held)

    @property
    def oldest(self) -> int | None:
        """The first of them."""
        return self._held[0] if self._held else None

    @property
    def is_waiting(self) -> bool:
        """Whether it matters what the broker accepts: messages already given up may still be in
        flight.
        """
        return bool(self._held or self._under_way)

    @property
    def is_hopeless(self) -> bool:
        """Whether no retried message was accepted, so that the next try is the last."""
        return self._tries_count >= _TRIES_MAX

    def reconnect(self) -> None:
        """All messages not accepted are published anew, as are those after them."""
        self._held.clear()
        self._under_way.clear()
        self._together_count = 1
        self._turned_down = self._taken = False

    def reject(self, seq: int, now: int) -> None:
        """The broker rejected it."""
        if seq in self._under_way:
            self._turned_down = True
            self._settle(seq, now)
        elif self._is_new(seq):
            if not self._held:
                self._due_at = now + self._rest_ms
            insort(self._held, seq)

    def take(self, seq: int, now: int) -> None:
        """The broker accepted it. Only retried messages matter: others say nothing about the queue
        that was full.
        """
        if seq in self._under_way:
            self._taken = True
            self._remove(seq)
            self._settle(seq, now)

    def due(self, now: int) -> list[int]:
        """The messages to send again now."""
        if self._under_way or not self._held or now < self._due_at:
            return []
        found = self._held[: self._together_count]
        self._under_way.update(found)
        return found

    def give_up_to(self, seq: int) -> None:
        """Gives up messages that have lagged as far behind as allowed."""
        count = bisect_right(self._held, seq)
        if count:
            del self._held[:count]
            self.given_up_count += count

    def lose(self, seq: int, now: int) -> None:
        """It is due, but no longer in the log."""
        self.given_up_count += 1
        self._remove(seq)
        self._settle(seq, now)

    def _is_new(self, seq: int) -> bool:
        place = bisect_left(self._held, seq)
        return place == len(self._held) or self._held[place] != seq

    def _remove(self, seq: int) -> None:
        place = bisect_left(self._held, seq)
        if place < len(self._held) and self._held[place] == seq:
            del self._held[place]

    def _settle(self, seq: int, now: int) -> None:
        self._under_way.discard(seq)
        if self._under_way:
            return
        if self._taken:
            self._tries_count = 0
            self._rest_ms = _REST_MS[0]
        if self._turned_down:
            self._rest(now)
        elif self._taken:
            self._together_count = min(self._together_count * 2, _TOGETHER_MAX)
            self._due_at = now
        self._turned_down = self._taken = False

    def _rest(self, now: int) -> None:
        """Pauses: the queue had no room, or has no room left."""
        self._together_count = 1
        if not self._taken:
            self._tries_count += 1
            self._rest_ms = min(self._rest_ms * 2, _REST_MS[1])
            if self.is_hopeless:
                self.given_up_count += len(self._held)
                self._held.clear()
        self._due_at = now + self._rest_ms

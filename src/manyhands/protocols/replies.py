"""Keeps answers in order."""

from collections import deque
from collections.abc import Callable


class Slot:
    """The place of one answer, or of several that become known together."""

    __slots__ = ("count", "data")

    def __init__(self, data: bytes | None, count: int) -> None:
        self.data = data
        self.count = count


class Replies:
    """Sends answers in the order of their requests, whatever order they become known in."""

    __slots__ = ("_send", "_slots", "_then", "awaited_count")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._then: Callable[[], None] | None = None
        self._slots: deque[Slot] = deque()
        self.awaited_count = 0  # pending answers

    def reserve(self, count: int = 1) -> Slot:
        """Reserves a place for answers that are not known yet."""
        slot = Slot(None, count)
        self._slots.append(slot)
        self.awaited_count += count
        return slot

    def fill(self, slot: Slot, data: bytes) -> None:
        """Fills a reserved place; with empty data, there is no answer after all."""
        slot.data = data
        slots = self._slots
        while slots:
            slot = slots[0]
            first = slot.data
            if first is None:
                return
            slots.popleft()
            self.awaited_count -= slot.count
            if first:
                self._send(first)
        if self._then is not None:
            then, self._then = self._then, None
            then()

    def say(self, data: bytes) -> None:
        """Sends an answer that is known at once, behind those still pending."""
        if self._slots:
            self._slots.append(Slot(data, 1))
            self.awaited_count += 1
        else:
            self._send(data)

    def when_sent(self, then: Callable[[], None]) -> None:
        """Calls back once every request has its answer; nothing may be said after that."""
        if self._slots:
            self._then = then
        else:
            then()

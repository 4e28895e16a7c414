"""Keeps answers in order."""

from collections import deque
from collections.abc import Callable


class Replies:
    """Sends answers in the order of their requests, whatever order they become known in."""

    __slots__ = ("_send", "_slots", "_then")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._then: Callable[[], None] | None = None
        self._slots: deque[list[bytes | None]] = deque()

    def reserve(self) -> list[bytes | None]:
        """Reserves a place for an answer that is not known yet."""
        slot: list[bytes | None] = [None]
        self._slots.append(slot)
        return slot

    def fill(self, slot: list[bytes | None], data: bytes) -> None:
        """Fills a reserved place; with empty data, there is no answer after all."""
        slot[0] = data
        slots = self._slots
        while slots:
            first = slots[0][0]
            if first is None:
                return
            slots.popleft()
            if first:
                self._send(first)
        if self._then is not None:
            then, self._then = self._then, None
            then()

    def say(self, data: bytes) -> None:
        """Sends an answer that is known at once, behind those still pending."""
        if self._slots:
            self._slots.append([data])
        else:
            self._send(data)

    def when_sent(self, then: Callable[[], None]) -> None:
        """Calls back once every request has its answer; nothing may be said after that."""
        if self._slots:
            self._then = then
        else:
            then()

    @property
    def awaited_count(self) -> int:
        """The number of pending answers."""
        return len(self._slots)

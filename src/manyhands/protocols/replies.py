"""How answers keep their order."""

from collections import deque
from collections.abc import Callable


class Replies:
    """Answers leave in the order of their requests, whatever order they become known in."""

    __slots__ = ("_send", "_slots", "_then")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._then: Callable[[], None] | None = None
        self._slots: deque[list[bytes | None]] = deque()

    def reserve(self) -> list[bytes | None]:
        """A place for an answer that is not known yet."""
        slot: list[bytes | None] = [None]
        self._slots.append(slot)
        return slot

    def fill(self, slot: list[bytes | None], data: bytes) -> None:
        """The answer of that place; empty: there is none after all."""
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
        """An answer that is known at once: behind those that are still awaited."""
        if self._slots:
            self._slots.append([data])
        else:
            self._send(data)

    def when_told(self, then: Callable[[], None]) -> None:
        """Call back once there is an answer to everything that was asked; after that nothing
        more may be said.
        """
        if self._slots:
            self._then = then
        else:
            then()

    @property
    def awaited_count(self) -> int:
        """Requests without an answer."""
        return len(self._slots)

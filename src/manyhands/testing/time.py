"""Time that stands still until a test turns it, and the loop that lives by it."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from manyhands.dispatch.clock import Clock


class VirtualClock(Clock):
    """Begins now, and goes on only when it is turned."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = time.time_ns() // 1_000_000

    def now(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def drift_ms(self) -> int:
        return 0

    def slept_ms(self) -> int:
        return 0

    def follow(self, drift_ms: int) -> None:
        del drift_ms

    def set(self, now_ms: int) -> None:
        """It is later now."""
        self._now_ms = max(self._now_ms, now_ms)


class _Timer:
    """A call at a later time."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualLoop:
    """The dispatcher's loop: no thread, no descriptor; it runs when it is called."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._numbers = itertools.count()

    def call_soon(self, callback: Callable[[], None], /) -> None:
        """Calls in this turn."""
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> _Timer:
        """Calls when the clock is there."""
        timer = _Timer(callback)
        due_at = self._clock.now() + max(0, round(delay * 1000))
        heapq.heappush(self._timers, (due_at, next(self._numbers), timer))
        return timer

    def run(self) -> None:
        """Runs what is due by now."""
        while True:
            while self._soon:
                self._soon.popleft()()
            due_at = self.next_at()
            if due_at is None or due_at > self._clock.now():
                return
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                timer.callback()

    def next_at(self) -> int | None:
        """When the next timer is due."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    # A store in memory has no descriptor.

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def add_writer(self, fd: int, callback: Callable[[], None], /) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def remove_reader(self, fd: int, /) -> bool:
        raise NotImplementedError

    def remove_writer(self, fd: int, /) -> bool:
        raise NotImplementedError

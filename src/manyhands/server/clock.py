"""Server time: milliseconds UTC that never jump.

It is the wall clock at the start, carried on by the monotonic clock. When somebody sets the wall
clock, ``drift_ms`` tells; the dispatcher then follows it and keeps every lease its remaining time.
"""

import time


class Clock:
    """The only reader of the machine's clocks."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        """Server time in milliseconds."""
        return (self._anchor_ns + time.monotonic_ns()) // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds since some start, for measuring durations."""
        return time.monotonic_ns() / 1e6

    def drift_ms(self) -> int:
        """How far the wall clock is ahead of server time."""
        return (time.time_ns() - time.monotonic_ns() - self._anchor_ns) // 1_000_000

    def follow(self, drift_ms: int) -> None:
        """Make server time the wall clock's again."""
        self._anchor_ns += drift_ms * 1_000_000

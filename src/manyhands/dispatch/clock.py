"""Server time: milliseconds UTC that never jump by themselves.

It is the wall clock at the start, advanced by the monotonic clock. When the wall clock is set,
``drift_ms`` shows it; the server then follows, and leases, delays and intervals keep the time they
have left (rule 7).
"""

import time
from time import monotonic_ns


class Clock:
    """The only reader of the machine's clocks."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._asleep_ns = _asleep_ns()

    def now(self) -> int:
        """Server time in milliseconds."""
        return (self._anchor_ns + monotonic_ns()) // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary start, to measure durations."""
        return monotonic_ns() / 1e6

    def drift_ms(self) -> int:
        """How far the wall clock is ahead of server time."""
        return (time.time_ns() - time.monotonic_ns() - self._anchor_ns) // 1_000_000

    def follow(self, drift_ms: int) -> None:
        """Sets server time to the wall clock."""
        self._anchor_ns += drift_ms * 1_000_000
        self._asleep_ns = _asleep_ns()

    def slept_ms(self) -> int:
        """The part of the drift that is not a step: the machine was suspended and its wall clock
        ran on.
        """
        return (_asleep_ns() - self._asleep_ns) // 1_000_000


def _asleep_ns() -> int:
    """How long the machine was suspended since an arbitrary start; 0 if the system does not say."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return 0
    slept = time.clock_gettime_ns(boot_time) - time.monotonic_ns()
    return max(0, slept)

"""Server time in a cluster is the database's: the monotonic clock plus an offset that each beat
measures anew. So instants of different servers can be compared, whatever their machines' clocks
show.
"""

import time

from manyhands.cluster.membership import slewed
from manyhands.dispatch.clock import Clock

# A difference above this is followed at once, and leases are prolonged by it; one below it is made
# up for slowly.
STEP_MS: float = 2_000.0


class DatabaseClock(Clock):
    """Follows the clock of the database."""

    def __init__(self, offset_ms: float) -> None:
        """``offset_ms``: how far the database's time is ahead of the monotonic clock."""
        super().__init__()
        self._offset_ms = self._target_ms = offset_ms
        self._heeded_ms = self.monotonic_ms()

    def now(self) -> int:
        return int(self.monotonic_ms() + self._offset_ms)

    def heed(self, offset_ms: float) -> None:
        """A beat has measured the offset."""
        now_ms = self.monotonic_ms()
        elapsed_ms, self._heeded_ms = now_ms - self._heeded_ms, now_ms
        self._target_ms = offset_ms
        ahead_ms = offset_ms - self._offset_ms
        if abs(ahead_ms) <= STEP_MS:
            self._offset_ms += slewed(ahead_ms, elapsed_ms)

    def drift_ms(self) -> int:
        """How far the database's time is ahead of server time."""
        return int(self._target_ms - self._offset_ms)

    def follow(self, drift_ms: int) -> None:
        super().follow(drift_ms)
        self._offset_ms += drift_ms

    def machine_ahead_ms(self) -> int:
        """How far this machine's own clock is ahead of the database's."""
        return time.time_ns() // 1_000_000 - self.now()

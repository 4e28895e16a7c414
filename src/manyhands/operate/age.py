"""The clock of retention. It does not trust a jump: a clock set forward by mistake, or a server
that was down, must not drop all records at once.
"""

from typing import Final

# The time over which a jump is absorbed, evenly: an operator has that long to correct the clock.
_BELIEVED_MS: Final = 24 * 3600 * 1000
# A smaller jump is ignored, so that restarts do not count.
STEP_MS_MIN: Final = 3600 * 1000


class Aging:
    """How far the ages of records are behind server time."""

    def __init__(self, behind_ms: int) -> None:
        self._behind_ms = float(behind_ms)
        self._rate = behind_ms / _BELIEVED_MS  # caught up in each millisecond

    @property
    def behind_ms(self) -> int:
        """The part of past jumps that is not absorbed yet."""
        return int(self._behind_ms)

    def step(self, step_ms: int) -> None:
        """The clock jumped by this much, not counting the time that passed."""
        self._behind_ms = max(0.0, self._behind_ms + step_ms)
        self._rate = self._behind_ms / _BELIEVED_MS

    def go_on(self, elapsed_ms: float) -> None:
        """This much time passed."""
        self._behind_ms = max(0.0, self._behind_ms - self._rate * elapsed_ms)

"""Time for the dispatcher: a tick at the next due instant, and the detection of stalls."""

from collections.abc import Callable
from typing import Final

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.loops import Loop, Timer
from manyhands.loggers import get_logger
from manyhands.model import limits
from manyhands.model.commands import Command, Prolong, Tick
from manyhands.store.contract import Live

_log = get_logger("manyhands.ticking")
# A timer that fires this late means that the server itself stalled.
STALL_MS: Final = 1_000
# A commit that takes this long means that the disk stalled: workers without an answer could not
# renew, so their leases are extended. Less is a slow disk, on which leases expire as usual.
DISK_STALL_MS: Final = 5_000
# Some timer fires at least this often, so a stall began at most this long before it was due.
_HOUSEKEEPING_MS: Final = 1_000
# A tick that failed with an assertion is retried after this long.
_TICK_AGAIN_MS: Final = 1_000
# A timer far ahead is checked again every hour.
_TICK_MS_MAX: Final = 3_600_000


class Timekeeper:
    """Asks for a ``Tick`` when something is due."""

    def __init__(
        self,
        live: Live,
        clock: Clock,
        loop: Loop,
        ask: Callable[[Command], None],
        failures: Callable[[], int],
        commit_ms: Callable[[], float],
    ) -> None:
        self.tick_at: int | None = None  # the instant that the timer is set to
        self._live = live
        self._clock = clock
        self._loop = loop
        self._ask = ask
        self._failures = failures  # commands that ended in an assertion, so far
        self._commit_ms = commit_ms  # how long a commit has been on its way
        self._timer: Timer | None = None
        self._ended = False
        self._holds: set[str] = set()  # why time is held, while it is
        self._expected_ms = 0.0  # when the timer is to fire, by the monotonic clock
        self._alive_ms = clock.monotonic_ms()  # the last sign of life, by some timer
        self._awake_ms = self._alive_ms  # standstills before this moment are dealt with
        self.arm_next()

    def arm_next(self) -> None:
        """Sets the timer to what is due first."""
        due_at = self._live.next_due_at()
        if due_at is not None:
            self.arm(due_at)

    def arm(self, due_at: int, delay_ms_min: int = 0) -> None:
        """Sets the timer to an instant."""
        if self._ended or self._holds:
            return
        self._cancel()
        self.tick_at = due_at
        delay_ms = min(max(delay_ms_min, due_at - self._clock.now()), _TICK_MS_MAX)
        self._expected_ms = self._clock.monotonic_ms() + delay_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def hold(self, why: str) -> None:
        """Nothing falls due for the present: what seems to be due may not be, or is not decided
        here.
        """
        self._holds.add(why)
        self._cancel()

    def release(self, why: str) -> None:
        """That is no reason any more."""
        if why in self._holds:
            self._holds.remove(why)
            self.arm_next()

    def end(self) -> None:
        """The store failed: nothing can be decided any more."""
        self._ended = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.tick_at = self._timer = None
        self.notice_stall(self._expected_ms)
        if self._commit_ms() > STALL_MS:
            # No answer could leave now, and the disk may turn out to have stalled.
            self.arm(self._clock.now(), _TICK_AGAIN_MS)
            return
        failures = self._failures()
        self._ask(Tick(limits.TICK_COUNT_MAX))
        due_at = self._live.next_due_at()
        if due_at is not None:
            # Something due that cannot be decided must not keep the event loop busy.
            failed = self._failures() != failures
            self.arm(due_at, _TICK_AGAIN_MS if failed else 0)

    def notice_stall(self, expected_ms: float) -> None:
        """A timer that was set to ``expected_ms`` (monotonic) fires now. If that is much too late,
        the server itself stalled. Several timers may notice it; the first one counts.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - max(expected_ms, self._awake_ms) > STALL_MS:
            # The stall began some time before the timer was due. Too much is better than too
            # little.
            began_ms = max(expected_ms - _HOUSEKEEPING_MS, self._alive_ms)
            self._awake_ms = now_ms
            self.prolong(int(now_ms - began_ms))
        self._alive_ms = now_ms

    def notice_slow_commit(self, took_ms: float) -> None:
        """A slow commit has ended. Several may have waited for the same disk."""
        now_ms = self._clock.monotonic_ms()
        outage_ms = min(took_ms, now_ms - self._awake_ms)
        if outage_ms > DISK_STALL_MS:
            self._awake_ms = now_ms
            self.prolong(int(outage_ms))

    def prolong(self, outage_ms: int) -> None:
        """The server stalled, or its clock was set: leases keep their remaining time (rule 7)."""
        if outage_ms:
            _log.warning("leases prolonged", milliseconds=outage_ms)
            self._ask(Prolong(outage_ms))
        self.arm_next()  # by the clock as it is now

"""What a server does once a second by itself: follow the clocks, watch the disk, fire
schedules, sample, prune, sweep, forget idle queues.
"""

import asyncio
import contextlib
from typing import Final

from manyhands.dispatch.ask import settled
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.loggers import get_logger
from manyhands.observe.history import History
from manyhands.operate.age import STEP_MS_MIN, Aging
from manyhands.operate.clock_steps import ClockSteps
from manyhands.operate.idle_queues import IdleQueues
from manyhands.operate.schedules import Calendar

_log = get_logger("manyhands.server")

_MIB: Final = 1024 * 1024
_PERIOD_MS: Final = 1_000
_PRUNE_COUNT: Final = 2_000  # records dropped at a time, between other work
_SWEEP_MS: Final = 3_600_000
# A wall clock that is set by less than this is not worth following.
_DRIFT_MS: Final = 2_000


class Duties:
    """The recurring duties of the server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        condition: Condition,
        budget: Budget,
        history: History,
        calendar: Calendar,
        loop: asyncio.AbstractEventLoop,
        *,
        disk_free_mib_min: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._clock = dispatcher.clock
        self._condition = condition
        self._budget = budget
        self._history = history
        self._calendar = calendar
        self._loop = loop
        self._disk_free_min = disk_free_mib_min * _MIB
        self._idle_queues = IdleQueues(self._store.live, dispatcher.ask)
        self._clock_steps = ClockSteps(dispatcher, calendar, loop)
        self._aging = Aging(self._store.behind_ms)
        now_ms = self._clock.monotonic_ms()
        self._aged_ms = now_ms
        self._sweep_ms = now_ms + _SWEEP_MS
        self._expected_ms = 0.0  # when the next round is due, by the monotonic clock
        self._beat_ms = 0.0  # when the next beat is
        self._sweeping: asyncio.Task[None] | None = None

    def take_up(self, outage_ms: int) -> None:
        """Handles the outage before this start; negative if the clock was set back meanwhile."""
        if outage_ms < -_DRIFT_MS:
            _log.warning("the wall clock was set back while the server was away", ms=-outage_ms)
            self._clock_steps.follow(outage_ms)
        elif outage_ms > STEP_MS_MIN:
            self._age_by(outage_ms)

    async def run(self) -> None:
        """Runs until the server stops."""
        stopping = self._condition.stopping
        self._expected_ms = self._beat_ms = self._clock.monotonic_ms() + _PERIOD_MS
        self._loop.call_later(_PERIOD_MS / 1000, self._beat)
        while not stopping.is_set():
            delay_ms = max(0.0, self._expected_ms - self._clock.monotonic_ms())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), delay_ms / 1000)
                return
            self._look_at_clocks()
            self._look_at_disk()
            self._dispatcher.keep_house()
            self._budget.look()
            self._history.look(self._clock.now())
            if not self._dispatcher.decides:
                continue  # the rest is done by the server that does
            self._calendar.look()
            self._sweep_now_and_then()
            # A slice now, and more at once while there is more: never long, never far behind.
            pruned = self._store.prune(self._aged_now(), _PRUNE_COUNT)
            if pruned:
                self._dispatcher.touch()  # removals go with the next commit
            if self._idle_queues.look() or pruned >= _PRUNE_COUNT:
                self._expected_ms = self._clock.monotonic_ms() + _PERIOD_MS / 20

    async def sweep(self) -> None:
        """Drops what no job refers to any more."""
        self._store.begin_sweep()
        await settled(self._dispatcher)
        if self._condition.failure is None:
            self._store.end_sweep(await asyncio.to_thread(self._store.find_unused))
            self._dispatcher.touch()

    def _sweep_now_and_then(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._sweep_ms and (self._sweeping is None or self._sweeping.done()):
            self._sweep_ms = now_ms + _SWEEP_MS
            self._sweeping = asyncio.create_task(self.sweep())

    def _beat(self) -> None:
        """Notices standstills. A timer of its own, since it is late by one turn of the loop at
        most; a round of duties takes several turns to wake up, and may be late without one.
        """
        self._dispatcher.notice_stall(self._beat_ms)
        if not self._condition.stopping.is_set():
            self._beat_ms = self._clock.monotonic_ms() + _PERIOD_MS
            self._loop.call_later(_PERIOD_MS / 1000, self._beat)

    def _look_at_clocks(self) -> None:
        self._expected_ms = self._clock.monotonic_ms() + _PERIOD_MS
        drift_ms = self._clock.drift_ms()
        if abs(drift_ms) <= _DRIFT_MS:
            return
        step_ms = drift_ms - self._clock.slept_ms()
        _log.warning("the wall clock was set", milliseconds=step_ms, slept=drift_ms - step_ms)
        self._clock.follow(drift_ms)
        self._dispatcher.prolong(drift_ms)
        if abs(step_ms) > _DRIFT_MS:
            self._clock_steps.follow(step_ms)
            self._age_by(step_ms)

    def _age_by(self, step_ms: int) -> None:
        """Time that nobody saw pass does not count for retention at once."""
        self._aging.step(step_ms)
        self._store.behind_ms = self._aging.behind_ms
        if step_ms > STEP_MS_MIN:
            _log.warning(
                "records do not age by this at once; retention catches up within a day",
                milliseconds=step_ms,
            )

    def _aged_now(self) -> int:
        """The time by which records are old enough to go."""
        now_ms = self._clock.monotonic_ms()
        self._aging.go_on(now_ms - self._aged_ms)
        self._aged_ms = now_ms
        self._store.behind_ms = self._aging.behind_ms
        return self._clock.now() - self._aging.behind_ms

    def _look_at_disk(self) -> None:
        if not self._store.is_in_place():
            return  # the dispatcher notices it by itself
        free = self._store.free_bytes()
        full = free is not None and free < self._disk_free_min
        if full != self._dispatcher.store_full:
            self._dispatcher.store_full = full
            if full:
                _log.error("the disk is nearly full; submits are refused", free_bytes=free)
            else:
                _log.info("the disk has room again; submits are accepted", free_bytes=free)

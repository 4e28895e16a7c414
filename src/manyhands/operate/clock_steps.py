"""When the wall clock is set: server time follows, and what was to happen after a delay still
happens after that delay. Instants that a client named do not move (rule 7).
"""

from collections import deque
from typing import Final

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.loops import Loop
from manyhands.model.commands import FollowClock
from manyhands.operate.schedules import Calendar

# Jobs that are shifted in one turn of the event loop: a few milliseconds.
_SLICE_COUNT: Final = 500
_MOVING: Final = "instants are being moved"


class ClockSteps:
    """Shifts delays, retries and schedules with the clock, in slices."""

    def __init__(self, dispatcher: Dispatcher, calendar: Calendar, loop: Loop) -> None:
        self._dispatcher = dispatcher
        self._calendar = calendar
        self._loop = loop
        self._left: deque[FollowClock] = deque()

    def follow(self, step_ms: int) -> None:
        """The clock jumped by this much; server time is already the new one."""
        while self._left:
            self._move()  # finish an earlier step first: this one counts from there
        jobs = [
            (job.job_id, job.run_at)
            for job in self._dispatcher.store.live.rare_jobs()
            if job.run_at is not None
        ]
        schedules = self._calendar.moved(step_ms)
        if schedules:
            self._left.append(FollowClock(step_ms=step_ms, schedules=tuple(schedules)))
        for start in range(0, len(jobs), _SLICE_COUNT):
            some = tuple(jobs[start : start + _SLICE_COUNT])
            self._left.append(FollowClock(step_ms=step_ms, jobs=some))
        self._go_on()

    def _go_on(self) -> None:
        if self._left:
            self._move()
        if self._left:
            self._dispatcher.hold_time(_MOVING)
            self._loop.call_soon(self._go_on)
        else:
            self._dispatcher.release_time(_MOVING)

    def _move(self) -> None:
        self._dispatcher.ask(self._left.popleft())

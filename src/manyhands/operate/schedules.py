"""The calendar: when a schedule is due next. Fires due schedules and catches up on missed ones."""

import contextlib
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.loggers import get_logger
from manyhands.model.commands import Fire
from manyhands.model.job import Schedule

_log = get_logger("manyhands.schedules")
# Firings per look at the calendar, so that catching up after a long outage is done in slices.
_FIRINGS_MAX: Final = 100


class CalendarError(ValueError):
    """A cron line or a time zone that does not exist; the text says which."""


def next_firing_at(schedule: Schedule, after: int) -> int:
    """The first instant of the schedule that lies after ``after``."""
    if schedule.interval_ms is not None:
        missed = max(0, after - schedule.next_at) // schedule.interval_ms
        return schedule.next_at + (missed + 1) * schedule.interval_ms
    return first_cron_at(schedule.cron or "", schedule.time_zone, after)


def first_firing_at(schedule: Schedule, now: int) -> int:
    """When a new schedule fires for the first time, if nobody chose that. Raises
    ``CalendarError``.
    """
    if schedule.interval_ms is not None:
        return now + schedule.interval_ms
    return first_cron_at(schedule.cron or "", schedule.time_zone, now)


def resumed_at(schedule: Schedule, now: int) -> int:
    """When a schedule that was paused fires next: what it missed is not caught up."""
    return schedule.next_at if schedule.next_at > now else next_firing_at(schedule, now)


def first_cron_at(cron: str, time_zone: str, after: int) -> int:
    """The first instant of a cron line after ``after``, in a time zone with its summer time."""
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CalendarError(f"there is no time zone {time_zone!r}") from None
    try:
        for found in CronSim(cron, datetime.fromtimestamp(after / 1000, UTC).astimezone(zone)):
            instant = int(found.timestamp() * 1000)
            if instant > after:  # false in the second of two equal hours, when summer time ends
                return instant
    except CronSimError as error:
        raise CalendarError(f"{cron!r} is not a cron line: {error}") from None
    raise CalendarError(f"{cron!r} never fires")


class Calendar:
    """Checks all schedules once a second; there are few of them."""

    def __init__(self, dispatcher: Dispatcher, ids: Ids) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._broken: dict[str, int] = {}  # stalled schedules, each logged once

    def look(self) -> None:
        """Fires the due schedules."""
        dispatcher = self._dispatcher
        if dispatcher.store_full or dispatcher.draining or dispatcher.failed is not None:
            return  # caught up later, like any other outage
        schedules = dispatcher.store.live.schedules
        now = dispatcher.clock.now()
        for schedule_id in list(schedules):
            for _ in range(_FIRINGS_MAX):
                schedule = schedules.get(schedule_id)
                if schedule is None or schedule.paused or schedule.next_at > now:
                    break
                if not self._fire(schedule, now):
                    break

    def moved(self, step_ms: int) -> list[tuple[str, int, int]]:
        """After the clock was set: the schedules whose next instant changes, with the previous one.

        An interval keeps its length. A cron line follows the clock, but does not fire again for
        times that the clock already showed, unless it would wait for more than twice its
        interval (rule 7).
        """
        now = self._dispatcher.clock.now()
        found: list[tuple[str, int, int]] = []
        for schedule in self._dispatcher.store.live.schedules.values():
            next_at = schedule.next_at
            if schedule.interval_ms is not None:
                found.append((schedule.schedule_id, next_at, next_at + step_ms))
            elif step_ms < 0:
                with contextlib.suppress(CalendarError):  # it is stalled, which was logged
                    distance = next_firing_at(schedule, next_at) - next_at
                    if next_at - now > 2 * distance:
                        first = next_firing_at(schedule, now)
                        found.append((schedule.schedule_id, next_at, first))
        return found

    def _fire(self, schedule: Schedule, now: int) -> bool:
        """Fires one schedule. Returns False if its next instant cannot be computed: then it is
        stalled.
        """
        try:
            next_at = self._following(schedule, now)
        except CalendarError as error:
            if self._broken.get(schedule.schedule_id) != schedule.next_at:
                self._broken[schedule.schedule_id] = schedule.next_at
                _log.error("a schedule is stalled", schedule=schedule.schedule_id, why=str(error))
            return False
        self._dispatcher.ask(
            Fire(
                schedule_id=schedule.schedule_id,
                due_at=schedule.next_at,
                next_at=next_at,
                job_id=self._ids.job_id(now),
            )
        )
        return True

    def _following(self, schedule: Schedule, now: int) -> int:
        """The next instant of the schedule: missed intervals are caught up as far as its backlog
        allows; a cron line fires once, however long the server was down.
        """
        interval_ms = schedule.interval_ms
        if interval_ms is None:
            return next_firing_at(schedule, now)
        missed = (now - schedule.next_at) // interval_ms + 1
        if missed <= schedule.backlog_max:
            return schedule.next_at + interval_ms
        skipped = missed - schedule.backlog_max
        return schedule.next_at + (skipped + 1) * interval_ms

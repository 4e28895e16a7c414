"""The calendar: when a schedule is due next. Fires what is due, makes up for what was missed."""

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from cronsim import CronSim, CronSimError

from manyhands.model.commands import Fire
from manyhands.model.job import Schedule
from manyhands.server.dispatcher import Dispatcher
from manyhands.server.ids import Ids

_log = structlog.get_logger("manyhands.schedules")
# Firings of one look at the calendar, so that a long outage is made up for in slices.
_FIRINGS_MAX: Final = 100


class CalendarError(ValueError):
    """A cron line or a time zone that does not exist; the text says which."""


def next_firing_at(schedule: Schedule, after: int) -> int:
    """The first instant of the schedule that lies after ``after``."""
    if schedule.interval_ms is not None:
        missed = max(0, after - schedule.next_at) // schedule.interval_ms
        return schedule.next_at + (missed + 1) * schedule.interval_ms
    return first_cron_at(schedule.cron or "", schedule.time_zone, after)


def first_cron_at(cron: str, time_zone: str, after: int) -> int:
    """The first instant of a cron line after ``after``, in a time zone with its summer time."""
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CalendarError(f"there is no time zone {time_zone!r}") from None
    try:
        for found in CronSim(cron, datetime.fromtimestamp(after / 1000, UTC).astimezone(zone)):
            instant = int(found.timestamp() * 1000)
            if instant > after:  # it is not where an hour comes twice, seen from the second one
                return instant
    except CronSimError as error:
        raise CalendarError(f"{cron!r} is not a cron line: {error}") from None
    raise CalendarError(f"{cron!r} never comes")


class Calendar:
    """Looks at all schedules once a second; there are few of them."""

    def __init__(self, dispatcher: Dispatcher, ids: Ids) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._broken: dict[str, int] = {}  # schedules that stand still, each told once

    def look(self) -> None:
        """Fire what is due."""
        dispatcher = self._dispatcher
        if dispatcher.store_full or dispatcher.draining or dispatcher.failed is not None:
            return  # what is missed now is made up for later, like any other outage
        schedules = dispatcher.store.index.schedules
        now = dispatcher.clock.now()
        for schedule_id in list(schedules):
            for _ in range(_FIRINGS_MAX):
                schedule = schedules.get(schedule_id)
                if schedule is None or schedule.paused or schedule.next_at > now:
                    break
                if not self._fire(schedule, now):
                    break

    def _fire(self, schedule: Schedule, now: int) -> bool:
        """False: it cannot be said when the schedule is due next, so it has to wait for better."""
        try:
            next_at = self._following(schedule, now)
        except CalendarError as error:
            if self._broken.get(schedule.schedule_id) != schedule.next_at:
                self._broken[schedule.schedule_id] = schedule.next_at
                _log.error("a schedule stands still", schedule=schedule.schedule_id, why=str(error))
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
        """Where the schedule goes from here: missed intervals are made up for as far as its
        backlog allows; a cron line fires once, however long the server was away.
        """
        interval_ms = schedule.interval_ms
        if interval_ms is None:
            return next_firing_at(schedule, now)
        missed = (now - schedule.next_at) // interval_ms + 1
        if missed <= schedule.backlog_max:
            return schedule.next_at + interval_ms
        skipped = missed - schedule.backlog_max
        return schedule.next_at + (skipped + 1) * interval_ms

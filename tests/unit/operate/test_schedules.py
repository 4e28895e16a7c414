"""The calendar: cron lines with time zones and summer time, intervals, and what was missed."""

from datetime import UTC, datetime

import pytest

from manyhands.model.commands import PutSchedule
from manyhands.model.job import Schedule
from manyhands.operate.schedules import Calendar, CalendarError, first_cron_at, next_firing_at
from tests.unit.dispatch.desk import Desk

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def at(text: str) -> int:
    """Milliseconds of an instant in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def firings(cron: str, zone: str, start: str, count: int) -> list[str]:
    found, instant = [], at(start)
    for _ in range(count):
        instant = first_cron_at(cron, zone, instant)
        found.append(datetime.fromtimestamp(instant / 1000, UTC).strftime("%m-%d %H:%M"))
    return found


# Cron.


def test_a_cron_line_means_the_wall_clock_of_its_time_zone():
    assert firings("30 9 * * *", "Asia/Tokyo", "2026-06-01T00:00", 1) == ["06-01 00:30"]
    assert firings("30 9 * * *", "UTC", "2026-06-01T00:00", 1) == ["06-01 09:30"]


def test_a_cron_line_is_due_strictly_later():
    assert first_cron_at("0 0 * * *", "UTC", at("2026-06-01T00:00")) == at("2026-06-02T00:00")
    assert first_cron_at("0 0 * * *", "UTC", at("2026-06-01T00:00") - 1) == at("2026-06-01T00:00")


def test_a_daily_line_keeps_its_wall_clock_time_over_summer_time():
    found = firings("0 8 * * *", "Europe/Berlin", "2026-03-28T00:00", 3)

    assert found == ["03-28 07:00", "03-29 06:00", "03-30 06:00"]


def test_a_time_that_summer_time_skips_fires_once_right_after_it():
    found = firings("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2)

    assert found == ["03-29 01:00", "03-30 00:30"]


def test_a_time_that_comes_twice_fires_once():
    found = firings("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2)

    assert found == ["10-25 00:30", "10-26 01:30"]


def test_every_half_hour_goes_on_evenly_through_the_hour_that_comes_twice():
    found = firings("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:50", 6)

    assert found == [f"10-25 0{hour}:{minute}" for hour in range(3) for minute in ("00", "30")]


@pytest.mark.parametrize("cron", ["15 2 * * *", "30 2 * * *", "*/7 * * * *", "0 */2 * * *"])
def test_the_next_time_never_lies_in_the_past(cron):
    """Seen from the second of two equal hours, a time of the first one is over."""
    instant, end = at("2026-10-24T22:00"), at("2026-10-25T04:00")

    while instant < end:
        assert first_cron_at(cron, "Europe/Berlin", instant) > instant
        instant += 97_000


@pytest.mark.parametrize("cron", ["", "every day", "61 * * * *", "* * * *"])
def test_what_is_no_cron_line_is_named(cron):
    with pytest.raises(CalendarError, match="is not a cron line"):
        first_cron_at(cron, "UTC", 0)


def test_a_day_that_never_comes_is_named():
    with pytest.raises(CalendarError, match=r"cron line|never fires"):
        first_cron_at("0 0 30 2 *", "UTC", 0)


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "", "../etc/passwd", "Europe"])
def test_a_time_zone_that_does_not_exist_is_named(zone):
    with pytest.raises(CalendarError, match="there is no time zone"):
        first_cron_at("* * * * *", zone, 0)


# Intervals.


def a_schedule(desk: Desk, **fields) -> Schedule:
    fields.setdefault("interval_ms", None if "cron" in fields else 1_000)
    fields.setdefault("next_at", desk.clock.now())
    return Schedule(schedule_id="s", queue="q", **fields)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [(0, 2_000), (1_000, 2_000), (1_999, 2_000), (2_000, 3_000), (9_500, 10_000)],
)
def test_the_next_interval_is_the_first_one_later(after, wanted):
    schedule = Schedule(schedule_id="s", queue="q", interval_ms=1_000, next_at=1_000)

    assert next_firing_at(schedule, after) == wanted


def fired(desk: Desk, **fields) -> int:
    """How many jobs one look makes."""
    desk.tell(PutSchedule(a_schedule(desk, **fields)))
    desk.run(50)
    before = len(list(desk.store.live.live_jobs()))
    Calendar(desk.dispatcher, desk.ids).look()
    desk.run(50)
    return len(list(desk.store.live.live_jobs())) - before


def test_a_schedule_that_is_due_fires_once():
    desk = Desk()

    assert fired(desk) == 1
    schedule = desk.store.live.schedules["s"]
    assert schedule.fired_count == 1
    assert schedule.next_at > desk.clock.now()


def test_a_schedule_that_is_not_due_or_paused_does_not_fire():
    desk = Desk()

    assert fired(desk, next_at=desk.clock.now() + 5_000) == 0
    assert fired(desk, paused=True) == 0


@pytest.mark.parametrize(("backlog_max", "wanted"), [(1, 1), (3, 3), (100, 11)])
def test_missed_intervals_are_made_up_for_as_far_as_the_backlog_allows(backlog_max, wanted):
    desk = Desk()

    count = fired(desk, next_at=desk.clock.now() - 10_000 + 50, backlog_max=backlog_max)

    assert count == wanted


def test_after_a_backlog_the_schedule_keeps_its_rhythm():
    desk = Desk()
    start_at = desk.clock.now() - 10_300

    fired(desk, next_at=start_at, backlog_max=2)

    next_at = desk.store.live.schedules["s"].next_at
    assert (next_at - start_at) % 1_000 == 0
    assert 0 < next_at - desk.clock.now() <= 1_000


def test_a_long_backlog_is_made_up_for_in_slices():
    desk = Desk()

    first = fired(desk, next_at=desk.clock.now() - 500_000, backlog_max=10_000)
    calendar = Calendar(desk.dispatcher, desk.ids)
    calendar.look()
    desk.run(50)

    assert first == 100
    assert len(list(desk.store.live.live_jobs())) == 200


def test_a_cron_line_fires_once_however_long_the_server_was_away():
    desk = Desk()

    count = fired(desk, cron="* * * * *", next_at=desk.clock.now() - 24 * HOUR_MS)

    assert count == 1
    assert 0 < desk.store.live.schedules["s"].next_at - desk.clock.now() <= MINUTE_MS


def test_a_schedule_whose_calendar_is_broken_stands_still_and_stops_no_other():
    desk = Desk()
    desk.tell(PutSchedule(a_schedule(desk, cron="* * * * *", time_zone="Europe/Nowhere")))
    other = Schedule(schedule_id="t", queue="q", interval_ms=1_000, next_at=desk.clock.now())
    desk.tell(PutSchedule(other))

    Calendar(desk.dispatcher, desk.ids).look()

    assert desk.store.live.schedules["s"].fired_count == 0
    assert desk.store.live.schedules["t"].fired_count == 1


def test_nothing_fires_while_the_disk_is_full_or_the_server_drains():
    desk = Desk()
    desk.dispatcher.store_full = True
    assert fired(desk) == 0
    desk.dispatcher.store_full = False
    desk.dispatcher.draining = True

    assert fired(desk) == 0


def test_a_unique_schedule_does_not_pile_up():
    desk = Desk()
    assert fired(desk, unique=True, next_at=desk.clock.now() - 3_000, backlog_max=5) == 1
    desk.run(2_000)

    Calendar(desk.dispatcher, desk.ids).look()
    desk.run(50)

    assert len(list(desk.store.live.live_jobs())) == 1
    assert desk.store.live.schedules["s"].next_at > desk.clock.now()


def test_jobs_of_missed_intervals_are_dated_when_they_were_due():
    """QB55: ten missed intervals give ten jobs, each with the time it should have come."""
    desk = Desk()
    first_at = desk.clock.now() - 9_500

    assert fired(desk, next_at=first_at, backlog_max=100) == 10
    dates = sorted(job.submitted_at for job in desk.store.live.live_jobs())
    assert dates == [first_at + number * 1_000 for number in range(10)]

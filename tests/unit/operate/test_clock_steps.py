"""A wall clock that is set: what was to happen after a while still does, and retention waits."""

import asyncio

import pytest

from manyhands import app
from manyhands.config import Config
from manyhands.dispatch.clock import Clock
from manyhands.model.commands import PutSchedule
from manyhands.model.job import Job, Schedule, State
from manyhands.operate import clock_steps
from manyhands.operate.age import Aging
from manyhands.operate.clock_steps import ClockSteps
from manyhands.operate.schedules import Calendar
from manyhands.store.memory import MemoryStore
from manyhands.store.sqlite.store import SqliteStore
from tests.conformance.stores.opened import Opened
from tests.unit.dispatch.desk import Desk

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class SteppedDesk(Desk):
    """A desk whose clock can be set, as the server's housekeeping does it."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.calendar = Calendar(self.dispatcher, self.ids)
        self.steps = ClockSteps(self.dispatcher, self.calendar, self.loop)

    def set_clock(self, step_ms: int) -> None:
        self.clock.follow(step_ms)
        self.dispatcher.prolong(step_ms)
        self.steps.follow(step_ms)

    def schedule(self, **fields) -> str:
        schedule = Schedule(schedule_id="s", queue="q", **fields)
        self.tell(PutSchedule(schedule))
        return schedule.schedule_id

    def next_at(self) -> int:
        return self.store.live.schedules["s"].next_at


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_a_delay_ends_when_it_would_have_without_the_step(step_ms):
    desk = SteppedDesk()
    (job,) = desk.submit(delay_ms=8 * SECOND_MS)

    desk.set_clock(step_ms)
    desk.run(7 * SECOND_MS)
    before = desk.job(job.job_id).state
    desk.run(SECOND_MS)

    assert before is State.DELAYED
    assert desk.job(job.job_id).state is State.READY


def test_very_many_delays_are_moved_in_slices_and_none_ends_before(monkeypatch):
    monkeypatch.setattr(clock_steps, "_SLICE_COUNT", 3)
    desk = SteppedDesk()
    jobs = desk.submit(20, delay_ms=8 * SECOND_MS)

    desk.set_clock(HOUR_MS)
    moved = [desk.job(job.job_id).run_at != job.run_at for job in jobs]
    desk.run(7 * SECOND_MS)

    assert sum(moved) == 3
    assert {desk.job(job.job_id).state for job in jobs} == {State.DELAYED}
    desk.run(SECOND_MS)
    assert {desk.job(job.job_id).state for job in jobs} == {State.READY}


def test_a_second_step_counts_from_where_the_first_one_leads(monkeypatch):
    monkeypatch.setattr(clock_steps, "_SLICE_COUNT", 3)
    desk = SteppedDesk()
    jobs = desk.submit(10, delay_ms=8 * SECOND_MS)

    desk.set_clock(-HOUR_MS)
    desk.set_clock(-HOUR_MS)
    desk.run(0)

    assert {desk.job(job.job_id).run_at for job in jobs} == {jobs[0].run_at - 2 * HOUR_MS}


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_an_interval_goes_on_evenly(step_ms):
    desk = SteppedDesk()
    desk.schedule(interval_ms=5 * SECOND_MS, next_at=desk.clock.now() + 3 * SECOND_MS)

    desk.set_clock(step_ms)

    assert desk.next_at() == desk.clock.now() + 3 * SECOND_MS


@pytest.mark.parametrize(
    ("cron", "step_ms", "waits_ms"),
    [
        ("* * * * *", -HOUR_MS, MINUTE_MS),  # it would stand still for 60 times its distance
        ("0 0 * * *", -HOUR_MS, 25 * HOUR_MS),  # it has fired today; not a second time
        ("0 0 * * *", -10 * DAY_MS, DAY_MS),
        ("* * * * *", HOUR_MS, MINUTE_MS - HOUR_MS),  # it is overdue, and fires once
    ],
)
def test_a_cron_line_follows_the_clock_and_does_not_fire_twice(cron, step_ms, waits_ms):
    desk = SteppedDesk()
    midnight = desk.clock.now() // DAY_MS * DAY_MS + DAY_MS
    desk.clock.follow(midnight - desk.clock.now())
    distance = MINUTE_MS if cron.startswith("*") else DAY_MS
    desk.schedule(cron=cron, next_at=midnight + distance)

    desk.set_clock(step_ms)

    assert desk.next_at() - desk.clock.now() == waits_ms


def test_a_step_ahead_is_believed_by_retention_in_the_course_of_a_day():
    aging = Aging(0)

    aging.step(10 * DAY_MS)
    assert aging.behind_ms == 10 * DAY_MS
    aging.go_on(6 * HOUR_MS)
    assert aging.behind_ms == 7.5 * DAY_MS
    aging.go_on(18 * HOUR_MS)

    assert aging.behind_ms == 0


def test_a_step_that_is_taken_back_is_forgotten_by_retention():
    aging = Aging(0)
    aging.step(10 * DAY_MS)
    aging.go_on(HOUR_MS)

    aging.step(-10 * DAY_MS)
    assert aging.behind_ms == 0

    aging.step(DAY_MS)
    assert aging.behind_ms == DAY_MS


def test_what_is_not_believed_yet_is_so_after_a_restart():
    aging = Aging(8 * DAY_MS)

    aging.go_on(12 * HOUR_MS)

    assert aging.behind_ms == 4 * DAY_MS


class SetClock(Clock):
    """One that can be set; the machine may have slept for a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0
        self.asleep_ms = 0

    def drift_ms(self) -> int:
        return self.ahead_ms

    def follow(self, drift_ms: int) -> None:
        super().follow(drift_ms)
        self.ahead_ms -= drift_ms

    def slept_ms(self) -> int:
        return self.asleep_ms


class WatchedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.pruned_at: list[int] = []

    def prune(self, now: int, count_max: int) -> int:
        self.pruned_at.append(now)
        return super().prune(now, count_max)


def keep_house(monkeypatch, store: WatchedStore, clock: SetClock) -> None:
    """Once."""
    monkeypatch.setattr(app, "Clock", lambda: clock)

    async def main() -> None:
        server = app.Server(Config(), store, asyncio.get_running_loop())
        server.duties._look_at_clocks()
        store.prune(server.duties._aged_now(), 1)

    asyncio.run(main())


def test_records_do_not_age_by_a_step_of_the_clock(monkeypatch):
    store, clock = WatchedStore(), SetClock()
    before = clock.now()
    clock.ahead_ms = 10 * DAY_MS

    keep_house(monkeypatch, store, clock)

    assert clock.now() - before >= 10 * DAY_MS
    assert store.pruned_at[0] - before < HOUR_MS
    assert store.behind_ms > 9 * DAY_MS


def test_records_age_while_the_machine_sleeps(monkeypatch):
    store, clock = WatchedStore(), SetClock()
    before = clock.now()
    clock.ahead_ms = clock.asleep_ms = 10 * DAY_MS

    keep_house(monkeypatch, store, clock)

    assert store.pruned_at[0] - before >= 10 * DAY_MS
    assert store.behind_ms == 0


def start_again(directory, stopped_at: int, **fields) -> tuple[Job, int]:
    """A job that was submitted to a store just before it was stopped, as the server that is
    started now has it, and how far records are behind in age.
    """
    opened = Opened("sqlite", directory)
    opened.now = stopped_at
    job = opened.submit(**fields)
    opened.commit()
    opened.close()
    listeners = dict.fromkeys(("http", "gearman", "dwork", "wmp", "amqp"))

    async def main() -> tuple[Job, int]:
        store = SqliteStore(directory)
        try:
            server = app.Server(Config(**listeners), store, asyncio.get_running_loop())
            await server.start()
            return store.live.live_job(job.job_id), store.behind_ms
        finally:
            store.close()

    return asyncio.run(main())


def test_a_delay_does_not_stand_still_after_a_restart_with_a_clock_set_back(tmp_path):
    now = Clock().now()

    job, behind_ms = start_again(tmp_path / "data", now + HOUR_MS, delay_ms=8 * SECOND_MS)

    assert now + 8 * SECOND_MS <= job.run_at < now + HOUR_MS
    assert behind_ms == 0


def test_an_instant_stays_after_a_restart_with_a_clock_set_back(tmp_path):
    now = Clock().now()

    job, _ = start_again(tmp_path / "data", now + HOUR_MS, run_at=now + 2 * HOUR_MS)

    assert job.run_at == now + 2 * HOUR_MS


def test_records_do_not_age_at_once_by_the_time_that_the_server_was_away(tmp_path):
    now = Clock().now()

    _, behind_ms = start_again(tmp_path / "data", now - 10 * DAY_MS)

    assert behind_ms >= 10 * DAY_MS

"""The history as time goes by: minutes, what is put together from them, and what is told."""

import asyncio
from types import SimpleNamespace

import pytest

from manyhands.model import limits
from manyhands.model.history import ALL_QUEUES, COARSE_MS, MINUTE_MS, new_sample
from manyhands.model.job import State
from manyhands.model.policy import Queue
from manyhands.observe.facts import Facts
from manyhands.observe.history import RANGES, History
from manyhands.observe.tallies import Tallies
from manyhands.store.memory import MemoryStore

START = 1_700_000_000_000 - 1_700_000_000_000 % COARSE_MS


class Room:
    """A store, a clock that is set by hand, and the history between them."""

    def __init__(self) -> None:
        self.now = START
        self.store = MemoryStore()
        self.store.live.put_queue(Queue("q"))
        self.open()

    def open(self) -> None:
        """A server's start."""
        self.tallies = Tallies(Facts())
        clock = SimpleNamespace(now=lambda: self.now)
        dispatcher = self.dispatcher = SimpleNamespace(
            store=self.store, clock=clock, touch=self._commit, decides=True
        )
        self.history = History(dispatcher, self.tallies)

    def _commit(self) -> None:
        self.store.begin_commit(self.now)

    def happen(self, queue: str = "q", submitted: int = 1) -> None:
        sample = self.tallies.current.setdefault(queue, new_sample())
        sample.submitted += submitted

    async def pass_time(self, ms: int, step_ms: int = 1_000) -> None:
        for _ in range(ms // step_ms):
            self.now += step_ms
            self.history.look(self.now)
            if self.history._joining is not None:
                await self.history._joining

    async def told(self, name: str, queue: str = ALL_QUEUES) -> dict[int, int]:
        """Submitted jobs by steps before now, where there were any."""
        points = await self.history.read(name, queue)
        assert len(points) == RANGES[name].length_ms // RANGES[name].step_ms
        last = points[-1].at
        return {
            (last - point.at) // RANGES[name].step_ms: point.sample.submitted
            for point in points
            if point.sample.submitted
        }


@pytest.fixture
def room():
    return Room()


def test_what_happened_just_now_is_told_before_it_is_written(room):
    async def scenario():
        room.happen(submitted=3)
        assert await room.told("1h") == {0: 3}
        assert await room.told("1h", "q") == {0: 3}
        assert await room.told("1h", "another") == {}

    asyncio.run(scenario())


def test_each_minute_has_its_own_count_and_all_ranges_agree_on_the_sum(room):
    async def scenario():
        for count in (1, 2, 3):
            room.happen(submitted=count)
            await room.pass_time(MINUTE_MS)
        assert await room.told("1h", "q") == {3: 1, 2: 2, 1: 3}
        await room.pass_time(20 * MINUTE_MS)
        assert await room.told("24h", "q") == {2: 6}
        assert await room.told("7d", "q") == {0: 6}

    asyncio.run(scenario())


def test_a_crash_costs_the_history_a_few_seconds_at_most(room):
    async def scenario():
        room.happen(submitted=5)
        await room.pass_time(11_000)
        room.happen(submitted=2)  # not written yet
        room.open()
        assert await room.told("1h", "q") == {0: 5}
        room.happen(submitted=1)
        await room.pass_time(MINUTE_MS)
        assert await room.told("1h", "q") == {1: 6}

    asyncio.run(scenario())


def test_minutes_of_a_server_that_stopped_are_put_together_by_the_next(room):
    async def scenario():
        room.happen(submitted=4)
        await room.pass_time(2 * MINUTE_MS)
        room.now += COARSE_MS * 3
        room.open()
        await room.pass_time(2_000)
        rows = room.store.samples(COARSE_MS, START, room.now, "q")
        assert [(row.at, row.sample.submitted) for row in rows] == [(START, 4)]

    asyncio.run(scenario())


def test_a_week_outlives_the_minutes(room):
    async def scenario():
        room.happen(submitted=7)
        await room.pass_time(COARSE_MS + 2_000)
        await room.pass_time(limits.HISTORY_MINUTES_MS * 2, step_ms=COARSE_MS)
        room.store.prune(room.now, 100)
        assert room.store.samples(MINUTE_MS, START, room.now, "q") == []
        assert await room.told("7d", "q") == {50: 7}

    asyncio.run(scenario())


def test_how_many_jobs_there_are_stays_known_where_nothing_happens(room):
    async def scenario():
        counts = room.store.live.queues["q"].counts
        counts["ready"] = 5
        room.happen()
        await room.pass_time(5 * MINUTE_MS)
        points = await room.history.read("1h", "q")
        assert [point.sample.depth for point in points[-6:]] == [[0, 0, 5, 0]] * 6
        assert points[-7].sample.depth == []  # nobody knows

    asyncio.run(scenario())


def test_the_busiest_queues_have_samples_of_their_own_and_all_count_in_the_total(room, monkeypatch):
    monkeypatch.setattr(limits, "HISTORY_QUEUES_MAX", 2)

    async def scenario():
        for queue, count in (("a", 1), ("b", 3), ("c", 2)):
            room.happen(queue, count)
        await room.pass_time(MINUTE_MS)
        rows = room.store.samples(MINUTE_MS, START, room.now)
        assert {row.queue: row.sample.submitted for row in rows} == {"": 6, "b": 3, "c": 2}
        assert rows[0].sample.left_out == 1

    asyncio.run(scenario())


def test_an_idle_server_writes_nothing(room):
    async def scenario():
        await room.pass_time(30 * MINUTE_MS)
        assert room.store.samples(MINUTE_MS, 0, room.now) == []
        assert room.store.samples(COARSE_MS, 0, room.now) == []

    asyncio.run(scenario())


def test_what_happened_lately_is_known_of_each_queue(room):
    async def scenario():
        room.happen("old", 1)
        await room.pass_time(3 * MINUTE_MS)
        room.happen("q", 2)
        await room.pass_time(MINUTE_MS)
        room.happen("q", 3)

        recent = await room.history.recent(2)

        assert {name: sample.submitted for name, sample in recent.items()} == {"q": 5}

    asyncio.run(scenario())


def test_the_present_rate_is_that_of_the_last_seconds(room):
    async def scenario():
        assert room.history.rate() == 0.0
        for _ in range(30):
            room.tallies.entered[State.COMPLETED] += 4
            await room.pass_time(1_000)

        assert room.history.rate() == pytest.approx(4.0)

    asyncio.run(scenario())


def test_what_was_handed_out_is_counted_by_protocol_and_minute(room):
    async def scenario():
        room.tallies.jobs_out["gearman"] = 5
        await room.pass_time(MINUTE_MS)
        room.tallies.jobs_out["gearman"] = 7
        room.tallies.jobs_out["native"] = 1
        minutes = (START, START + MINUTE_MS)

        counted = room.history.handed_out(minutes, MINUTE_MS)

        assert counted == {"gearman": [5, 2], "native": [0, 1]}

    asyncio.run(scenario())

"""What needs attention as time goes by, with a clock that is turned by hand."""

import asyncio
import re
from bisect import bisect_left
from types import SimpleNamespace

import pytest

from manyhands.model.commands import SetLimit
from manyhands.model.history import BOUNDS_MS, Sample, new_sample
from manyhands.model.policy import OnUnknownDependency
from manyhands.observe import attention
from manyhands.observe.attention import Attention, Note
from manyhands.observe.history import Point
from manyhands.store.contract import Failures
from manyhands.ui import words
from tests.unit.dispatch.desk import Desk

SECOND_MS, MINUTE_MS = 1_000, 60_000


class Watched(Desk):
    """A dispatcher, what its history says, and the notes about both."""

    def __init__(self) -> None:
        super().__init__()
        self.sample = new_sample()  # of queue q in the last hour
        self.recent: dict[int, dict[str, Sample]] = {}  # by minutes
        history = SimpleNamespace(read=self._read, recent=self._recent)
        store = SimpleNamespace(live=self.store.live, failures=lambda _: Failures((), 0, 0))
        sleepers = self.dispatcher.sleepers
        self.attention = Attention(self.dispatcher, history, store, sleepers)

    async def _read(self, span: str, queue: str) -> list[Point]:
        assert (span, queue) == ("1h", "q")
        return [Point(0, self.sample)]

    async def _recent(self, minutes: int) -> dict[str, Sample]:
        return self.recent.get(minutes, {})

    def notes(self, what: str) -> list[Note]:
        now = self.clock.now()

        async def look() -> list[Note]:
            await self.attention.look_closely(now)
            return self.attention.notes(now)

        return [note for note in asyncio.run(look()) if note.what == what]


@pytest.fixture
def desk():
    return Watched()


def ran(desk: Watched, attempts: int) -> None:
    """So many attempts took two seconds each."""
    desk.sample.run[bisect_left(BOUNDS_MS, 2_000)] = attempts


def test_a_worker_that_holds_a_job_far_beyond_what_is_usual_needs_attention(desk):
    ran(desk, 20)
    desk.submit()
    held = desk.claim(term_ms=3_600_000)
    desk.run(25 * SECOND_MS)
    assert desk.notes("held for long") == []

    desk.run(10 * SECOND_MS)

    (note,) = desk.notes("held for long")
    assert (note.about, note.job_id, note.level) == ("w", held.job_id, "warn")
    assert re.fullmatch(
        r"has held a job of q for 35s; 99 of 100 take 2(\.\d)?s or less there", note.detail()
    )
    assert re.fullmatch(
        r"has held a job of q for 35 s; 99 of 100 take 2(\.\d)? s or less there",
        note.detail(words.duration),
    )


def test_where_little_is_known_no_lease_is_too_long(desk):
    ran(desk, 19)
    desk.submit()
    desk.claim(term_ms=3_600_000)

    desk.run(50 * MINUTE_MS)

    assert desk.notes("held for long") == []


def test_jobs_held_back_by_a_full_limit_need_attention_once_nothing_moves(desk):
    desk.tell(SetLimit("database", 1))
    desk.submit(3, limits=("database",))
    desk.claim(term_ms=3_600_000)
    desk.recent[1] = {"q": new_sample()}
    desk.recent[1]["q"].started = 1
    desk.run(30 * SECOND_MS)
    assert desk.notes("limit full") == []  # a job began a moment ago

    desk.recent.clear()
    desk.run(2 * MINUTE_MS)

    (note,) = desk.notes("limit full")
    assert (note.about, note.count, note.level) == ("q", 2, "warn")
    assert note.detail() == (
        "the oldest of 2 jobs has waited 2m30s; limit 'database' is full: 1 of 1 leases are held"
    )


def test_a_limit_of_nothing_needs_attention_within_seconds(desk):
    desk.tell(SetLimit("database", 0))
    desk.submit(limits=("database",))

    desk.run(11 * SECOND_MS)

    assert [note.about for note in desk.notes("limit full")] == ["q"]


def test_a_job_that_waits_for_one_that_nobody_submits_needs_attention_after_a_while(desk):
    desk.submit(depends_on=("feed01",), on_unknown_dependency=OnUnknownDependency.WAIT)
    desk.run(4 * MINUTE_MS)
    assert desk.notes("stuck") == []

    desk.run(2 * MINUTE_MS)

    (note,) = desk.notes("stuck")
    assert note.detail() == "1 job waits for a job that nobody has submitted"


def test_what_fails_is_counted_once_a_minute_though_nobody_looks(desk, monkeypatch):
    looked: list[int] = []
    counted = desk.attention.look_closely
    began = desk.clock.now()

    async def look_closely(now: int) -> None:
        looked.append(now - began)
        await counted(now)
        if len(looked) == 2:
            raise OSError("the disk has a bad day")

    async def rest(_seconds: float) -> None:
        if desk.clock.now() - began >= 200 * SECOND_MS:
            raise asyncio.CancelledError
        desk.run(25 * SECOND_MS)

    monkeypatch.setattr(desk.attention, "look_closely", look_closely)
    monkeypatch.setattr(attention.asyncio, "sleep", rest)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(desk.attention.keep_counting())

    assert looked == [0, 75 * SECOND_MS, 150 * SECOND_MS]

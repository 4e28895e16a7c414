"""The log is read from the day that is asked for, and no event twice unless an earlier day is."""

import asyncio
from types import SimpleNamespace

import pytest

from manyhands.model.events import Event
from manyhands.model.job import Origin, State
from manyhands.model.reasons import Reason
from manyhands.model.roles import ANYBODY
from manyhands.protocols.qless.statistics import DAY_MS
from manyhands.protocols.qless.statistics_route import QlessStatistics
from manyhands.store.contract import StoredEvent

FIRST, TODAY = 20_000, 20_004


def event(day: int, number: int, state: State, job_id: str) -> Event:
    at = day * DAY_MS + number
    reason, origin = Reason.NONE, Origin("qless")
    return Event(at, state, job_id, "q", reason, 0, 0, 0, 5, None, None, 0, at, None, origin, 0)


class Log:
    """Four events a day, and which of them were read."""

    def __init__(self) -> None:
        self.rows = []
        for day in range(FIRST, TODAY + 1):
            for number, state in enumerate((State.LEASED, State.FAILED, State.LEASED, State.READY)):
                found = event(day, number, state, f"{day}-{number // 2}")
                self.rows.append(StoredEvent(len(self.rows) + 1, found))
        self.read = 0

    @property
    def last_seq(self) -> int:
        return len(self.rows)

    def after(self, seq: int, count_max: int):
        found = self.rows[seq : seq + count_max]
        self.read += len(found)
        return found


class Pages:
    """Keeps what was answered."""

    async def answer(self, _exchange, results) -> None:
        self.results = results


@pytest.fixture
def desk():
    log, pages = Log(), Pages()
    dispatcher = SimpleNamespace(
        events=log,
        clock=SimpleNamespace(now=lambda: TODAY * DAY_MS + 10),
        store=SimpleNamespace(first_seq=lambda: 1),
    )
    statistics = QlessStatistics(dispatcher, 7, pages)

    def ask(query: bytes = b""):
        exchange = SimpleNamespace(query_string=query, caller=ANYBODY)
        asyncio.run(statistics.show(exchange, [b"q"]))
        return pages.results

    return SimpleNamespace(ask=ask, log=log)


def test_today_costs_no_more_than_today(desk):
    shown = desk.ask()

    assert (shown["wait"]["count"], shown["failures"], shown["failed"]) == (2, 1, 1)
    # Four events, and a few looks to find the first of them.
    assert desk.log.read <= 4 + 6
    before = desk.log.read
    assert desk.ask() == shown
    assert desk.log.read == before


def test_an_earlier_day_is_found_with_all_that_became_of_it(desk):
    desk.ask()
    mended = event(TODAY, 20, State.READY, f"{FIRST + 1}-0")
    desk.log.rows.append(StoredEvent(desk.log.last_seq + 1, mended))

    shown = desk.ask(b"date=2024-10-05")  # the second day

    assert shown["date"] == "2024-10-05"
    assert (shown["wait"]["count"], shown["failures"], shown["failed"]) == (2, 1, 0)
    assert desk.ask()["wait"]["count"] == 2
    assert desk.ask(b"date=1999-01-01")["wait"]["count"] == 0
    assert desk.ask(b"date=2024-10-04")["wait"]["count"] == 2


def test_an_empty_log_tells_nothing(desk):
    desk.log.rows.clear()

    assert desk.ask()["wait"]["count"] == 0

"""How old the page of failures may be: as new as counting them is quick."""

import asyncio
import threading
from types import SimpleNamespace

from manyhands.model.roles import ANYBODY
from manyhands.observe.retries import FailureReader
from manyhands.store.contract import Failures
from manyhands.ui import failures
from manyhands.ui.failures import FailuresPage

NOW = 1_700_000_000_000


class Counting:
    """A server on which counting failures takes a time, and finds one more each time."""

    def __init__(self, took_ms: int) -> None:
        self.took_ms = took_ms
        self.times = 0
        self.passed_ms = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.of_caller = self
        self.live = SimpleNamespace(queues={}, retried_jobs=lambda _count: [])
        self.store = self.clock = self
        self.attention = SimpleNamespace(failures=FailureReader())

    def monotonic_ms(self) -> float:
        return float(self.passed_ms)

    def failures(self, _wanted) -> Failures:
        self.may_end.wait(60)
        self.passed_ms += self.took_ms
        self.times += 1
        return Failures((), self.times, self.times)


async def shown(page: FailuresPage, now: int) -> int:
    """How many failures somebody sees."""
    visit = SimpleNamespace(
        rest=[],
        now=now,
        raw=lambda _name: None,
        chosen=lambda _name, among: among[0],
        exchange=SimpleNamespace(caller=ANYBODY),
    )
    found = await page.show(visit)
    return found.values["found"].failed_count


def test_what_is_counted_quickly_is_counted_for_every_look(monkeypatch):
    monkeypatch.setattr(failures, "_PATIENCE_SECONDS", 60.0)

    async def scenario() -> list[int]:
        page = FailuresPage(Counting(took_ms=1))
        return [await shown(page, NOW + after) for after in (0, 1_000, 1_001)]

    assert asyncio.run(scenario()) == [1, 2, 2]


def test_what_is_counted_slowly_is_shown_as_it_was_a_moment_ago(monkeypatch):
    monkeypatch.setattr(failures, "_PATIENCE_SECONDS", 60.0)

    async def scenario() -> list[int]:
        page = FailuresPage(Counting(took_ms=2_000))
        return [await shown(page, NOW + after) for after in (0, 2_900, 3_100)]

    assert asyncio.run(scenario()) == [1, 1, 2]


def test_nobody_waits_long_for_what_was_counted_before(monkeypatch):
    monkeypatch.setattr(failures, "_PATIENCE_SECONDS", 0.01)

    async def scenario() -> tuple[int, int]:
        server = Counting(took_ms=1)
        page = FailuresPage(server)
        await shown(page, NOW)
        server.may_end.clear()
        meanwhile = await shown(page, NOW + 5_000)
        server.may_end.set()
        return meanwhile, await shown(page, NOW + 60_000)

    assert asyncio.run(scenario()) == (1, 2)

"""Whether the server itself stood still: told by the delay of its loop, not by how busy it is."""

import asyncio

from manyhands import app
from manyhands.config import Config
from manyhands.dispatch.clock import Clock
from manyhands.store.memory import MemoryStore


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time goes on only as far as it is told to; it never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1_000.0

    def time(self) -> float:
        return self.seconds


class LoopClock(Clock):
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return int(self._loop.seconds * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.seconds * 1000

    def drift_ms(self) -> int:
        return 0


def prolonged(monkeypatch, turns: list[float]) -> list[int]:
    """How long leases were prolonged by while turns of the loop took that many seconds each."""
    loop = VirtualLoop()
    monkeypatch.setattr(app, "Clock", lambda: LoopClock(loop))
    found: list[int] = []

    async def main() -> None:
        server = app.Server(Config(), MemoryStore(), loop)
        monkeypatch.setattr(server.dispatcher._timekeeper, "prolong", found.append)
        house = asyncio.create_task(server.duties.run())
        for seconds in turns:
            loop.seconds += seconds
            await asyncio.sleep(0)
        server.condition.stopping.set()
        await house

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return found


def test_a_busy_server_whose_turns_are_short_did_not_stand_still(monkeypatch):
    assert prolonged(monkeypatch, [0.4] * 200) == []


def test_a_standstill_prolongs_leases_once_and_by_at_least_its_length(monkeypatch):
    (milliseconds,) = prolonged(monkeypatch, [*[0.1] * 50, 3.0, *[0.1] * 50])

    assert 3_000 <= milliseconds <= 4_000

"""How long a client waits between its tries to connect (P35)."""

import asyncio
from types import SimpleNamespace

import pytest

from manyhands.client import stream

sleep = asyncio.sleep


class Place:
    """A server that is away."""

    name = "nowhere"
    token = None

    async def connect(self, _: object) -> None:
        raise ConnectionRefusedError("nobody is there")


def pauses(monkeypatch, chance: float) -> list[float]:
    """The first ten, where chance is always the same."""
    found: list[float] = []
    listener = SimpleNamespace(lost=lambda why: None, is_busy=lambda: True)

    async def note(seconds: float) -> None:
        found.append(seconds)
        await sleep(0 if len(found) < 10 else 3600)

    async def run() -> None:
        tried = stream.Stream([Place()], listener)  # type: ignore[arg-type,list-item]
        tried.open()
        while len(found) < 10:
            await sleep(0)
        await tried.close()

    monkeypatch.setattr(stream, "_random", lambda: chance)
    monkeypatch.setattr(stream.asyncio, "sleep", note)
    asyncio.run(run())
    return found


def test_p35_pauses_double_from_a_twentieth_of_a_second_to_five(monkeypatch):
    expected = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert pauses(monkeypatch, 1.0) == pytest.approx(expected)


def test_p35_chance_takes_any_part_of_a_pause_away(monkeypatch):
    """So that many clients do not come back together."""
    assert pauses(monkeypatch, 0.0) == [0.0] * 10

"""Work beside the engine: its share of the time, while anybody else has something to do."""

from types import SimpleNamespace

import pytest

from manyhands.dispatch.pacer import Pacer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts() -> SimpleNamespace:
    return SimpleNamespace(commands=0)


@pytest.fixture
def pacer(clock, counts) -> Pacer:
    return Pacer(SimpleNamespace(counts=counts), clock, 0.2)


def work(pacer, clock, seconds: float) -> None:
    def act() -> None:
        clock.now += seconds

    pacer.run(act)


def test_after_its_work_it_rests_in_proportion_while_commands_come(pacer, clock, counts):
    """T28."""
    counts.commands = 1
    work(pacer, clock, 0.01)

    assert pacer.delay() == pytest.approx(0.04)  # a fifth of the time
    clock.now += 0.03
    assert pacer.delay() == pytest.approx(0.01)
    clock.now += 0.02
    assert pacer.delay() == 0.0


def test_it_does_not_rest_while_nobody_else_has_work(pacer, clock, counts):
    """T28."""
    counts.commands = 5
    work(pacer, clock, 0.01)
    work(pacer, clock, 0.01)

    assert pacer.delay() == 0.0
    counts.commands = 6
    assert pacer.delay() > 0.0

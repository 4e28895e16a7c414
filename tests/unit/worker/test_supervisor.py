"""When a supervisor starts another child (P49), and how often it vouches (P48)."""

import asyncio
from types import SimpleNamespace

import pytest

from manyhands.client.worker import messages, supervisor, voucher
from manyhands.client.worker.child_process import Exit
from manyhands.client.worker.options import SupervisorOptions


class FakeChild:
    """A child without a process."""

    pid = 1
    figures = None
    is_leaving = False
    is_relieved = False
    was_killed = False

    def __init__(self, name: str, *_: object, **__: object) -> None:
        self.name = name
        self.page = SimpleNamespace(begun=list)
        self.orders: list[str] = []

    def order(self, text: str) -> None:
        self.is_leaving = True
        self.orders.append(text)

    def close(self) -> None:
        """It has ended."""


class Loop:
    """Time that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: object) -> asyncio.TimerHandle:
        self.later.append((seconds, function))
        return None  # type: ignore[return-value]


class Watched:
    """A supervisor of one child."""

    def __init__(self, folder) -> None:
        self.loop = Loop()
        self.supervisor = supervisor.Supervisor(SupervisorOptions(target="tasks:app"), folder)
        self.supervisor._loop = self.loop  # type: ignore[assignment]
        self.supervisor._start()

    @property
    def child(self) -> FakeChild:
        [child] = self.supervisor.children
        return child  # type: ignore[return-value]

    def end(self, code: int, *, after: float = 0.0) -> float:
        """Ends the child; how many seconds later there is another."""
        self.loop.now += after
        self.supervisor._on_end(self.child, Exit(code, 0))  # type: ignore[arg-type]
        if self.supervisor.children:
            return 0.0
        [(seconds, start)] = self.loop.later
        self.loop.later.clear()
        start()
        return seconds


@pytest.fixture
def watched(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "ChildProcess", FakeChild)

    async def make() -> Watched:
        return Watched(tmp_path)

    return asyncio.run(make())


def test_p49_children_that_die_at_once_are_replaced_more_and_more_slowly(watched):
    pauses = [watched.end(-11) for _ in range(9)]

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])


def test_p49_a_death_after_a_while_of_work_is_not_counted_with_those_before(watched):
    for _ in range(5):
        watched.end(-11)

    assert watched.end(-11, after=60.0) == pytest.approx(0.1)


def test_p52_a_child_that_leaves_as_agreed_is_replaced_at_once(watched):
    watched.end(-11)
    watched.child.is_leaving = True

    assert watched.end(0) == 0.0


def test_p49_a_child_that_cannot_start_a_job_which_must_run_alone_gets_a_successor_but_one(watched):
    first = watched.child
    watched.supervisor._on_message(first, messages.Stalled())
    watched.supervisor._on_message(first, messages.Stalled())

    _, second = watched.supervisor.children
    assert first.orders == ["drain inf"]
    watched.supervisor._on_message(second, messages.Stalled())
    assert len(watched.supervisor.children) == 2  # no third one

    watched.supervisor._on_end(first, Exit(0, 0))  # type: ignore[arg-type]
    assert watched.supervisor.children == (second,)
    watched.supervisor._on_message(second, messages.Stalled())
    assert len(watched.supervisor.children) == 2


@pytest.mark.parametrize(
    ("shortest_term_ms", "seconds"), [(0, 10), (60_000, 10), (30_000, 10), (6_000, 2), (300, 0.1)]
)
def test_p48_leases_are_vouched_for_every_ten_seconds_or_third_of_their_term(
    shortest_term_ms, seconds
):
    assert voucher.interval(shortest_term_ms) == pytest.approx(seconds)

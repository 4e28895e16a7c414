"""Queues that nobody would miss are forgotten in slices."""

import pytest

from manyhands.engine.decide import decide
from manyhands.model import limits
from manyhands.operate.idle_queues import IdleQueues
from tests.unit.engine.world import World


class Room:
    """Idle queues of a world, and what was asked about them."""

    def __init__(self, count: int) -> None:
        self.world = World()
        self.asked: list[tuple[str, ...]] = []
        for number in range(count):
            job = self.world.submit(queue=f"q{number}")
            self.world.claim(f"q{number}")
            self.world.complete(job.job_id)
        self.idle_queues = IdleQueues(self.world.store.live, self.ask)

    def ask(self, command) -> None:
        self.asked.append(command.queues)
        _, effects = decide(command, self.world.store.live, self.world.now)
        if effects.settings is not None:
            self.world.store.write(effects)

    @property
    def count(self) -> int:
        return self.world.store.live.queues_count()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(limits, "QUEUES_A_SLICE", 2)
    monkeypatch.setattr(limits, "QUEUES_CROWDED_COUNT", 4)


def test_nothing_is_asked_where_there_are_no_queues():
    room = Room(0)

    assert not room.idle_queues.look()
    assert room.asked == []


@pytest.mark.usefixtures("small")
def test_each_look_takes_the_next_slice():
    room = Room(3)

    looks = [room.idle_queues.look() for _ in range(3)]

    assert looks == [False] * 3
    assert room.asked == [("q0", "q1"), ("q2", "q0"), ("q1", "q2")]
    assert room.count == 3


@pytest.mark.usefixtures("small")
def test_a_crowd_is_urgent_until_it_is_none():
    room = Room(9)

    looks = []
    while not looks or looks[-1]:
        looks.append(room.idle_queues.look())

    assert looks == [True, True, False]
    assert room.count == 4


@pytest.mark.usefixtures("small")
def test_a_crowd_of_busy_queues_is_not_urgent_for_ever():
    room = Room(0)
    for number in range(9):
        room.world.submit(queue=f"busy{number}")

    count = 1
    while room.idle_queues.look():
        count += 1

    assert room.count == 9
    assert count <= limits.QUEUES_COUNT_MAX / limits.QUEUES_A_SLICE

"""Threads that take jobs by themselves (P44)."""

import threading
from collections import deque

from manyhands.client.worker.hands import Hands

LIMIT = 60.0


class FakeRun:
    was_given_up = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.slot = -1


class Workshop:
    """Threads, and a job that is finished when it is told to."""

    def __init__(self, slots: int) -> None:
        self.slots = deque(range(slots))
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.ended: list[int] = []
        self.has_ended = threading.Semaphore(0)
        self.hands = Hands(self.slots, self._work)  # type: ignore[arg-type]

    def _work(self, run: FakeRun) -> None:
        self.began.release()
        assert self.may_end.acquire(timeout=LIMIT)
        self.slots.append(run.slot)
        self.ended.append(run.number)
        self.has_ended.release()

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.hands.put(FakeRun(number))  # type: ignore[arg-type]
        self.hands.wake()

    def await_starts(self, count: int) -> None:
        for _ in range(count):
            assert self.began.acquire(timeout=LIMIT)

    def finish(self, count: int) -> None:
        for _ in range(count):
            self.may_end.release()


def test_p44_all_slots_are_used_after_one_wake_up():
    shop = Workshop(8)
    shop.put(*range(8))
    shop.await_starts(8)
    assert not shop.slots
    shop.finish(8)


def test_p44_no_more_jobs_run_than_there_are_slots():
    shop = Workshop(2)
    shop.put(*range(6))
    shop.await_starts(2)
    assert not shop.began.acquire(timeout=0.05)
    shop.finish(6)
    shop.await_starts(4)


def test_p44_a_parked_thread_is_woken_again():
    shop = Workshop(1)
    for number in range(50):
        shop.put(number)
        shop.await_starts(1)
        shop.finish(1)
    for _ in range(50):
        assert shop.has_ended.acquire(timeout=LIMIT)
    assert shop.ended == list(range(50))


def test_p49_a_job_that_must_be_alone_runs_while_the_others_are_held():
    shop = Workshop(4)
    shop.hands.is_held = True
    shop.put(1, 2)
    alone = FakeRun(9)
    alone.slot = shop.slots.pop()
    shop.hands.run_alone(alone)  # type: ignore[arg-type]
    shop.await_starts(1)
    assert not shop.began.acquire(timeout=0.05)
    shop.finish(1)
    assert shop.has_ended.acquire(timeout=LIMIT)
    assert shop.ended == [9]
    shop.hands.is_held = False
    shop.hands.wake()
    shop.await_starts(2)
    shop.finish(2)

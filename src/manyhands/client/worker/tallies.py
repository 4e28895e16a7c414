"""What a worker has done: counts, run times, and how far ahead to fetch."""

from time import perf_counter
from typing import Final

from msgspec import Struct

_WINDOW_SECONDS: Final = 0.05  # P45: what the slots do in this time is fetched ahead
_FAST_SECONDS: Final = 0.001
_WEIGHT: Final = 0.05  # of the newest run in a moving average
_RECENT_SECONDS: Final = 10.0  # a queue without jobs for so long counts no more
COMPLETED: Final = "completed"
FAILED: Final = "failed"
GIVEN_BACK: Final = "given_back"
LOST: Final = "lost"  # the lease was lost, or the report refused
OUTCOMES: Final = (COMPLETED, FAILED, GIVEN_BACK, LOST)


class Tally(Struct):
    """The jobs of one task."""

    completed: int = 0
    failed: int = 0
    given_back: int = 0
    lost: int = 0
    seconds: float = 0.0  # run time of those that completed or failed


class Pace:
    """The moving average of the run time in each queue."""

    def __init__(self, slots: int, ahead_max: int) -> None:
        self._slots = slots
        self._ahead_max = ahead_max
        self._averages: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # when a queue last had a job that ended

    def note(self, queue: str, seconds: float, count: int = 1) -> None:
        """Jobs have run, for so many seconds together."""
        mean = seconds / count
        average = self._averages.get(queue)
        weight = 1 - (1 - _WEIGHT) ** count  # as if each were noted
        self._averages[queue] = mean if average is None else average + (mean - average) * weight
        self._seen[queue] = perf_counter()

    @property
    def is_fast(self) -> bool:
        """Whether jobs of all busy queues take less than a switch between threads is worth."""
        slowest = self._slowest()
        return slowest is not None and slowest < _FAST_SECONDS

    def _slowest(self) -> float | None:
        since = perf_counter() - _RECENT_SECONDS
        recent = [self._averages[queue] for queue, at in self._seen.items() if at >= since]
        return max(recent, default=None)

    def ahead(self) -> int:
        """P45: how many jobs to keep ready. The slowest of the busy queues decides."""
        slowest = self._slowest()
        if slowest is None or slowest > _WINDOW_SECONDS:
            return 0
        return min(self._ahead_max, int(self._slots * _WINDOW_SECONDS / max(slowest, 1e-9)))


class Tallies:
    """Counts by task."""

    def __init__(self) -> None:
        self.by_task: dict[str, Tally] = {}
        self.total = Tally()
        self.reconnects = 0

    def note(self, task: str, outcome: str, seconds: float, count: int = 1) -> None:
        """Jobs have ended, after so many seconds together."""
        tally = self.by_task.get(task)
        if tally is None:
            tally = self.by_task[task] = Tally()
        for each in (tally, self.total):
            setattr(each, outcome, getattr(each, outcome) + count)
            if outcome in (COMPLETED, FAILED):
                each.seconds += seconds

    @property
    def ended(self) -> int:
        """How many jobs were run."""
        return self.total.completed + self.total.failed

"""How long jobs waited and ran, by queue and UTC day, worked out from the log of events.

Nothing is stored for it: the log is on disk, so the same figures come out after a restart, for as
long as events are kept.
"""

import math
from typing import Any, Final

from manyhands.model.events import Event
from manyhands.model.job import State

DAY_MS: Final = 24 * 3600 * 1000
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600
_RETRIED: Final = frozenset({"retry", "expired", "lapsed", "cutoff", "lost"})
_BUCKETS: Final = 60 + 59 + 23 + 6


def bucket_of(seconds: int) -> int:
    """One a second for a minute, one a minute for an hour, one an hour for a day, one a day for a
    week; the last one has everything beyond.
    """
    if seconds < _MINUTE:
        return seconds
    if seconds < _HOUR:
        return 60 + seconds // _MINUTE - 1
    if seconds < _DAY:
        return 60 + 59 + seconds // _HOUR - 1
    return min(60 + 59 + 23 + seconds // _DAY - 1, _BUCKETS - 1)


class Series:
    """Durations: their number, mean, deviation and histogram."""

    __slots__ = ("_count", "_histogram", "_squares", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._squares = 0.0
        self._histogram = [0] * _BUCKETS

    def add(self, ms: int) -> None:
        """One more."""
        seconds = max(0, ms) / 1000
        self._count += 1
        self._total += seconds
        self._squares += seconds * seconds
        self._histogram[bucket_of(int(seconds))] += 1

    def shown(self) -> dict[str, Any]:
        """As an answer."""
        count = self._count
        mean = self._total / count if count else 0.0
        spread = self._squares - count * mean * mean
        deviation = math.sqrt(max(0.0, spread) / (count - 1)) if count > 1 else 0.0
        return {
            "count": count,
            "mean": round(mean, 6),
            "std": round(deviation, 6),
            "histogram": self._histogram,
        }


class Day:
    """One queue on one day."""

    __slots__ = ("failed", "failures", "retries", "run", "wait")

    def __init__(self) -> None:
        self.wait = Series()
        self.run = Series()
        self.retries = 0
        self.failures = 0  # ever
        self.failed = 0  # of those, still

    def shown(self) -> dict[str, Any]:
        """As an answer."""
        return {
            "wait": self.wait.shown(),
            "run": self.run.shown(),
            "retries": self.retries,
            "failures": self.failures,
            "failed": self.failed,
        }


class Statistics:
    """All queues, all days that the log tells of."""

    def __init__(self) -> None:
        self._days: dict[tuple[int, str], Day] = {}
        self._failed: dict[str, Day] = {}  # jobs that are failed, with the day they failed on

    def day(self, queue: str, day: int) -> Day:
        """What is known; nothing, if nothing happened."""
        return self._days.get((day, queue)) or Day()

    def fold(self, event: Event) -> None:
        """One more event of the log, in order."""
        earlier = self._failed.pop(event.job_id, None)
        if earlier is not None:
            earlier.failed -= 1
        state, reason = event.state, event.reason
        if state is State.LEASED:
            if reason != "renewed":
                self._at(event, event.queue).wait.add(event.lasted_ms)
        elif state is State.COMPLETED:
            if event.holder is not None:
                self._at(event, event.queue).run.add(event.lasted_ms)
        elif reason == "advanced":
            self._at(event, event.left_queue or event.queue).run.add(event.lasted_ms)
        elif state is State.FAILED:
            day = self._at(event, event.queue)
            day.failures += 1
            day.failed += 1
            self._failed[event.job_id] = day
        elif reason in _RETRIED:
            self._at(event, event.queue).retries += 1

    def _at(self, event: Event, queue: str) -> Day:
        key = (event.at // DAY_MS, queue)
        found = self._days.get(key)
        if found is None:
            found = self._days[key] = Day()
        return found

    def forget_before(self, day: int) -> None:
        """Days that the log does not tell of any more."""
        old = [key for key in self._days if key[0] < day]
        if not old:
            return
        gone = {id(self._days.pop(key)) for key in old}
        self._failed = {
            job_id: then for job_id, then in self._failed.items() if id(then) not in gone
        }

"""How long jobs waited and ran, by queue and UTC day, computed from the event log.

Nothing is stored for it: the log is on disk, so a restart yields the same figures, for as long as
events are kept.
"""

import math
from collections.abc import Iterable
from typing import Any, Final

from manyhands.model.events import Event
from manyhands.model.plain import PlainCompleted, PlainLeased
from manyhands.observe.fold import Fold

DAY_MS: Final = 24 * 3600 * 1000
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600
_BUCKETS: Final = 60 + 59 + 23 + 6


def bucket_of(seconds: int) -> int:
    """One bucket per second up to a minute, per minute up to an hour, per hour up to a day, per day
    up to a week; the last one holds everything longer.
    """
    if seconds < _MINUTE:
        return seconds
    if seconds < _HOUR:
        return 60 + seconds // _MINUTE - 1
    if seconds < _DAY:
        return 60 + 59 + seconds // _HOUR - 1
    return min(60 + 59 + 23 + seconds // _DAY - 1, _BUCKETS - 1)


class Series:
    """Durations: their count, mean, deviation and histogram."""

    __slots__ = ("_count", "_histogram", "_squares", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._squares = 0.0
        self._histogram = [0] * _BUCKETS

    def add(self, ms: int) -> None:
        """Adds one duration."""
        seconds = max(0, ms) / 1000
        self._count += 1
        self._total += seconds
        self._squares += seconds * seconds
        self._histogram[bucket_of(int(seconds))] += 1

    def shown(self) -> dict[str, Any]:
        """The series as an answer."""
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
        self.failures = 0  # on that day, ever
        self.failed = 0  # of those, still failed

    def shown(self) -> dict[str, Any]:
        """The day as an answer."""
        return {
            "wait": self.wait.shown(),
            "run": self.run.shown(),
            "retries": self.retries,
            "failures": self.failures,
            "failed": self.failed,
        }


class Statistics:
    """All queues and all days in the log."""

    def __init__(self) -> None:
        self._days: dict[tuple[int, str], Day] = {}
        self._failed: dict[str, Day] = {}  # failed jobs, with the day they failed on
        self._facts = facts = Fold()
        facts.on_event.append(self._mended)
        facts.on_started.append(self._started)
        facts.on_completed.append(self._completed)
        facts.on_advanced.append(self._advanced)
        facts.on_retried.append(self._retried)
        facts.on_failed.append(self._has_failed)

    def day(self, queue: str, day: int) -> Day:
        """The figures of a day; zeros if nothing happened."""
        return self._days.get((day, queue)) or Day()

    def fold(self, events: Iterable[Event]) -> None:
        """Adds further events of the log, in order."""
        self._facts.fold(events)

    def _mended(self, event: Event) -> None:
        """Any event of a failed job means that it is no longer failed."""
        earlier = self._failed.pop(event.job_id, None)
        if earlier is not None:
            earlier.failed -= 1

    def _started(self, event: Event | PlainLeased) -> None:
        self._at(event, event.queue).wait.add(event.lasted_ms)

    def _completed(self, event: Event | PlainCompleted) -> None:
        if event.holder is not None:
            self._at(event, event.queue).run.add(event.lasted_ms)

    def _advanced(self, event: Event) -> None:
        self._at(event, event.left_queue or event.queue).run.add(event.lasted_ms)

    def _retried(self, event: Event) -> None:
        self._at(event, event.queue).retries += 1

    def _has_failed(self, event: Event) -> None:
        day = self._at(event, event.queue)
        day.failures += 1
        day.failed += 1
        self._failed[event.job_id] = day

    def _at(self, event: Event | PlainLeased | PlainCompleted, queue: str) -> Day:
        key = (event.at // DAY_MS, queue)
        found = self._days.get(key)
        if found is None:
            found = self._days[key] = Day()
        return found

    def forget_before(self, day: int) -> None:
        """Drops days that are no longer in the log."""
        old = [key for key in self._days if key[0] < day]
        if not old:
            return
        gone = {id(self._days.pop(key)) for key in old}
        self._failed = {
            job_id: then for job_id, then in self._failed.items() if id(then) not in gone
        }

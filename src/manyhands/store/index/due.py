"""Timers of jobs: a deadline, or the end of a delay or a lease."""

import heapq
from collections.abc import Callable, Sequence

from manyhands.engine.timers import due_at
from manyhands.model.job import Job


class Due:
    """Jobs by the instant at which to look at them, which may be too early but never too late."""

    __slots__ = ("_get", "entries", "heap")

    def __init__(self, get: Callable[[str], Job | None]) -> None:
        self._get = get
        self.heap: list[tuple[int, str]] = []  # (instant, job id); some are outdated
        # Job id -> its earliest entry in the heap. The same object for life, because others keep a
        # reference.
        self.entries: dict[str, int] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self.heap.clear()
        self.entries.clear()

    def put(self, instant: int, job_id: str) -> None:
        """Adds a timer of a job."""
        entry = self.entries.get(job_id)
        if entry is not None and entry <= instant:
            return  # it is looked at before that anyway, and rescheduled if that is too early
        self.entries[job_id] = instant
        heapq.heappush(self.heap, (instant, job_id))

    def drop(self, job_id: str) -> None:
        """Removes the timer of a job. Its heap entry goes when there are too many such entries."""
        del self.entries[job_id]
        if len(self.heap) > 64 and len(self.heap) > 2 * len(self.entries):
            self.heap = [(instant, key) for key, instant in self.entries.items()]
            heapq.heapify(self.heap)

    def until(self, now: int, count_max: int) -> Sequence[str]:
        """Jobs with a timer that is due."""
        found: list[str] = []
        again: list[tuple[int, str]] = []
        while self.heap and self.heap[0][0] <= now and len(found) < count_max:
            entry = heapq.heappop(self.heap)
            job_id = entry[1]
            if self.entries.get(job_id) != entry[0]:
                continue  # an earlier entry was added later
            del self.entries[job_id]
            job = self._get(job_id)
            instant = due_at(job) if job is not None else None
            if instant is None:
                continue
            if instant > entry[0]:
                self.put(instant, job_id)  # rescheduled: its turn comes later, perhaps in this loop
                continue
            again.append((instant, job_id))
            found.append(job_id)
        # If the decision fails, the timers must not be lost: entries stay until the jobs really
        # change.
        for instant, job_id in again:
            self.put(instant, job_id)
        return found

    def next_at(self) -> int | None:
        """When to look again."""
        return self.heap[0][0] if self.heap else None

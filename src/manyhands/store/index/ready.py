"""The ready jobs of one queue, in the order in which they are handed out.

The order is a rule of the engine: higher priority first, then lower position. This module only
makes it cheap, with a level per priority and three deques in it for the three ranges of positions.
Entries whose job has moved on are skipped and swept. An entry is a job, or the
value of a plain one.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from manyhands.model.job import Job, State
from manyhands.model.plain import Plain, PlainReady

Entry: TypeAlias = Job | PlainReady

_READY: Final = State.READY
_position = attrgetter("position")
_AHEAD_MAX: Final = -(1 << 61)  # positions of jobs that go ahead are far below those at the front


class _Level:
    """Ready jobs of one priority and one set of named limits."""

    __slots__ = ("ahead", "front", "tail")

    def __init__(self) -> None:
        self.ahead: deque[Entry] = deque()
        self.front: deque[Entry] = deque()
        self.tail: deque[Entry] = deque()


class ReadyQueue:
    """Lanes by named limits; in each lane, levels by priority."""

    __slots__ = ("_current", "_entries", "_lanes", "_only", "_order", "_usual", "count", "name")

    def __init__(self, name: str, current: Callable[[str], Job | Plain | None]) -> None:
        self.name = name
        self.count = 0  # ready jobs; there may be more entries while stale ones remain
        self._current = current
        self._entries = 0
        self._lanes: dict[tuple[str, ...], dict[float, _Level]] = {}
        self._order: dict[tuple[str, ...], list[float]] = {}  # priorities, highest first
        self._only: _Level | None = None  # the only level, while there is just one
        self._usual = 0.0  # its priority

    def add(self, job: Job) -> None:
        """Adds a job that became ready or changed its position."""
        level = self._only
        if level is None or job.limits or job.priority != self._usual:
            level = self._level(job.limits, job.priority)
        position = job.position
        if position > 0:
            if level.tail and level.tail[-1].position > position:
                _insert(level.tail, job)
            else:
                level.tail.append(job)
        elif position <= _AHEAD_MAX:
            _insert(level.ahead, job)
        elif level.front and level.front[0].position < position:
            _insert(level.front, job)
        else:
            level.front.appendleft(job)
        self._entries += 1
        if self._entries > 64 and self._entries > 2 * self.count:
            self._sweep()

    def append(self, job: Entry) -> None:
        """Adds a new job without named limits, which is behind all others of its priority."""
        self.count += 1
        level = self._only
        if level is None or job.priority != self._usual:
            level = self._level((), job.priority)
        level.tail.append(job)
        self._entries += 1
        if self._entries > 64 and self._entries > 2 * self.count:
            self._sweep()

    def swap(self, old: Job, job: Job) -> None:
        """Replaces the value of a job in the same place, so that the old one can be freed."""
        level = self._level(job.limits, job.priority)
        for entries in (level.ahead, level.front, level.tail):
            start = bisect_left(entries, old.position, key=_position)
            if start < len(entries) and entries[start] is old:
                entries[start] = job

    def leave(self, job: Entry) -> None:
        """Removes a job that is no longer ready: at once if it is first, else when it is met."""
        self.count -= 1
        only = self._only
        if only is not None and only.tail and only.tail[0] is job:
            only.tail.popleft()
            self._entries -= 1

    def _level(self, limits: tuple[str, ...], priority: float) -> _Level:
        lane = self._lanes.get(limits)
        if lane is None:
            lane = self._lanes[limits] = {}
            self._order[limits] = []
        level = lane.get(priority)
        if level is None:
            level = lane[priority] = _Level()
            self._order[limits] = sorted(lane, reverse=True)
            only = len(self._lanes) == 1 and len(lane) == 1 and not limits
            self._only = level if only else None
            self._usual = priority
        return level

    def first(self) -> Entry | None:
        """The next job, regardless of its named limits."""
        only = self._only
        if only is not None:
            # One priority and no returned jobs: the head is the answer, unless it is stale.
            if only.tail and not only.ahead and not only.front:
                entry = only.tail[0]
                if self._current(entry.job_id) is entry:
                    return entry
            return self._head(only)
        best: Entry | None = None
        for limits in list(self._lanes):
            job = self._first_of_lane(limits)
            if job is not None and (best is None or _goes_before(job, best)):
                best = job
        return best

    def _first_of_lane(self, limits: tuple[str, ...]) -> Entry | None:
        lane = self._lanes[limits]
        for priority in list(self._order[limits]):
            job = self._head(lane[priority])
            if job is not None:
                return job
            self._drop_level(limits, priority)
        return None

    def _drop_level(self, limits: tuple[str, ...], priority: float) -> None:
        """Drops an empty level, so that unusual priorities do not pile up."""
        lane = self._lanes[limits]
        del lane[priority]
        if lane:
            self._order[limits] = sorted(lane, reverse=True)
        else:
            del self._lanes[limits]
            del self._order[limits]
        self._only = None
        if len(self._lanes) == 1 and () in self._lanes and len(self._lanes[()]) == 1:
            ((self._usual, self._only),) = self._lanes[()].items()

    def _head(self, level: _Level) -> Entry | None:
        for entries in (level.ahead, level.front, level.tail):
            job = self._first_fresh(entries)
            if job is not None:
                return job
        return None

    def _first_fresh(self, entries: deque[Entry]) -> Entry | None:
        """The first entry whose job is still there. Those before it are dropped, so that they are
        met only once.
        """
        while entries:
            job = self._fresh(entries[0])
            if job is not None:
                return job
            entries.popleft()
            self._entries -= 1
        return None

    def _fresh(self, entry: Entry) -> Entry | None:
        """The present value of an entry's job, if it is still where the entry says."""
        job = self._current(entry.job_id)
        if job is entry:
            return entry
        if (
            isinstance(job, Job)
            and job.state is _READY
            and job.position == entry.position
            and job.priority == entry.priority
            and job.queue == self.name
        ):
            return job
        return None

    def ahead_of(self, job: Job) -> int:
        """About how many ready jobs go before this one; stale entries count until they are swept.
        Cheap, however long the queue is.
        """
        count = 0
        for lane in self._lanes.values():
            for priority, level in lane.items():
                if priority > job.priority:
                    count += len(level.ahead) + len(level.front) + len(level.tail)
                elif priority == job.priority:
                    for entries in (level.ahead, level.front, level.tail):
                        count += bisect_left(entries, job.position, key=_position)
        return min(count, max(0, self.count - 1))

    def oldest_at(self) -> int | None:
        """Since when the longest-waiting job has been ready. Exact for jobs in order of arrival; of
        those at the front, only the next one counts.
        """
        instants = []
        for lane in self._lanes.values():
            for level in lane.values():
                for entries in (level.ahead, level.front, level.tail):
                    job = self._first_fresh(entries)
                    if job is not None:
                        instants.append(job.entered_at)
        return min(instants, default=None)

    def count_by_priority(self) -> dict[float, int]:
        """The number of ready jobs of each priority."""
        self.first()
        if self._entries != self.count:
            self._sweep()
        counts: dict[float, int] = {}
        for lane in self._lanes.values():
            for priority, level in lane.items():
                entries = len(level.ahead) + len(level.front) + len(level.tail)
                counts[priority] = counts.get(priority, 0) + entries
        return counts

    def __iter__(self) -> Iterator[Entry]:
        """All ready jobs in order. Jobs may be claimed during the iteration."""
        self.first()  # drops stale entries at the heads, so that they are not walked each time
        lanes = [self._iterate_lane(limits) for limits in self._lanes]
        if len(lanes) == 1:
            yield from lanes[0]
            return
        heads = [next(lane, None) for lane in lanes]
        while True:
            best = -1
            for index, head in enumerate(heads):
                if head is not None:
                    other = heads[best] if best >= 0 else None
                    if other is None or _goes_before(head, other):
                        best = index
            if best == -1:
                return
            chosen = heads[best]
            assert chosen is not None
            yield chosen
            heads[best] = next(lanes[best], None)

    def _iterate_lane(self, limits: tuple[str, ...]) -> Iterator[Entry]:
        lane = self._lanes[limits]
        for priority in self._order[limits]:
            level = lane[priority]
            for entries in (level.ahead, level.front, level.tail):
                for entry in entries:
                    job = self._fresh(entry)
                    if job is not None:
                        yield job

    def _sweep(self) -> None:
        """Drops all stale entries, once they outnumber the others."""
        self._entries = 0
        for limits, lane in list(self._lanes.items()):
            for priority, level in list(lane.items()):
                level.ahead = deque(filter(self._fresh, level.ahead))
                level.front = deque(filter(self._fresh, level.front))
                level.tail = deque(filter(self._fresh, level.tail))
                entries = len(level.ahead) + len(level.front) + len(level.tail)
                self._entries += entries
                if not entries:
                    self._drop_level(limits, priority)


def entry_order(job: Job | Plain) -> int:
    """The sort key by which ready jobs can be added one by one to an empty queue: at the front, the
    last to arrive is the first.
    """
    position = job.position
    return position if position > 0 or position <= _AHEAD_MAX else -position


def _goes_before(job: Entry, other: Entry) -> bool:
    if job.priority != other.priority:
        return job.priority > other.priority
    return job.position < other.position


def _insert(entries: deque[Entry], job: Entry) -> None:
    """Inserts a job in its place, which is nearly always the last: one command may assign positions
    to several jobs and change them in another order.
    """
    index = len(entries)
    while index > 0 and entries[index - 1].position > job.position:
        index -= 1
    entries.insert(index, job)

"""History: samples by the minute, kept across restarts, and queries over them.

The current minute is counted in memory and written every few seconds, so a crash loses no more than
that. Spans of ten minutes are combined from what was written.
"""

import asyncio
import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.loggers import get_logger
from manyhands.model import limits
from manyhands.model.history import (
    ALL_QUEUES,
    COARSE_MS,
    DEPTH_STATES,
    MINUTE_MS,
    Sample,
    StoredSample,
    merged,
)
from manyhands.model.job import FINISHED
from manyhands.observe.tallies import Tallies, Totals

_log = get_logger("manyhands.history")

# How old the counts of the present minute may be on disk.
_WRITE_MS: Final = 10_000
_REALM_MINUTES: Final = 24 * 60
_RATE_SECONDS: Final = 10  # over which the present rate is measured
_HOUR_MS: Final = 60 * MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


class Range(Struct, frozen=True):
    """A range up to now that can be queried: its length, its samples and its steps."""

    length_ms: int
    stored_ms: int
    step_ms: int


RANGES: Final[dict[str, Range]] = {
    "1h": Range(_HOUR_MS, MINUTE_MS, MINUTE_MS),
    "24h": Range(_DAY_MS, MINUTE_MS, COARSE_MS),
    "7d": Range(7 * _DAY_MS, COARSE_MS, _HOUR_MS),
}


class Point(Struct, frozen=True):
    """One step of an answer."""

    at: int
    sample: Sample


class History:
    """Writes samples as time passes, and reads them."""

    def __init__(
        self, dispatcher: Dispatcher, tallies: Tallies, totals: Totals | None = None
    ) -> None:
        """``tallies`` are of what this server decides, which is what it writes."""
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._tallies = tallies
        self._totals = totals or Totals(tallies)
        self._taking_up: asyncio.Task[None] | None = None
        self._minute_at = _floor(dispatcher.clock.now(), MINUTE_MS)
        # The current minute, as it was last written.
        self._minute: dict[str, Sample] = {
            row.queue: row.sample
            for row in self._store.samples(MINUTE_MS, self._minute_at, self._minute_at + MINUTE_MS)
        }
        self._written_at = self._minute_at
        self._coarse_at: int | None = None  # spans before this one are put together
        self._joining: asyncio.Task[None] | None = None
        # When, and how many jobs had ended by then: the last seconds.
        self._ends: deque[tuple[int, int]] = deque(maxlen=_RATE_SECONDS + 1)
        # Jobs handed out by the end of each minute since the start, by realm.
        self._handed_out: deque[tuple[int, dict[str, int]]] = deque(maxlen=_REALM_MINUTES + 1)

    # Writing.

    def look(self, now: int) -> None:
        """Once a second."""
        entered = self._totals.entered
        self._ends.append((now, sum(entered[state] for state in FINISHED)))
        minute_at = _floor(now, MINUTE_MS)
        decides = self._dispatcher.decides
        if minute_at != self._minute_at or now - self._written_at >= _WRITE_MS:
            self.write(now)
        if minute_at != self._minute_at:
            self._handed_out.append((self._minute_at, dict(self._totals.jobs_out)))
            self._minute_at = minute_at
            self._minute = {}
        if not decides:
            return
        coarse_at = _floor(now, COARSE_MS)
        if self._coarse_at != coarse_at and (self._joining is None or self._joining.done()):
            self._joining = asyncio.create_task(self._join(coarse_at))

    def take_up(self) -> None:
        """This server decides from now on: it goes on with the minute that another one began."""
        self._taking_up = asyncio.create_task(self._take_up())

    async def _take_up(self) -> None:
        minute_at = self._minute_at
        rows = await asyncio.to_thread(
            self._store.samples, MINUTE_MS, minute_at, minute_at + MINUTE_MS
        )
        if minute_at == self._minute_at:
            for row in rows:
                self._minute.setdefault(row.queue, Sample()).add(row.sample)

    def write(self, now: int) -> None:
        """Adds the counts up to now to the next commit. What another server decides, it writes."""
        if self._taking_up is not None and not self._taking_up.done():
            return
        self._written_at = now
        if not self._dispatcher.decides:
            return
        counted = self._tallies.cut()
        if not counted:
            return
        total = self._minute.setdefault(ALL_QUEUES, Sample())
        total.add(merged(counted.values()))
        total.depth = self._depth_of_all()
        # Queues beyond the bound count in the total only.
        total.left_out += counted.pop(ALL_QUEUES, None) is not None
        for queue, sample in counted.items():
            known = self._minute.setdefault(queue, sample)
            if known is not sample:
                known.add(sample)
            known.depth = self._depth(queue)
        rows = list(counted)
        own = len(self._minute) - 1
        if own > limits.HISTORY_QUEUES_MAX:
            total.left_out = own - limits.HISTORY_QUEUES_MAX
            busiest = heapq.nlargest(limits.HISTORY_QUEUES_MAX, self._minute, key=self._business)
            rows = [queue for queue in busiest if queue in counted]
        self._store.keep_samples(
            [
                StoredSample(MINUTE_MS, self._minute_at, queue, self._minute[queue].trimmed())
                for queue in (ALL_QUEUES, *rows)
            ]
        )
        self._dispatcher.touch()

    def _business(self, queue: str) -> int:
        sample = self._minute[queue]
        return -1 if queue == ALL_QUEUES else sample.submitted + sample.started + sample.completed

    def _depth(self, queue: str) -> list[int]:
        known = self._store.live.queues.get(queue)
        return [0 if known is None else known.counts[state] for state in DEPTH_STATES]

    def _depth_of_all(self) -> list[int]:
        rows = [known.counts for known in self._store.live.queues.values()]
        return [sum(counts[state] for counts in rows) for state in DEPTH_STATES]

    async def _join(self, coarse_at: int) -> None:
        """Combines complete past spans, starting where the last server stopped."""
        try:
            rows = await asyncio.to_thread(self._joined, coarse_at)
        except Exception:  # noqa: BLE001 - tried again in ten minutes; the minutes are kept
            _log.exception("the history could not be put together")
            self._coarse_at = coarse_at
            return
        self._coarse_at = coarse_at
        if rows:
            self._store.keep_samples(rows)
            self._dispatcher.touch()

    def _joined(self, until: int) -> list[StoredSample]:
        last = self._store.samples(COARSE_MS, until, until, ALL_QUEUES)
        since = until - limits.HISTORY_MINUTES_MS // COARSE_MS * COARSE_MS
        if last:
            # Again, because its last seconds may have been written after it was combined.
            since = max(since, last[0].at)
        parts: dict[tuple[int, str], list[Sample]] = {}
        for row in self._store.samples(MINUTE_MS, since, until):
            parts.setdefault((_floor(row.at, COARSE_MS), row.queue), []).append(row.sample)
        return [
            StoredSample(COARSE_MS, at, queue, merged(samples).trimmed())
            for (at, queue), samples in parts.items()
        ]

    # Reading.

    async def read(self, name: str, queue: str = ALL_QUEUES) -> list[Point]:
        """The steps of a range up to now; ``queue``: one, or all together."""
        wanted = RANGES[name]
        now = self._dispatcher.clock.now()
        end = _floor(now, wanted.step_ms) + wanted.step_ms
        start = end - wanted.length_ms
        rows = await asyncio.to_thread(self._rows, wanted, start, end, queue)
        return _points(rows, self._present(queue, rows), wanted, start, now)

    def rate(self) -> float:
        """Jobs that ended, a second, in the last seconds."""
        if len(self._ends) < 2:
            return 0.0
        (since, before), (until, after) = self._ends[0], self._ends[-1]
        return (after - before) * 1000 / max(1, until - since)

    def handed_out(self, instants: Sequence[int], step_ms: int) -> dict[str, list[int]]:
        """Jobs handed out in each step, by realm. Known since the start, and at most for a day."""
        found: dict[str, list[int]] = {}
        before: dict[str, int] = {}
        for at, totals in (*self._handed_out, (self._minute_at, self._totals.jobs_out)):
            for realm, total in totals.items():
                counts = found.setdefault(realm, [0] * len(instants))
                step = bisect_right(instants, at) - 1
                if step >= 0 and at < instants[step] + step_ms:
                    counts[step] += total - before.get(realm, 0)
            before = dict(totals)
        return {realm: counts for realm, counts in found.items() if any(counts)}

    async def recent(self, minutes: int) -> dict[str, Sample]:
        """What happened in each queue in the last minutes and in the current one."""
        since = self._minute_at - minutes * MINUTE_MS
        until = self._minute_at + (0 if self._dispatcher.decides else MINUTE_MS)
        rows = await asyncio.to_thread(self._store.samples, MINUTE_MS, since, until)
        found: dict[str, Sample] = {}
        for row in rows:
            if row.queue != ALL_QUEUES:
                found.setdefault(row.queue, Sample()).add(row.sample)
        for current in (self._minute, self._tallies.current):
            for queue, sample in current.items():
                if queue != ALL_QUEUES:
                    found.setdefault(queue, Sample()).add(sample)
        return found

    def _rows(self, wanted: Range, start: int, end: int, queue: str) -> list[StoredSample]:
        rows = list(self._store.samples(wanted.stored_ms, start, end, queue))
        if wanted.stored_ms != MINUTE_MS:
            # Spans not yet combined, and the depth before them, are in the minutes.
            since = max(start, rows[-1].at + wanted.stored_ms) if rows else start
            minutes = self._store.samples(MINUTE_MS, since, end, queue)
            rows += [row for row in minutes if row.at >= since or not rows]
        return rows

    def _present(self, queue: str, rows: Sequence[StoredSample]) -> StoredSample:
        """The current minute, up to now; of another server's, what it has written."""
        if not self._dispatcher.decides:
            depth = self._depth_of_all() if queue == ALL_QUEUES else self._depth(queue)
            written = (
                row.sample for row in rows if row.at == self._minute_at and row.step_ms == MINUTE_MS
            )
            sample = merged((Sample(), *written))
            return StoredSample(MINUTE_MS, self._minute_at, queue, replace(sample, depth=depth))
        current = self._tallies.current
        if queue == ALL_QUEUES:
            fresh, depth = list(current.values()), self._depth_of_all()
        else:
            fresh, depth = [current[queue]] if queue in current else [], self._depth(queue)
        sample = merged((self._minute.get(queue, Sample()), *fresh))
        return StoredSample(MINUTE_MS, self._minute_at, queue, replace(sample, depth=depth))


def _points(
    rows: Sequence[StoredSample], present: StoredSample, wanted: Range, start: int, now: int
) -> list[Point]:
    by_step: dict[int, list[Sample]] = {}
    depth: list[int] = []
    for row in rows:
        if row.at < start:
            depth = row.sample.depth
        elif row.at != present.at or row.step_ms != present.step_ms:
            by_step.setdefault(_floor(row.at, wanted.step_ms), []).append(row.sample)
    by_step.setdefault(_floor(present.at, wanted.step_ms), []).append(present.sample)
    points = []
    for at in range(start, now + 1, wanted.step_ms):
        sample = merged(by_step.get(at, ()))
        # Nothing is written where nothing happens: the depth is unchanged.
        sample.depth = depth = sample.depth or depth
        points.append(Point(at, sample))
    return points


def _floor(instant: int, step_ms: int) -> int:
    return instant - instant % step_ms

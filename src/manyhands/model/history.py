"""What happened in a span of time, in one queue or in all: counts, and durations as histograms.

Samples of neighbouring spans can be added up, so that a week is as accurate as a minute.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.model.job import State

MINUTE_MS: Final = 60_000
COARSE_MS: Final = 10 * MINUTE_MS
STEPS: Final = (MINUTE_MS, COARSE_MS)
# The name of all queues together; no queue can have it.
ALL_QUEUES: Final = ""

# Upper bounds of a histogram's buckets in milliseconds, a fifth to a half apart; the last bucket,
# beyond a week, has none. The metrics show some of these.
BOUNDS_MS: Final = (
    *(0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 250),
    *(300, 400, 500, 600, 800, 1_000, 1_200, 1_600, 2_000, 2_500, 3_000, 4_000, 5_000, 6_000),
    *(8_000, 10_000, 12_000, 16_000, 20_000, 25_000, 30_000, 40_000, 50_000, 60_000, 80_000),
    *(100_000, 120_000, 160_000, 200_000, 250_000, 300_000, 400_000, 600_000, 900_000),
    *(1_200_000, 1_800_000, 2_700_000, 3_600_000, 5_400_000, 7_200_000, 10_800_000, 14_400_000),
    *(21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000),
)
BUCKETS_COUNT: Final = len(BOUNDS_MS) + 1
# The states that a sample counts, in the order of its `depth`.
DEPTH_STATES: Final = (State.BLOCKED, State.DELAYED, State.READY, State.LEASED)


class Sample(Struct, array_like=True):
    """One span. Not frozen: every event is counted into the current one."""

    submitted: int = 0
    started: int = 0  # attempts
    completed: int = 0
    failed: int = 0  # jobs, for good
    failed_attempts: int = 0  # as reported by workers, retried or not
    lost: int = 0  # leases that ended without a report: lost, expired, cut off
    cancelled: int = 0
    wait: list[int] = []  # durations from ready to leased, by bucket
    run: list[int] = []  # from leased to the end of the lease
    wait_ms: int = 0  # all of them together
    run_ms: int = 0
    depth: list[int] = []  # jobs at the end of the span, by DEPTH_STATES; empty: not known
    left_out: int = 0  # of all queues together: queues that have no sample of their own

    def add(self, other: "Sample") -> None:
        """Adds the sample of the following span to this one."""
        self.submitted += other.submitted
        self.started += other.started
        self.completed += other.completed
        self.failed += other.failed
        self.failed_attempts += other.failed_attempts
        self.lost += other.lost
        self.cancelled += other.cancelled
        self.wait = _sum(self.wait, other.wait)
        self.run = _sum(self.run, other.run)
        self.wait_ms += other.wait_ms
        self.run_ms += other.run_ms
        self.depth = other.depth or self.depth
        self.left_out = max(self.left_out, other.left_out)

    def trimmed(self) -> "Sample":
        """The same without empty buckets at the end, as it is stored."""
        return replace(self, wait=_trimmed(self.wait), run=_trimmed(self.run))


def new_sample() -> Sample:
    """A sample with room in all buckets."""
    return Sample(wait=[0] * BUCKETS_COUNT, run=[0] * BUCKETS_COUNT)


class StoredSample(Struct, frozen=True, array_like=True):
    """A sample and what it is about. A later one of the same span and queue replaces it."""

    step_ms: int
    at: int  # when the span began
    queue: str
    sample: Sample


def merged(samples: Iterable[Sample]) -> Sample:
    """One sample for all of them, which must be in the order of time."""
    total = Sample()
    for sample in samples:
        total.add(sample)
    return total


def quantile(counts: list[int], share: float) -> float | None:
    """The duration that this share of all stayed within, interpolated in its bucket."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    reached = 0
    for bucket, count in enumerate(counts):
        if count and reached + count >= wanted:
            if bucket == 0:
                return 0.0
            low = BOUNDS_MS[bucket - 1]
            if bucket == len(BOUNDS_MS):
                return float(low)  # beyond the last bound: at least that
            return low + (BOUNDS_MS[bucket] - low) * (wanted - reached) / count
        reached += count
    return None


def _sum(first: list[int], second: list[int]) -> list[int]:
    if len(first) < len(second):
        first, second = second, first
    found = list(first)
    for bucket, count in enumerate(second):
        found[bucket] += count
    return found


def _trimmed(counts: list[int]) -> list[int]:
    length = len(counts)
    while length and not counts[length - 1]:
        length -= 1
    return counts[:length]

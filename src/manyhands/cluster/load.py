"""What a server does: measured here, written with each beat, and read by all others."""

from collections import deque
from typing import Final

import msgspec
from msgspec import Struct

_RATE_COUNT: Final = 11  # beats over which a rate is measured
_COMMITS_KEPT: Final = 1_000


class Load(Struct, frozen=True, omit_defaults=True):
    """The figures of one server. Fields are appended, never removed."""

    unfinished_jobs: int = 0  # that it decides about
    decided_per_second: float = 0.0
    forwarded_per_second: float = 0.0
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    apply_lag_ms: int = 0
    clock_offset_ms: int = 0  # how far its machine's clock is ahead of the database's
    # Round trips to other servers, by tenure, in milliseconds; None: no link.
    links: dict[int, float | None] = {}
    unreached: tuple[int, ...] = ()  # those that have had no link from it for long


class Rates:
    """Counts and durations of the last seconds."""

    def __init__(self) -> None:
        self._counted: deque[tuple[float, int, int]] = deque(maxlen=_RATE_COUNT)
        self._commits: deque[float] = deque(maxlen=_COMMITS_KEPT)

    def note_commit(self, elapsed_ms: float) -> None:
        """A commit of this server is on disk."""
        self._commits.append(elapsed_ms)

    def note(self, now_ms: float, decided: int, forwarded: int) -> None:
        """Totals since the start, once a second."""
        self._counted.append((now_ms, decided, forwarded))

    def per_second(self) -> tuple[float, float]:
        """Commands decided here, and forwarded."""
        if len(self._counted) < 2:
            return 0.0, 0.0
        (since_ms, decided, forwarded), (until_ms, *now) = self._counted[0], self._counted[-1]
        seconds = max(until_ms - since_ms, 1.0) / 1000
        return round((now[0] - decided) / seconds, 1), round((now[1] - forwarded) / seconds, 1)

    def commit_ms(self, share: float) -> float | None:
        """The duration that this share of the last commits stayed within."""
        commits = sorted(self._commits)
        if not commits:
            return None
        return round(commits[min(int(len(commits) * share), len(commits) - 1)], 2)


def as_text(load: Load) -> str:
    """As it is written with a beat."""
    return msgspec.json.encode(load).decode()


def read_load(text: str) -> Load:
    """As it was written by a server of any version; without what is not understood."""
    try:
        return msgspec.json.decode(text or "{}", type=Load)
    except (msgspec.DecodeError, ValueError):
        return Load()

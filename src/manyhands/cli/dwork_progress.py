"""The progress of a dwork graph, as a sentence and as numbers."""

from typing import Final

from manyhands.dispatch.clock import Clock
from manyhands.protocols.dwork.codec import Counts

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# Before that, the rate so far says little about the time left.
_SECONDS_MIN: Final = 2.0


def total_of(counts: Counts) -> int:
    """All tasks of the graph."""
    return active_of(counts) + ended_of(counts)


def active_of(counts: Counts) -> int:
    """The unfinished tasks."""
    return counts.waiting + counts.delayed + counts.ready + counts.stolen


def ended_of(counts: Counts) -> int:
    """The tasks that are done, failed or cancelled."""
    return counts.done + counts.failed + counts.cancelled


def is_drained(counts: Counts) -> bool:
    """Whether nothing is left to work on."""
    return active_of(counts) == counts.held


class GraphProgress:
    """Follows a graph and estimates when it will be finished."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._first: tuple[float, int] | None = None
        self.counts = Counts()
        self.seconds_left: float | None = None

    def see(self, counts: Counts) -> None:
        """Takes in the present state of the graph."""
        now = self._clock.monotonic_ms() / 1000
        ended = ended_of(counts)
        if self._first is None or ended < self._first[1]:  # another graph
            self._first = (now, ended)
        self.counts = counts
        began, before = self._first
        left = active_of(counts) - counts.held
        gained = ended - before
        is_known = gained > 0 and now - began >= _SECONDS_MIN
        self.seconds_left = left * (now - began) / gained if is_known else None

    def sentence(self) -> str:
        """For people."""
        counts = self.counts
        words = [f"{counts.done:,} of {total_of(counts):,} done"]
        for number, word in (
            (counts.failed, "failed"),
            (counts.cancelled, "cancelled"),
            (counts.held, "held"),
            (counts.stolen, "running"),
            (counts.ready, "ready"),
            (counts.delayed, "delayed"),
            (counts.waiting - counts.held, "waiting"),
        ):
            if number or word in ("failed", "running", "ready"):
                words.append(f"{number:,} {word}")
        if self.seconds_left is not None and not is_drained(counts):
            words.append(f"about {_span(self.seconds_left)} left")
        return ", ".join(words)


def facts_of(counts: Counts) -> dict[str, int]:
    """For programs."""
    return {
        "total": total_of(counts),
        "active": active_of(counts),
        "done": counts.done,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "held": counts.held,
        "running": counts.stolen,
        "ready": counts.ready,
        "delayed": counts.delayed,
        "waiting": counts.waiting - counts.held,
    }


def _span(seconds: float) -> str:
    if seconds < 1.5 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 1.5 * _DAY:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / _DAY:.1f} days"

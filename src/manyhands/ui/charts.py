"""Charts over time: numbers for the script that draws them, a drawing for browsers without scripts,
and a table.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup
from msgspec import Struct

from manyhands.model.history import DEPTH_STATES, MINUTE_MS, Sample, quantile
from manyhands.model.job import State
from manyhands.observe.history import Point
from manyhands.ui import words

_WIDTH, _HEIGHT = 600, 150
_TABLE_ROWS_MAX: Final = 60
_RATE_MS_MIN: Final = 15_000  # a rate over a shorter time is meaningless
# For lines that are no states: queues or protocols, the busiest first.
_COLOURS: Final = ("ready", "completed", "leased", "blocked", "delayed", "cancelled")
_UNITS: Final = {"rate": "per minute", "ms": "", "jobs": "jobs"}
Value = float | None


class Series(Struct, frozen=True):
    """One line, or one layer of a stack."""

    name: str
    colour: str  # the name of a custom property
    values: tuple[Value, ...]
    dashed: bool = False
    stacked: bool = False


class Chart(Struct, frozen=True):
    """Lines over the same time range."""

    key: str
    title: str
    unit: str  # "rate", "ms" or "jobs"
    instants: tuple[int, ...]
    series: tuple[Series, ...]
    is_open: bool = False  # the last step is not over: it is drawn dashed
    log: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but zeros."""
        return not any(value for line in self.series for value in line.values)

    @property
    def unit_shown(self) -> str:
        """The unit of the numbers in the table."""
        return _UNITS[self.unit]

    def numbers(self) -> str:
        """For the script."""
        return msgspec.json.encode(
            {
                "unit": self.unit,
                "log": self.log,
                "open": self.is_open,
                "at": [instant // 1000 for instant in self.instants],
                "lines": [
                    {
                        "name": line.name,
                        "colour": line.colour,
                        "dashed": line.dashed,
                        "stacked": line.stacked,
                        "values": line.values,
                    }
                    for line in self.series
                ],
            }
        ).decode()

    def drawing(self) -> Markup:
        """The same lines without axes, until a script draws them better."""
        high = max((value or 0.0 for line in self.series for value in line.values), default=0.0)
        step = _WIDTH / max(1, len(self.instants) - 1)
        parts = []
        for line in self.series:
            points = " ".join(
                f"{index * step:.1f},{_HEIGHT - 2 - (value / high * (_HEIGHT - 6)):.1f}"
                for index, value in enumerate(line.values)
                if value is not None and high
            )
            parts.append(f'<polyline class="line line-{line.colour}" points="{points}"/>')
        unit = f" {self.unit_shown}" if self.unit == "rate" else ""
        return Markup(  # noqa: S704 - numbers and our own words
            f'<svg class="lines" role="img" aria-label="{self.title}, at most'
            f' {self.spoken(high)}{unit}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            f' preserveAspectRatio="none">{"".join(parts)}</svg>'
        )

    def spoken(self, value: Value) -> str:
        """A value of the table."""
        if value is None:
            return words.NOTHING
        return words.duration(value) if self.unit == "ms" else words.number(round(value, 1))

    def holds(self, step_at: int, at: int) -> bool:
        """Whether an instant is in the step that begins at the first one."""
        steps = self.instants
        return len(steps) > 1 and step_at <= at < step_at + steps[1] - steps[0]

    def rows(self) -> list[tuple[int, list[str]]]:
        """The newest steps, newest first."""
        count = len(self.instants)
        return [
            (self.instants[at], [self.spoken(line.values[at]) for line in self.series])
            for at in range(count - 1, max(-1, count - 1 - _TABLE_ROWS_MAX), -1)
        ]


class Frame:
    """The steps that all charts of a page have in common."""

    def __init__(self, points: Sequence[Point], step_ms: int, now: int) -> None:
        self.points = points
        self.instants = tuple(point.at for point in points)
        last = self.instants[-1] if self.instants else now
        self.is_open = now < last + step_ms
        # The last step is not over: its rate is over the time that has passed, once that is enough.
        self._minutes = [step_ms / MINUTE_MS for _ in self.instants]
        self._too_short = self.is_open and now - last < _RATE_MS_MIN
        if self.is_open and self._minutes:
            self._minutes[-1] = max(_RATE_MS_MIN, now - last) / MINUTE_MS
        # Before the first sample there was no server, which is another thing than no jobs.
        known = (at for at, point in enumerate(points) if point.sample.depth)
        self._first = next(known, len(points))

    def rates(self, counts: Sequence[int]) -> tuple[Value, ...]:
        """Counts a minute."""
        found: list[Value] = [
            None if at < self._first else round(count / self._minutes[at], 2)
            for at, count in enumerate(counts)
        ]
        if self._too_short and self._first < len(found) - 1:  # else there is nothing to show yet
            found[-1] = None
        return tuple(found)

    def values(self, value: Callable[[Sample], Value]) -> tuple[Value, ...]:
        """A value of every sample."""
        return tuple(value(point.sample) for point in self.points)


def throughput(frame: Frame) -> Chart:
    """How attempts ended, one upon the other, and what came in."""

    def layer(name: str, colour: str, field: str, *, stacked: bool = True) -> Series:
        counts = [getattr(point.sample, field) for point in frame.points]
        return Series(name, colour, frame.rates(counts), stacked=stacked)

    series = (
        layer("completed", "completed", "completed"),
        layer("failed", "failed", "failed_attempts"),
        layer("lost", "cancelled", "lost"),
        layer("submitted", "ready", "submitted", stacked=False),
    )
    title = "Attempts ended per minute"
    return Chart("throughput", title, "rate", frame.instants, series, frame.is_open)


def stacked(
    frame: Frame, title: str, counts: Mapping[str, Sequence[int]], key: str = "throughput"
) -> Chart:
    """Counts of several things a minute, one upon the other."""
    series = tuple(
        Series(name, colour, frame.rates(values), stacked=True)
        for (name, values), colour in zip(counts.items(), _COLOURS, strict=False)
    )
    return Chart(key, title, "rate", frame.instants, series, frame.is_open)


def latency(frame: Frame) -> Chart:
    """How long jobs waited and ran. From milliseconds to hours: on a logarithmic scale."""

    def line(name: str, colour: str, field: str, share: float) -> Series:
        found = frame.values(lambda sample: quantile(getattr(sample, field), share))
        return Series(name, colour, found, dashed=share > 0.5)

    series = (
        line("wait p50", "ready", "wait", 0.5),
        line("wait p95", "ready", "wait", 0.95),
        line("run p50", "leased", "run", 0.5),
        line("run p95", "leased", "run", 0.95),
    )
    return Chart("latency", "Latency", "ms", frame.instants, series, frame.is_open, log=True)


def backlog(frame: Frame) -> Chart:
    """How many jobs waited and ran."""

    def line(state: State, name: str) -> Series:
        at = DEPTH_STATES.index(state)
        found = frame.values(lambda row: row.depth[at] if row.depth else None)
        return Series(name, state.value, found)

    series = (
        line(State.READY, "ready"),
        line(State.LEASED, "running"),
        line(State.DELAYED, "delayed"),
    )
    return Chart("backlog", "Backlog", "jobs", frame.instants, series, frame.is_open)

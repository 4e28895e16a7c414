"""Charts over time: numbers for the script that draws them, a drawing for browsers without scripts,
and a table.
"""

from collections.abc import Callable, Sequence
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
Value = float | None


class Series(Struct, frozen=True):
    """One line."""

    name: str
    colour: str  # the name of a custom property
    values: tuple[Value, ...]
    dashed: bool = False


class Chart(Struct, frozen=True):
    """Lines over the same time range."""

    key: str
    title: str
    unit: str  # "rate", "ms" or "jobs"
    instants: tuple[int, ...]
    series: tuple[Series, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but zeros."""
        return not any(value for line in self.series for value in line.values)

    def numbers(self) -> str:
        """For the script."""
        return msgspec.json.encode(
            {
                "unit": self.unit,
                "at": [instant // 1000 for instant in self.instants],
                "lines": [
                    {
                        "name": line.name,
                        "colour": line.colour,
                        "dashed": line.dashed,
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
        return Markup(  # noqa: S704 - numbers and our own words
            f'<svg class="lines" role="img" aria-label="{self.title}, at most'
            f' {self.spoken(high)}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            f' preserveAspectRatio="none">{"".join(parts)}</svg>'
        )

    def spoken(self, value: Value) -> str:
        """A value with its unit."""
        if value is None:
            return words.NOTHING
        if self.unit == "ms":
            return words.duration(value)
        return f"{words.number(round(value, 1))}{' per minute' if self.unit == 'rate' else ''}"

    def rows(self) -> list[tuple[int, list[str]]]:
        """The newest steps, newest first."""
        count = len(self.instants)
        return [
            (self.instants[at], [self.spoken(line.values[at]) for line in self.series])
            for at in range(count - 1, max(-1, count - 1 - _TABLE_ROWS_MAX), -1)
        ]


def charts(points: Sequence[Point], step_ms: int, now: int) -> list[Chart]:
    """Throughput, latency and depth."""
    instants = tuple(point.at for point in points)
    samples = [point.sample for point in points]
    # The last step is not over: its rate is over the time that has passed.
    lengths = [min(step_ms, max(_RATE_MS_MIN, now - at)) / MINUTE_MS for at in instants]

    def line(name: str, colour: str, value: Callable[[Sample], Value]) -> Series:
        return Series(name, colour, tuple(value(sample) for sample in samples))

    def rate(name: str, colour: str, field: str) -> Series:
        counts = [getattr(sample, field) for sample in samples]
        rates = (round(count / length, 2) for count, length in zip(counts, lengths, strict=True))
        return Series(name, colour, tuple(rates))

    def latency(name: str, colour: str, field: str, share: float) -> Series:
        found = line(name, colour, lambda sample: quantile(getattr(sample, field), share))
        return Series(found.name, colour, found.values, dashed=share > 0.5)

    def depth(state: State) -> Series:
        at = DEPTH_STATES.index(state)
        return line(state.value, state.value, lambda row: row.depth[at] if row.depth else None)

    return [
        Chart(
            "throughput",
            "Jobs per minute",
            "rate",
            instants,
            (
                rate("submitted", "ready", "submitted"),
                rate("completed", "completed", "completed"),
                rate("failed", "failed", "failed"),
            ),
        ),
        Chart(
            "latency",
            "Wait and run",
            "ms",
            instants,
            (
                latency("wait p50", "ready", "wait", 0.5),
                latency("wait p95", "ready", "wait", 0.95),
                latency("run p50", "leased", "run", 0.5),
                latency("run p95", "leased", "run", 0.95),
            ),
        ),
        Chart(
            "depth",
            "Waiting and running jobs",
            "jobs",
            instants,
            tuple(depth(state) for state in (State.READY, State.LEASED, State.DELAYED)),
        ),
    ]

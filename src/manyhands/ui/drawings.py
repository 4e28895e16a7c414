"""Drawings made here: state bars, sparklines, histograms. Plain SVG, coloured by classes."""

from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

from manyhands.model.job import State
from manyhands.ui import words
from manyhands.ui.query import state_word

_SPARK_WIDTH, _SPARK_HEIGHT = 120, 28
_HISTOGRAM_HEIGHT: Final = 96
_BAR_WIDTH: Final = 1_000
# Even a tiny share must be visible.
_SHARE_MIN: Final = 8.0


def state_bar(counts: Mapping[State, int]) -> Markup:
    """The number of jobs in each state as one bar, with a label for screen readers."""
    total = sum(counts.values())
    named = [
        f"{words.number(count)} {state_word(state)}" for state, count in counts.items() if count
    ]
    label = ", ".join(named) or "no jobs"
    parts: list[str] = []
    if total:
        shares = {
            state: max(_SHARE_MIN, count * _BAR_WIDTH / total)
            for state, count in counts.items()
            if count
        }
        scale = _BAR_WIDTH / sum(shares.values())
        at = 0.0
        for state, share in shares.items():
            width = share * scale
            title = f"{words.number(counts[state])} {state_word(state)}"
            parts.append(
                f'<rect class="fill-{state}" x="{at:.1f}" y="0" width="{width:.1f}" height="8">'
                f"<title>{title}</title></rect>"
            )
            at += width
    return Markup(  # noqa: S704 - made of our own words and numbers
        f'<svg class="state-bar" role="img" aria-label="{label}" viewBox="0 0 {_BAR_WIDTH} 8"'
        f' preserveAspectRatio="none">{"".join(parts)}</svg>'
    )


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A small line without axes. Its label says what it shows."""
    high = max(values, default=0.0)
    if not high or len(values) < 2:
        values = (high, high)
    step = _SPARK_WIDTH / (len(values) - 1)
    room = _SPARK_HEIGHT - 3
    points = [
        (index * step, _SPARK_HEIGHT - 1.5 - (value / high * room if high else 0.0))
        for index, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"0,{_SPARK_HEIGHT} {line} {_SPARK_WIDTH},{_SPARK_HEIGHT}"
    return Markup(  # noqa: S704
        f'<svg class="spark" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none">'
        f'<polygon class="spark-area" points="{area}"/>'
        f'<polyline class="spark-line" points="{line}"/></svg>'
    )


def histogram(bars: Sequence[tuple[str, int]], label: str) -> Markup:
    """Bars, some with a label. The table beside them has the numbers."""
    high = max((count for _, count in bars), default=0)
    width = max(1, len(bars)) * 10
    parts: list[str] = []
    for index, (bound, count) in enumerate(bars):
        height = max(2.0, count / high * _HISTOGRAM_HEIGHT) if count else 0.0
        parts.append(
            f'<rect class="bar" x="{index * 10 + 1}" y="{_HISTOGRAM_HEIGHT - height:.1f}" width="8"'
            f' height="{height:.1f}"><title>{escape(bound)}: {words.number(count)}</title></rect>'
        )
    return Markup(  # noqa: S704
        f'<svg class="histogram" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {width} {_HISTOGRAM_HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(parts)}</svg>"
    )

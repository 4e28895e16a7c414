"""Durations on the command line: `90s`, `5m`, `1h`; a bare number counts in seconds."""

from collections.abc import Callable

import typer

from manyhands.config.durations import EXAMPLES, as_duration, read_ms
from manyhands.model import limits

METAVAR = "DURATION"


def seconds(
    least: float = 0.0, most: float = limits.TIME_MS_MAX / 1000
) -> Callable[[str | float], float]:
    """A parser for an option that holds seconds."""

    def read(text: str | float) -> float:
        if isinstance(text, int | float):  # the default
            return float(text)
        ms = read_ms(text)
        if ms is None:
            raise typer.BadParameter(f"{text!r} is not a duration: use {EXAMPLES}.")
        if not least * 1000 <= ms <= most * 1000:
            raise typer.BadParameter(
                f"{text!r} is out of range: use {as_duration(least * 1000)} to "
                f"{as_duration(most * 1000)}."
            )
        return ms / 1000

    return read

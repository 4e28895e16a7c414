"""Numbers on the command line."""

import math

import typer


def finite(value: float | None) -> float | None:
    """Refuses nan, which passes every check of a range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number.")
    return value

"""Durations as people write them: `90s`, `5m`, `1h30m`, `250ms`."""

import re
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
_BARE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LENGTH_MAX: Final = 40
EXAMPLES: Final = "a number with a unit, such as 90s, 5m or 1h30m"


def read_ms(text: str, bare: str = "s") -> float | None:
    """Milliseconds, or None if the text is not a duration. A number without a unit counts in
    ``bare``.
    """
    text = text.strip().lower()
    if len(text) > _LENGTH_MAX:
        return None
    if _BARE.fullmatch(text):
        return float(text) * _UNITS_MS[bare]
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def in_unit(text: str, unit: str) -> float | None:
    """The same as a number of this unit."""
    ms = read_ms(text, unit)
    return None if ms is None else ms / _UNITS_MS[unit]


def as_duration(ms: float) -> str:
    """At most two units: `250ms`, `4.2s`, `3m20s`, `2d4h`. It can be read back."""
    ms = max(0.0, ms)
    if ms < 999.5:
        return f"{ms:.0f}ms"
    if ms < 9_950:
        return f"{ms / 1000:.1f}".removesuffix(".0") + "s"
    left = round(ms / 1000) * 1000
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return "".join(parts)

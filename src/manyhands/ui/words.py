"""Numbers, times and foreign texts as people read them."""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS: Final = (("d", _DAY), ("h", _HOUR), ("m", _MINUTE), ("s", _SECOND))
NAME_LENGTH: Final = 64
_SIGNS_KEPT_MAX: Final = 5_000  # cached characters: a hostile text may have a million
NOTHING: Final = "\N{EN DASH}"  # where there is no value


def duration(ms: float | None) -> str:
    """At most two units: ``340 ms``, ``4.2 s``, ``3 m 20 s``, ``2 d 4 h``."""
    if ms is None:
        return NOTHING
    ms = max(0.0, ms)
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 10 * _SECOND:
        return f"{ms / _SECOND:.1f} s"
    left = int(ms)
    parts: list[str] = []
    for unit, length in _UNITS:
        if left >= length or parts:
            if left // length:
                parts.append(f"{left // length} {unit}")
            left %= length
            if len(parts) == 2 or (parts and not left // _SECOND):
                break
    return " ".join(parts[:2])


def rough(ms: float) -> str:
    """One unit is enough: ``14 m``, ``2 h``."""
    for unit, length in _UNITS:
        if ms >= length:
            return f"{ms / length:.0f} {unit}"
    return duration(ms)


def ago(at: int | None, now: int) -> str:
    """An instant relative to now: how long ago, or in how long."""
    if at is None:
        return NOTHING
    if at > now + _SECOND:
        return f"in {duration(at - now)}"
    if now - at < _SECOND:
        return "now"
    return f"{duration(now - at)} ago"


def instant(at: int | None) -> str:
    """A moment, to the second, in UTC."""
    if at is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):
        return f"{at} ms"


def clock(at: int) -> str:
    """The time of a day, to the millisecond, in UTC."""
    try:
        moment = datetime.fromtimestamp(at / 1000, UTC)
    except (OverflowError, ValueError):
        return f"{at} ms"
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def number(count: float) -> str:
    """Whole, with separators."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def compact(count: float) -> str:
    """Three digits and a unit, where space is short."""
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if count >= least:
            value = count / size
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return number(count)


def size(count: int | None) -> str:
    """Bytes."""
    if count is None:
        return NOTHING
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def visible(text: str, *, lines: bool = False) -> str:
    """A foreign text with nothing hidden: control characters, and marks that change the direction
    or have no width, are shown as symbols. ``lines`` keeps line breaks and tabs.
    """
    if text.isascii() and text.isprintable():
        return text
    signs = _KEEP_LINES if lines else _SIGNS
    if _JOINER not in text:
        return text.translate(signs)
    # Between two pictures the joiner makes one of them, and hides nothing.
    return _JOINER.join(part.translate(signs) for part in _JOINED.split(text))


# Zero-width joiners between pictographs (with a variation selector or a skin tone, or without).
_JOINER: Final = "\u200d"
_PICTURE: Final = "[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_JOINED: Final = re.compile(
    f"(?<={_PICTURE}){_JOINER}(?={_PICTURE})|(?<={_PICTURE}\ufe0f){_JOINER}(?={_PICTURE})"
)


class _Signs(dict[int, int | str]):
    """Symbols by character, computed once for each; a table for ``str.translate``."""

    def __missing__(self, code: int) -> int | str:
        found = _sign(code)
        if len(self) < _SIGNS_KEPT_MAX:
            self[code] = found
        return found


def _sign(code: int) -> int | str:
    if code < 0x20:
        return 0x2400 + code
    if code == 0x7F:
        return "␡"
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"):
        return f"⟨U+{code:04X}⟩"
    return code


_SIGNS: Final = _Signs()
_KEEP_LINES: Final = _Signs({ord("\n"): "\n", ord("\t"): "\t"})


def cut(text: str, length: int = NAME_LENGTH) -> str:
    """The beginning of a text that is too long, and its end, where names often differ."""
    if len(text) <= length:
        return text
    tail = length // 4
    return f"{text[: length - tail - 1]}…{text[-tail:]}"


def shown(text: str, length: int = NAME_LENGTH) -> str:
    """A name for a table: visible and not too long."""
    return cut(visible(cut(text, length * 4)), length)


def decoded(raw: bytes) -> str | None:
    """Bytes as text, if they are text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None

"""The query string of a request, read strictly: a misspelt parameter is refused, never ignored."""

import heapq
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl

from manyhands.web.envelope import Problem

_FIELDS_MAX: Final = 100


def _read(text: str) -> dict[str, str]:
    if "%" in text or "+" in text or text.count("&") >= _FIELDS_MAX:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    else:  # nothing is encoded, so there is nothing to decode
        parts = (part.partition("=") for part in text.split("&") if part)
        pairs = [(key, value) for key, _, value in parts]
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise _bad(f"the parameter {again!r} is given twice")
    return values


class Query:
    """Each parameter is taken once; ``finish`` refuses those that were not taken."""

    def __init__(self, query_string: bytes) -> None:
        try:
            self._values = _read(query_string.decode("ascii"))
        except ValueError:
            raise _bad("the query string cannot be read") from None

    def text(self, name: str) -> str | None:
        """A text, if it is given and not empty."""
        return self._values.pop(name, "") or None

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number between two bounds."""
        raw = self.text(name)
        if raw is None:
            return default
        digits = raw.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise _bad(f"{name} must be a whole number")
        if not low <= int(raw) <= high:
            raise _bad(f"{name} must be between {low} and {high}")
        return int(raw)

    def count(self, default: int, high: int) -> int:
        """How many items are wanted."""
        found = self.whole("count", default, 1, high)
        assert found is not None
        return found

    def flag(self, name: str) -> bool:
        """Yes or no; no, if it is not given."""
        raw = self.text(name)
        if raw not in (None, "true", "false"):
            raise _bad(f"{name} is true or false")
        return raw == "true"

    def seconds(self, name: str, high: float) -> float | None:
        """A duration in seconds."""
        raw = self.text(name)
        if raw is None:
            return None
        try:
            found = float(raw)
        except ValueError:
            found = -1.0
        if not 0.0 <= found <= high:
            raise _bad(f"{name} must be between 0 and {high:g} seconds")
        return found

    def names(self, known: Iterable[str], count_max: int) -> tuple[list[str], str | None]:
        """A page of names in order, and the last of them if more follow."""
        after = self.text("after") or ""
        count = self.count(count_max, count_max)
        found = heapq.nsmallest(count + 1, (name for name in known if name > after))
        return found[:count], found[count - 1] if len(found) > count else None

    def finish(self) -> None:
        """Refuses the parameters that are left."""
        for name in self._values:
            raise _bad(f"there is no parameter {name!r} here")


def _bad(sentence: str) -> Problem:
    return Problem(400, "invalid_query", sentence)

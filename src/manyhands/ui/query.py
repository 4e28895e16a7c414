"""Turns the search field into a filter: words with qualifiers, and free text.

``state:failed queue:"my queue" age>1h needle`` - spaces separate words, quotes keep them together.
A mistake gets a sentence and does not affect the other conditions.
"""

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.filter import CONDITIONS, Condition, Filter, FilterError
from manyhands.model.identity import digits_of, is_job_id
from manyhands.model.job import State
from manyhands.model.policy import DEFAULTS

LENGTH_MAX: Final = 1_000
# Possessive quantifiers (`++`, `*+`) do not backtrack: the time must be proportional to the length
# of the text.
_IN_QUOTES: Final = r'(?:[^"\\]|\\[\s\S])*+'
_QUOTED: Final = re.compile(rf'"({_IN_QUOTES})"')
_CLOSED: Final = re.compile(rf'(?:[^"]|"{_IN_QUOTES}")*+')
_WORD: Final = re.compile(rf'(?:[^\s"]|"{_IN_QUOTES}")++')
_WORD_AFTER_OPEN: Final = re.compile(r'[^\s"]++')
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
# The qualifiers and their conditions.
_CONDITIONS: Final = {
    "state": CONDITIONS["state"],
    "queue": CONDITIONS["queue"],
    "tag": CONDITIONS["tag"],
    "worker": CONDITIONS["worker"],
    "protocol": CONDITIONS["realm"],
    "name": CONDITIONS["name"],
    "task": CONDITIONS["task"],
    "key": CONDITIONS["unique_key"],
    "failure": CONDITIONS["failure"],
}
# The qualifiers and what they mean; the completion of the field shows it.
QUALIFIERS: Final = {
    **{name: condition.hint for name, condition in _CONDITIONS.items()},
    "id": "in any form: digits, a handle, a UUID, a text of your own",
}
# Other names that people use for protocols.
_REALMS: Final = {"qless": "http", "api": "native"}


class Query(Struct, frozen=True):
    """A search."""

    filter: Filter = Filter()
    job_id: str | None = None
    problems: tuple[str, ...] = ()  # a sentence each
    text: str = ""  # as it was written

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, which means everything."""
        return self.filter == Filter() and self.job_id is None and not self.problems


def quoted(value: str) -> str:
    """A value as it must be written after a colon."""
    if value and re.fullmatch(r'[^\s",\\:<>]+', value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_query(text: str, now: int) -> Query:
    """Reads the search field."""
    if len(text) > LENGTH_MAX:
        return Query(problems=(f"A search has at most {LENGTH_MAX} characters.",), text=text)
    reading = _Reading(now)
    words, is_closed = _split(text)
    for word in words:
        reading.take(word)
    if not is_closed:
        reading.problems.append("A quotation mark is not closed.")
    if reading.words:
        reading.set(text=" ".join(reading.words))
    return Query(reading.filter, reading.job_id, tuple(reading.problems), text)


def with_state(text: str, state: State | None) -> str:
    """A search with this state instead of those it named."""
    words = [word for word in _split(text)[0] if not word.startswith("state:")]
    if state is not None:
        words.insert(0, f"state:{state}")
    return " ".join(words)


def _split(text: str) -> tuple[list[str], bool]:
    """The words of a search, and whether every quotation mark is closed. After one that is not, no
    other can be.
    """
    closed = _CLOSED.match(text)
    assert closed is not None
    end = closed.end()
    words = [*_WORD.findall(text[:end]), *_WORD_AFTER_OPEN.findall(text[end:])]
    return words, end == len(text)


class _Reading:
    """One query, word by word."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._seen: set[str] = set()
        self.filter = Filter()
        self.job_id: str | None = None
        self.problems: list[str] = []
        self.words: list[str] = []

    def set(self, **fields: object) -> None:
        self.filter = replace(self.filter, **fields)

    def take(self, word: str) -> None:
        if word.startswith('"'):
            self.words.append(_unquoted(word))
            return
        age = re.match(r"age([<>])(.*)", word)
        if age is not None:
            self._age(age.group(1), age.group(2))
            return
        name, colon, value = word.partition(":")
        if not colon or value.startswith("//") or not re.fullmatch("[a-z_]+", name):
            self.words.append(_unquoted(word))
        elif name == "age":
            self.problems.append("Write age>5m for older than, age<5m for younger than.")
        elif name not in QUALIFIERS:
            known = ", ".join(QUALIFIERS)
            self.problems.append(
                f"There is no qualifier “{name}”: there are {known} and age>."
                f" To look for the text itself, put it in quotation marks."
            )
        elif not value or value == '""':
            self.problems.append(f"Write a value after {name}: {QUALIFIERS[name]}.")
        elif name in self._seen:
            self.problems.append(f"{name}: can only be used once.")
        else:
            self._seen.add(name)
            self._qualify(name, _unquoted(value))

    def _qualify(self, name: str, value: str) -> None:
        if name == "id":
            digits = value.rpartition(":")[2].replace("-", "").lower()
            # Where ids may be any text, a job is found by that text.
            self.job_id = digits if is_job_id(digits) else digits_of(value)
        elif name == "protocol":
            self._protocol(value)
        else:
            self._set(_CONDITIONS[name], value)

    def _set(self, condition: Condition, value: str | float) -> None:
        try:
            self.set(**{condition.field: condition.read(value, self._now)})
        except FilterError as error:
            sentence = str(error)
            self.problems.append(f"{sentence[0].upper()}{sentence[1:]}.")

    def _protocol(self, value: str) -> None:
        realm = _REALMS.get(value.lower(), value.lower())
        if realm not in DEFAULTS:
            known = ", ".join((*DEFAULTS, *_REALMS))
            self.problems.append(f"A protocol is one of {known}; not “{value}”.")
        else:
            self._set(CONDITIONS["realm"], realm)

    def _age(self, sign: str, value: str) -> None:
        found = _AGE.fullmatch(value)
        if found is None:
            self.problems.append(f"An age is a number and a unit, as in age{sign}90s, 5m, 2h, 3d.")
            return
        ms = min(float(found.group(1)) * _UNITS[found.group(2) or "s"], limits.TIME_MS_MAX)
        self._set(CONDITIONS["age_min" if sign == ">" else "age_max"], ms / 1000)


def _unquoted(word: str) -> str:
    """Removes quotes wherever they are; a backslash inside them escapes the next character."""
    return _QUOTED.sub(lambda match: re.sub(r"\\([\s\S])", r"\1", match.group(1)), word)

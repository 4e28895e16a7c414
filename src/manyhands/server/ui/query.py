"""What is written into the search field, as a filter: words with qualifiers, and free text.

``state:failed queue:"my queue" age>1h needle`` - blanks part the words, quotes keep them together.
A mistake is told in a sentence and changes nothing of what else is asked.
"""

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.identity import digits_of, is_job_id
from manyhands.model.job import State
from manyhands.model.policy import DEFAULTS
from manyhands.store.store import Filter

LENGTH_MAX: Final = 1_000
_WORD: Final = re.compile(r'((?:[^\s"]|"(?:[^"\\]|\\.)*")+)')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
# What can stand before a colon, and what it means; the completion of the field shows it.
QUALIFIERS: Final = {
    "state": "one or more, with commas",
    "queue": "the whole name",
    "tag": "the whole tag",
    "worker": "who holds it, or held it",
    "protocol": "that it was submitted over",
    "id": "in any form: digits, a handle, a UUID, a text of your own",
    "name": "a task's name",
    "key": "its unique key",
    "failure": "a group of failures, by its id",
}
# How people call the protocols, beside their own names.
_REALMS: Final = {"qless": "http", "api": "native"}


class Query(Struct, frozen=True):
    """What was asked for."""

    filter: Filter = Filter()
    job_id: str | None = None
    problems: tuple[str, ...] = ()  # a sentence each
    text: str = ""  # as it was written

    @property
    def is_empty(self) -> bool:
        """Nothing was asked for: everything is meant."""
        return self.filter == Filter() and self.job_id is None and not self.problems


def quoted(value: str) -> str:
    """A value as it must be written behind a colon."""
    if value and re.fullmatch(r'[^\s",\\:<>]+', value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_query(text: str, now: int) -> Query:
    """Read what is in the field."""
    if len(text) > LENGTH_MAX:
        return Query(problems=(f"A search has at most {LENGTH_MAX} characters.",), text=text)
    reading = _Reading(now)
    rest = _WORD.sub(reading.take, text)
    if '"' in rest:
        reading.problems.append("A quotation mark is open: it needs a second one.")
    if reading.words:
        reading.set(text=" ".join(reading.words))
    return Query(reading.filter, reading.job_id, tuple(reading.problems), text)


def with_state(text: str, state: State | None) -> str:
    """A search, narrowed to a state instead of those that it named."""
    words = [word for word in _WORD.findall(text) if not word.startswith("state:")]
    if state is not None:
        words.insert(0, f"state:{state}")
    return " ".join(words)


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

    def take(self, match: re.Match[str]) -> str:
        word = match.group(1)
        if word.startswith('"'):
            self.words.append(_unquoted(word))
            return ""
        age = re.match(r"age([<>])(.*)", word)
        if age is not None:
            self._age(age.group(1), age.group(2))
            return ""
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
            self.problems.append(f"Something is to stand behind {name}: {QUALIFIERS[name]}.")
        elif name in self._seen:
            self.problems.append(f"{name}: can be said once.")
        else:
            self._seen.add(name)
            getattr(self, f"_{name}")(_unquoted(value))
        return ""

    def _state(self, value: str) -> None:
        try:
            self.set(states=tuple(dict.fromkeys(State(word) for word in value.split(","))))
        except ValueError:
            self.problems.append(f"A state is one of {', '.join(State)}; not “{value}”.")

    def _queue(self, value: str) -> None:
        self.set(queue=value)

    def _tag(self, value: str) -> None:
        self.set(tag=value)

    def _worker(self, value: str) -> None:
        self.set(worker=value)

    def _name(self, value: str) -> None:
        self.set(name=value)

    def _key(self, value: str) -> None:
        self.set(unique_key=value.encode("utf-8", "replace"))

    def _failure(self, value: str) -> None:
        self.set(failure=value)

    def _protocol(self, value: str) -> None:
        realm = _REALMS.get(value.lower(), value.lower())
        if realm not in DEFAULTS:
            known = ", ".join((*DEFAULTS, *_REALMS))
            self.problems.append(f"A protocol is one of {known}; not “{value}”.")
        else:
            self.set(realm=realm)

    def _id(self, value: str) -> None:
        digits = value.rpartition(":")[2].replace("-", "").lower()
        # Whoever may call a job by any text finds it by that text.
        self.job_id = digits if is_job_id(digits) else digits_of(value)

    def _age(self, sign: str, value: str) -> None:
        found = _AGE.fullmatch(value)
        if found is None:
            self.problems.append(f"An age is a number and a unit, as in age{sign}90s, 5m, 2h, 3d.")
            return
        ms = min(float(found.group(1)) * _UNITS[found.group(2) or "s"], limits.TIME_MS_MAX)
        at = self._now - int(ms)
        if sign == ">":
            self.set(submitted_before=at)
        else:
            self.set(submitted_after=at)


def _unquoted(word: str) -> str:
    """Quotes are taken off wherever they stand; a backslash in them keeps what follows."""
    return _QUOTED.sub(lambda match: re.sub(r"\\(.)", r"\1", match.group(1)), word)

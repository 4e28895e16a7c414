"""Turns the search field into a filter: words with qualifiers, and free text.

``state:failed queue:"my queue" age>1h needle`` - spaces separate words, quotes keep them together.
A mistake gets a sentence and does not affect the other conditions.
"""

import re
from base64 import urlsafe_b64decode
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.config.durations import read_ms
from manyhands.model import limits
from manyhands.model.filter import CONDITIONS, Condition, Filter, FilterError
from manyhands.model.identity import digits_of, is_job_id
from manyhands.model.job import State
from manyhands.model.policy import REALMS

LENGTH_MAX: Final = 1_000
# Possessive quantifiers (`++`, `*+`) do not backtrack: the time must be proportional to the length
# of the text.
_IN_QUOTES: Final = r'(?:[^"\\]|\\[\s\S])*+'
_QUOTED: Final = re.compile(rf'"({_IN_QUOTES})"')
_CLOSED: Final = re.compile(rf'(?:[^"]|"{_IN_QUOTES}")*+')
_WORD: Final = re.compile(rf'(?:[^\s"]|"{_IN_QUOTES}")++')
_WORD_AFTER_OPEN: Final = re.compile(r'[^\s"]++')
# The pages call one state by another word than the engine.
_RUNNING: Final = ("running", State.LEASED.value)
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
    "is": "retrying, or a state",
}
RETRYING: Final = "retrying"
# What is an id even without a qualifier: 32 digits, a UUID, or a Gearman handle.
_BARE_ID: Final = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|H:[^\s\"]+:[0-9a-f]+", re.IGNORECASE
)
# A Taskcluster task's id: a UUID in base64.
_SLUG: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
# Protocols by name, and by their label where that is another word.
_REALMS: Final = {
    **{name: name for name in REALMS},
    **{realm.label.lower(): name for name, realm in REALMS.items() if " " not in realm.label},
}


class Query(Struct, frozen=True):
    """A search."""

    filter: Filter = Filter()
    job_id: str | None = None
    bare: bool = False  # the id had no qualifier: it may be a text as well
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
    job_id = reading.job_id
    if reading.words:
        reading.set(text=" ".join(reading.words))
        if len(words) == 1 and _BARE_ID.fullmatch(words[0]):
            job_id = _digits(words[0])
        elif len(words) == 1 and _SLUG.fullmatch(words[0]):
            job_id = urlsafe_b64decode(f"{words[0]}==").hex()
    bare = job_id is not None and reading.job_id is None
    return Query(reading.filter, job_id, bare, tuple(reading.problems), text)


def written(wanted: Filter) -> str:
    """A filter as it is written into the search field; ages are left out."""
    words: list[str] = []
    for name, condition in _CONDITIONS.items():
        value = getattr(wanted, condition.field)
        if name == "state" and value:
            words.append(f"state:{','.join(map(state_word, value))}")
        elif value is not None and value != ():
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            words.append(f"{name}:{quoted(text)}")
    if wanted.retrying:
        words.append(f"is:{RETRYING}")
    if wanted.text is not None:
        words.append(quoted(wanted.text))
    return " ".join(words)


def state_word(state: str) -> str:
    """A state as the pages write it."""
    return _RUNNING[0] if state == _RUNNING[1] else str(state)


def with_state(text: str, state: str | None) -> str:
    """A search with this state, or retrying, instead of those it named."""
    words = [word for word in _split(text)[0] if not word.startswith(("state:", "is:"))]
    if state is not None:
        words.insert(0, f"is:{state}" if state == RETRYING else f"state:{state_word(state)}")
    return " ".join(words)


def _digits(text: str) -> str:
    """The digits of an id in any of its forms."""
    return text.rpartition(":")[2].replace("-", "").lower()


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
            digits = _digits(value)
            # Where ids may be any text, a job is found by that text.
            self.job_id = digits if is_job_id(digits) else digits_of(value)
        elif name == "protocol":
            self._protocol(value)
        elif name == "is" and value == RETRYING:
            self.set(retrying=True)
        elif name in ("is", "state"):
            words = [_RUNNING[1] if word == _RUNNING[0] else word for word in value.split(",")]
            self._set(CONDITIONS["state"], ",".join(words))
        else:
            self._set(_CONDITIONS[name], value)

    def _set(self, condition: Condition, value: str | float) -> None:
        try:
            self.set(**{condition.field: condition.read(value, self._now)})
        except FilterError as error:
            sentence = str(error).replace(_RUNNING[1], _RUNNING[0])
            self.problems.append(f"{sentence[0].upper()}{sentence[1:]}.")

    def _protocol(self, value: str) -> None:
        realm = _REALMS.get(value.lower())
        if realm is None:
            known = ", ".join(_REALMS)
            self.problems.append(f"A protocol is one of {known}; not “{value}”.")
        else:
            self._set(CONDITIONS["realm"], realm)

    def _age(self, sign: str, value: str) -> None:
        ms = read_ms(value)
        if ms is None:
            self.problems.append(f"An age is a number and a unit, as in age{sign}90s, 5m, 2h, 3d.")
            return
        ms = min(ms, limits.TIME_MS_MAX)
        self._set(CONDITIONS["age_min" if sign == ">" else "age_max"], ms / 1000)


def _unquoted(word: str) -> str:
    """Removes quotes wherever they are; a backslash inside them escapes the next character."""
    return _QUOTED.sub(lambda match: re.sub(r"\\([\s\S])", r"\1", match.group(1)), word)

"""Which jobs a listing shows, an operation changes or a page counts: the filter, and how each of
its conditions is read. What a condition means for a job is in ``store/queries.py``.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.identity import is_job_id
from manyhands.model.job import State
from manyhands.model.roles import Caller

_AGE_SECONDS_MAX: Final = limits.TIME_MS_MAX / 1000


class Order(enum.StrEnum):
    """Order of a listing, by arrival."""

    NEWEST = "newest"
    OLDEST = "oldest"


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs a listing shows. All conditions must hold."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    tag: str | None = None
    worker: str | None = None  # the present holder's name, or that of an earlier attempt
    realm: str | None = None  # the realm that submitted it
    unique_key: bytes | None = None
    name: str | None = None
    header: tuple[str, str] | None = None  # a name and a value
    id_tail: str | None = None  # the last digits of its id
    submitted_before: int | None = None
    submitted_after: int | None = None
    failure: str | None = None  # the id of a group of failures
    failure_code: str | None = None  # the code of the failure that a job ended with
    text: str | None = None  # occurs, as UTF-8, in payload, name or failure, or ends the id
    retrying: bool | None = None  # whether it failed, is unfinished, and so is tried again
    seen_by: Caller | None = None  # only what this caller may look at
    order: Order = Order.NEWEST
    after: int | None = None  # serial of the last job of the page before
    count_max: int = 100
    # Show no more of a payload than this, and no results: enough to tell jobs apart, whatever
    # their size. 0: only how many bytes it has (`stored_bytes`). None: everything.
    payload_bytes: int | None = None


class FilterError(ValueError):
    """A condition that cannot be read. Its text says why."""


def _read_plain(value: Any, _now: int) -> Any:  # noqa: ANN401 - what was given
    return value


def _read_states(value: str | Iterable[State], _now: int) -> tuple[State, ...]:
    words = value.split(",") if isinstance(value, str) else value
    try:
        return tuple(dict.fromkeys(State(word) for word in words))
    except ValueError:
        raise FilterError(f"a state is one of {', '.join(State)}; not “{value}”") from None


def _read_flag(value: Any, _now: int) -> bool:  # noqa: ANN401 - a text or a truth
    found = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    word = str(value).lower()
    if word not in found:
        raise FilterError("retrying is true or false")
    return found[word]


def _read_key(value: str, _now: int) -> bytes:
    return value.encode("utf-8", "replace")


def _read_header(name: str) -> Callable[[str, int], tuple[str, str]]:
    return lambda value, _now: (name, value)


def _read_tail(value: str, _now: int) -> str:
    """The end of an id: what people copy from a list."""
    tail = value.lower()
    if not is_job_id(tail):
        raise FilterError(f"the end of an id has hexadecimal digits; not “{value[:200]}”")
    return tail


def _read_age(value: str | float, now: int) -> int:
    """The instant at which a job of that age was submitted."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _AGE_SECONDS_MAX:
        raise FilterError(f"an age is a number of seconds between 0 and {_AGE_SECONDS_MAX:g}")
    return now - round(seconds * 1000)


class Condition(Struct, frozen=True):
    """A condition as people write it."""

    field: str  # of the filter
    hint: str  # what to write
    read: Callable[[Any, int], Any] = _read_plain  # the value, and the server's time


# By the names that the API, the commands and the pages use.
CONDITIONS: Final = {
    "state": Condition("states", "one or more, separated by commas", _read_states),
    "queue": Condition("queue", "the whole name"),
    "tag": Condition("tag", "the whole tag"),
    "worker": Condition("worker", "the worker that holds or held it"),
    "realm": Condition("realm", "the protocol it was submitted over"),
    "unique_key": Condition("unique_key", "its unique key", _read_key),
    "name": Condition("name", "the whole name"),
    "task": Condition("header", "the task in its headers", _read_header("task")),
    "id_tail": Condition("id_tail", "the last digits of its id", _read_tail),
    "age_min": Condition("submitted_before", "seconds since it was submitted", _read_age),
    "age_max": Condition("submitted_after", "seconds since it was submitted", _read_age),
    "failure": Condition("failure", "a group of failures, by its id"),
    "failure_code": Condition("failure_code", "the code of its failure"),
    "text": Condition(
        "text", "what occurs in the payload, the name or the failure, or ends the id"
    ),
    "retrying": Condition("retrying", "whether it failed and is tried again", _read_flag),
}


def read_filter(given: Mapping[str, Any], now: int) -> Filter:
    """A filter from conditions by their names, as texts or values; None and () are no condition.
    Raises FilterError.
    """
    return Filter(
        **{
            CONDITIONS[name].field: CONDITIONS[name].read(value, now)
            for name, value in given.items()
            if value is not None and value != ()
        }
    )

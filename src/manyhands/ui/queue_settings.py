"""The settings of a queue as fields of a form. An empty field is not set."""

import re
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.model.commands import SetQueue
from manyhands.model.policy import DEFAULTS, Backoff, OnExpiry, Queue, QueuePolicy, Rate
from manyhands.ui.visit import Form
from manyhands.ui.words import duration

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)
_RATE: Final = re.compile(r"(\d+)\s*(?:per|/|in)\s*(.+)", re.IGNORECASE | re.ASCII)
_NUMBER_MAX: Final = 1 << 53


class Field(Struct, frozen=True):
    """One setting."""

    name: str
    label: str
    hint: str
    kind: str  # "count", "duration", "rate", "factor" or "choice"
    choices: tuple[str, ...] = ()
    usual: str = ""  # what holds for jobs of the native API if nothing is set
    inside: str = ""  # its path in a policy of the API, where that is not the name

    @property
    def path(self) -> str:
        """Where the API has it in a queue's policy."""
        return self.inside or self.name


_BACKOFF: Final = DEFAULTS["native"].backoff
# By what they are about; a job's own setting comes first, then these, then those of its protocol.
GROUPS: Final = (
    (
        "Retries",
        (
            Field(
                "attempts_max",
                "Attempts",
                "before a job fails for good; -1: unlimited",
                "count",
                usual=str(DEFAULTS["native"].attempts_max),
            ),
            Field(
                "backoff_first",
                "First retry after",
                "then longer each time",
                "duration",
                usual=duration(_BACKOFF.first_ms),
                inside="backoff.first_ms",
            ),
            Field(
                "backoff_factor",
                "Backoff factor",
                "",
                "factor",
                usual=f"{_BACKOFF.factor:g}",
                inside="backoff.factor",
            ),
            Field(
                "backoff_max",
                "Longest delay before a retry",
                "",
                "duration",
                usual=duration(_BACKOFF.ms_max),
                inside="backoff.ms_max",
            ),
        ),
    ),
    (
        "Leases",
        (
            Field(
                "lease_ms",
                "Lease",
                "how long a silent worker keeps a job",
                "duration",
                usual="60 s",
            ),
            Field(
                "attempt_ms_max",
                "Longest attempt",
                "even if the worker keeps renewing",
                "duration",
                usual="no limit",
            ),
            Field(
                "grace_ms",
                "Grace",
                "a job with an expired lease is withheld from others for that long",
                "duration",
            ),
            Field(
                "on_expiry",
                "An expired lease",
                "is revoked at once, or lapses until another worker claims the job",
                "choice",
                tuple(OnExpiry),
            ),
        ),
    ),
    (
        "Flow",
        (
            Field(
                "concurrency_max",
                "Concurrency",
                "maximum number of running jobs",
                "count",
                usual="no limit",
            ),
            Field("rate", "Rate", "claims per period, as 100 per 1 m", "rate", usual="no limit"),
            Field(
                "jobs_max",
                "Unfinished jobs",
                "a submit above this is refused",
                "count",
                usual="no limit",
            ),
        ),
    ),
    (
        "Retention",
        (
            Field("record_ms", "Keep finished jobs for", "", "duration"),
            Field("records_max", "Keep finished jobs", "maximum number of each outcome", "count"),
        ),
    ),
)
FIELDS: Final = tuple(field for _, fields in GROUPS for field in fields)


def shown_policy(policy: QueuePolicy) -> dict[str, str]:
    """The settings as a user would type them."""
    backoff, rate = policy.backoff, policy.rate
    values: dict[str, Any] = {
        "rate": None if rate is None else f"{rate.count} per {_typed(rate.per_ms)}",
        "backoff_first": None if backoff is None else backoff.first_ms,
        "backoff_factor": None if backoff is None else f"{backoff.factor:g}",
        "backoff_max": None if backoff is None else backoff.ms_max,
    }
    found = {}
    for field in FIELDS:
        value = values[field.name] if field.name in values else getattr(policy, field.name)
        if field.kind == "duration":
            found[field.name] = _typed(value) if value else ""
        else:
            found[field.name] = "" if value is None else str(value)
    return found


def read_policy(form: Form, queue: Queue, problems: dict[str, str]) -> SetQueue | None:
    """The command that applies the form, or None; then ``problems`` says what is wrong with it."""
    read: dict[str, Any] = {}
    for field in FIELDS:
        text = form.text(field.name)
        try:
            read[field.name] = _READERS[field.kind](text, field) if text else None
        except ValueError as error:
            problems[field.name] = str(error)
    if problems:
        return None
    first, factor, last = (read.pop(f"backoff_{part}") for part in ("first", "factor", "max"))
    usual = queue.policy.backoff or Backoff()
    backoff = None
    if not first == factor == last == None:  # noqa: E711 - all three at once
        backoff = replace(
            usual,
            first_ms=usual.first_ms if first is None else first,
            factor=usual.factor if factor is None else factor,
            ms_max=usual.ms_max if last is None else last,
        )
    read["grace_ms"] = read["grace_ms"] or 0
    forced = form.text("lease_forced") == "yes"
    if forced and read["lease_ms"] is None:
        problems["lease_ms"] = "A lease that binds every claim needs a length."
        return None
    changes = {**read, "backoff": backoff, "lease_forced": forced}
    policy = QueuePolicy(**changes)
    return SetQueue(queue=queue.name, policy=policy, fields=tuple(changes), only_known=True)


def read_duration(text: str) -> int:
    """Milliseconds. Raises ValueError with a sentence."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError("A duration is a number with a unit: 500 ms, 90 s, 5 m, 2 h, 7 d.")
    ms = float(found[1]) * _UNITS[found[2] or "s"]
    if ms > _NUMBER_MAX:
        raise ValueError("That is too long.")
    return int(ms)


def _count(text: str, field: Field) -> int:
    digits = text.removeprefix("-") if field.name == "attempts_max" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ValueError("This must be a whole number.")
    return int(text)


def _rate(text: str, _field: Field) -> Rate:
    found = _RATE.fullmatch(text)
    if found is None or len(found[1]) > 15:
        raise ValueError("A rate is a number and a time: 100 per 1 m.")
    per_ms = read_duration(found[2])
    return Rate(int(found[1]), per_ms)


def _factor(text: str, _field: Field) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("This must be a number.") from None


def _choice(text: str, field: Field) -> OnExpiry:
    if text not in field.choices:
        raise ValueError(f"This is one of {', '.join(field.choices)}.")
    return OnExpiry(text)


def _typed(ms: int) -> str:
    """A duration as a user would type it: in the largest unit that is exact."""
    for unit in ("d", "h", "m", "s"):
        if ms % _UNITS[unit] == 0:
            return f"{ms // _UNITS[unit]} {unit}"
    return f"{ms} ms"


_READERS: Final[dict[str, Any]] = {
    "count": _count,
    "duration": lambda text, _field: read_duration(text),
    "rate": _rate,
    "factor": _factor,
    "choice": _choice,
}

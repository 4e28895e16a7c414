"""Options of tasks and of single submits, and what the server is sent for them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from msgspec import Struct

if TYPE_CHECKING:
    from manyhands.client.handle import Handle

Duration = float | int | timedelta  # seconds, or a timedelta
OnDuplicate = Literal["attach", "replace", "refuse"]
OnDependencyFailure = Literal["cancel", "fail", "hold", "run"]
Unique = bool | str | tuple[str, ...] | Callable[..., object]

# The worker cuts a task off at its timeout; the server does so this much later, as a net (P61).
CANCEL_GRACE_SECONDS: Final = 10.0
TASK_HEADER: Final = "task"
TIMEOUT_HEADER: Final = "timeout"
OWN_HEADERS: Final = frozenset({TASK_HEADER, TIMEOUT_HEADER, "outputs"})


class Backoff(Struct, frozen=True):
    """Pauses between retries, in seconds: the first one, multiplied each time, at most ``longest``.
    ``jitter`` is the share that may be taken away, so that many jobs do not retry at once.
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0
    jitter: float = 0.2


class Cron(Struct, frozen=True):
    """Times by a cron expression, in a time zone."""

    expression: str
    timezone: str = "UTC"


class Every(Struct, frozen=True):
    """Times at equal distances."""

    seconds: float


Schedule = Cron | Every


def cron(expression: str, timezone: str = "UTC") -> Cron:
    """A schedule by a cron expression of five fields, in a time zone such as Europe/Berlin."""
    if len(expression.split()) not in (5, 6):
        raise ValueError(f"{expression!r} is no cron expression: minute hour day month weekday")
    return Cron(expression, timezone)


def every(interval: Duration) -> Every:
    """A schedule at equal distances."""
    found = seconds(interval, "every")
    if found <= 0:
        raise ValueError("an interval is longer than 0")
    return Every(found)


class RawOptions(TypedDict, total=False):
    """P11: options of every submit."""

    priority: float
    delay: Duration
    run_at: datetime
    deadline: datetime
    retries: int
    backoff: Backoff
    timeout: Duration
    lease: Duration
    on_duplicate: OnDuplicate
    limits: Sequence[str]
    tags: Sequence[str]
    depends_on: "Sequence[Handle[Any] | str]"
    on_dependency_failure: OnDependencyFailure
    result_ttl: Duration
    key: str
    headers: Mapping[str, str]


class Options(RawOptions, total=False):
    """P11: options of ``task`` and of ``using``."""

    queue: str
    unique: Unique


class TaskOptions(Options, total=False):
    """P11: options of ``task`` alone, and the others."""

    name: str
    default: bool
    raw: bool
    remote: bool
    strict: bool
    result: bool
    give_up_on: tuple[type[BaseException], ...]
    schedule: Schedule
    concurrency: int
    rate: str


RAW_OPTION_NAMES: Final = RawOptions.__optional_keys__
OPTION_NAMES: Final = Options.__optional_keys__
TASK_OPTION_NAMES: Final = TaskOptions.__optional_keys__


def check_names(given: Mapping[str, Any], allowed: frozenset[str], where: str) -> None:
    """Raises TypeError for a misspelt option, where no type checker did."""
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise TypeError(
            f"{where} has no option {unknown[0]!r}; it has {', '.join(sorted(allowed))}"
        )


def seconds(duration: Duration, name: str) -> float:
    """A duration in seconds."""
    found: object = duration
    if isinstance(duration, timedelta):
        found = duration.total_seconds()
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e11:
        raise ValueError(f"{name} is seconds or a timedelta, not {duration!r}")
    return float(found)


def _milliseconds(duration: Duration, name: str) -> int:
    found = seconds(duration, name)
    return max(1, round(found * 1000)) if found else 0


def _instant(instant: object, name: str) -> int:
    """P11: milliseconds since 1970."""
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise ValueError(f"{name} is a datetime with a time zone, not {instant!r}")
    return round(instant.timestamp() * 1000)


def wire_options(options: Mapping[str, Any], *, result: bool = True) -> dict[str, Any]:
    """What the server is sent for options; those that depend on arguments are left out.

    Only what was set is sent: the rest stays with the queue's policy and the server's defaults
    (P12).
    """
    sent: dict[str, Any] = {"on_existing": "keep"}
    for name, value in options.items():
        convert = _CONVERSIONS.get(name)
        if convert is not None:
            key, converted = convert(value)
            sent[key] = converted
    if "timeout" in options:
        net = seconds(options["timeout"], "timeout") + CANCEL_GRACE_SECONDS
        sent["attempt_ms_max"] = round(net * 1000)
    if not result:
        sent["result_ms"] = 0
    return sent


def _attempts(retries: object) -> tuple[str, int]:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is 0 or more, not {retries!r}")
    return "attempts_max", retries + 1


def _priority(priority: object) -> tuple[str, float]:
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise ValueError(f"priority is a number, not {priority!r}")  # noqa: TRY004 - as the others
    return "priority", float(priority)


def _backoff(backoff: object) -> tuple[str, dict[str, Any]]:
    if not isinstance(backoff, Backoff):
        raise TypeError(f"backoff is a Backoff(first=…, factor=…), not {backoff!r}")
    return "backoff", {
        "first_ms": _milliseconds(backoff.first, "first"),
        "factor": backoff.factor,
        "ms_max": _milliseconds(backoff.longest, "longest"),
        "jitter": backoff.jitter,
    }


def _names(name: str) -> Callable[[Sequence[str]], tuple[str, list[str]]]:
    def convert(names: Sequence[str]) -> tuple[str, list[str]]:
        if isinstance(names, str):
            raise TypeError(f"{name} is several names, such as ({names!r},)")
        return name, list(names)

    return convert


_CONVERSIONS: Final[dict[str, Callable[[Any], tuple[str, Any]]]] = {
    "priority": _priority,
    "delay": lambda value: ("delay_ms", _milliseconds(value, "delay")),
    "run_at": lambda value: ("run_at", _instant(value, "run_at")),
    "deadline": lambda value: ("deadline_at", _instant(value, "deadline")),
    "retries": _attempts,
    "backoff": _backoff,
    "lease": lambda value: ("lease_ms", _milliseconds(value, "lease")),
    "on_duplicate": lambda value: ("on_duplicate", value),
    "limits": _names("limits"),
    "tags": _names("tags"),
    "on_dependency_failure": lambda value: ("on_dependency_failure", value),
    "result_ttl": lambda value: ("result_ms", _milliseconds(value, "result_ttl")),
}


def own_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """A user's headers."""
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"headers are texts: {name!r} is not, or its value")
        if name in OWN_HEADERS:
            raise ValueError(f"the header {name!r} is set by the client itself")
    return dict(headers)

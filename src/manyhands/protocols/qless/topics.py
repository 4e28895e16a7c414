"""Events as watchers of this API see them: a word, a dotted key to choose by, and what happened.

The key is ``<word>.<protocol>.<id>.<queue>``. The queue comes last because its own dots make it
several words, which patterns may look into.
"""

from typing import Any, Final

from manyhands.model.events import Event, Signal
from manyhands.model.job import State
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless.identifiers import shown_id
from manyhands.protocols.qless.refusals import STATES

_PATTERNS_MAX: Final = 50
_PATTERN_BYTES_MAX: Final = 1024
_WORDS: Final[dict[State, str]] = {
    State.BLOCKED: "blocked",
    State.DELAYED: "scheduled",
    State.READY: "waiting",
    State.LEASED: "pending",
    State.COMPLETED: "complete",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
LOCK_LOST: Final = "lock_lost"
Pattern = tuple[str, ...]


def word_of(event: Event) -> str:
    """What happened, in one word."""
    if event.state is State.READY and event.reason == "lapsed":
        return "stalled"
    return _WORDS[event.state]


def key_of(word: str, realm: str, job_id: str, queue: str) -> str:
    """What patterns are held against."""
    return f"{word}.{realm}.{job_id}.{queue}"


def shown(event: Event) -> dict[str, Any]:
    """The data of an event."""
    holder = event.holder
    return {
        "event": word_of(event),
        "id": event.job_id,
        "queue": event.queue,
        "state": STATES[event.state],
        "reason": event.reason or None,
        "host": None if holder is None else holder.name or holder.address,
        "attempt": event.attempts_used + (event.state is State.LEASED),
        "protocol": event.origin.realm,
        "when": event.at / 1000,
    }


def shown_loss(signal: Signal) -> dict[str, Any]:
    """The data of a notice to a worker that its lock is gone, or is about to be."""
    lease = signal.lease
    assert lease is not None
    return {
        "event": LOCK_LOST,
        "id": shown_id(signal.job),
        "queue": signal.job.queue,
        "host": lease.holder.name or lease.holder.address,
    }


def read_patterns(text: str | None) -> tuple[Pattern, ...]:
    """Patterns with commas between them; none at all means everything."""
    if text is None:
        return ()
    if len(text) > _PATTERN_BYTES_MAX or text.count(",") >= _PATTERNS_MAX:
        raise Problem(400, "invalid_query", "there are too many patterns")
    return tuple(tuple(pattern.split(".")) for pattern in text.split(","))


def is_wanted(key: str, patterns: tuple[Pattern, ...]) -> bool:
    """Whether one of the patterns fits, or there are none."""
    if not patterns:
        return True
    words = key.split(".")
    return any(fits(pattern, words) for pattern in patterns)


def fits(pattern: Pattern, words: list[str]) -> bool:
    """As in AMQP topics: ``*`` is one word, ``#`` is any number of them, also none."""
    reached = {0}  # how many words the pattern so far may have used up
    for part in pattern:
        if part == "#":
            reached = set(range(min(reached), len(words) + 1)) if reached else reached
        else:
            reached = {at + 1 for at in reached if at < len(words) and part in ("*", words[at])}
    return len(words) in reached

"""Events as watchers of this API see them: a word, a dotted key to filter by, and the data.

The key is ``<word>.<protocol>.<id>.<queue>``. The queue comes last because its own dots make it
several words, which patterns may match.
"""

from typing import Any, Final

from manyhands.model.events import Event, Signal
from manyhands.model.job import State
from manyhands.model.reasons import Reason, in_words
from manyhands.protocols.qless.identifiers import shown_id
from manyhands.protocols.qless.refusals import STATES
from manyhands.protocols.topic_patterns import Pattern
from manyhands.web.envelope import Problem

# Each pattern is matched against every event: 50 patterns of 131 words, the most a key can have
# whose queue consists of dots, keep that within microseconds.
_PATTERNS_COUNT_MAX: Final = 50
_PATTERNS_LENGTH_MAX: Final = 1024
_PATTERN_WORDS_COUNT_MAX: Final = 131
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


def word_of(event: Event) -> str:
    """The event in one word."""
    if event.state is State.READY and event.reason is Reason.LAPSED:
        return "stalled"
    return _WORDS[event.state]


def key_of(word: str, realm: str, job_id: str, queue: str) -> list[str]:
    """The words that patterns are matched against."""
    return f"{word}.{realm}.{job_id}.{queue}".split(".")


def shown(event: Event) -> dict[str, Any]:
    """The data of an event."""
    holder = event.holder
    return {
        "event": word_of(event),
        "id": event.job_id,
        "queue": event.queue,
        "state": STATES[event.state],
        "reason": in_words(event.reason, event.detail) or None,
        "host": None if holder is None else holder.name or holder.address,
        "attempt": event.attempts_used + (event.state is State.LEASED),
        "protocol": event.origin.realm,
        "when": event.at / 1000,
    }


def shown_loss(signal: Signal) -> dict[str, Any]:
    """The data of a notice that a worker's lock is gone or about to expire."""
    lease = signal.lease
    assert lease is not None
    return {
        "event": LOCK_LOST,
        "id": shown_id(signal.job),
        "queue": signal.job.queue,
        "host": lease.holder.name or lease.holder.address,
    }


def read_patterns(text: str | None) -> tuple[Pattern, ...]:
    """Comma-separated patterns; none at all means everything."""
    if text is None:
        return ()
    if len(text) > _PATTERNS_LENGTH_MAX:
        raise _bad(f"topics may have at most {_PATTERNS_LENGTH_MAX} characters")
    found = text.split(",")
    if len(found) > _PATTERNS_COUNT_MAX:
        raise _bad(f"topics may have at most {_PATTERNS_COUNT_MAX} patterns")
    if any(pattern.count(".") >= _PATTERN_WORDS_COUNT_MAX for pattern in found):
        raise _bad(f"a pattern of topics may have at most {_PATTERN_WORDS_COUNT_MAX} words")
    return tuple(Pattern(pattern) for pattern in found)


def is_wanted(key: list[str], patterns: tuple[Pattern, ...]) -> bool:
    """Whether one of the patterns matches, or there are none."""
    return not patterns or any(pattern.matches(key) for pattern in patterns)


def _bad(sentence: str) -> Problem:
    return Problem(400, "invalid_query", sentence)

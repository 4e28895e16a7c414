"""The log as it grows: the latest changes of state, chosen by a pattern of topics."""

from collections.abc import Callable
from typing import Any, Final

from manyhands.model.events import Event
from manyhands.model.job import State
from manyhands.model.policy import REALMS
from manyhands.protocols.topic_patterns import Pattern
from manyhands.store.contract import StoredEvent
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit

_ROWS: Final = 100
_CHUNK: Final = 500
# Events read for one page; a pattern that matches few continues on the next page.
_LOOKED_AT_MAX: Final = 5_000
_PATTERN_LENGTH_MAX: Final = 500


class Events(Page):
    """The latest events."""

    name = "events"
    title = "Events"

    async def show(self, visit: Visit) -> Shown:
        text = visit.text("topic")
        problem = problem_of(text)
        if problem:
            visit.problems["topic"] = problem
        log = self.sources.dispatcher.events
        last = log.last_seq
        before = visit.whole("before")
        start = last + 1 if before is None else min(before, last + 1)
        rows: list[StoredEvent] = []
        reached = start
        if not problem:
            may_use = visit.exchange.caller.may_use
            rows, reached = self._find(start, Pattern(text) if text else None, may_use)
        first = self.sources.store.first_seq()
        values = {
            "rows": [_row(row) for row in rows],
            "topic_text": text,
            "last": last,
            "first": first,
            "looked_back_to": reached,
            "newest": url("events", topic=text) if before is not None else None,
            "older": url("events", topic=text, before=reached) if reached > first else None,
        }
        return Shown("events.html", values, self.title, "any" if before is None else "")

    def _find(
        self, start: int, pattern: Pattern | None, may_use: Callable[[str], bool]
    ) -> tuple[list[StoredEvent], int]:
        """The matching events, newest first, and how far back they were read."""
        log = self.sources.dispatcher.events
        found: list[StoredEvent] = []
        reached = start
        while reached > 1 and start - reached < _LOOKED_AT_MAX:
            chunk = log.before(reached, _ROWS if pattern is None else _CHUNK)
            if not chunk:
                break
            for row in reversed(chunk):
                reached = row.seq
                if not may_use(row.event.queue):
                    continue
                if pattern is None or pattern.matches(key_of(row.event)):
                    found.append(row)
                    if len(found) == _ROWS:
                        return found, reached
        return found, reached


def key_of(event: Event) -> list[str]:
    """The key that patterns are matched with: state, protocol, id, and the queue, split at its
    dots.
    """
    return [event.state.value, event.origin.realm, event.job_id, *event.queue.split(".")]


def problem_of(text: str) -> str:
    """What is wrong with a pattern, in a sentence; empty if nothing is."""
    if not text:
        return ""
    if len(text) > _PATTERN_LENGTH_MAX:
        return f"A pattern has at most {_PATTERN_LENGTH_MAX} characters."
    words = text.split(".")
    if words[0] not in ("*", "#", *State):
        return f"A pattern begins with a state ({', '.join(State)}), * or #."
    if words[0] != "#" and len(words) > 1 and words[1] not in ("*", "#", *REALMS):
        return f"The second word is a protocol ({', '.join(REALMS)}), * or #."
    if "#" not in words and len(words) < 4:
        return "A pattern has at least four words, unless it ends in #, as failed.# does."
    return ""


def _row(row: StoredEvent) -> dict[str, Any]:
    event = row.event
    return {
        "seq": row.seq,
        "at": event.at,
        "state": event.state,
        "job_id": event.job_id,
        "queue": event.queue,
        "left_queue": event.left_queue,
        "realm": event.origin.realm,
        "holder": event.holder,
        "reason": event.detail or event.reason.replace("_", " "),
        "lasted_ms": event.lasted_ms,
        "attempt": event.attempts_used + (event.state is State.LEASED),
    }

"""Replies go back along the routes of their requests, and those of a route keep their order."""

from collections import deque
from collections.abc import Callable

from manyhands.model.outcome import Refusal
from manyhands.protocols.dwork.hub import Hub, Route
from manyhands.protocols.dwork.words import ANSWERS
from manyhands.wire.dwork import BARE, Kind, Query, encode


class Turn:
    """A request's place among those of its route, and its reply once that is known."""

    __slots__ = ("body", "line", "route", "turns", "undelivered")

    def __init__(self, turns: "Turns", route: Route, line: "deque[Turn]") -> None:
        self.turns = turns
        self.route = route
        self.line = line
        self.body: bytes | None = None
        self.undelivered: Callable[[], None] | None = None

    def answer(self, body: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """Reply, now or behind the replies that are owed before it."""
        self.body = body
        self.undelivered = undelivered
        self.turns.settle(self.line)

    def say(self, kind: Kind) -> None:
        """A reply without anything in it."""
        self.answer(BARE[kind])

    def refuse(self, sentence: str) -> None:
        """What was wrong; nothing was changed (D4)."""
        self.turns.errors_count += 1
        self.answer(encode(Query(kind=Kind.ERROR, reason=sentence)))

    def tell(self, refusal: Refusal) -> None:
        """A refusal in the protocol's words."""
        kind = ANSWERS[refusal.why]
        if kind is Kind.ERROR:
            self.refuse(refusal.sentence)
        elif kind is Kind.NOT_FOUND:
            self.answer(encode(Query(kind=kind, reason=refusal.sentence)))
        else:
            self.say(kind)

    def finish(self) -> None:
        """What was asked is on disk. A server that is about to stop says so instead (D6)."""
        self.say(Kind.EXIT if self.turns.hub.draining else Kind.OK)


class Turns:
    """Requests without a reply, by route."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.awaited_count = 0
        self.errors_count = 0
        self._lines: dict[Route, deque[Turn]] = {}

    def last(self, route: Route) -> Turn | None:
        """The latest request of a route that is still without a reply."""
        line = self._lines.get(route)
        return line[-1] if line is not None else None

    def take(self, route: Route) -> Turn:
        """A request arrived."""
        line = self._lines.get(route)
        if line is None:
            line = self._lines[route] = deque()
        turn = Turn(self, route, line)
        line.append(turn)
        self.awaited_count += 1
        return turn

    def settle(self, line: deque[Turn]) -> None:
        """Send what is known, up to the first reply that is not."""
        send = self.hub.send
        while line:
            first = line[0]
            if first.body is None:
                return
            line.popleft()
            self.awaited_count -= 1
            if not line:
                del self._lines[first.route]
            send(first.route, first.body, first.undelivered)

"""Replies go back along the routes of their requests, and those of a route keep their order."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from manyhands.model.outcome import Refusal
from manyhands.protocols.dwork.hub import Hub, Route
from manyhands.protocols.dwork.words import ANSWERS
from manyhands.wire.dwork import BARE, Kind, Query, encode

_OK: Final = BARE[Kind.OK]
_EXIT: Final = BARE[Kind.EXIT]


class Turn(Struct, eq=False, gc=False):
    """A request's place among those of its route, and its reply once that is known."""

    turns: "Turns"
    route: Route
    is_first: bool = True  # no reply is owed before it
    follower: "Turn | None" = None
    body: bytes | None = None
    undelivered: Callable[[], None] | None = None

    def answer(self, body: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """Reply, now or behind the replies that are owed before it."""
        if self.is_first and self.follower is None:  # as nearly always
            turns, route = self.turns, self.route
            del turns.latest[route]
            turns.awaited_count -= 1
            turns.hub.send_alone(route, body, undelivered)
            return
        self.body = body
        self.undelivered = undelivered
        if self.is_first:
            self.turns.settle(self)

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
        self.answer(_EXIT if self.turns.hub.draining else _OK)


class Turns:
    """Requests without a reply, by route."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.awaited_count = 0
        self.errors_count = 0
        self.latest: dict[Route, Turn] = {}  # of each route that is owed a reply

    def take(self, route: Route) -> Turn:
        """A request arrived."""
        turn = Turn(self, route)
        latest = self.latest
        before = latest.get(route)
        if before is not None:
            before.follower = turn
            turn.is_first = False
        latest[route] = turn
        self.awaited_count += 1
        return turn

    def settle(self, turn: Turn) -> None:
        """Send what is known, up to the first reply that is not."""
        first: Turn | None = turn
        while first is not None and first.body is not None:
            follower = first.follower
            if follower is None:
                del self.latest[first.route]
            self.awaited_count -= 1
            self.hub.send(first.route, first.body, first.undelivered)
            first = follower
        if first is not None:
            first.is_first = True

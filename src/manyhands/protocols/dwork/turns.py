"""Sends replies along the routes of their requests, in the order of each route."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from manyhands.model.replies import Refusal
from manyhands.protocols.dwork.codec import BARE, Kind, Query, encode
from manyhands.protocols.dwork.hub import Hub, Route
from manyhands.protocols.dwork.words import ANSWERS

_OK: Final = BARE[Kind.OK]
_EXIT: Final = BARE[Kind.EXIT]


class Turn(Struct, eq=False, gc=False):
    """A request's place among those of its route, and its reply once known."""

    turns: "Turns"
    route: Route
    is_first: bool = True  # no earlier reply is pending
    follower: "Turn | None" = None
    body: bytes | None = None
    undelivered: Callable[[], None] | None = None

    def answer(self, body: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """Replies, now or behind the earlier pending replies."""
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
        """Sends a reply without content."""
        self.answer(BARE[kind])

    def refuse(self, sentence: str) -> None:
        """Replies with what was wrong; nothing was changed (D4)."""
        self.turns.errors_count += 1
        self.answer(encode(Query(kind=Kind.ERROR, reason=sentence)))

    def refuse_by(self, refusal: Refusal) -> None:
        """Replies with a refusal in the protocol's words."""
        kind = ANSWERS[refusal.why]
        if kind is Kind.ERROR:
            self.refuse(refusal.sentence)
        else:
            # An Exit with a reason means that the server stops, not that all is finished.
            self.answer(encode(Query(kind=kind, reason=refusal.sentence)))

    def finish(self) -> None:
        """Replies once the request is on disk. A server that is about to stop says so
        instead (D6).
        """
        self.answer(_EXIT if self.turns.hub.draining else _OK)


class Turns:
    """Pending requests by route."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.awaited_count = 0
        self.errors_count = 0
        self.latest: dict[Route, Turn] = {}  # of each route with a pending reply

    def take(self, route: Route) -> Turn:
        """Adds a request that has arrived."""
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
        """Sends the known replies, up to the first pending one."""
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

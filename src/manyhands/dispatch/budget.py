"""What the server holds in memory, by kind, and which connections wait when it is too much.

Connections ask before they read more, once per few hundred kilobytes. While there is room they may;
otherwise they wait and continue in turns, a piece at a time. Peers that send little are not slowed
down by those that send much.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from manyhands.loggers import get_logger
from manyhands.model import limits
from manyhands.store.contract import Store

_log = get_logger("manyhands.budget")

# What a connection may send before it asks again: a little more than one read from a socket.
GRANT_BYTES: Final = 256 * 1024
# A peer that asks no more often than this sends little, and need not wait for those that send much.
_UNHURRIED_SECONDS: Final = 1.0
# Nor if it holds less than this of an incomplete message, which will be complete soon.
_HALF_BYTES_SMALL: Final = 64 * 1024
# The one peer that may continue although there is no room has this long to send its next piece.
_FAVOUR_SECONDS: Final = 5.0
# Shares of the budget. The rest is for copies that exist briefly while a message is read, a batch
# is packed or an answer is made.
_TRAFFIC_PART: Final = 4  # a fourth: messages that are not whole, and answers that nobody reads
_JOBS_PART: Final = 2  # half: jobs that are not finished


class Peer(Protocol):
    """A connection, as the budget sees it."""

    held_bytes: int  # of a message that is not whole, as it was last noted here
    granted_at: float  # when it was last let

    def go_on(self, count: int) -> None:
        """It may send this many more bytes."""

    def unread_bytes(self) -> int:
        """Bytes that were written and that the peer has not read."""

    def give_up(self, reason: str) -> None:
        """Closes the connection: there is no room for what it makes the server hold."""


class Budget:
    """The memory budget of the server."""

    def __init__(self, bytes_max: int, store: Store, time: Callable[[], float]) -> None:
        self.bytes_max = bytes_max
        self.backlog_max = min(limits.BACKLOG_BYTES_MAX, bytes_max // _TRAFFIC_PART)
        self.traffic_max = bytes_max // _TRAFFIC_PART
        self.jobs_max = bytes_max // _JOBS_PART
        self.half_bytes = 0  # of messages that are not whole
        self._store = store
        self._backlog_bytes = store.backlog_bytes
        self._time = time
        self._waiting: dict[Peer, None] = {}  # in the order in which they go on
        self._behind: dict[Peer, None] = {}  # those that do not take their answers
        self._answerers: deque[asyncio.Future[None]] = deque()  # who waits to make a large answer
        self._favoured: Peer | None = None
        self._favoured_at = 0.0
        self._favour_bytes = 0

    # Reading.

    def may_read(self, peer: Peer) -> bool:
        """Whether a connection may send its next piece. If not, its ``go_on`` is called in its
        turn.
        """
        now = self._time()
        if self._has_room(peer, now):
            peer.granted_at = now
            return True
        self._waiting[peer] = None
        return False

    def _has_room(self, peer: Peer, now: float) -> bool:
        backlog = self._backlog_bytes()
        unhurried = now - peer.granted_at >= _UNHURRIED_SECONDS
        if self._waiting and not unhurried and peer is not self._favoured:
            return False  # others were first
        if backlog >= self.backlog_max and not (unhurried and backlog < 2 * self.backlog_max):
            return False
        if self.traffic_bytes() < self.traffic_max:
            return True
        if unhurried and peer.held_bytes < _HALF_BYTES_SMALL:
            return True
        if self._favoured is None:
            self._favour(peer)
        return peer is self._favoured and self._uses_favour(now)

    def _favour(self, peer: Peer) -> None:
        """If incomplete messages alone fill the budget, none could ever finish: lets one of them
        continue, then the next.
        """
        self._favoured = peer
        self._favour_bytes = limits.PAYLOAD_BYTES_MAX

    def _uses_favour(self, now: float) -> bool:
        if self._favour_bytes <= 0:
            self._favoured = None
            return False
        self._favour_bytes -= GRANT_BYTES
        self._favoured_at = now
        return True

    def note_held(self, peer: Peer, count: int) -> None:
        """Notes how much of an incomplete message has arrived."""
        is_less = count < peer.held_bytes
        self.half_bytes += count - peer.held_bytes
        peer.held_bytes = count
        if is_less:
            if peer is self._favoured:
                self._favoured = None
            self.relieve()

    def relieve(self) -> None:
        """Memory was freed: waiting connections may continue, as far as there is room."""
        while self._answerers and self.has_room_for_answer():
            waiter = self._answerers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break  # there is less room for the next when this one has made its answer
        if not self._waiting:
            return
        now = self._time()
        backlog_room = self.backlog_max - self._backlog_bytes()
        traffic_room = self.traffic_max - self.traffic_bytes()
        room = min(backlog_room, traffic_room)
        while room > 0 and self._waiting:
            self._let_go_on(next(iter(self._waiting)), now)
            room -= GRANT_BYTES
        if self._waiting and traffic_room <= 0 < backlog_room:
            self._pass_favour_on(now)

    def _pass_favour_on(self, now: float) -> None:
        favoured = self._favoured
        if favoured is not None and now - self._favoured_at > _FAVOUR_SECONDS:
            self._favoured = None
            if self.traffic_bytes() > 2 * self.traffic_max:
                favoured.give_up("it does not send the rest of a message, and memory is short")
            favoured = None
        if favoured is None:
            favoured = next(iter(self._waiting), None)
            if favoured is None:
                return
            self._favour(favoured)
        if favoured in self._waiting and self._uses_favour(now):
            self._let_go_on(favoured, now)

    def _let_go_on(self, peer: Peer, now: float) -> None:
        del self._waiting[peer]
        peer.granted_at = now
        peer.go_on(GRANT_BYTES)

    # Answers.

    def note_behind(self, peer: Peer) -> None:
        """The peer does not read its answers."""
        self._behind[peer] = None

    def note_caught_up(self, peer: Peer) -> None:
        """The peer has read most of them."""
        self._behind.pop(peer, None)
        self.relieve()

    def unread_bytes(self) -> int:
        """Bytes of answers that their peers have not read."""
        return sum(peer.unread_bytes() for peer in self._behind)

    def traffic_bytes(self) -> int:
        """What is held because of peers: incomplete messages and unread answers."""
        return self.half_bytes + (self.unread_bytes() if self._behind else 0)

    def held_bytes(self) -> dict[str, int]:
        """Everything that counts, by kind."""
        return {
            **self._store.held_bytes(),
            "messages": self.half_bytes,
            "answers": self.unread_bytes(),
        }

    @property
    def waiting_count(self) -> int:
        """Connections that are not read from until there is room."""
        return len(self._waiting)

    def has_room_for_answer(self) -> bool:
        """Whether a large answer may be made."""
        return not self._behind or self.unread_bytes() < self.traffic_max

    async def room_for_answer(self) -> None:
        """Waits until a large answer may be made; they are made one after the other."""
        while not self.has_room_for_answer():
            waiter = asyncio.get_running_loop().create_future()
            self._answerers.append(waiter)
            await waiter

    def forget(self, peer: Peer) -> None:
        """The connection is gone, and so is what was held for it."""
        self._waiting.pop(peer, None)
        self._behind.pop(peer, None)
        self.half_bytes -= peer.held_bytes
        peer.held_bytes = 0
        if peer is self._favoured:
            self._favoured = None
        self.relieve()

    # Once a second.

    def look(self) -> None:
        """Disconnects peers with far more unread answers than there is room for, the largest first,
        and makes sure that no connection waits for ever.
        """
        while self._behind and self.unread_bytes() > 2 * self.traffic_max:
            most = max(self._behind, key=lambda peer: peer.unread_bytes())
            del self._behind[most]
            most.give_up("it does not read its answers, and memory is short")
        self.relieve()

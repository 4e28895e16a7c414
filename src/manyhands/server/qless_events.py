"""``GET /events``: the log as server-sent events. Each watcher reads at its own pace.

What a watcher has not taken stays in the log and nowhere else, so a slow one costs a page of events
and the socket's buffer. Notices to workers that lost their lock are not in the log: they are sent
without a number, to those who watch at the time.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from manyhands.model.events import Signal
from manyhands.protocols.http_envelope import Problem, encode
from manyhands.protocols.qless import topics
from manyhands.server.api_query import Query
from manyhands.server.http_exchange import Exchange, HungUpError
from manyhands.server.naps import Naps
from manyhands.server.qless_moves import OwnMoves
from manyhands.store.store import StoredEvent

if TYPE_CHECKING:
    from manyhands.server.app import Server

_WATCHERS_MAX: Final = 1_000
_PAGE: Final = 200
_NOTICES_MAX: Final = 1_000
# Often enough that proxies keep the connection and that a dead peer is found out.
_PULSE_SECONDS: Final = 15.0
_SEQ_MAX: Final = 1 << 62
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class QlessEvents:
    """Everybody who watches."""

    def __init__(self, server: "Server", naps: Naps, own_moves: OwnMoves) -> None:
        self._server = server
        self._log = server.dispatcher.events
        self._naps = naps
        self._own_moves = own_moves
        self._notices: dict[Exchange, deque[bytes]] = {}
        self._patterns: dict[Exchange, tuple[topics.Pattern, ...]] = {}
        server.dispatcher.on_told.append(self._tell)

    async def watch(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """Until the watcher leaves, or the server stops."""
        query = Query(exchange.scope["query_string"])
        patterns = topics.read_patterns(query.text("topics"))
        after = self._start(exchange, query)
        if exchange.method == "HEAD":
            await exchange.send_bytes(200, _HEADERS, b"")
            return
        if len(self._notices) >= _WATCHERS_MAX:
            raise Problem(503, "unavailable", "too many watch already")
        self._notices[exchange] = deque(maxlen=_NOTICES_MAX)
        self._patterns[exchange] = patterns
        try:
            await exchange.begin_stream(200, _HEADERS)
            await exchange.send_piece(b"retry: 1000\n\n")
            await self._follow(exchange, after, patterns)
        except HungUpError:
            pass
        finally:
            del self._notices[exchange], self._patterns[exchange]

    def _start(self, exchange: Exchange, query: Query) -> int:
        """The last event that the watcher knows; without one, the newest there is."""
        raw = exchange.headers.get(b"last-event-id")
        if raw is None:
            after = query.whole("after", None, 0, _SEQ_MAX)
            return self._log.last_seq if after is None else after
        if not raw.isdigit() or len(raw) > 18:
            raise Problem(400, "invalid_query", "Last-Event-ID must be the id of an event")
        return int(raw)

    async def _follow(
        self, exchange: Exchange, after: int, patterns: tuple[topics.Pattern, ...]
    ) -> None:
        first = self._server.store.first_seq()
        if after + 1 < first:
            gap = encode({"event": "gap", "from": after + 1, "to": first - 1})
            await exchange.send_piece(b"event: gap\ndata: %s\n\n" % gap)
            after = first - 1
        notices = self._notices[exchange]
        while not self._naps.over:
            with self._naps.nap(exchange.connection) as nap:
                self._log.watch(nap.end)
                try:
                    found = self._log.after(after, _PAGE)
                    if not found and not notices and not await nap.sleep(_PULSE_SECONDS):
                        await exchange.send_piece(b": still here\n\n")
                        continue
                finally:
                    self._log.unwatch(nap.end)
            pieces = list(notices)
            notices.clear()
            pieces += _render(found, patterns)
            if pieces:
                await exchange.send_piece(b"".join(pieces))
            elif found:
                await asyncio.sleep(0)  # a long way to go, and nothing on it for this watcher
            if found:
                after = found[-1].seq
        await exchange.end_stream()

    def _tell(self, signal: Signal) -> None:
        """A worker lost its lock by somebody else's word."""
        lease = signal.lease
        if lease is None or self._own_moves.covers(lease) or not self._notices:
            return
        job = signal.job
        key = topics.key_of(topics.LOCK_LOST, lease.holder.realm, job.job_id, job.queue)
        piece = b"event: lock_lost\ndata: %s\n\n" % encode(topics.shown_loss(signal))
        for exchange, notices in self._notices.items():
            if topics.is_wanted(key, self._patterns[exchange]):
                notices.append(piece)


def _render(found: Sequence[StoredEvent], patterns: tuple[topics.Pattern, ...]) -> list[bytes]:
    pieces: list[bytes] = []
    for row in found:
        event = row.event
        word = topics.word_of(event)
        key = topics.key_of(word, event.origin.realm, event.job_id, event.queue)
        if topics.is_wanted(key, patterns):
            data = encode(topics.shown(event))
            pieces.append(b"id: %d\nevent: %s\ndata: %s\n\n" % (row.seq, word.encode(), data))
    return pieces

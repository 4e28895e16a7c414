"""``GET /events``: the log as server-sent events. Each watcher reads at its own pace.

Events a watcher has not read stay in the log and nowhere else, so a slow watcher costs a page of
events and the socket's buffer. Watchers of the same page share its rendering. Notices to workers
that lost their lock are not in the log: they are sent without a number, to whatever watchers are
connected.
"""

import asyncio
from collections import deque
from typing import Final

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.events import EventLog
from manyhands.dispatch.past import Past
from manyhands.model.events import Signal
from manyhands.protocols.qless import topics
from manyhands.protocols.qless.moves import OwnMoves
from manyhands.protocols.topic_patterns import Pattern
from manyhands.store.contract import StoredEvent
from manyhands.web.envelope import Problem, encode
from manyhands.web.exchange import Exchange, HungUpError
from manyhands.web.naps import Naps
from manyhands.web.query import Query

_WATCHERS_MAX: Final = 1_000
_PAGE: Final = 200
_PAGES_KEPT_MAX: Final = 20  # some megabytes
_NOTICES_MAX: Final = 1_000
# Often enough for proxies to keep the connection open and for dead peers to be noticed.
_PULSE_SECONDS: Final = 15.0
_SEQ_MAX: Final = 1 << 62
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class QlessEvents:
    """All watchers."""

    def __init__(self, dispatcher: Dispatcher, past: Past, naps: Naps, own_moves: OwnMoves) -> None:
        self._dispatcher = dispatcher
        self._log = dispatcher.events
        self._naps = naps
        self._own_moves = own_moves
        self._pages = _Pages(self._log, past)
        self._notices: dict[Exchange, deque[bytes]] = {}
        self._patterns: dict[Exchange, tuple[Pattern, ...]] = {}
        dispatcher.on_notice.append(self._notify)

    async def watch(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """Serves one watcher until it leaves or the server stops."""
        query = Query(exchange.query_string)
        patterns = topics.read_patterns(query.text("topics"))
        after = self._start(exchange, query)
        if exchange.method == "HEAD":
            await exchange.send_bytes(200, _HEADERS, b"")
            return
        if len(self._notices) >= _WATCHERS_MAX:
            raise Problem(503, "unavailable", "there are too many watchers already")
        self._notices[exchange] = deque(maxlen=_NOTICES_MAX)
        self._patterns[exchange] = patterns
        try:
            exchange.connection.is_endless = True
            await exchange.begin_stream(200, _HEADERS)
            await exchange.send_piece(b"retry: 1000\n\n")
            await self._follow(exchange, after, patterns)
        finally:
            del self._notices[exchange], self._patterns[exchange]

    def _start(self, exchange: Exchange, query: Query) -> int:
        """The number of the last event the watcher knows; by default, the newest."""
        raw = exchange.headers.get(b"last-event-id")
        if raw is None:
            after = query.whole("after", None, 0, _SEQ_MAX)
            return self._log.last_seq if after is None else after
        if not raw.isdigit() or len(raw) > 18:
            raise Problem(400, "invalid_query", "Last-Event-ID must be the id of an event")
        return int(raw)

    async def _follow(self, exchange: Exchange, after: int, patterns: tuple[Pattern, ...]) -> None:
        first = self._dispatcher.store.first_seq()
        if after + 1 < first:
            gap = encode({"event": "gap", "from": after + 1, "to": first - 1})
            await exchange.send_piece(b"event: gap\ndata: %s\n\n" % gap)
            after = first - 1
        notices = self._notices[exchange]
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while not self._naps.over:
            if after >= self._log.last_seq and not notices:
                await self._wait_for_news(exchange, after)
            pieces = list(notices)
            notices.clear()
            if exchange.connection.is_gone:
                raise HungUpError
            if after < self._log.last_seq:
                found, after = await self._pages.find(exchange, after, patterns)
                pieces += found
            if pieces:
                await exchange.send_piece(b"".join(pieces))
                sent_at = loop.time()
            elif loop.time() - sent_at >= _PULSE_SECONDS:
                await exchange.send_piece(b": still here\n\n")
                sent_at = loop.time()
        await exchange.end_stream()

    async def _wait_for_news(self, exchange: Exchange, after: int) -> None:
        with self._naps.nap(exchange.connection) as nap:
            self._log.watch(nap.end)
            try:
                if after >= self._log.last_seq:
                    await nap.sleep(_PULSE_SECONDS)
            finally:
                self._log.unwatch(nap.end)

    def _notify(self, signal: Signal) -> None:
        """Sends the notice that a worker lost its lock through another party."""
        lease = signal.lease
        if lease is None or self._own_moves.covers(lease) or not self._notices:
            return
        job = signal.job
        key = topics.key_of(topics.LOCK_LOST, lease.holder.realm, job.job_id, job.queue)
        piece = b"event: lock_lost\ndata: %s\n\n" % encode(topics.shown_loss(signal))
        for exchange, notices in self._notices.items():
            seen = exchange.caller.may_use(job.queue)
            if seen and topics.is_wanted(key, self._patterns[exchange]):
                notices.append(piece)


class _Row:
    """One event and its renderings."""

    __slots__ = ("_piece", "event", "key", "seq", "word")

    def __init__(self, stored: StoredEvent) -> None:
        self.seq = stored.seq
        self.event = event = stored.event
        self.word = topics.word_of(event)
        self.key = topics.key_of(self.word, event.origin.realm, event.job_id, event.queue)
        self._piece = b""

    def piece(self) -> bytes:
        """The event as sent."""
        if not self._piece:
            data = encode(topics.shown(self.event))
            self._piece = b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.word.encode(), data)
        return self._piece


class _Pages:
    """The log in pages with common bounds; the last few are cached."""

    def __init__(self, log: EventLog, past: Past) -> None:
        self._log = log
        self._past = past
        self._kept: dict[tuple[int, int], list[_Row]] = {}

    async def find(
        self, exchange: Exchange, after: int, patterns: tuple[Pattern, ...]
    ) -> tuple[list[bytes], int]:
        """The rows of the next page that a watcher wants, and the number of its last event. There
        must be a next page.
        """
        end = after - after % _PAGE + _PAGE
        if end >= self._log.last_seq and self._log.is_recent(after):
            # Like most watchers it has caught up, so nothing needs to be read.
            return await self._choose(exchange, after, self._log.last_seq, patterns)
        async with self._past.turn():
            if exchange.connection.is_gone:
                raise HungUpError
            return await self._choose(exchange, after, min(end, self._log.last_seq), patterns)

    async def _choose(
        self, exchange: Exchange, after: int, end: int, patterns: tuple[Pattern, ...]
    ) -> tuple[list[bytes], int]:
        rows = await self._page(after, end)
        may_use = exchange.caller.may_use
        found = [
            row.piece()
            for row in rows
            if may_use(row.event.queue) and topics.is_wanted(row.key, patterns)
        ]
        return found, rows[-1].seq if rows else end  # no rows: they were pruned meanwhile

    async def _page(self, after: int, end: int) -> list[_Row]:
        kept = self._kept.get((after, end))
        if kept is not None:
            return kept
        rows = [_Row(stored) for stored in await self._past.read(after, end - after)]
        if len(self._kept) >= _PAGES_KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept[after, end] = rows
        return rows

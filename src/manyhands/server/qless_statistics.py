"""``GET /stats/<queue>``: what the log tells about how long jobs waited and ran.

The log is read when somebody asks, from the day that they ask for or from where the last one
stopped: nobody else pays for it.
"""

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless.paths import queue_name
from manyhands.protocols.qless.statistics import DAY_MS, Statistics
from manyhands.server.api_query import Query
from manyhands.server.http_exchange import Exchange
from manyhands.server.qless_pages import QlessPages

if TYPE_CHECKING:
    from manyhands.server.app import Server

_SLICE: Final = 200
_EPOCH: Final = date(1970, 1, 1)


class QlessStatistics:
    """Figures as far as the log was read."""

    def __init__(self, server: "Server", pages: QlessPages) -> None:
        self._server = server
        self._log = server.dispatcher.events
        self._pages = pages
        self._figures = Statistics()
        self._first_day: int | None = None  # the figures begin there
        self._seq = 0
        self._reading = asyncio.Lock()

    async def show(self, exchange: Exchange, rest: list[bytes]) -> None:
        """One queue on one day, today if none is named."""
        queue = queue_name(rest[0])
        text = Query(exchange.scope["query_string"]).text("date")
        today = self._server.clock.now() // DAY_MS
        if text is None:
            day = today
        else:
            try:
                day = (date.fromisoformat(text) - _EPOCH).days
            except ValueError:
                raise Problem(400, "invalid_query", "date is YYYY-MM-DD, in UTC") from None
        await self._read_on(day)
        self._figures.forget_before(today - self._server.config.retention_days - 1)
        shown = self._figures.day(queue, day).shown()
        named = (_EPOCH + timedelta(day)).isoformat()
        await self._pages.answer(exchange, {"queue": queue, "date": named, **shown})

    async def _read_on(self, day: int) -> None:
        async with self._reading:
            if self._first_day is None or day < self._first_day:
                # Whatever came later has to be read, too: it may have mended failures of that day.
                self._figures = Statistics()
                self._first_day = day
                self._seq = self._last_before(day * DAY_MS)
            while True:
                found = self._log.after(self._seq, _SLICE)
                for row in found:
                    self._figures.fold(row.event)
                if not found:
                    return
                self._seq = found[-1].seq
                await asyncio.sleep(0)

    def _last_before(self, instant: int) -> int:
        """The number of the last event before an instant, found by halving: events are in order."""
        low, high = self._server.store.first_seq() - 1, self._log.last_seq
        while low < high:
            middle = (low + high + 1) // 2
            found = self._log.after(middle - 1, 1)
            if found and found[0].event.at < instant:
                low = middle
            else:
                high = middle - 1
        return low

"""``GET /stats/<queue>``: how long jobs waited and ran, from the event log.

The log is read on request, from the requested day or from where the last request stopped, so only
those requests pay for it.
"""

import asyncio
from datetime import date, timedelta
from typing import Final

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.protocols.qless.paths import queue_name
from manyhands.protocols.qless.queries import QlessPages
from manyhands.protocols.qless.statistics import DAY_MS, Statistics
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange
from manyhands.web.query import Query

_SLICE: Final = 200
_EPOCH: Final = date(1970, 1, 1)


class QlessStatistics:
    """The figures, as far as the log was read."""

    def __init__(self, dispatcher: Dispatcher, retention_days: int, pages: QlessPages) -> None:
        self._dispatcher = dispatcher
        self._retention_days = retention_days
        self._log = dispatcher.events
        self._pages = pages
        self._figures = Statistics()
        self._first_day: int | None = None  # where the figures begin
        self._seq = 0
        self._reading = asyncio.Lock()

    async def show(self, exchange: Exchange, rest: list[bytes]) -> None:
        """One queue on one day, by default today."""
        queue = queue_name(rest[0])
        if not exchange.caller.may_use(queue):
            raise Problem(404, "not_found", f"there is no queue {queue!r}")
        text = Query(exchange.query_string).text("date")
        today = self._dispatcher.clock.now() // DAY_MS
        if text is None:
            day = today
        else:
            try:
                day = (date.fromisoformat(text) - _EPOCH).days
            except ValueError:
                raise Problem(400, "invalid_query", "date is YYYY-MM-DD, in UTC") from None
        await self._read_on(day)
        self._figures.forget_before(today - self._retention_days - 1)
        shown = self._figures.day(queue, day).shown()
        named = (_EPOCH + timedelta(day)).isoformat()
        await self._pages.answer(exchange, {"queue": queue, "date": named, **shown})

    async def _read_on(self, day: int) -> None:
        async with self._reading:
            if self._first_day is None or day < self._first_day:
                # Later events must be read, too: they may have ended failures of that day.
                self._figures = Statistics()
                self._first_day = day
                self._seq = self._last_before(day * DAY_MS)
            while True:
                found = self._log.after(self._seq, _SLICE)
                self._figures.fold(row.event for row in found)
                if not found:
                    return
                self._seq = found[-1].seq
                await asyncio.sleep(0)

    def _last_before(self, instant: int) -> int:
        """The number of the last event before an instant, by binary search: events are in order."""
        low, high = self._dispatcher.store.first_seq() - 1, self._log.last_seq
        while low < high:
            middle = (low + high + 1) // 2
            found = self._log.after(middle - 1, 1)
            if found and found[0].event.at < instant:
                low = middle
            else:
                high = middle - 1
        return low

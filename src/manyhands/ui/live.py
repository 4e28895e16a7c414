"""Change notices for open pages: that something changed, never what.

The page then fetches what it shows. A notice leaves at most once a second, so that an open page
costs the same whether ten jobs or ten thousand change in that second.
"""

from collections.abc import Callable
from typing import Final

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.roles import Caller
from manyhands.ui.visit import Visit
from manyhands.web.envelope import Problem
from manyhands.web.exchange import HungUpError
from manyhands.web.naps import Naps

_WATCHERS_MAX: Final = 200
_PULSE_SECONDS: Final = 15.0
_APART_SECONDS: Final = 1.0
# Events read for one notice; if there were more, the page is taken to be affected.
_LOOKED_AT_MAX: Final = 5_000
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
# Whether something on the page has changed since the last look.
_Look = Callable[[], bool]


class Live:
    """All open pages."""

    def __init__(self, dispatcher: Dispatcher, naps: Naps) -> None:
        self._log = dispatcher.events
        self._live = dispatcher.store.live
        self._naps = naps
        self._watchers = 0

    async def watch(self, visit: Visit) -> None:
        """Sends notices until the page is closed or the server stops."""
        look, by_log = self._look(visit.text("topic") or "any", visit.exchange.caller)
        if self._watchers >= _WATCHERS_MAX:
            raise Problem(503, "unavailable", "too many pages are open")
        exchange = visit.exchange
        self._watchers += 1
        try:
            await exchange.begin_stream(200, _HEADERS)
            await exchange.send_piece(b"retry: 2000\n\nevent: hello\ndata: {}\n\n")
            while await self._rest(visit, _APART_SECONDS):
                if look():
                    await exchange.send_piece(b"event: change\ndata: {}\n\n")
                elif by_log and not await self._rest(visit, _PULSE_SECONDS, until_news=True):
                    break
                else:
                    await exchange.send_piece(b": still here\n\n")
            await exchange.end_stream()
        finally:
            self._watchers -= 1

    async def _rest(self, visit: Visit, seconds: float, *, until_news: bool = False) -> bool:
        """Waits before the next look; False when the server stops."""
        connection = visit.exchange.connection
        with self._naps.nap(connection) as nap:
            if until_news:
                self._log.watch(nap.end)
            try:
                if not self._naps.over:
                    await nap.sleep(seconds)
            finally:
                self._log.unwatch(nap.end)
        if connection.is_gone:
            raise HungUpError
        return not self._naps.over

    def _look(self, topic: str, caller: Caller) -> tuple[_Look, bool]:
        """How to detect changes of a topic, and whether the event log alone shows them."""
        kind, _, name = topic.partition(":")
        if kind == "queue":
            return _QueuesLook(self, lambda queue: queue == name and caller.may_use(queue)), True
        if kind == "job":
            return _JobLook(self, name, caller), False
        return _QueuesLook(self, caller.may_use) if caller.queues else _AnyLook(self), True

    def seen(self) -> int:
        """Notes where the log ends now."""
        return self._log.last_seq

    def concerns(self, wanted: Callable[[str], bool], after: int) -> bool:
        """Whether the new events concern such a queue."""
        found = self._log.after(after, _LOOKED_AT_MAX)
        if len(found) == _LOOKED_AT_MAX:
            return True
        return any(
            wanted(queue) for row in found for queue in (row.event.queue, row.event.left_queue)
        )

    def job(self, job_id: str, caller: Caller) -> object:
        """The value of a live job, which differs after every change, progress included."""
        job = self._live.live_job(job_id)
        return job if job is not None and caller.may_use(job.queue) else None


class _AnyLook:
    """Anything at all."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._seq = live.seen()

    def __call__(self) -> bool:
        before, self._seq = self._seq, self._live.seen()
        return self._seq != before


class _QueuesLook:
    """Some queues."""

    def __init__(self, live: Live, wanted: Callable[[str], bool]) -> None:
        self._live = live
        self._wanted = wanted
        self._seq = live.seen()

    def __call__(self) -> bool:
        before, self._seq = self._seq, self._live.seen()
        return self._seq != before and self._live.concerns(self._wanted, before)


class _JobLook:
    """One job."""

    def __init__(self, live: Live, job_id: str, caller: Caller) -> None:
        self._live = live
        self._job_id = job_id
        self._caller = caller
        self._last = live.job(job_id, caller)

    def __call__(self) -> bool:
        before, self._last = self._last, self._live.job(self._job_id, self._caller)
        return self._last is not before

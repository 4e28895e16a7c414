"""What fails, grouped by what went wrong: how often, since when, where, and what to do about it."""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from manyhands.model.job import State
from manyhands.protocols.http_envelope import Problem
from manyhands.server.ui import listing
from manyhands.server.ui.page import Page, Shown, url
from manyhands.server.ui.visit import Visit
from manyhands.store.store import FailureQuestion, Failures, Filter

if TYPE_CHECKING:
    from manyhands.server.app import Server

_GROUPS: Final = 50
_SAMPLES: Final = 20
_ORDERS: Final = ("count", "latest")
# Counting a million failures takes longer than a page may: it is shown as it was a moment ago.
# What takes so long is counted again after so many times that, or after so long at the latest.
_REST: Final = 20
_FRESH_MS: Final = 3_000
_STALE_MS: Final = 30_000
_PATIENCE_SECONDS: Final = 0.25
_KEPT_MAX: Final = 50


class _Kept(NamedTuple):
    """What was found, when, and for how long nobody counts again."""

    at: int
    fresh_ms: float
    found: Failures


class FailuresPage(Page):
    """The groups, and one group."""

    name = "failures"
    title = "Failures"

    def __init__(self, server: "Server") -> None:
        super().__init__(server)
        self._kept: dict[FailureQuestion, _Kept] = {}
        self._reading: dict[FailureQuestion, asyncio.Task[Failures]] = {}

    async def show(self, visit: Visit) -> Shown:
        if visit.rest and visit.rest[0]:
            return await self._group(visit, visit.rest[0])
        order = visit.chosen("order", _ORDERS)
        queue = visit.raw("queue") or None
        wanted = FailureQuestion(
            now=0, queue=queue, latest_first=order == "latest", count_max=_GROUPS
        )
        found = await self._ask(visit, wanted)
        failed = sum(known.counts[State.FAILED] for known in self.index.queues.values())
        values = {
            "found": found,
            "failed": failed,
            "order": order,
            "orders": _ORDERS,
            "queue": queue or "",
            "queues": sorted(
                name for name, known in self.index.queues.items() if known.counts[State.FAILED]
            )[:500],
        }
        return Shown("failures.html", values, self.title)

    async def _group(self, visit: Visit, group_id: str) -> Shown:
        found = await self._ask(visit, FailureQuestion(now=0, group_id=group_id, count_max=1))
        if not found.groups:
            raise Problem(404, "unknown_group", "no failed job on record belongs to this group")
        wanted = Filter(failure=group_id, count_max=_SAMPLES)
        page = await listing.find(self.server, wanted)
        row = found.groups[0]
        values = {
            "row": row,
            "q": f"failure:{group_id}",
            "rows": [listing.row(job, visit.now) for job in page.jobs],
            "sample": page.jobs[0] if page.jobs else None,
            "more": url("jobs", q=f"failure:{group_id}") if page.next is not None else None,
            "hours": [
                (f"{23 - hour} h ago" if hour < 23 else "this hour", count)
                for hour, count in enumerate(row.trend)
            ],
        }
        return Shown("failure.html", values, "Failures")

    async def _ask(self, visit: Visit, wanted: FailureQuestion) -> Failures:
        """As it is, or as it was some seconds ago; whoever comes first waits for it."""
        now = visit.now
        kept = self._kept.get(wanted)
        if kept is not None and now - kept.at < kept.fresh_ms:
            return kept.found
        reading = self._reading.get(wanted)
        if reading is None:
            reading = asyncio.create_task(self._read(wanted, now))
            self._reading[wanted] = reading
        if kept is not None and now - kept.at < _STALE_MS:
            await asyncio.wait([reading], timeout=_PATIENCE_SECONDS)
            if not reading.done():
                return kept.found
        return await asyncio.shield(reading)

    async def _read(self, wanted: FailureQuestion, now: int) -> Failures:
        clock = self.server.clock
        began_ms = clock.monotonic_ms()
        try:
            found = await asyncio.to_thread(self.server.store.failures, replace(wanted, now=now))
        finally:
            del self._reading[wanted]
        fresh_ms = min(_FRESH_MS, _REST * (clock.monotonic_ms() - began_ms))
        while len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(wanted, None)
        self._kept[wanted] = _Kept(now, fresh_ms, found)
        return found

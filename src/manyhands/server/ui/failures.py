"""What fails, grouped by what went wrong: how often, since when, where, and what to do about it."""

import asyncio
from typing import TYPE_CHECKING, Final

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
_FRESH_MS: Final = 3_000
_STALE_MS: Final = 30_000
_KEPT_MAX: Final = 50


class FailuresPage(Page):
    """The groups, and one group."""

    name = "failures"
    title = "Failures"

    def __init__(self, server: "Server") -> None:
        super().__init__(server)
        self._kept: dict[FailureQuestion, tuple[int, Failures]] = {}
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
        """As it was at most some seconds ago; whoever comes first waits for it."""
        now = visit.now
        kept = self._kept.get(wanted)
        age = now - kept[0] if kept is not None else _STALE_MS
        if kept is not None and age < _FRESH_MS:
            return kept[1]
        reading = self._reading.get(wanted)
        if reading is None:
            reading = asyncio.create_task(self._read(wanted, now))
            self._reading[wanted] = reading
        if kept is not None and age < _STALE_MS:
            return kept[1]
        return await asyncio.shield(reading)

    async def _read(self, wanted: FailureQuestion, now: int) -> Failures:
        try:
            found = await asyncio.to_thread(self.server.store.failures, replace(wanted, now=now))
        finally:
            del self._reading[wanted]
        while len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(wanted, None)
        self._kept[wanted] = (now, found)
        return found

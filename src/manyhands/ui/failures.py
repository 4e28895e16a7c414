"""Jobs that failed or are being retried, grouped by what went wrong: how often, since when, where,
and actions on them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from manyhands.model.filter import Filter
from manyhands.model.job import Job, State
from manyhands.model.traces import own_frame
from manyhands.store.contract import FailureQuestion, Failures
from manyhands.ui import listings
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.query import quoted
from manyhands.ui.visit import Visit
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

_GROUPS: Final = 50
_SAMPLES: Final = 20
_ORDERS: Final = ("count", "latest")
# Counting a million failures takes longer than a page may, so a recent result is shown. It is
# counted again after this multiple of the time it took, or after this long at the latest.
_REST: Final = 20
_FRESH_MS: Final = 3_000
_STALE_MS: Final = 30_000
_PATIENCE_SECONDS: Final = 0.25
_KEPT_MAX: Final = 50


class _Kept(NamedTuple):
    """A result, when it was found, and for how long it is kept."""

    at: int
    fresh_ms: float
    found: Failures


class FailuresPage(Page):
    """The groups, and one group."""

    name = "failures"
    title = "Failures"

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
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
        values = {
            "found": found,
            "order": order,
            "orders": _ORDERS,
            "queue": queue or "",
            "queues": sorted(
                name
                for name, known in self.live.queues.items()
                if known.counts[State.FAILED] or any(self.live.retrying_counts(name).values())
            )[:500],
        }
        return Shown("failures.html", values, self.title)

    async def _group(self, visit: Visit, group_id: str) -> Shown:
        queue = visit.raw("queue") or None
        wanted = FailureQuestion(now=0, group_id=group_id, queue=queue, count_max=1)
        found = await self._ask(visit, wanted)
        if not found.groups:
            raise Problem(404, "unknown_group", "no job on record belongs to this group")
        row = found.groups[0]
        page = await listings.find(
            self.sources.store, Filter(failure=group_id, queue=queue, count_max=_SAMPLES)
        )
        again = self._retried(row.job_ids, queue) if row.retrying else []
        sample = (*again, *page.jobs)[0] if again or page.jobs else None
        q = f"failure:{group_id}" + (f" queue:{quoted(queue)}" if queue else "")
        values = {
            "row": row,
            "queue": queue or "",
            "rows": [listings.row(job, visit.now) for job in page.jobs],
            "again": [listings.row(job, visit.now) for job in again],
            "sample": sample,
            "frame": "" if sample is None else _frame(sample),
            "more": url("jobs", q=q) if page.next is not None else None,
            "hours": [
                (f"{23 - hour} h ago" if hour < 23 else "this hour", count)
                for hour, count in enumerate(row.trend)
            ],
        }
        return Shown("failure.html", values, "Failures")

    def _retried(self, job_ids: Sequence[str], queue: str | None) -> list[Job]:
        """Those of the given jobs that are being retried."""
        jobs = [job for job in map(self.live.live_job, job_ids) if job is not None]
        return [
            job
            for job in jobs
            if job.failure is not None
            and job.state is not State.FAILED
            and queue in (None, job.queue)
        ]

    async def _ask(self, visit: Visit, wanted: FailureQuestion) -> Failures:
        """The groups, at most some seconds old; the first visitor waits for the count."""
        now = visit.now
        wanted = replace(wanted, patterns=visit.exchange.caller.queues)
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
        clock = self.sources.clock
        reader = self.sources.attention.failures
        began_ms = clock.monotonic_ms()
        try:
            found = await reader.read(self.sources.store, replace(wanted, now=now))
        finally:
            del self._reading[wanted]
        fresh_ms = min(_FRESH_MS, _REST * (clock.monotonic_ms() - began_ms))
        while len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(wanted, None)
        self._kept[wanted] = _Kept(now, fresh_ms, found)
        return found


def _frame(job: Job) -> str:
    return "" if job.failure is None else own_frame(job.failure.message)

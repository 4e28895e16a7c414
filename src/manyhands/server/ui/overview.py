"""The first page: how much there is in each state, how it went, and what needs a person."""

import asyncio
from typing import Final

from msgspec import Struct

from manyhands.model.history import merged, quantile
from manyhands.model.job import State
from manyhands.server.history import RANGES
from manyhands.server.ui import words
from manyhands.server.ui.charts import charts
from manyhands.server.ui.page import Page, Shown, url
from manyhands.server.ui.visit import Visit

_LATE_MS: Final = 5 * 60_000  # a job that was ready for longer is worth a look
_NOTES_MAX: Final = 8
_WORKERS_LOOKED_AT: Final = 2_000


class Note(Struct, frozen=True):
    """Something that needs a person."""

    level: str  # "bad" or "warn"
    what: str
    about: str  # a name, or nothing
    detail: str
    to: str
    weight: float = 0.0  # the heavier ones come first


class Overview(Page):
    """The overview."""

    name = ""
    title = "Overview"

    async def show(self, visit: Visit) -> Shown:
        span = visit.chosen("range", tuple(RANGES))
        points = await self.server.history.read(span)
        total = merged(point.sample for point in points)
        notes = self._notes(visit.now)
        protocols = await asyncio.to_thread(self.server.traffic.rows)
        values = {
            "totals": self._totals(),
            "queues": len(self.index.queues),
            "notes": notes[:_NOTES_MAX],
            "notes_more": max(0, len(notes) - _NOTES_MAX),
            "range": span,
            "ranges": [(url("", range=word), word, None, word == span) for word in RANGES],
            "charts": charts(points, RANGES[span].step_ms),
            "total": total,
            "wait_p95": quantile(total.wait, 0.95),
            "run_p95": quantile(total.run, 0.95),
            "protocols": protocols,
        }
        return Shown("overview.html", values, self.title)

    def _totals(self) -> dict[State, int]:
        totals = dict.fromkeys(State, 0)
        for known in self.index.queues.values():
            for state, count in known.counts.items():
                totals[state] += count
        return totals

    def _notes(self, now: int) -> list[Note]:
        """What stands still though it could go on, the worst first."""
        found = [*self._server_notes(), *self._queue_notes(now), *self._worker_notes()]
        found.sort(key=lambda note: (note.level != "bad", -note.weight, note.about))
        return found

    def _server_notes(self) -> list[Note]:
        found = []
        if self.server.dispatcher.store_full:
            detail = "the disk is nearly full; submits are refused"
            found.append(Note("bad", "disk full", "", detail, url("about"), 1e18))
        if self.server.dispatcher.draining:
            found.append(Note("warn", "draining", "", "the server stops", url("about"), 1e18))
        return found

    def _queue_notes(self, now: int) -> list[Note]:
        found: list[Note] = []
        waiters = self.server.dispatcher.waiters
        for name, known in self.index.queues.items():
            ready = known.counts[State.READY]
            if not ready:
                continue
            to = url("queue", name=name)
            jobs = words.plural(ready, "job")
            if known.queue.paused:
                found.append(Note("warn", "paused", name, f"{jobs} held back", to, ready))
                continue
            if not known.counts[State.LEASED] and not waiters.is_wanted(name):
                detail = f"{jobs} and nobody who works on them"
                found.append(Note("bad", "no workers", name, detail, to, ready))
                continue
            oldest_at = known.ready.oldest_at()
            if oldest_at is not None and now - oldest_at > _LATE_MS:
                detail = f"the oldest of {jobs} has waited {words.duration(now - oldest_at)}"
                found.append(Note("warn", "slow", name, detail, to, ready))
        return found

    def _worker_notes(self) -> list[Note]:
        """Workers that went silent while they held jobs."""
        found = []
        for holder, _, jobs in self.index.workers(_WORKERS_LOOKED_AT, 20):
            stalled = sum(
                job.lease is not None and (job.lease.lapsed or job.lease.in_grace) for job in jobs
            )
            if stalled:
                name = holder.name or holder.address
                detail = f"{words.plural(stalled, 'lease')} ran out without a word"
                to = url("workers", q=name)
                found.append(Note("bad", "expired leases", name, detail, to, stalled))
        return found

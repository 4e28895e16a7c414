"""The first page: jobs by state, recent history, and what needs attention."""

import asyncio
from typing import Any, Final

from msgspec import Struct

from manyhands.model.history import merged, quantile
from manyhands.model.job import State
from manyhands.observe.history import RANGES
from manyhands.store.contract import FailureQuestion
from manyhands.ui import words
from manyhands.ui.charts import charts
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit
from manyhands.web.sources import Sources

# A job that was ready for longer needs attention; without workers, much sooner.
_LATE_MS: Final = 5 * 60_000
_UNATTENDED_MS: Final = 10_000
# Counting failures may take longer than a page may, so a recent count is shown.
_FAILING_MS: Final = 15_000
_FAILING_PATIENCE: Final = 0.03  # seconds
_FAILING_COUNT: Final = 20
_FAILING_MANY: Final = 5
_NOTES_OF_A_KIND: Final = 3  # shown; the others are one line with their number
_HOUR_MS: Final = 3_600_000
# The page that lists all notes of a kind.
_ALL_OF_A_KIND: Final = {
    "failing": url("failures", order="latest"),
    "no workers": url("queues", sort="ready"),
    "slow": url("queues", sort="oldest"),
    "paused": url("queues", sort="ready"),
    "expired leases": url("workers"),
}
_WORKERS_LOOKED_AT: Final = 2_000


class Note(Struct, frozen=True):
    """Something that needs attention."""

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

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._failing: list[Note] = []
        self._failing_at = 0
        self._counting: asyncio.Task[None] | None = None

    async def show(self, visit: Visit) -> Shown:
        await self._look_at_failures(visit.now)
        span = visit.chosen("range", tuple(RANGES))
        points = await self.sources.history.read(span)
        total = merged(point.sample for point in points)
        values = {
            "totals": self._totals(),
            "queues": len(self.live.queues),
            "notes": self._notes(visit.now),
            "range": span,
            "ranges": [(url("", range=word), word, None, word == span) for word in RANGES],
            "charts": charts(points, RANGES[span].step_ms, visit.now),
            "total": total,
            "wait_p95": quantile(total.wait, 0.95),
            "run_p95": quantile(total.run, 0.95),
            "protocols": [{**row, "parts": _parts(row)} for row in self.sources.traffic.rows()],
        }
        return Shown("overview.html", values, self.title)

    def _totals(self) -> dict[State, int]:
        totals = dict.fromkeys(State, 0)
        for known in self.live.queues.values():
            for state, count in known.counts.items():
                totals[state] += count
        return totals

    def _notes(self, now: int) -> list[Note]:
        """What is stuck although it could run, the worst first."""
        found = [*self._server_notes(), *self._queue_notes(now), *self._worker_notes()]
        found += self._failing
        found.sort(key=lambda note: (note.level != "bad", -note.weight, note.about))
        return _gathered(found)

    async def _look_at_failures(self, now: int) -> None:
        idle = self._counting is None or self._counting.done()
        if idle and now - self._failing_at > _FAILING_MS:
            self._failing_at = now
            self._counting = asyncio.create_task(self._count_failures(now))
        if self._counting is not None and not self._counting.done():
            await asyncio.wait({self._counting}, timeout=_FAILING_PATIENCE)

    async def _count_failures(self, now: int) -> None:
        wanted = FailureQuestion(now=now, latest_first=True, count_max=_FAILING_COUNT)
        found = await asyncio.to_thread(self.sources.store.failures, wanted)
        since = words.clock(now - now % _HOUR_MS - _HOUR_MS)[:5]
        self._failing = [
            Note(
                "bad" if recent >= _FAILING_MANY else "warn",
                "failing",
                f"{row.group.code}: {row.group.line}".removesuffix(": "),
                f"{words.plural(recent, 'job')} since {since} UTC",
                f"/ui/failures/{row.group.group_id}",
                recent,
            )
            for row in found.groups
            if (recent := sum(row.trend[-2:]))
        ]

    def _server_notes(self) -> list[Note]:
        found = []
        if self.sources.dispatcher.store_full:
            detail = "the disk is nearly full; submits are refused"
            found.append(Note("bad", "disk full", "", detail, url("about"), 1e18))
        if self.sources.dispatcher.draining:
            found.append(Note("warn", "draining", "", "the server is stopping", url("about"), 1e18))
        return found

    def _queue_notes(self, now: int) -> list[Note]:
        found: list[Note] = []
        sleepers = self.sources.dispatcher.sleepers
        for name, known in self.live.queues.items():
            ready = known.counts[State.READY]
            if not ready:
                continue
            to = url("queue", name=name)
            jobs = words.plural(ready, "job")
            if known.queue.paused:
                found.append(Note("warn", "paused", name, f"{jobs} held back", to, ready))
                continue
            waited_ms = now - (known.oldest_ready_at() or now)
            unattended = not known.counts[State.LEASED] and not sleepers.is_wanted(name)
            if unattended and waited_ms > _UNATTENDED_MS:
                nobody = "no worker takes it" if ready == 1 else "no worker takes them"
                detail = f"{jobs}, and {nobody}"
                found.append(Note("bad", "no workers", name, detail, to, ready))
            elif waited_ms > _LATE_MS:
                detail = f"the oldest of {jobs} has waited {words.duration(waited_ms)}"
                found.append(Note("warn", "slow", name, detail, to, ready))
        return found

    def _worker_notes(self) -> list[Note]:
        """Notes about workers that went silent while they held jobs."""
        found = []
        for holder, _, jobs in self.live.workers(_WORKERS_LOOKED_AT, 20):
            stalled = sum(
                job.lease is not None and (job.lease.lapsed or job.lease.in_grace) for job in jobs
            )
            if stalled:
                name = holder.name or holder.address
                detail = f"{words.plural(stalled, 'lease')} expired without a report"
                to = url("workers", q=name)
                found.append(Note("bad", "expired leases", name, detail, to, stalled))
        return found


def _parts(row: dict[str, Any]) -> dict[str, Any]:
    """The realms of a listener that had jobs."""
    return {
        realm: jobs for realm, jobs in row["realms"].items() if jobs["jobs_in"] or jobs["jobs_out"]
    }


def _gathered(notes: list[Note]) -> list[Note]:
    """Some of each kind, the worst kind first: a hundred of one must not hide another."""
    kinds: dict[str, list[Note]] = {}
    for note in notes:
        kinds.setdefault(note.what, []).append(note)
    found: list[Note] = []
    for what, members in kinds.items():
        shown = members[:_NOTES_OF_A_KIND]
        more = members[_NOTES_OF_A_KIND:]
        if len(more) == 1:
            shown, more = members, []
        found += shown
        if more:
            level, to = more[0].level, _ALL_OF_A_KIND[what]
            found.append(Note(level, what, f"{words.number(len(more))} more", "", to))
    return found

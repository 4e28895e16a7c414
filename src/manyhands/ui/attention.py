"""What needs attention, for the first page: what is stuck although it could run, and what fails."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from manyhands.model.failures import headline
from manyhands.model.history import Sample
from manyhands.model.job import State
from manyhands.observe.retries import RETRIED_JOBS_MAX, read_failures
from manyhands.store.contract import FailureQuestion
from manyhands.ui import words
from manyhands.ui.page import url
from manyhands.web.sources import Sources

# A job that was ready for longer needs attention; without workers, much sooner.
_LATE_MS: Final = 5 * 60_000
_UNATTENDED_MS: Final = 10_000
# Counting failures may take longer than a page may, so a recent count is shown.
_FAILING_MS: Final = 15_000
_PATIENCE_SECONDS: Final = 0.03
_FAILING_COUNT: Final = 20
_FAILING_MANY: Final = 5
_NOTES_OF_A_KIND: Final = 3  # shown; the others are one line with their number
_HOUR_MS: Final = 3_600_000
RECENT_MINUTES: Final = 5
# A queue fails when at least so many attempts and this share of them failed lately.
_ATTEMPTS_MIN: Final = 5
_SHARE_MIN: Final = 0.5
_SHARE_BAD: Final = 0.9
# The page that lists all notes of a kind.
_ALL_OF_A_KIND: Final = {
    "failing": url("failures", order="latest"),
    "attempts fail": url("queues", sort="failed"),
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
    about: str  # a queue, a worker, an error; empty: the server
    detail: str
    to: str
    weight: float = 0.0


class Attention:
    """Finds the notes; what takes long is found in the background, now and then."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._live = sources.store.live
        self.recent: Mapping[str, Sample] = {}  # of each queue, in the last minutes
        self._failing: list[Note] = []
        self._counted_at = 0
        self._counting: asyncio.Task[None] | None = None

    async def look(self, now: int) -> None:
        """Counts failures and recent attempts again, if the last count is old."""
        idle = self._counting is None or self._counting.done()
        if idle and now - self._counted_at > _FAILING_MS:
            self._counted_at = now
            self._counting = asyncio.create_task(self._count(now))
        if self._counting is not None and not self._counting.done():
            await asyncio.wait({self._counting}, timeout=_PATIENCE_SECONDS)

    async def _count(self, now: int) -> None:
        wanted = FailureQuestion(now=now, latest_first=True, count_max=_FAILING_COUNT)
        store = self._sources.store
        retried = self._live.retried_jobs(RETRIED_JOBS_MAX)
        found = await asyncio.to_thread(read_failures, store, wanted, retried)
        self.recent = await self._sources.history.recent(RECENT_MINUTES)
        since = now - now % _HOUR_MS - _HOUR_MS
        notes = list(_attempt_notes(self.recent))
        for row in found.groups:
            recent = sum(row.trend[-2:])
            if not recent:
                continue
            # Nothing happened before the first failure, whenever the hour began.
            lasted = words.rough(now - max(since, row.first_at))
            again = f", {words.number(row.retrying)} being retried" if row.retrying else ""
            notes.append(
                Note(
                    "bad" if recent >= _FAILING_MANY else "warn",
                    "failing",
                    headline(row.group.code, row.group.line) or "no reason given",
                    f"{words.plural(recent, 'job')} in the last {lasted}{again}",
                    f"/ui/failures/{row.group.group_id}",
                    recent,
                )
            )
        self._failing = notes

    def notes(self, now: int) -> list[Note]:
        """All of them, the worst first."""
        found = [*self._server_notes(), *self._queue_notes(now), *self._worker_notes()]
        found += self._failing
        found.sort(key=lambda note: (note.level != "bad", -note.weight, note.about))
        return _gathered(found)

    def _server_notes(self) -> Iterator[Note]:
        if self._sources.dispatcher.store_full:
            detail = "the disk is nearly full; submits are refused"
            yield Note("bad", "disk full", "", detail, url("about"), 1e18)
        if self._sources.dispatcher.draining:
            yield Note("warn", "draining", "", "the server is stopping", url("about"), 1e18)

    def _queue_notes(self, now: int) -> Iterator[Note]:
        sleepers = self._sources.dispatcher.sleepers
        for name, known in self._live.queues.items():
            ready = known.counts[State.READY]
            if not ready:
                continue
            to = url("queue", name=name)
            jobs = words.plural(ready, "job")
            if known.queue.paused:
                yield Note("warn", "paused", name, f"{jobs} held back", to, ready)
                continue
            waited_ms = now - (known.oldest_ready_at() or now)
            unattended = not known.counts[State.LEASED] and not sleepers.is_wanted(name)
            if unattended and waited_ms > _UNATTENDED_MS:
                nobody = "no worker takes it" if ready == 1 else "no worker takes them"
                yield Note("bad", "no workers", name, f"{jobs}, and {nobody}", to, ready)
            elif waited_ms > _LATE_MS:
                detail = f"the oldest of {jobs} has waited {words.duration(waited_ms)}"
                yield Note("warn", "slow", name, detail, to, ready)

    def _worker_notes(self) -> Iterator[Note]:
        """Notes about workers that went silent while they held jobs."""
        for holder, _, jobs in self._live.workers(_WORKERS_LOOKED_AT, 20):
            stalled = sum(
                job.lease is not None and (job.lease.lapsed or job.lease.in_grace) for job in jobs
            )
            if stalled:
                name = holder.name or holder.address
                detail = f"{words.plural(stalled, 'lease')} expired without a report"
                to = url("workers", q=name)
                yield Note("bad", "expired leases", name, detail, to, stalled)


def _attempt_notes(recent: Mapping[str, Sample]) -> Iterator[Note]:
    """Notes about queues whose attempts fail, retried or not."""
    for queue, sample in recent.items():
        failed = sample.failed_attempts + sample.lost
        ended = failed + sample.completed
        if failed < _ATTEMPTS_MIN or failed < _SHARE_MIN * ended:
            continue
        detail = (
            f"{words.number(failed)} of {words.plural(ended, 'attempt')} failed"
            f" in {RECENT_MINUTES} min"
        )
        level = "bad" if failed >= _SHARE_BAD * ended else "warn"
        to = url("queue", name=queue, tab="retrying")
        yield Note(level, "attempts fail", queue, detail, to, failed)


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

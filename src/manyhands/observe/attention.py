"""What needs attention: what is stuck although it could run, and what fails. Pages, the API and the
command line show the same notes.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from manyhands.config.durations import as_duration
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleepers
from manyhands.model.failures import headline
from manyhands.model.history import Sample
from manyhands.model.job import State
from manyhands.observe.history import History
from manyhands.observe.retries import RETRIED_JOBS_MAX, read_failures
from manyhands.observe.seen_history import SeenHistory
from manyhands.store.contract import FailureQuestion, Store

# A job that was ready for longer needs attention; without workers, much sooner.
_LATE_MS: Final = 5 * 60_000
_UNATTENDED_MS: Final = 10_000
# Counting failures may take longer than a page may, so a recent count is shown.
_COUNTED_MS_MAX: Final = 15_000
_PATIENCE_SECONDS: Final = 0.03
_GROUPS_COUNT: Final = 20
_FAILING_MANY: Final = 5
_HOUR_MS: Final = 3_600_000
RECENT_MINUTES: Final = 5
# A queue fails when at least so many attempts and this share of them failed lately.
_ATTEMPTS_MIN: Final = 5
_SHARE_MIN: Final = 0.5
_SHARE_BAD: Final = 0.9
_WORKERS_LOOKED_AT: Final = 2_000
_LEASES_LOOKED_AT: Final = 20


class Note(Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    level: Literal["bad", "warn"]
    what: str
    about: str = ""  # a queue, a worker, an error; empty: the server
    sentence: str  # {span} stands for ``span_ms``
    span_ms: int | None = None
    count: int = 0  # jobs, attempts or leases that are concerned
    retrying: int = 0  # jobs that are being retried
    group_id: str = ""  # of failures

    def detail(self, as_text: Callable[[float], str] = as_duration) -> str:
        """The sentence, with its duration as a reader expects it."""
        if self.span_ms is None:
            return self.sentence
        return self.sentence.replace("{span}", as_text(self.span_ms))


class Attention:
    """Finds the notes; what takes long is found in the background, now and then."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        history: History | SeenHistory,
        store: Store,
        sleepers: Sleepers,
        more: Callable[[], Iterator[Note]] = lambda: iter(()),
    ) -> None:
        """``history``, ``store`` and ``sleepers`` may be those that one caller sees. ``more``: what
        else needs attention.
        """
        self._dispatcher = dispatcher
        self._history = history
        self._store = store
        self._live = store.live
        self._sleepers = sleepers
        self._more = more
        self.recent: Mapping[str, Sample] = {}  # of each queue, in the last minutes
        self._worked: frozenset[str] = frozenset()  # queues that had a claim in the last minute
        self._failing: list[Note] = []
        self._counted_at = 0
        self._counting: asyncio.Task[None] | None = None

    async def look(self, now: int) -> None:
        """Counts failures and recent attempts again, if the last count is old. Does not wait long:
        a page then shows the last count.
        """
        if now - self._counted_at > _COUNTED_MS_MAX:
            self._counting = self._count_again(now)
        if self._counting is not None and not self._counting.done():
            await asyncio.wait({self._counting}, timeout=_PATIENCE_SECONDS)

    async def look_closely(self, now: int) -> None:
        """Counts again, and waits for the result."""
        await asyncio.shield(self._count_again(now))

    def _count_again(self, now: int) -> asyncio.Task[None]:
        if self._counting is None or self._counting.done():
            self._counted_at = now
            self._counting = asyncio.create_task(self._count(now))
        return self._counting

    async def _count(self, now: int) -> None:
        wanted = FailureQuestion(now=now, latest_first=True, count_max=_GROUPS_COUNT)
        retried = self._live.retried_jobs(RETRIED_JOBS_MAX)
        found = await asyncio.to_thread(read_failures, self._store, wanted, retried)
        self.recent = await self._history.recent(RECENT_MINUTES)
        latest = await self._history.recent(1)
        self._worked = frozenset(name for name, sample in latest.items() if sample.started)
        since = now - now % _HOUR_MS - _HOUR_MS
        notes = list(_attempt_notes(self.recent))
        for row in found.groups:
            recent = sum(row.trend[-2:])
            if not recent:
                continue
            again = f", {row.retrying:,} being retried" if row.retrying else ""
            notes.append(
                Note(
                    level="bad" if recent >= _FAILING_MANY else "warn",
                    what="failing",
                    about=headline(row.group.code, row.group.line) or "no reason given",
                    sentence=f"{_plural(recent, 'job')} in the last {{span}}{again}",
                    # Nothing happened before the first failure, whenever the hour began.
                    span_ms=now - max(since, row.first_at),
                    count=recent,
                    retrying=row.retrying,
                    group_id=row.group.group_id,
                )
            )
        self._failing = notes

    def notes(self, now: int) -> list[Note]:
        """All of them, the worst first."""
        found = [*self._server_notes(), *self._queue_notes(now), *self._worker_notes()]
        found += self._failing
        found.sort(
            key=lambda note: (note.level != "bad", note.about != "", -note.count, note.about)
        )
        return found

    def _server_notes(self) -> Iterator[Note]:
        if self._dispatcher.store_full:
            sentence = "the disk is nearly full; submits are refused"
            yield Note(level="bad", what="disk full", sentence=sentence)
        if self._dispatcher.draining:
            yield Note(level="warn", what="draining", sentence="the server is stopping")
        yield from self._more()

    def _queue_notes(self, now: int) -> Iterator[Note]:
        sleepers = self._sleepers
        for name, known in self._live.queues.items():
            ready = known.counts[State.READY]
            if not ready:
                continue
            jobs = _plural(ready, "job")
            if known.queue.paused:
                held = f"{jobs} held back"
                yield Note(level="warn", what="paused", about=name, sentence=held, count=ready)
                continue
            waited_ms = now - (known.oldest_ready_at() or now)
            # Between two polls no worker waits, and yet the queue is being worked on.
            attended = (
                known.counts[State.LEASED] or sleepers.is_wanted(name) or name in self._worked
            )
            if not attended and waited_ms > _UNATTENDED_MS:
                them = "it" if ready == 1 else "them"
                sentence = f"{jobs}, and no worker takes {them}"
                yield Note(
                    level="bad", what="no workers", about=name, sentence=sentence, count=ready
                )
            elif waited_ms > _LATE_MS:
                yield Note(
                    level="warn",
                    what="slow",
                    about=name,
                    sentence=f"the oldest of {jobs} has waited {{span}}",
                    span_ms=waited_ms,
                    count=ready,
                )

    def _worker_notes(self) -> Iterator[Note]:
        """Notes about workers that went silent while they held jobs."""
        for holder, _, jobs in self._live.workers(_WORKERS_LOOKED_AT, _LEASES_LOOKED_AT):
            stalled = sum(
                job.lease is not None and (job.lease.lapsed or job.lease.in_grace) for job in jobs
            )
            if stalled:
                yield Note(
                    level="bad",
                    what="expired leases",
                    about=holder.name or holder.address,
                    sentence=f"{_plural(stalled, 'lease')} expired without a report",
                    count=stalled,
                )


def _attempt_notes(recent: Mapping[str, Sample]) -> Iterator[Note]:
    """Notes about queues whose attempts fail, retried or not."""
    for queue, sample in recent.items():
        failed = sample.failed_attempts + sample.lost
        ended = failed + sample.completed
        if failed < _ATTEMPTS_MIN or failed < _SHARE_MIN * ended:
            continue
        yield Note(
            level="bad" if failed >= _SHARE_BAD * ended else "warn",
            what="attempts fail",
            about=queue,
            sentence=f"{failed:,} of {_plural(ended, 'attempt')} failed in {RECENT_MINUTES} min",
            count=failed,
        )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

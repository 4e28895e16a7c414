"""What needs attention: what is stuck although it could run, and what fails. Pages, the API and the
command line show the same notes.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Final, Literal

from msgspec import Struct

from manyhands.config.durations import as_duration
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleepers
from manyhands.engine.explanation import why_queue_waits
from manyhands.loggers import get_logger
from manyhands.model.failures import headline
from manyhands.model.history import Sample
from manyhands.model.job import Job, State
from manyhands.model.obstacles import Obstacle, Wait
from manyhands.observe.history import History
from manyhands.observe.retries import FailureReader
from manyhands.observe.seen_history import SeenHistory
from manyhands.observe.usual import Usual
from manyhands.store.contract import FailureGroup, FailureQuestion, Store

_log = get_logger("manyhands.attention")

# A job that was ready for longer needs attention; without workers, much sooner.
_LATE_MS: Final = 5 * 60_000
_UNATTENDED_MS: Final = 10_000
# Counting failures may take longer than a page may, so a recent count is shown.
_COUNTED_MS_MAX: Final = 15_000
_PATIENCE_SECONDS: Final = 0.02
_UNWATCHED_MS_MAX: Final = 60_000  # counted again after that, though nobody looks
_REST_SECONDS: Final = 5.0
_POLLED_MS: Final = 5_000  # for so long it is remembered who took jobs
_GROUPS_COUNT: Final = 20
_FAILING_MANY: Final = 5
_HOUR_MS: Final = 3_600_000
RECENT_MINUTES: Final = 5
_LOST: Final = frozenset({State.FAILED, State.CANCELLED})
# What lets no more jobs of a queue run until others have finished.
_FULL: Final = {Obstacle.LIMIT: "limit full", Obstacle.CONCURRENCY: "queue full"}
# A queue fails when at least so many attempts and this share of them failed lately.
_ATTEMPTS_MIN: Final = 5
_SHARE_MIN: Final = 0.5
_SHARE_BAD: Final = 0.9
_WORKERS_LOOKED_AT: Final = 2_000
_LEASES_LOOKED_AT: Final = 20
# A worker hangs when it has held a job for at least so long, and so many times longer than nearly
# all attempts in that queue took.
_HELD_MS_MIN: Final = 30_000
_HELD_TIMES: Final = 3
# Of all that is waited for, so much is looked at, in slices; of what has ended without success, so
# much is looked up. What nobody has submitted yet may still come, for a while.
_AWAITED_MAX: Final = 100_000
_AWAITED_SLICE: Final = 2_000
_LOST_MAX: Final = 20
_UNKNOWN_MS: Final = 5 * 60_000
_ID_TAIL: Final = 12  # digits, as lists show them


class Note(Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    level: Literal["bad", "warn"]
    what: str
    about: str = ""  # a queue, a worker, an error; empty: the server
    sentence: str  # {span} stands for ``span_ms``, {usual} for ``usual_ms``
    span_ms: int | None = None
    usual_ms: float | None = None
    count: int = 0  # jobs, attempts or leases that are concerned
    retrying: int = 0  # jobs that are being retried
    group_id: str = ""  # of failures
    job_id: str = ""  # the job to look at

    def detail(self, as_text: Callable[[float], str] = as_duration) -> str:
        """The sentence, with its durations as a reader expects them."""
        found = self.sentence
        for word, ms in (("{span}", self.span_ms), ("{usual}", self.usual_ms)):
            if ms is not None:
                found = found.replace(word, as_text(ms))
        return found


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
        self._polled: frozenset[str] = frozenset()
        self._polled_at = 0
        self._usual = Usual(history)
        self._usual_ms: Mapping[str, float] = {}  # of the queues of leases that are held for long
        self.failures = FailureReader()  # for pages and the API too: it knows the groups of jobs
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

    async def keep_counting(self) -> None:
        """Counts again once a minute, so that who looks after a quiet night finds no old count."""
        while True:
            now = self._dispatcher.clock.now()
            if now - self._counted_at >= _UNWATCHED_MS_MAX:
                try:
                    await self.look_closely(now)
                except Exception:  # noqa: BLE001 - the next one may succeed
                    _log.exception("what needs attention could not be counted")
            await asyncio.sleep(_REST_SECONDS)

    async def look_closely(self, now: int) -> None:
        """Counts again, and waits for the result."""
        await asyncio.shield(self._count_again(now))

    async def polled(self, now: int) -> frozenset[str]:
        """Queues that workers took jobs from in the last minute: between two polls nobody waits,
        and yet somebody works.
        """
        if now - self._polled_at >= _POLLED_MS:
            self._polled_at = now
            latest = await self._history.recent(1)
            self._polled = frozenset(name for name, sample in latest.items() if sample.started)
        return self._polled

    def _count_again(self, now: int) -> asyncio.Task[None]:
        if self._counting is None or self._counting.done():
            self._counted_at = now
            self._counting = asyncio.create_task(self._count(now))
        return self._counting

    async def _count(self, now: int) -> None:
        wanted = FailureQuestion(now=now, latest_first=True, count_max=_GROUPS_COUNT)
        found = await self.failures.read(self._store, wanted)
        self.recent = await self._history.recent(RECENT_MINUTES)
        await self.polled(now)
        self._usual_ms = await self._usual.read(self._long_held(now), now)
        since = now - now % _HOUR_MS - _HOUR_MS
        notes = [*_attempt_notes(self.recent), *await self._stuck_notes(now)]
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
                    sentence=f"{_plural(recent, 'job')} of {_queues(row)} in the last"
                    f" {{span}}{again}",
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
        found = [*self._server_notes(), *self._queue_notes(now), *self._worker_notes(now)]
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
            is_worked = name in self._polled  # between two polls no worker waits, and yet one works
            if waited_ms <= (_LATE_MS if is_worked else _UNATTENDED_MS):
                continue
            full = self._full(name, now)
            attended = is_worked or known.counts[State.LEASED] or sleepers.is_wanted(name)
            if full is None and not attended:
                them = "it" if ready == 1 else "them"
                sentence = f"{jobs}, and no worker takes {them}"
                yield Note(
                    level="bad", what="no workers", about=name, sentence=sentence, count=ready
                )
            elif full is not None or waited_ms > _LATE_MS:
                because = "" if full is None else f"; {full.sentence}"
                yield Note(
                    level="warn",
                    what="slow" if full is None else _FULL[full.what],
                    about=name,
                    sentence=f"the oldest of {jobs} has waited {{span}}{because}",
                    span_ms=waited_ms,
                    count=ready,
                )

    def _full(self, queue: str, now: int) -> Wait | None:
        """What holds all of a queue back until a worker finishes a job."""
        waits = why_queue_waits(queue, self._live.view, now)
        return next((wait for wait in waits if wait.what in _FULL), None)

    def _long_held(self, now: int) -> set[str]:
        """Queues of leases that have been held for long."""
        return {
            job.queue
            for _, _, jobs in self._live.workers(_WORKERS_LOOKED_AT, _LEASES_LOOKED_AT)
            for job in jobs
            if job.lease is not None and now - job.lease.claimed_at > _HELD_MS_MIN
        }

    async def _stuck_notes(self, now: int) -> list[Note]:
        """Notes about queues with jobs that wait for what has ended without success."""
        live = self._live
        keys = live.awaited_keys(_AWAITED_MAX)
        lost: list[str] = []
        for first in range(0, len(keys), _AWAITED_SLICE):
            lost += filter(live.is_lost, keys[first : first + _AWAITED_SLICE])
            if len(lost) >= _LOST_MAX:
                break
            await asyncio.sleep(0)
        found: dict[str, dict[str, None]] = {}  # ids of the jobs that wait, by queue
        causes: dict[str, list[Job | None]] = {}
        for key in lost[:_LOST_MAX]:
            cause = await self._job(key)
            if cause is not None and cause.state not in _LOST:
                continue
            waiting = [job for job_id in live.dependants(key) if (job := live.live_job(job_id))]
            if cause is None:
                waiting = [job for job in waiting if now - job.entered_at > _UNKNOWN_MS]
            for queue in {job.queue for job in waiting}:
                causes.setdefault(queue, []).append(cause)
            for job in waiting:
                found.setdefault(job.queue, {})[job.job_id] = None
        return [_stuck_note(queue, len(ids), causes[queue]) for queue, ids in found.items()]

    async def _job(self, key: str) -> Job | None:
        """The job that an id or a name key refers to, also of queues that the caller may not see:
        the jobs that wait for it say so themselves.
        """
        store = self._dispatcher.store
        if "\0" in key:
            return store.live.view.job(key)  # names are in memory while something waits for them
        return store.live.live_job(key) or await asyncio.to_thread(store.find, key)

    def _worker_notes(self, now: int) -> Iterator[Note]:
        """Notes about workers that went silent while they held jobs, or hold one for very long."""
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
                continue
            held = [
                (now - job.lease.claimed_at, job)
                for job in jobs
                if job.lease is not None and job.queue in self._usual_ms
            ]
            long = [
                (held_ms, job)
                for held_ms, job in held
                if held_ms > max(_HELD_MS_MIN, _HELD_TIMES * self._usual_ms[job.queue])
            ]
            if long:
                held_ms, job = max(long, key=itemgetter(0))
                yield Note(
                    level="warn",
                    what="held for long",
                    about=holder.name or holder.address,
                    sentence=f"has held a job of {job.queue} for {{span}}; 99 of 100 take"
                    " {usual} or less there",
                    span_ms=held_ms,
                    usual_ms=self._usual_ms[job.queue],
                    count=len(long),
                    job_id=job.job_id,
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


def _queues(row: FailureGroup) -> str:
    """The queues that a group of failures is about; the message alone often does not tell."""
    names = [name for name, _ in row.queues]
    return " and ".join(names if len(names) < 3 else [names[0], "other queues"])


def _stuck_note(queue: str, count: int, causes: list[Job | None]) -> Note:
    jobs = f"{_plural(count, 'job')} {'waits' if count == 1 else 'wait'}"
    known = [cause for cause in causes if cause is not None]
    job_id = ""
    if not known:
        sentence = f"{jobs} for a job that nobody has submitted"
    elif len(causes) == 1:
        job_id = known[0].job_id
        ended = "failed" if known[0].state is State.FAILED else "was cancelled"
        sentence = f"{jobs} for job {job_id[-_ID_TAIL:]}, which {ended}"
    else:
        sentence = f"{jobs} for {len(causes)} jobs that failed or were cancelled"
    return Note(
        level="warn", what="stuck", about=queue, sentence=sentence, count=count, job_id=job_id
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

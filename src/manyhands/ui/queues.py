"""All queues: their jobs, their workers, and a switch to pause each."""

import asyncio
import heapq
from collections.abc import Callable, Collection
from typing import Any, Final

from manyhands.dispatch.ask import ask
from manyhands.dispatch.obstacles import why_held_back
from manyhands.model.commands import SetQueue
from manyhands.model.history import MINUTE_MS
from manyhands.model.job import State
from manyhands.model.replies import Refusal, Why
from manyhands.store.contract import QueueFacts
from manyhands.ui import words
from manyhands.ui.page import Done, Page, Shown, url
from manyhands.ui.visit import Form, Visit, back_to
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

_ROWS: Final = 50
_MINUTES: Final = 30
_SORTS: Final[dict[str, Callable[[QueueFacts], int]]] = {
    "delayed": lambda known: known.counts[State.DELAYED],
    "ready": lambda known: known.counts[State.READY],
    "leased": lambda known: known.counts[State.LEASED],
    "failed": lambda known: known.counts[State.FAILED],
    "oldest": lambda known: -(known.oldest_ready_at() or 1 << 62),
}


class Queues(Page):
    """The list of queues."""

    name = "queues"
    title = "Queues"

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        # Past minutes do not change: they are read once.
        self._recent_at = 0
        self._recently: dict[str, list[int]] = {}

    async def show(self, visit: Visit) -> Shown:
        text = visit.text("q").casefold()
        sort = visit.chosen("sort", ("name", *_SORTS, "retrying"))
        known = self.live.queues
        names = [name for name in known if text in name.casefold()] if text else list(known)
        span = visit.span_of(len(names), _ROWS)
        first = span["first"]
        if sort == "name":
            names = heapq.nsmallest(first + _ROWS, names)
        else:
            key = _SORTS.get(sort, self._retrying)
            names = heapq.nsmallest(
                first + _ROWS, names, key=lambda name: (-key(known[name]), name)
            )
        workers = workers_by_queue(self)
        polled = await self.sources.attention.polled(visit.now)
        recent = await self._recent(names[first:], visit.now)
        values = {
            "rows": [
                self.row(known[name], workers, polled) | recent[name] for name in names[first:]
            ],
            "q": visit.text("q"),
            "sort": sort,
            "sorts": ("name", *_SORTS, "retrying"),
            "known": len(known),
            "span": span,
        }
        return Shown("queues.html", values, self.title)

    def _retrying(self, known: QueueFacts) -> int:
        return sum(self.live.retrying_counts(known.queue.name).values())

    async def _recent(self, names: list[str], now: int) -> dict[str, dict[str, Any]]:
        """Completions of each queue, minute by minute."""
        minute_at = now - now % MINUTE_MS
        if minute_at != self._recent_at:
            self._recent_at, self._recently = minute_at, {}
        missing = [name for name in names if name not in self._recently]
        if missing:
            since = minute_at - _MINUTES * MINUTE_MS
            found = await asyncio.to_thread(self._read_recent, missing, since, minute_at)
            self._recently.update(found)
        return {name: {"recent": self._recently.get(name, ())} for name in names}

    def _read_recent(self, names: list[str], since: int, until: int) -> dict[str, list[int]]:
        found = {}
        for name in names:
            counts = [0] * _MINUTES
            for row in self.sources.store.samples(MINUTE_MS, since, until, name):
                if row.at >= since:
                    counts[(row.at - since) // MINUTE_MS] += row.sample.completed
            found[name] = counts
        return found

    def row(
        self, known: QueueFacts, workers: dict[str, int], polled: Collection[str]
    ) -> dict[str, Any]:
        """One queue, for a table."""
        name = known.queue.name
        oldest_at = known.oldest_ready_at()
        return {
            "name": name,
            "paused": known.queue.paused,
            "counts": known.counts,
            "oldest_at": oldest_at,
            "workers": workers.get(name, 0),
            "awaited": self.sources.sleepers.is_wanted(name),
            "polled": name in polled,
            "retrying": sum(self.live.retrying_counts(name).values()),
            "waits": why_held_back(self.sources.dispatcher, name),
        }

    async def act(self, visit: Visit, form: Form) -> Done:
        return await switch(visit, form, url("queues"))


def workers_by_queue(page: Page) -> dict[str, int]:
    """How many workers hold leases in each queue."""
    found: dict[str, int] = {}
    for _, _, jobs in page.live.workers(2_000, 20):
        for name in {job.queue for job in jobs}:
            found[name] = found.get(name, 0) + 1
    return found


async def switch(visit: Visit, form: Form, default: str) -> Done:
    """Pauses or resumes a queue."""
    name = form.raw("queue")
    action = form.text("action")
    if action not in ("pause", "resume"):
        raise Problem(400, "invalid_body", "a queue can be paused or resumed here")
    paused = action == "pause"
    to = back_to(form, default)
    reply = await ask(visit.dispatcher, SetQueue(queue=name, paused=paused, only_known=True))
    if isinstance(reply, Refusal):
        if reply.why is Why.UNKNOWN_QUEUE:
            raise Problem(404, "unknown_queue", f"there is no queue {words.shown(name)}")
        return Done(to, f"Refused: {reply.sentence}.", failed=True)
    return Done(to, f"Queue {words.shown(name)} is {'paused' if paused else 'resumed'}.")

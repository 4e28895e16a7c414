"""The first page: jobs by state, what needs attention, the queues that matter most, and recent
history.
"""

from typing import Any, Final

from manyhands.model.history import Sample, merged, quantile
from manyhands.model.job import State
from manyhands.observe.history import RANGES
from manyhands.ui.attention import RECENT_MINUTES, Attention
from manyhands.ui.charts import charts
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit
from manyhands.web.sources import Sources

_QUEUES_SHOWN: Final = 5


class Overview(Page):
    """The overview."""

    name = ""
    title = "Overview"

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._attention = Attention(sources)

    async def show(self, visit: Visit) -> Shown:
        await self._attention.look(visit.now)
        span = visit.chosen("range", tuple(RANGES))
        points = await self.sources.history.read(span)
        total = merged(point.sample for point in points)
        totals, retrying = self._totals()
        notes = self._attention.notes(visit.now)
        values = {
            "totals": totals,
            "retrying": retrying,
            "queues": len(self.live.queues),
            "paused": sum(known.queue.paused for known in self.live.queues.values()),
            "notes": notes,
            "rows": self._queues({note.about for note in notes if note.level == "bad"}),
            "rate": self.sources.history.rate(),
            "holding": self.live.workers_count(),
            "asleep": self.sources.dispatcher.sleepers.count,
            "range": span,
            "ranges": [(url("", range=word), word, None, word == span) for word in RANGES],
            "charts": charts(points, RANGES[span].step_ms, visit.now),
            "total": total,
            "wait_p95": quantile(total.wait, 0.95),
            "run_p95": quantile(total.run, 0.95),
            "protocols": self.sources.traffic.rows(),
        }
        return Shown("overview.html", values, self.title)

    def _totals(self) -> tuple[dict[State, int], dict[State, int]]:
        """Jobs by state, and how many of them are being retried."""
        totals, retrying = dict.fromkeys(State, 0), dict.fromkeys(State, 0)
        for name, known in self.live.queues.items():
            for state, count in known.counts.items():
                totals[state] += count
            for state, count in self.live.retrying_counts(name).items():
                retrying[state] += count
        return totals, retrying

    def _queues(self, troubled: set[str]) -> list[dict[str, Any]]:
        """The queues in trouble, then the busiest ones."""
        recent = self._attention.recent
        nothing = Sample()

        def weight(name: str) -> tuple[bool, int, int, str]:
            sample = recent.get(name, nothing)
            activity = sample.submitted + sample.started + sample.completed
            return name not in troubled, -activity, -known[name].unfinished_count, name

        known = self.live.queues
        return [
            {
                "name": name,
                "paused": known[name].queue.paused,
                "counts": known[name].counts,
                "retrying": sum(self.live.retrying_counts(name).values()),
                "troubled": name in troubled,
                "rate": recent.get(name, nothing).completed / RECENT_MINUTES,
                "wait_p95": quantile(recent.get(name, nothing).wait, 0.95),
            }
            for name in sorted(known, key=weight)[:_QUEUES_SHOWN]
        ]

"""The first page: jobs by state, what needs attention, the queues that matter most, and recent
history.
"""

from typing import Any, Final

from manyhands.model.history import Sample, merged, quantile
from manyhands.model.job import State
from manyhands.model.policy import REALMS
from manyhands.observe.attention import RECENT_MINUTES
from manyhands.observe.history import RANGES
from manyhands.ui.attention import lines
from manyhands.ui.charts import Chart, Frame, backlog, latency, stacked, throughput
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit

_QUEUES_SHOWN: Final = 5
_BY: Final = ("outcome", "queue", "protocol")
_SECOND: Final = {"latency": latency, "backlog": backlog}


class Overview(Page):
    """The overview."""

    name = ""
    title = "Overview"

    async def show(self, visit: Visit) -> Shown:
        attention = self.sources.attention
        await attention.look(visit.now)
        span = visit.chosen("range", tuple(RANGES))
        points = await self.sources.history.read(span)
        total = merged(point.sample for point in points)
        frame = Frame(points, RANGES[span].step_ms, visit.now)
        by = visit.chosen("by", _BY)
        second = visit.chosen("second", tuple(_SECOND))

        def here(**changed: str) -> str:
            return url("", **{"range": span, "by": by, "second": second, **changed})

        totals, retrying = self._totals()
        notes = attention.notes(visit.now)
        values = {
            "totals": totals,
            "retrying": retrying,
            "started_at": self.sources.condition.started_at,
            "queues": len(self.live.queues),
            "paused": sum(known.queue.paused for known in self.live.queues.values()),
            "notes": lines(notes),
            "rows": self._queues({note.about for note in notes if note.level == "bad"}),
            "rate": self.sources.history.rate(),
            "holding": self.live.workers_count(),
            "asleep": self.sources.sleepers.count,
            "range": span,
            "ranges": [(here(range=word), word, None, word == span) for word in RANGES],
            "charts": [await self._ends(frame, span, by), _SECOND[second](frame)],
            "choices": [
                [(here(by=word), f"by {word}", None, word == by) for word in _BY],
                [(here(second=word), word, None, word == second) for word in _SECOND],
            ],
            "total": total,
            "wait_p95": quantile(total.wait, 0.95),
            "run_p95": quantile(total.run, 0.95),
            "protocols": [{**row, "parts": _parts(row)} for row in self.sources.traffic.rows()],
        }
        return Shown("overview.html", values, self.title)

    async def _ends(self, frame: Frame, span: str, by: str) -> Chart:
        """What ended, by outcome or by queue; or what was handed out, by protocol."""
        if by == "protocol":
            minutes = self.sources.history.handed_out(frame.instants, RANGES[span].step_ms)
            named = {_label(realm): counts for realm, counts in minutes.items()}
            return stacked(frame, "Jobs handed out per minute, by protocol", named)
        if by == "queue":
            recent = self.sources.attention.recent
            busiest = sorted(recent, key=lambda name: -recent[name].completed)[:_QUEUES_SHOWN]
            counts: dict[str, list[int]] = {}
            rest = [point.sample.completed for point in frame.points]
            for name in busiest:
                points = await self.sources.history.read(span, name)
                counts[name] = [point.sample.completed for point in points][-len(rest) :]
                rest = [max(0, one - two) for one, two in zip(rest, counts[name], strict=False)]
            if any(rest):
                counts["other queues"] = rest
            return stacked(frame, "Jobs completed per minute, by queue", counts)
        return throughput(frame)

    def _totals(self) -> tuple[dict[State, int], dict[State, int]]:
        """Jobs by state, and how many of them are being retried."""
        totals, retrying = dict.fromkeys(State, 0), dict.fromkeys(State, 0)
        for known in self.live.queues.values():
            for state, count in known.counts.items():
                totals[state] += count
        for counts in self.live.retrying_queues().values():
            for state, count in counts.items():
                retrying[state] += count
        return totals, retrying

    def _queues(self, troubled: set[str]) -> list[dict[str, Any]]:
        """The queues in trouble, then the busiest ones."""
        recent = self.sources.attention.recent
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


def _label(realm: str) -> str:
    return REALMS[realm].label if realm in REALMS else realm


def _parts(row: dict[str, Any]) -> dict[str, Any]:
    """The realms of a listener that had jobs."""
    return {
        realm: jobs for realm, jobs in row["realms"].items() if jobs["jobs_in"] or jobs["jobs_out"]
    }

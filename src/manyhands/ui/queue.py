"""One queue: its jobs by state, how long they waited and ran, and its settings."""

from collections.abc import Sequence
from typing import Any, Final

from manyhands.model.commands import ForgetQueue
from manyhands.model.filter import Filter, Order
from manyhands.model.history import BOUNDS_MS, merged, quantile
from manyhands.model.job import FINISHED, State
from manyhands.observe.history import RANGES
from manyhands.store.contract import QueueFacts
from manyhands.ui import listings, words
from manyhands.ui.actions import carry_out
from manyhands.ui.bulk import choices
from manyhands.ui.charts import Frame, backlog, latency, throughput
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.query import quoted, read_query, state_word
from manyhands.ui.queue_settings import FIELDS, GROUPS, read_policy, shown_policy
from manyhands.ui.queues import switch
from manyhands.ui.visit import Form, Visit
from manyhands.web.envelope import Problem

_RETRYING: Final = "retrying"
_TABS: Final = (
    *("stats", State.BLOCKED, State.DELAYED, _RETRYING, State.READY, State.LEASED),
    *(State.COMPLETED, State.FAILED, State.CANCELLED, "recurring", "settings"),
)
_NEWEST_FIRST: Final = (State.COMPLETED, State.FAILED, State.CANCELLED)
# What is offered for all jobs of a tab: the action, its button, its kind.
_RETRY_ALL: Final = ("retry", "Retry", "")
_CANCEL_ALL: Final = ("cancel", "Cancel", "danger")
_WHOLE_TAB: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    State.FAILED: (_RETRY_ALL, _CANCEL_ALL),
    State.CANCELLED: (_RETRY_ALL,),
    State.READY: (_CANCEL_ALL,),
    State.DELAYED: (_CANCEL_ALL,),
    State.BLOCKED: (_CANCEL_ALL,),
    _RETRYING: (_CANCEL_ALL,),
    State.LEASED: (_CANCEL_ALL,),
}
_BARS_MAX: Final = 26
_DAY_MS: Final = 86_400_000


class QueuePage(Page):
    """The page of a queue; its name is a parameter, since it may be any text."""

    name = "queue"
    title = "Queue"

    async def show(self, visit: Visit) -> Shown:
        known = self._known(visit.raw("name") or "")
        tab = visit.chosen("tab", _TABS)
        values = self._values(known, tab)
        if tab == "stats":
            values |= await self._stats(visit, known)
        elif tab == "settings":
            values |= self._settings(known, shown_policy(known.queue.policy))
        elif tab != "recurring":
            values |= await self._jobs(visit, known, tab)
        return self._shown(known, values)

    def _known(self, name: str) -> QueueFacts:
        known = self.live.queues.get(name)
        if known is None:
            raise Problem(
                404,
                "unknown_queue",
                f"there is no queue “{words.shown(name)}” now; a queue comes with its first job",
            )
        return known

    def _values(self, known: QueueFacts, tab: str) -> dict[str, Any]:
        name = known.queue.name
        schedules = [row for row in self.live.schedules.values() if row.queue == name]
        counts: dict[str, int | None] = {state.value: known.counts[state] for state in State}
        counts["recurring"] = len(schedules)
        counts[_RETRYING] = self._count(known, _RETRYING)
        return {
            "queue": known.queue,
            "counts": known.counts,
            "oldest_at": known.oldest_ready_at(),
            "awaited": self.sources.sleepers.is_wanted(name),
            "tab": tab,
            "tabs_shown": [
                (
                    url("queue", name=name, tab=word),
                    "running" if word == State.LEASED else str(word),
                    counts.get(word),
                    word == tab,
                )
                for word in _TABS
            ],
            "schedules": schedules[:200],
        }

    def _shown(self, known: QueueFacts, values: dict[str, Any]) -> Shown:
        name = known.queue.name
        title = f"{words.shown(name, 40)} · Queue"
        return Shown("queue.html", values, title, f"queue:{name}")

    async def _jobs(self, visit: Visit, known: QueueFacts, tab: str) -> dict[str, Any]:
        order = Order.NEWEST if tab in _NEWEST_FIRST else Order.OLDEST
        after = visit.whole("after")
        wanted = Filter(
            states=() if tab == _RETRYING else (State(tab),),
            retrying=True if tab == _RETRYING else None,
            queue=known.queue.name,
            order=order,
            after=after,
            count_max=listings.ROWS,
        )
        page = await listings.find(self.sources.store, wanted)
        here = {"name": known.queue.name, "tab": tab}
        search = _search(known.queue.name, tab)
        return {
            "rows": [listings.row(job, visit.now) for job in page.jobs],
            "order": order.value,
            "search": search,
            "choices": choices(read_query(search, visit.now)),
            "given": Form([]),
            "tab_count": self._count(known, tab),
            "whole_tab": _WHOLE_TAB.get(tab, ()),
            "first_page": url("queue", **here) if after else None,
            "next_page": url("queue", **here, after=page.next) if page.next is not None else None,
        }

    async def _stats(self, visit: Visit, known: QueueFacts) -> dict[str, Any]:
        name = known.queue.name
        span = visit.chosen("range", tuple(RANGES))
        points = await self.sources.history.read(span, name)
        total = merged(point.sample for point in points)
        frame = Frame(points, RANGES[span].step_ms, visit.now)
        return {
            "range": span,
            "ranges": [
                (url("queue", name=name, range=word), word, None, word == span) for word in RANGES
            ],
            "charts": [throughput(frame), latency(frame), backlog(frame)],
            "started_at": self.sources.condition.started_at,
            "total": total,
            "durations": [_spread("Wait", total.wait), _spread("Run", total.run)],
        }

    def _count(self, known: QueueFacts, tab: str) -> int:
        if tab == _RETRYING:
            return sum(self.live.retrying_counts(known.queue.name).values())
        return known.counts[State(tab)]

    def _settings(self, known: QueueFacts, given: dict[str, str]) -> dict[str, Any]:
        config = self.sources.config
        usual = {
            "record_ms": words.duration(config.retention_days * _DAY_MS),
            "records_max": words.number(config.retention_count),
        }
        unfinished = sum(known.counts[state] for state in State if state not in FINISHED)
        # What a bound would meet, in the words of its hint.
        now = {
            "concurrency_max": f"{words.number(known.counts[State.LEASED])} now",
            "jobs_max": f"{words.number(unfinished)} now",
        }
        return {"groups": GROUPS, "given": given, "usual": usual, "now_there": now}

    # Actions.

    async def act(self, visit: Visit, form: Form) -> Done | Confirm | Shown:
        name = visit.raw("name") or ""
        known = self._known(name)
        action = form.text("action")
        if action in ("pause", "resume"):
            return await switch(visit, form, url("queue", name=name))
        if action == "settings":
            return await self._set(visit, form, known)
        if action == "forget":
            records = sum(known.counts.values())
            if not form.confirmed:
                return confirm_again(
                    form,
                    question=f"Delete queue {words.shown(name)}? It has no work left;"
                    f" {words.plural(records, 'record')} of finished jobs stay until they expire.",
                    button="Delete the queue",
                    back=url("queue", name=name, tab="settings"),
                )
            sentence = f"Queue {words.shown(name)} is deleted."
            done = await carry_out(visit, ForgetQueue(name), sentence, url("queues"))
            return (
                done
                if not done.failed
                else Done(url("queue", name=name), done.sentence, failed=True)
            )
        raise Problem(400, "invalid_body", "a queue can be paused, resumed, set or deleted here")

    async def _set(self, visit: Visit, form: Form, known: QueueFacts) -> Done | Shown:
        name = known.queue.name
        command = read_policy(form, known.queue, visit.problems)
        if command is not None:
            to = url("queue", name=name, tab="settings")
            return await carry_out(
                visit, command, f"The settings of queue {words.shown(name)} are changed.", to
            )
        given = {field.name: form.text(field.name) for field in FIELDS}
        values = self._values(known, "settings") | self._settings(known, given)
        return self._shown(known, values)


def _search(name: str, tab: str) -> str:
    """A tab as a search of jobs."""
    which = f"is:{_RETRYING}" if tab == _RETRYING else f"state:{state_word(tab)}"
    return f"queue:{quoted(name)} {which}"


def _spread(word: str, counts: Sequence[int]) -> dict[str, Any]:
    """A histogram with its quantiles, from the first to the last bucket that is not empty."""
    filled = [bucket for bucket, count in enumerate(counts) if count]
    bars: list[tuple[str, int]] = []
    if filled:
        first, last = max(0, filled[0] - 1), min(filled[-1] + 1, len(counts) - 1)
        step = -(-(last - first + 1) // _BARS_MAX)
        for start in range(first, last + 1, step):
            stop = min(start + step, len(counts))
            bars.append((_bound(stop - 1), sum(counts[start:stop])))
    spread = list(counts)
    return {
        "word": word,
        "bars": bars,
        "count": sum(counts),
        "p50": quantile(spread, 0.5),
        "p95": quantile(spread, 0.95),
        "p99": quantile(spread, 0.99),
    }


def _bound(bucket: int) -> str:
    if bucket < len(BOUNDS_MS):
        return f"up to {words.duration(BOUNDS_MS[bucket])}"
    return f"over {words.duration(BOUNDS_MS[-1])}"

"""The native API's reports for operators: what needs attention, history, failures, audit log,
traffic.
"""

import asyncio
from typing import Final

from msgspec import convert

from manyhands.access.audit import AUDIT_CONDITIONS, search_audit
from manyhands.dispatch.ask import settled
from manyhands.model.history import ALL_QUEUES, merged
from manyhands.observe.history import RANGES
from manyhands.protocols.native import answers, builders
from manyhands.store.contract import FailureGroup, FailureQuestion
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange
from manyhands.web.query import Query
from manyhands.web.sources import Sources

_COUNT: Final = 100
_COUNT_MAX: Final = 1_000


class ApiOperating:
    """Reports; the operators' pages show them, too."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._dispatcher = sources.dispatcher
        self._traffic = sources.traffic

    async def attention(self, exchange: Exchange) -> None:
        """What needs a person, counted now."""
        Query(exchange.query_string).finish()
        now = self._dispatcher.clock.now()
        attention = self._sources.of_caller.attention
        await attention.look_closely(now)
        notes = [
            answers.Note(
                note.level,
                note.what,
                note.about,
                note.detail(),
                note.count,
                note.retrying,
                note.group_id or None,
                note.job_id or None,
            )
            for note in attention.notes(now)
        ]
        await exchange.answer(notes)

    async def history(self, exchange: Exchange) -> None:
        """What happened in the last hour, day or week, step by step."""
        query = Query(exchange.query_string)
        name = query.text("range") or "1h"
        queue = query.text("queue") or ALL_QUEUES
        query.finish()
        if name not in RANGES:
            known = ", ".join(RANGES)
            raise Problem(400, "invalid_query", f"range is one of {known}")
        history = self._sources.of_caller.history
        points = await history.read(name, queue)
        beside = {
            "range": name,
            "queue": queue or None,
            "step_ms": RANGES[name].step_ms,
            "rate": None if queue != ALL_QUEUES else history.rate(),
            "total": builders.sample(points[0].at, merged(point.sample for point in points)),
        }
        await exchange.answer([builders.sample(point.at, point.sample) for point in points], beside)

    async def failures(self, exchange: Exchange) -> None:
        """Jobs that failed or are tried again, grouped by failure."""
        query = Query(exchange.query_string)
        order = query.text("order") or "count"
        if order not in ("count", "latest"):
            raise Problem(400, "invalid_query", "order is count or latest")
        wanted = FailureQuestion(
            now=self._dispatcher.clock.now(),
            queue=query.text("queue"),
            latest_first=order == "latest",
            count_max=query.count(_COUNT, _COUNT_MAX),
            group_id=query.text("group"),
        )
        query.finish()
        store = self._sources.of_caller.store
        found = await self._sources.of_caller.attention.failures.read(store, wanted)
        beside = {
            "groups": found.groups_count,
            "failed": found.failed_count,
            "retrying": found.retrying_count,
        }
        await exchange.answer([_group(row) for row in found.groups], beside)

    async def audit(self, exchange: Exchange) -> None:
        """Who did what, newest first."""
        query = Query(exchange.query_string)
        before = query.whole("before", None, 1, 1 << 62)
        count = query.count(_COUNT, _COUNT_MAX)
        conditions = {name: query.text(name) for name in AUDIT_CONDITIONS}
        wanted = {name: text for name, text in conditions.items() if text is not None}
        query.finish()
        await settled(self._dispatcher)  # so that every entry has its outcome
        store = self._dispatcher.store
        found, more = await asyncio.to_thread(
            search_audit, store, exchange.caller, before, count, wanted
        )
        await exchange.answer([builders.audit_entry(entry) for entry in found], {"next": more})

    async def me(self, exchange: Exchange) -> None:
        """Who sent the request."""
        Query(exchange.query_string).finish()
        caller = exchange.caller
        now = self._sources.clock.now()
        await exchange.answer(answers.Me(caller.name, caller.role.value, list(caller.queues), now))

    async def protocols(self, exchange: Exchange) -> None:
        """The traffic of each listener."""
        Query(exchange.query_string).finish()
        rows = self._traffic.rows()
        await exchange.answer([convert(row, answers.Listener) for row in rows])


def _group(row: FailureGroup) -> answers.FailureGroup:
    return answers.FailureGroup(
        group=row.group.group_id,
        code=row.group.code,
        message=row.group.line,
        count=row.count,
        retrying=row.retrying,
        first_at=row.first_at,
        last_at=row.last_at,
        trend=row.trend,
        queues=dict(row.queues),
        jobs=row.job_ids,
    )

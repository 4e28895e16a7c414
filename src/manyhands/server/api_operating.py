"""The native API's questions of an operator: how it went, what went wrong, who did what."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from manyhands.model.history import ALL_QUEUES, merged
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.native import answers
from manyhands.server.api_query import Query
from manyhands.server.history import RANGES
from manyhands.server.http_exchange import Exchange
from manyhands.store.store import FailureGroup, FailureQuestion

if TYPE_CHECKING:
    from manyhands.server.app import Server

_COUNT: Final = 100
_COUNT_MAX: Final = 1_000


class ApiOperating:
    """What the pages for operators show, too."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    async def history(self, exchange: Exchange) -> None:
        """What happened in the last hour, day or week, step by step."""
        query = Query(exchange.scope["query_string"])
        name = query.text("range") or "1h"
        queue = query.text("queue") or ALL_QUEUES
        query.finish()
        if name not in RANGES:
            known = ", ".join(RANGES)
            raise Problem(400, "invalid_query", f"range is one of {known}")
        points = await self._server.history.read(name, queue)
        beside = {
            "range": name,
            "queue": queue or None,
            "step_ms": RANGES[name].step_ms,
            "total": answers.sample(points[0].at, merged(point.sample for point in points)),
        }
        await exchange.answer([answers.sample(point.at, point.sample) for point in points], beside)

    async def failures(self, exchange: Exchange) -> None:
        """Failed jobs by what went wrong."""
        query = Query(exchange.scope["query_string"])
        order = query.text("order") or "count"
        if order not in ("count", "latest"):
            raise Problem(400, "invalid_query", "order is count or latest")
        wanted = FailureQuestion(
            now=self._server.clock.now(),
            queue=query.text("queue"),
            latest_first=order == "latest",
            count_max=query.count(_COUNT, _COUNT_MAX),
            group_id=query.text("group"),
        )
        query.finish()
        found = await asyncio.to_thread(self._server.store.failures, wanted)
        beside = {"groups": found.groups_count, "failed": found.failed_count}
        await exchange.answer([_group(row) for row in found.groups], beside)

    async def audit(self, exchange: Exchange) -> None:
        """Who did what, the newest first."""
        query = Query(exchange.scope["query_string"])
        before = query.whole("before", None, 1, 1 << 62)
        count = query.count(_COUNT, _COUNT_MAX)
        query.finish()
        await self._server.settled()  # what was done is shown with its outcome
        found = await asyncio.to_thread(self._server.store.audit, before, count)
        beside = {"next": found[-1].seq if len(found) == count else None}
        await exchange.answer([msgspec.structs.asdict(entry) for entry in found], beside)

    async def protocols(self, exchange: Exchange) -> None:
        """What goes over each listener."""
        Query(exchange.scope["query_string"]).finish()
        await exchange.answer(self._server.traffic.rows())


def _group(row: FailureGroup) -> dict[str, Any]:
    return {
        "group": row.group.group_id,
        "code": row.group.code,
        "message": row.group.line,
        "count": row.count,
        "first_at": row.first_at,
        "last_at": row.last_at,
        "trend": row.trend,
        "queues": dict(row.queues),
        "jobs": row.job_ids,
    }

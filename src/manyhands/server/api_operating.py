"""The native API's questions of an operator: how it went, over which protocol."""

import asyncio
from typing import TYPE_CHECKING

from manyhands.model.history import ALL_QUEUES, merged
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.native import answers
from manyhands.server.api_query import Query
from manyhands.server.history import RANGES
from manyhands.server.http_exchange import Exchange

if TYPE_CHECKING:
    from manyhands.server.app import Server


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

    async def protocols(self, exchange: Exchange) -> None:
        """What goes over each listener."""
        Query(exchange.scope["query_string"]).finish()
        await exchange.answer(await asyncio.to_thread(self._server.traffic.rows))

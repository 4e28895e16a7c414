"""What streams learn about jobs from the store."""

import asyncio
from types import SimpleNamespace

from manyhands.model.replies import Refusal, Why
from manyhands.protocols.native import stream_routes
from manyhands.protocols.native.stream_routes import StreamRoutes


def test_a_job_that_a_failed_store_cannot_show_is_not_called_unknown(monkeypatch):
    async def find(_dispatcher, job_id):
        return None if job_id == "gone" else Refusal(Why.STORE_FAILED, "the store failed")

    monkeypatch.setattr(stream_routes, "find_job", find)
    shown = []

    asyncio.run(
        StreamRoutes._look(
            SimpleNamespace(_dispatcher=None), ("gone", "there", "gone"), 1, shown.append
        )
    )

    assert shown == [[None]]

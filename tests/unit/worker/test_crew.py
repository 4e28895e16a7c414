"""How a worker starts coroutines (P43)."""

import asyncio
import contextvars
import sys

from manyhands.client.worker.crew import start_task


def test_p43_a_coroutine_that_never_waits_costs_no_turn_where_python_allows_it():
    steps: list[str] = []

    async def job(*, waits: bool) -> None:
        steps.append("began")
        if waits:
            await asyncio.sleep(0)
        steps.append("ended")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks = []
        for waits in (False, True):
            tasks.append(start_task(loop, job(waits=waits), contextvars.copy_context()))
            steps.append("started")
        await asyncio.gather(*tasks)

    asyncio.run(main())

    eager = ["began", "ended", "started", "began", "started", "ended"]
    later = ["started", "started", "began", "ended", "began", "ended"]
    assert steps == (eager if sys.version_info >= (3, 12) else later)

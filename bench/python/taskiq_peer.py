"""taskiq on Redis streams: 100 jobs at once."""

import asyncio
import os

import redis
import tally
from peer import TEXT, main
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

URL = os.environ["BENCH_REDIS"]
STREAM = "taskiq-bench"
broker = RedisStreamBroker(URL, queue_name=STREAM, consumer_group_name="bench")
add = None


@broker.task(task_name="noop")
async def noop(text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    async def kick() -> None:
        await broker.startup()
        for _ in range(0, count, 50):
            await asyncio.gather(*(noop.kiq(TEXT) for _ in range(50)))
        await broker.shutdown()

    asyncio.run(kick())


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()

    async def run() -> None:
        broker.is_worker_process = True
        await broker.startup()
        await run_receiver_task(broker, max_async_tasks=100)

    asyncio.run(run())


def left() -> int:
    groups = redis.Redis.from_url(URL).xinfo_groups(STREAM)
    return sum(group["pending"] + (group.get("lag") or 0) for group in groups)


main(fill, work, left)

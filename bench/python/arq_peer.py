"""arq on Redis: 100 jobs at once, polled every 10 ms, results not kept."""

import asyncio
import os

import redis
import tally
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func
from peer import TEXT, main

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])
add = None


async def noop(context: dict, text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    async def enqueue() -> None:
        pool = await create_pool(SETTINGS)
        for _ in range(0, count, 100):
            await asyncio.gather(*(pool.enqueue_job("noop", TEXT) for _ in range(100)))
        await pool.aclose()

    asyncio.run(enqueue())


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()

    async def run() -> None:
        worker = Worker(
            [func(noop, name="noop", keep_result=0)],
            redis_settings=SETTINGS,
            max_jobs=100,
            poll_delay=0.01,
            handle_signals=False,
        )
        await worker.async_run()

    asyncio.run(run())


def left() -> int:
    return redis.Redis.from_url(os.environ["BENCH_REDIS"]).zcard("arq:queue")


main(fill, work, left)

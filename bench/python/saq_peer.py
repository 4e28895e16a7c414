"""SAQ on Redis: 20 jobs at once."""

import asyncio
import os

import redis
import tally
from peer import TEXT, main
from saq import Queue, Worker

URL = os.environ["BENCH_REDIS"]
add = None


async def noop(context: dict, *, text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    async def enqueue() -> None:
        queue = Queue.from_url(URL)
        await queue.connect()
        for _ in range(0, count, 50):
            await asyncio.gather(*(queue.enqueue("noop", text=TEXT, ttl=-1) for _ in range(50)))
        await queue.disconnect()

    asyncio.run(enqueue())


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()

    async def run() -> None:
        queue = Queue.from_url(URL)
        await queue.connect()
        await Worker(queue, functions=[noop], concurrency=20).start()

    asyncio.run(run())


def left() -> int:
    client = redis.Redis.from_url(URL)
    return client.zcard("saq:default:incomplete")


main(fill, work, left)

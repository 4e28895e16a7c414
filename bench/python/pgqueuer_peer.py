"""PgQueuer on PostgreSQL: asyncpg, batches of 100, `synchronous_commit` on."""

import asyncio
import os
from collections.abc import Callable

import asyncpg
import tally
import uvloop
from peer import TEXT, main
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

DSN = os.environ["BENCH_POSTGRES"]
PAYLOAD = b'{"text": "%s"}' % TEXT.encode()


def fill(count: int) -> None:
    async def enqueue() -> None:
        connection = await asyncpg.connect(DSN)
        queries = Queries(AsyncpgDriver(connection))
        if await queries.schema_is_installed():
            await queries.uninstall()
        await queries.install()
        for _ in range(0, count, 1000):
            await queries.enqueue(["noop"] * 1000, [PAYLOAD] * 1000, [0] * 1000)
        await connection.close()

    uvloop.run(enqueue())


def submitter() -> Callable[[], None]:
    """Submits one at a time, over a connection that is opened first."""
    loop = uvloop.new_event_loop()
    queries: list[Queries] = []

    async def enqueue() -> None:
        if not queries:
            queries.append(Queries(AsyncpgDriver(await asyncpg.connect(DSN))))
            if not await queries[0].schema_is_installed():
                await queries[0].install()
        await queries[0].enqueue("noop", PAYLOAD)

    return lambda: loop.run_until_complete(enqueue())


def work() -> None:
    async def run() -> None:
        add = tally.counter()
        queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(DSN))

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:  # noqa: ARG001
            add()

        await queue.run(batch_size=100)

    uvloop.run(run())


def left() -> int:
    async def count() -> int:
        connection = await asyncpg.connect(DSN)
        found = await connection.fetchval("select count(*) from pgqueuer")
        await connection.close()
        return found

    return asyncio.run(count())


main(fill, work, left, submitter())

"""PgQueuer on PostgreSQL: asyncpg, batches of 100, `synchronous_commit` on."""

import asyncio
import os

import asyncpg
import tally
import uvloop
from peer import TEXT, main
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

DSN = os.environ["BENCH_POSTGRES"]


def fill(count: int) -> None:
    async def enqueue() -> None:
        connection = await asyncpg.connect(DSN)
        queries = Queries(AsyncpgDriver(connection))
        if await queries.schema_is_installed():
            await queries.uninstall()
        await queries.install()
        payload = b'{"text": "%s"}' % TEXT.encode()
        for _ in range(0, count, 1000):
            await queries.enqueue(["noop"] * 1000, [payload] * 1000, [0] * 1000)
        await connection.close()

    uvloop.run(enqueue())


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


main(fill, work, left)

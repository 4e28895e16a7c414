"""Procrastinate on PostgreSQL: 20 jobs at once, `synchronous_commit` on."""

import asyncio
import os

import psycopg
import tally
from peer import TEXT, main
from procrastinate import App, PsycopgConnector

DSN = os.environ["BENCH_POSTGRES"]
app = App(connector=PsycopgConnector(conninfo=DSN))
add = None


@app.task(name="noop")
async def noop(text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    async def defer() -> None:
        async with app.open_async():
            if not await _is_installed():
                await app.schema_manager.apply_schema_async()
            for _ in range(0, count, 500):
                await noop.batch_defer_async(*({"text": TEXT} for _ in range(500)))

    asyncio.run(defer())


async def _is_installed() -> bool:
    async with await psycopg.AsyncConnection.connect(DSN) as connection:
        found = await connection.execute("select to_regclass('procrastinate_jobs')")
        return (await found.fetchone())[0] is not None


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=20, install_signal_handlers=False)

    asyncio.run(run())


def left() -> int:
    with psycopg.connect(DSN) as connection:
        found = connection.execute(
            "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
        )
        return found.fetchone()[0]


main(fill, work, left)

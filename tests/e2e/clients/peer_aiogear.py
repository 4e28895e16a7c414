"""aiogear as the program of a test.

work HOST:PORT PREFIX         serves PREFIX.upper and PREFIX.die until it is stopped
run HOST:PORT FUNCTION DATA   runs a job, prints its result; a fifth word is its unique
send HOST:PORT FUNCTION DATA  submits a background job, prints its handle
"""

import asyncio
import sys

from aiogear import Client, Worker
from aiogear.response import WorkComplete


def upper(job) -> str:
    return job.workload.upper()


def die(_job) -> str:
    raise RuntimeError("it broke")


async def main(
    mode: str, server: str, function: str, data: str = "", unique: str | None = None
) -> int:
    loop = asyncio.get_running_loop()
    host, _, port = server.rpartition(":")
    if mode == "work":
        functions = (upper, f"{function}.upper"), (die, f"{function}.die")
        _, worker = await loop.create_connection(
            lambda: Worker(*functions, loop=loop), host, int(port)
        )
        await worker.main_task
        return 1
    _, client = await loop.create_connection(lambda: Client(loop=loop), host, int(port))
    if mode == "send":
        created = await client.submit_job_bg(function, data)
        sys.stdout.write(created.handle)
        return 0
    ended = None
    while ended is None:
        created = await client.submit_job(function, data, uuid=unique)  # None: 16 raw bytes
        try:
            ended = await client.wait_job(created.handle)
        except RuntimeError:
            continue  # it loses track of a job that ends in the same read as it is created
    if isinstance(ended, WorkComplete):
        sys.stdout.write(ended.result)
        return 0
    sys.stdout.write("failed")
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))

"""Publishes the same messages with confirms through aio-pika, for comparison: prints microseconds
of CPU per message, and messages per second.

    python bench/amqp/publish.py URL COUNT
"""

import asyncio
import json
import sys
import time

import aio_pika

GATHERED = 200
BODY = json.dumps({"version": "0.2.0", "status": {"task_id": "x" * 36, "rest": "y" * 560}}).encode()
KEY = ".".join(("x" * 36, "1", "gearman", "worker-1", "default", "resize", ""))
HEADERS = {f"ce-{name}": "z" * 30 for name in ("id", "source", "type", "subject", "time", "schema")}


async def publish(url: str, count: int) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = await channel.get_exchange("task_completed_v1")

        def one() -> object:
            message = aio_pika.Message(
                BODY, content_type="application/json", delivery_mode=2, headers=HEADERS
            )
            return exchange.publish(message, KEY, mandatory=False)

        cpu, started = time.process_time(), time.perf_counter()
        for start in range(0, count, GATHERED):
            await asyncio.gather(*(one() for _ in range(min(GATHERED, count - start))))
        spent = time.process_time() - cpu
        print(json.dumps([spent / count * 1e6, count / (time.perf_counter() - started)]))


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], int(sys.argv[2])))

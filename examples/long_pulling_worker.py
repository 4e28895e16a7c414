"""A worker that asks for work once, and after that only when it is notified of some.

    python examples/long_pulling_worker.py amqp://guest:guest@127.0.0.1:5673/ \
        http://127.0.0.1:7700 default mail

Prints `completed TASK` for each task.
"""

import asyncio
import json
import sys
import urllib.request

import aio_pika


def ask(server: str, path: str, **body: object) -> list[dict[str, object]]:
    request = urllib.request.Request(
        f"{server}/api/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["results"]


async def work_off(server: str, queue: str) -> None:
    """Take all available tasks, one at a time."""
    while True:
        claimed = await asyncio.to_thread(ask, server, "claim", queue=queue, worker="puller")
        if not claimed:
            return
        [job] = claimed
        # The real work would go here.
        await asyncio.to_thread(ask, server, "complete", id=job["id"], token=job["token"])
        print("completed", job["id"], flush=True)


async def main(url: str, server: str, provisioner: str, worker_type: str) -> None:
    queue_name = worker_type if provisioner == "default" else f"{provisioner}/{worker_type}"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        exchange = await channel.declare_exchange("task_pending_v1", "topic", durable=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, f"*.*.*.*.{provisioner}.{worker_type}.#")
        # Listen first, then look, so that no task is missed in between.
        print("listening", flush=True)
        await work_off(server, queue_name)
        async with queue.iterator() as messages:
            async for message in messages:
                await work_off(server, queue_name)
                await message.ack()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A scheduler of dependent tasks: each step is submitted when the previous one has completed.

    python examples/dependent_scheduler.py amqp://guest:guest@127.0.0.1:5673/ \
        http://127.0.0.1:7700 my-scheduler fetch build publish

Its tasks carry their own routing, so it gets no other events. Prints `submitted STEP TASK` for each
step and `finished` or `gave up: REASON` at the end.
"""

import json
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

import pika


def submit(server: str, key: str, step: str) -> str:
    now = datetime.now(UTC)
    definition = {
        "version": "0.2.0",
        "provisioner_id": "default",
        "worker_type": step,
        "routing": f"{key}.{step}",
        "retries": 1,
        "priority": 0,
        "created": now.isoformat(),
        "deadline": (now + timedelta(hours=1)).isoformat(),
        "payload": {"step": step},
        "metadata": {
            "name": step,
            "owner": "scheduler@example.org",
            "maintainer": "scheduler@example.org",
        },
        "tags": {},
    }
    request = urllib.request.Request(
        f"{server}/0.2.0/task/new",
        json.dumps(definition).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        task: str = json.load(answer)["status"]["task_id"]
    print("submitted", step, task, flush=True)
    return task


def main(url: str, server: str, key: str, *steps: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for exchange in ("task_completed_v1", "task_failed_v1"):
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(queue, exchange, f"*.*.*.*.*.*.{key}.#")
    left = list(steps)
    task = submit(server, key, left.pop(0))
    for _, _, body in channel.consume(queue, auto_ack=True):
        status = json.loads(body)["status"]
        if status["task_id"] != task:
            continue
        if status["state"] == "failed":
            print("gave up:", status["reason"], flush=True)
            break
        if not left:
            print("finished", flush=True)
            break
        task = submit(server, key, left.pop(0))
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

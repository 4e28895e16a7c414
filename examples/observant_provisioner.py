"""An observant provisioner: knows how many tasks of each worker type wait, without ever asking.

    python examples/observant_provisioner.py amqp://guest:guest@127.0.0.1:5673/ default

Prints `TYPE COUNT` whenever a count changes.
"""

import json
import sys

import pika

# A task is no longer pending when it runs, and also when it fails without having run.
EXCHANGES = ("task_pending_v1", "task_running_v1", "task_failed_v1")


def main(url: str, provisioner: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    queue = channel.queue_declare("", exclusive=True).method.queue
    for exchange in EXCHANGES:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(queue, exchange, f"*.*.*.*.{provisioner}.#")
    print("watching", flush=True)
    pending: dict[str, set[str]] = {}
    for method, _, body in channel.consume(queue):
        status = json.loads(body)["status"]
        tasks = pending.setdefault(status["worker_type"], set())
        before = len(tasks)
        if method.exchange == "task_pending_v1":
            tasks.add(status["task_id"])
        else:
            tasks.discard(status["task_id"])
        channel.basic_ack(method.delivery_tag)
        if len(tasks) != before:
            print(status["worker_type"], len(tasks), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A monitor of task resolutions: how many, how they ended, and how long they took.

    python examples/statistics_monitor.py amqp://guest:guest@127.0.0.1:5673/

Its queue is durable: events that happen while the monitor is stopped are counted when it is back,
and a message that comes twice is counted once. Prints one line of JSON after each resolution.
"""

import json
import sys
from datetime import datetime

import pika


def main(url: str, name: str = "statistics") -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    channel.queue_declare(name, durable=True)
    for exchange in ("task_completed_v1", "task_failed_v1"):
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(name, exchange, "#")
    print("watching", flush=True)
    counts: dict[str, int] = {}
    seconds = 0.0
    last = 0
    for method, properties, body in channel.consume(name):
        if int(properties.message_id) > last:
            last = int(properties.message_id)
            status = json.loads(body)["status"]
            outcome = status["state"] if status["reason"] == "none" else status["reason"]
            counts[outcome] = counts.get(outcome, 0) + 1
            created = datetime.fromisoformat(status["created"])
            resolved = datetime.fromisoformat(properties.headers["ce-time"])
            seconds += (resolved - created).total_seconds()
            average = seconds / sum(counts.values())
            print(json.dumps({"outcomes": counts, "average_seconds": average}), flush=True)
        channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    main(*sys.argv[1:])

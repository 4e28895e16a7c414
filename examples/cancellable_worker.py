"""A worker that stops at once when its task is canceled, or fails for another reason.

    python examples/cancellable_worker.py amqp://guest:guest@127.0.0.1:5673/ \
        http://127.0.0.1:7700 mail worker-1

Prints `started TASK`, and `stopped TASK REASON` when it is told to stop.
"""

import json
import sys
import urllib.request
from uuid import UUID

import pika

# Workers of the native API are one group; with a binding to `*.*.<group>.#` a super-worker would
# get the events of all of them.
GROUP = "native"


def claim(server: str, queue: str, worker: str) -> str:
    """Claim one job, waiting for it if necessary, and return its task id."""
    body = {"queue": queue, "worker": worker, "wait": 300, "term_ms": 0}
    request = urllib.request.Request(
        f"{server}/api/claim", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        [job] = json.load(answer)["results"]
    # Made from the uid, not from the id, which may be shorter if the submitter chose it.
    return str(UUID(job["uid"]))


def main(url: str, server: str, queue_name: str, worker: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.exchange_declare("task_failed_v1", "topic", durable=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "task_failed_v1", f"*.*.{GROUP}.{worker}.#")
    while True:
        task = claim(server, queue_name, worker)
        print("started", task, flush=True)
        for _, _, body in channel.consume(queue, auto_ack=True):
            status = json.loads(body)["status"]
            if status["task_id"] == task:
                print("stopped", task, status["reason"], flush=True)
                break


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Celery on Redis: solo pool, prefetch 16. BENCH_RESULTS=1: results are kept there, and awaited."""

import logging
import os

import redis
import tally
from celery import Celery, group
from peer import TEXT, main

KEEPS_RESULTS = os.environ.get("BENCH_RESULTS") == "1"
app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_ignore_result=not KEEPS_RESULTS,
    result_backend=os.environ["BENCH_REDIS"] if KEEPS_RESULTS else None,
    worker_prefetch_multiplier=16,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_acks_late=True,  # a job that a killed worker ran is run again, as with the others
)
add = None


@app.task(name="noop")
def noop(text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for _ in range(count):
            noop.apply_async((TEXT,), producer=producer)


class Submitted:
    """A job with the method that other peers have."""

    def __init__(self) -> None:
        self.result = noop.delay(TEXT).get


def results(count: int) -> None:
    group(noop.s(TEXT) for _ in range(count)).apply_async().get()


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()
    logging.disable(logging.WARNING)
    app.worker_main(
        ["worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    )


def left() -> int:
    client = redis.Redis.from_url(os.environ["BENCH_REDIS"])
    return client.llen("celery") + client.hlen("unacked")


if __name__ == "__main__":
    main(fill, work, left, Submitted, results)

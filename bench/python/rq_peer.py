"""RQ on Redis: SimpleWorker, results not kept."""

import logging
import os

import redis
import tally
from peer import TEXT, main
from rq import Queue, SimpleWorker

connection = redis.Redis.from_url(os.environ["BENCH_REDIS"])
queue = Queue("noop", connection=connection)
add = None


def noop(text: str) -> None:  # noqa: ARG001
    global add  # noqa: PLW0603
    add = add or tally.counter()
    add()


def fill(count: int) -> None:
    for _ in range(0, count, 100):
        prepared = [Queue.prepare_data("rq_peer.noop", (TEXT,), result_ttl=0) for _ in range(100)]
        queue.enqueue_many(prepared)


def work() -> None:
    logging.disable(logging.WARNING)
    SimpleWorker([queue], connection=connection).work()


def left() -> int:
    return queue.count


if __name__ == "__main__":
    main(fill, work, left)

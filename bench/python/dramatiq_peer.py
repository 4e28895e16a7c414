"""Dramatiq on Redis: 8 threads, without middleware."""

import os
import threading

import dramatiq
import redis
import tally
from dramatiq.brokers.redis import RedisBroker
from peer import TEXT, main

broker = RedisBroker(url=os.environ["BENCH_REDIS"], middleware=[])
dramatiq.set_broker(broker)
add = None


@dramatiq.actor(queue_name="noop")
def noop(text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    for _ in range(count):
        noop.send(TEXT)


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()
    dramatiq.Worker(broker, worker_threads=8).start()
    threading.Event().wait()


def left() -> int:
    client = redis.Redis.from_url(os.environ["BENCH_REDIS"])
    waiting = client.llen("dramatiq:noop")
    return waiting + sum(client.scard(key) for key in client.keys("dramatiq:__acks__.*.noop"))


main(fill, work, left)

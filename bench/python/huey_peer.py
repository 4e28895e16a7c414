"""huey on SQLite: one worker thread a process. BENCH_FSYNC=1 flushes before a job is accepted.

It takes a job out before it runs it: at most once.
"""

import os
import threading

import tally
from huey import SqliteHuey
from peer import TEXT, main

huey = SqliteHuey(
    filename=os.environ["BENCH_FOLDER"] + f"/huey{os.environ['BENCH_FSYNC']}.db",
    fsync=os.environ["BENCH_FSYNC"] == "1",
    results=False,
)
add = None


@huey.task()
def noop(text: str) -> None:  # noqa: ARG001
    add()


def fill(count: int) -> None:
    for _ in range(count):
        noop(TEXT)


def work() -> None:
    global add  # noqa: PLW0603
    add = tally.counter()
    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False)
    consumer.start()
    threading.Event().wait()


def left() -> int:
    return huey.pending_count()


main(fill, work, left)

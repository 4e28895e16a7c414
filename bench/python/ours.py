"""Manyhands: `manyhands worker`, as it comes. BENCH_TASK chooses what a job does."""

import json
import os
import urllib.request

from peer import TEXT, main

from manyhands import gather

URL = os.environ["BENCH_URL"]
TASK = os.environ.get("BENCH_TASK", "noop")
os.environ["MANYHANDS_URL"] = URL


def task():
    import tasks  # noqa: PLC0415 - it needs the tally

    return getattr(tasks, TASK)


def fill(count: int) -> None:
    task().map([TEXT] * count)


def one():
    return task().submit(TEXT)


def results(count: int) -> None:
    gather(*task().map([TEXT] * count))


def work() -> None:
    flags = ["-p", os.environ["BENCH_PROCESSES"], "--queues", TASK, "--log-level", "warning"]
    if concurrency := os.environ.get("BENCH_CONCURRENCY"):
        flags += ["-c", concurrency]
    os.execvp("manyhands", ["manyhands", "worker", "tasks:app", *flags])


def left() -> int:
    with urllib.request.urlopen(f"{URL}/api/queues/{TASK}") as answer:
        counts = json.load(answer)["results"]["counts"]
    return sum(counts[state] for state in ("ready", "leased", "delayed"))


main(fill, work, left, one, results)

"""Manyhands: `manyhands worker`, as it comes. BENCH_TASK chooses what a job does."""

import json
import os
import time
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


def lone() -> float:
    """Milliseconds from the answer to a submit, which follows the commit, to the job's begin."""
    job = task().submit(TEXT)
    accepted_at = time.monotonic()
    return (job.result() - accepted_at) * 1000


def work() -> None:
    flags = ["-p", os.environ["BENCH_PROCESSES"], "--queues", TASK, "--log-level", "warning"]
    if concurrency := os.environ.get("BENCH_CONCURRENCY"):
        flags += ["-c", concurrency]
    os.execvp("manyhands", ["manyhands", "worker", "tasks:app", *flags])


def left() -> int:
    with urllib.request.urlopen(f"{URL}/api/queues/{TASK}") as answer:
        counts = json.load(answer)["results"]["counts"]
    return sum(counts[state] for state in ("ready", "leased", "delayed"))


main(fill, work, left, one, results, lone)

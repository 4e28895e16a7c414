"""Manyhands: `manyhands worker`, as it comes. BENCH_TASK chooses the function or the coroutine."""

import json
import os
import urllib.request

from peer import TEXT, main

URL = os.environ["BENCH_URL"]
TASK = os.environ.get("BENCH_TASK", "noop")
os.environ["MANYHANDS_URL"] = URL


def fill(count: int) -> None:
    import tasks  # noqa: PLC0415 - it needs the tally

    getattr(tasks, TASK).map([TEXT] * count)


def work() -> None:
    processes = os.environ["BENCH_PROCESSES"]
    flags = ["-p", processes, "--queues", TASK, "--log-level", "warning"]
    os.execvp("manyhands", ["manyhands", "worker", "tasks:app", *flags])


def left() -> int:
    with urllib.request.urlopen(f"{URL}/api/queues/{TASK}") as answer:
        counts = json.load(answer)["results"]["counts"]
    return sum(counts[state] for state in ("ready", "leased", "delayed"))


main(fill, work, left)

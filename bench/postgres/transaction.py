"""Somebody's transaction stays open for a minute, so that vacuum can clean up nothing: what a job
costs PostgreSQL meanwhile, and what it did before.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import uvloop
from bench_postgres import Bench, family_cpu, spread, table
from cycles import IN_FLIGHT, driver_on

SECONDS = 60.0
SECONDS_MIN = 15.0  # a slice takes some of it
SLICE_JOBS = 2_000
RATE = 1_000.0  # life cycles a second: a part of what there is, so that slices are alike


async def load(store_name: str, seconds: float, postmaster: int) -> None:
    """Prints PostgreSQL's CPU a job of each slice, with when it ended."""
    driver = driver_on(store_name)
    await driver.cycles(SLICE_JOBS, IN_FLIGHT)
    began = time.monotonic()
    before = family_cpu(postmaster)
    number = 0
    while (now := time.monotonic()) - began < seconds:
        await driver.cycles(SLICE_JOBS, IN_FLIGHT)
        number += 1
        spent, before = family_cpu(postmaster) - before, family_cpu(postmaster)
        print(json.dumps([now - began, spent / SLICE_JOBS * 1e6]), flush=True)
        await asyncio.sleep(max(0.0, began + number * SLICE_JOBS / RATE - time.monotonic()))
    driver.dispatcher.store.close()


def measure(bench: Bench) -> None:
    seconds = max(SECONDS_MIN, SECONDS * min(1.0, bench.scale))
    store = bench.database.url(bench.database.new_schema())
    postmaster = bench.database._postmaster()  # noqa: SLF001
    words = [sys.executable, __file__, store, str(1.5 * seconds), str(postmaster)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process,
        bench.database.connect() as connection,
    ):
        assert process.stdout is not None
        found: list[tuple[float, float]] = []
        opened = False
        for line in process.stdout:
            found.append(tuple(json.loads(line)))
            if not opened and found[-1][0] > 0.5 * seconds:
                opened = True
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                connection.execute("SELECT count(*) FROM pg_class")  # now it has a snapshot
        connection.execute("ROLLBACK")
    before = [cost for at, cost in found if at < 0.5 * seconds]
    late = [cost for at, cost in found if at > 1.2 * seconds]
    rows = [
        ["before", spread(before)],
        [f"after it has been open for {0.7 * seconds:.0f} to {seconds:.0f} s", spread(late)],
        ["ratio of the means", f"{sum(late) / len(late) / (sum(before) / len(before)):.2f}"],
    ]
    table("An open transaction: PostgreSQL's CPU a life cycle, µs", ["", ""], rows)


if __name__ == "__main__":
    store_name, seconds, postmaster = sys.argv[1:]
    uvloop.run(load(store_name, float(seconds), int(postmaster)))

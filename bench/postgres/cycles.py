"""One server: life cycles through the dispatcher, and what a lone client waits for; no protocol,
no network. Each round is a process of its own, so that rounds do not warm each other up.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import uvloop
from bench_postgres import Bench, family_cpu, ratio, spread, table
from dispatcher import Driver

from manyhands.config.database import read_address
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.commands import Submit
from manyhands.observe.facts import Facts
from manyhands.observe.tallies import Tallies
from manyhands.store.postgres.store import PostgresStore
from manyhands.store.sqlite.store import SqliteStore

JOBS = 50_000
IN_FLIGHT = 256
LONE_COUNT = 500


def driver_on(store_name: str) -> Driver:
    """A dispatcher on a store, as in every server."""
    if store_name.startswith("postgresql://"):
        store = PostgresStore(read_address(store_name))
    else:
        store = SqliteStore(Path(store_name))
    clock = Clock()
    dispatcher = Dispatcher(store, clock, asyncio.get_running_loop())
    facts = Facts()
    Tallies(facts)
    dispatcher.on_batch.append(facts.note)
    return Driver(dispatcher, clock)


async def lone(driver: Driver) -> float:
    """The median time of a submit when nobody else asks, in milliseconds."""
    took = []
    for _ in range(LONE_COUNT):
        answered = asyncio.Event()
        began = time.perf_counter()
        driver.dispatcher.ask(Submit((driver.item(),)), lambda _, event=answered: event.set())
        await answered.wait()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def one_round(store_name: str, jobs: int, postmaster: int) -> dict[str, float]:
    driver = driver_on(store_name)
    await driver.cycles(2_000, IN_FLIGHT)
    before = family_cpu(postmaster) if postmaster else 0.0
    found = await driver.cycles(jobs, IN_FLIGHT)
    spent = family_cpu(postmaster) - before if postmaster else 0.0
    found["database_cpu_us"] = spent / jobs * 1e6
    # Several times: right after the load, the database still writes what it has put off.
    found["lone_ms"] = min([await lone(driver) for _ in range(5)])
    driver.dispatcher.store.close()
    return found


def in_process(bench: Bench, store_name: str, postmaster: int) -> dict[str, float]:
    words = [sys.executable, __file__, store_name, str(bench.count(JOBS)), str(postmaster)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def measure(bench: Bench) -> None:
    found: dict[str, list[dict[str, float]]] = {"SQLite": [], "PostgreSQL": []}
    for number in range(bench.rounds):
        for name in found if number % 2 == 0 else [*found][::-1]:
            if name == "SQLite":
                store, postmaster = str(bench.folder / f"data-{number}"), 0
            else:
                store = bench.database.url(bench.database.new_schema())
                postmaster = bench.database._postmaster()  # noqa: SLF001
            found[name].append(in_process(bench, store, postmaster))
    rows = []
    for words, key, form in (
        ("server's CPU a life cycle, µs", "main_cpu_us", ".1f"),
        ("writer's CPU, µs", "writer_cpu_us", ".1f"),
        ("PostgreSQL's CPU, µs", "database_cpu_us", ".1f"),
        ("life cycles a second", "life_cycles_per_second", ",.0f"),
        ("life cycles a commit", "life_cycles_per_commit", ".0f"),
        ("lone submit, p50, ms", "lone_ms", ".2f"),
    ):
        columns = [[row[key] for row in rounds] for rounds in found.values()]
        both = ratio(columns[1], columns[0]) if all(columns[0]) else ""
        rows.append([words, *(spread(column, form) for column in columns), both])
    table("One server", ["", *found, "PostgreSQL is x times"], rows)


def measure_before(bench: Bench) -> None:
    """SQLite alone, as a tree before has it and as it is now."""
    assert bench.before is not None, "--before names a tree"
    trees = {"before": bench.before, "now": Path(__file__).parents[2]}
    found: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(bench.rounds):
        for name in trees if number % 2 == 0 else [*trees][::-1]:
            words = [sys.executable, str(trees[name] / "bench" / "dispatcher.py"), "--json"]
            words += ["--jobs", str(bench.count(JOBS)), "--backlog", "1000", "--in-flight", "256"]
            source = {"PYTHONPATH": str(trees[name] / "src")}
            output = subprocess.run(
                words, check=True, capture_output=True, text=True, env=os.environ | source
            ).stdout
            found[name].append(json.loads(output)["1,000 queued"]["main_cpu_us"])
    rows = [[name, spread(values)] for name, values in found.items()]
    rows.append(["now / before", ratio(found["now"], found["before"])])
    table("SQLite: the server's CPU a life cycle, µs", ["", ""], rows)


if __name__ == "__main__":
    store_name, jobs, postmaster = sys.argv[1:]
    print(json.dumps(uvloop.run(one_round(store_name, int(jobs), int(postmaster)))))

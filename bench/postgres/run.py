"""Benchmark one server on PostgreSQL beside the same on SQLite: life cycles through the dispatcher,
and what a lone client waits for.

    python bench/postgres/run.py            a table, best of three rounds each, interleaved
    python bench/postgres/run.py --json     the same for machines
    python bench/postgres/run.py --url postgresql://…   on a database of your own (CPU not counted)

A private PostgreSQL with its default durability is started from Debian's packages. The figures that
matter are CPU times: of the server, of the process that writes, and of PostgreSQL.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import uvloop  # noqa: E402
from dispatcher import Driver, cpu_seconds  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from manyhands.config.database import read_address  # noqa: E402
from manyhands.dispatch.clock import Clock  # noqa: E402
from manyhands.dispatch.dispatcher import Dispatcher  # noqa: E402
from manyhands.model.commands import Submit  # noqa: E402
from manyhands.observe.facts import Facts  # noqa: E402
from manyhands.observe.tallies import Tallies  # noqa: E402
from manyhands.store.postgres.store import PostgresStore  # noqa: E402
from manyhands.store.sqlite.store import SqliteStore  # noqa: E402

LONE_COUNT = 500


def family_cpu_seconds(pid: int) -> float:
    """CPU of a process, its ended children and those that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        with contextlib.suppress(OSError):
            total += cpu_seconds(int(child))
    return total


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


async def measure(store_name: str, jobs: int, in_flight: int, postmaster: int | None) -> dict:
    if store_name.startswith("postgresql://"):
        store = PostgresStore(read_address(store_name))
    else:
        store = SqliteStore(Path(store_name))
    clock = Clock()
    dispatcher = Dispatcher(store, clock, asyncio.get_running_loop())
    facts = Facts()
    Tallies(facts)
    dispatcher.on_batch.append(facts.note)
    driver = Driver(dispatcher, clock)
    await driver.cycles(2_000, in_flight)
    before = family_cpu_seconds(postmaster) if postmaster else 0.0
    found = await driver.cycles(jobs, in_flight)
    if postmaster:
        spent = family_cpu_seconds(postmaster) - before
        found["postgresql_cpu_us"] = round(spent / jobs * 1e6, 1)
    found["lone_submit_ms"] = round(await lone(driver), 3)
    store.close()
    return found


def one_round(store_name: str, options: argparse.Namespace, postmaster: int | None) -> dict:
    """In a process of its own, so that rounds do not warm each other up."""
    words = [sys.executable, __file__, "--one", store_name, "--jobs", str(options.jobs)]
    words += ["--in-flight", str(options.in_flight), "--postmaster", str(postmaster or 0)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def best(rounds: list[dict]) -> dict:
    return min(rounds, key=lambda row: row["main_cpu_us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="life cycles a round")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", default=None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--postmaster", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        coroutine = measure(options.one, options.jobs, options.in_flight, options.postmaster)
        print(json.dumps(uvloop.run(coroutine)))
        return
    results: dict[str, list[dict]] = {"sqlite": [], "postgresql": []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-bench-")))
        url, postmaster = options.url, None
        if url is None:
            from tests.databases import database  # noqa: PLC0415

            one = stack.enter_context(database(folder / "db", durable=True, shared_buffers="128MB"))
            url, postmaster = one.url(), one._postmaster()  # noqa: SLF001
        for number in range(options.rounds):
            results["sqlite"].append(one_round(str(folder / f"data-{number}"), options, None))
            schema = f"{'&' if '?' in url else '?'}schema=bench_{os.getpid()}_{number}"
            results["postgresql"].append(one_round(url + schema, options, postmaster))
    chosen = {name: best(rounds) for name, rounds in results.items()}
    if options.json:
        print(json.dumps(chosen))
        return
    table = Table("", *chosen)
    for key in chosen["postgresql"]:
        table.add_row(key, *(str(row.get(key, "")) for row in chosen.values()))
    Console().print(table)


if __name__ == "__main__":
    main()

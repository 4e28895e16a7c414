"""Benchmark the dispatcher in one process, durable, with the event log: no protocol, no network.

    python bench/dispatcher.py                  life cycles, with 1,000 and 1,000,000 jobs queued
    python bench/dispatcher.py --backlog 100000
    python bench/dispatcher.py --store memory   the same without a disk, for comparison

A life cycle is submit, claim, complete; it counts when its completion is on disk. Many are in
flight at once, so batches are as full as a busy server's.
"""

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.commands import ByConnection, Claim, Complete, NewJob, Submit
from manyhands.model.job import Holder, Job
from manyhands.model.policy import TERMS
from manyhands.model.replies import Claimed, Reply
from manyhands.observe.facts import Facts
from manyhands.observe.tallies import Tallies
from manyhands.store.memory import MemoryStore
from manyhands.store.sqlite.store import SqliteStore

HOLDER = Holder("gearman", "worker-1", "127.0.0.1")
TERMS_OF_JOBS = TERMS["gearman"]
SLICE = 500  # submits between two turns of the loop, as in a busy listener


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children() -> list[int]:
    text = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


class Driver:
    """Keeps life cycles going through a dispatcher."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self.dispatcher = dispatcher
        self.clock = clock
        self.ids = Ids()
        self.connection = self.ids.connection()
        self.proof = ByConnection(self.connection)
        self.completed = 0
        self.wanted = 0
        self.begun = 0
        self.finished = asyncio.Event()
        self.submitted = 0

    def item(self) -> NewJob:
        self.submitted += 1
        return NewJob(
            job_id=self.ids.job_id(self.clock.now()),
            queue="resize",
            payload=b"x" * 100,
            terms=TERMS_OF_JOBS,
            unique_key=b"%036d" % self.submitted,
        )

    def begin(self) -> None:
        self.begun += 1
        self.dispatcher.ask(Submit((self.item(),)), self.on_submitted)

    def on_submitted(self, _: Reply) -> None:
        claim = Claim(
            queues=("resize",),
            holder=HOLDER,
            tokens=(self.ids.token(),),
            connection=self.connection,
            early=True,
        )
        self.dispatcher.ask(claim, self.on_claimed)

    def on_claimed(self, reply: Reply) -> None:
        assert isinstance(reply, Claimed)
        job: Job = reply.jobs[0]
        complete = Complete(job_id=job.job_id, proof=self.proof, result=b"y" * 20)
        self.dispatcher.ask(complete, self.on_completed)

    def on_completed(self, _: Reply) -> None:
        self.completed += 1
        if self.begun < self.wanted:
            self.begin()
        elif self.completed == self.wanted:
            self.finished.set()

    async def cycles(self, count: int, in_flight: int) -> dict[str, float]:
        self.completed = self.begun = 0
        self.wanted = count
        self.finished.clear()
        counts = self.dispatcher.counts
        batches = counts.batches
        writers = children()
        main, writer = cpu_seconds(os.getpid()), sum(map(cpu_seconds, writers))
        started = time.perf_counter()
        for _ in range(in_flight):
            self.begin()
        await self.finished.wait()
        seconds = time.perf_counter() - started
        batches = counts.batches - batches
        return {
            "life_cycles_per_second": round(count / seconds),
            "main_cpu_us": round((cpu_seconds(os.getpid()) - main) / count * 1e6, 1),
            "writer_cpu_us": round((sum(map(cpu_seconds, writers)) - writer) / count * 1e6, 1),
            "commits_per_second": round(batches / seconds),
            "life_cycles_per_commit": round(count / max(1, batches), 1),
        }

    async def fill(self, count: int) -> dict[str, float]:
        """Queues jobs, and measures the longest time that the loop was blocked."""
        gc.collect()
        before = rss_bytes()
        worst = 0.0
        last = time.perf_counter()
        started = last
        for _ in track(range(count // SLICE), "filling", disable=not sys.stderr.isatty()):
            self.dispatcher.ask(Submit(tuple(self.item() for _ in range(SLICE))), _ignore)
            await asyncio.sleep(0)
            now = time.perf_counter()
            worst = max(worst, now - last)
            last = now
        idle = asyncio.Event()
        self.dispatcher.when_idle(idle.set)
        await idle.wait()
        return {
            "fill_jobs_per_second": round(count / (time.perf_counter() - started)),
            "worst_pause_ms": round(worst * 1000, 1),
            "bytes_per_queued_job": round((rss_bytes() - before) / count),
        }


def _ignore(_: Reply) -> None:
    """Does nothing: the jobs are counted elsewhere."""


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, dict[str, float]]:
    store = MemoryStore() if options.store == "memory" else SqliteStore(directory)
    clock = Clock()
    dispatcher = Dispatcher(store, clock, asyncio.get_running_loop())
    facts = Facts()
    Tallies(facts)
    dispatcher.on_batch.append(facts.note)  # as in every server
    driver = Driver(dispatcher, clock)
    gc.set_threshold(50_000, 20, 1_000)
    results: dict[str, dict[str, float]] = {}
    await driver.fill(1_000)
    await driver.cycles(2_000, options.in_flight)
    results["1,000 queued"] = await driver.cycles(options.jobs, options.in_flight)
    results["filling"] = await driver.fill(options.backlog)
    gc.freeze()
    await driver.cycles(2_000, options.in_flight)
    results[f"{options.backlog:,} queued"] = await driver.cycles(options.jobs, options.in_flight)
    store.close()
    return results


def restart(directory: Path) -> dict[str, float]:
    """Opens the store in a process of its own, as a restarted server does."""
    code = (
        "import sys, time, pathlib\n"
        "from manyhands.store.sqlite.store import SqliteStore\n"
        "started = time.perf_counter()\n"
        "store = SqliteStore(pathlib.Path(sys.argv[1]))\n"
        "print(time.perf_counter() - started, len(list(store.live.live_jobs())))\n"
        "store.close()\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(directory)], check=True, capture_output=True, text=True
    ).stdout.split()
    return {"restart_seconds": round(float(output[0]), 2), "jobs": int(output[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="life cycles measured")
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=1024)
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--data-root", default=None, help="where the data goes; a real disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="manyhands-bench-", dir=options.data_root))
    try:
        results = uvloop.run(measure(options, directory))
        if options.store == "sqlite":
            results["restart"] = restart(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        print(json.dumps(results))
        return
    console = Console()
    for name, figures in results.items():
        console.print(f"[bold]{name}[/]")
        for key, figure in figures.items():
            console.print(f"  {key:26} {figure:>12,}")


if __name__ == "__main__":
    main()

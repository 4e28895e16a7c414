"""Benchmark the SQLite store alone: the cost of a commit, and the effect of a million jobs.

    python bench/store.py            a table
    python bench/store.py --json     the same for machines
    python bench/store.py --jobs 100000

Durable throughout: a batch counts when it is on disk. Effects are made before the clock starts,
so neither the engine nor a protocol is in these figures.
"""

import argparse
import gc
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from manyhands.dispatch.ids import Ids
from manyhands.engine.effects import Effects
from manyhands.model.filter import Filter
from manyhands.model.job import Attempt, EndReason, Holder, Job, Lease, Origin, State
from manyhands.model.policy import TERMS, Queue
from manyhands.store.sqlite.store import SqliteStore

NOW = 1_760_000_000_000
QUEUE = "resize"
IDS = Ids()
ORIGIN = Origin("gearman", "", "127.0.0.1:50000")
HOLDER = Holder("gearman", "worker-1", "127.0.0.1:50001")
BATCHES = {1: 2_000, 10: 10_000, 100: 60_000, 1000: 100_000}  # size of a batch -> jobs
FILL_BATCH = 500


def new_jobs(store: SqliteStore, count: int) -> Iterator[Effects]:
    for _ in range(count):
        effects = Effects(store.live, NOW)
        if store.live.queue(QUEUE) is None:
            effects.put_queue(Queue(QUEUE))
        job = Job(
            job_id=IDS.job_id(NOW + store.live.position // 100),
            queue=QUEUE,
            state=State.READY,
            payload=os.urandom(50).hex().encode(),
            terms=TERMS["gearman"],
            origin=ORIGIN,
            position=store.live.view.take_position(),
            submitted_at=NOW,
            entered_at=NOW,
            unique_key=os.urandom(18).hex().encode(),
        )
        effects.enter(job, NOW)
        yield effects


def leased(store: SqliteStore, job: Job) -> Effects:
    effects = Effects(store.live, NOW)
    lease = Lease(os.urandom(16).hex(), 1, HOLDER, NOW, connection="server/17")
    effects.enter(replace(job, state=State.LEASED, lease=lease, lease_number=1), NOW)
    return effects


def finished(store: SqliteStore, job: Job) -> Effects:
    effects = Effects(store.live, NOW)
    lease = job.lease
    assert lease is not None
    attempt = Attempt(1, HOLDER, NOW, NOW, EndReason.COMPLETED, lease.token)
    job = replace(
        job,
        state=State.COMPLETED,
        lease=None,
        finished_at=NOW,
        attempts=(attempt,),
        result=b"a result of 25 bytes.....",
    )
    effects.enter(job, NOW, lease)
    return effects


class Meter:
    """Measures time, and CPU of the server's side and of the writer."""

    def __init__(self) -> None:
        self.seconds = self.cpu = self.worst = 0.0

    def commit(self, store: SqliteStore, effects: Sequence[Effects]) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        for change in effects:
            store.write(change)
        batch = store.begin_commit(NOW)
        step = time.perf_counter()
        self.worst = max(self.worst, step - started)
        assert batch is not None
        while store.finish_commits() < batch.number:
            fd = store.fileno()
            select.select([fd], [fd] if store.has_unsent() else [], [])
            step = time.perf_counter()
            store.send_more()
        self.worst = max(self.worst, time.perf_counter() - step)
        self.cpu += time.process_time() - cpu
        self.seconds += time.perf_counter() - started


def writer_cpu_seconds() -> float:
    """The CPU time of the only child of this process."""
    return (
        sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in children()) / 1e9
    )


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def measure_phase(
    store: SqliteStore, parts: Sequence[Callable[[], list[Effects]]], count: int
) -> dict[str, float]:
    meter = Meter()
    writer = writer_cpu_seconds()
    for make in parts:
        meter.commit(store, make())
    store.partials("")  # a query waits until the writer has applied everything
    return {
        "jobs_per_second": count / meter.seconds,
        "main_us": meter.cpu / count * 1e6,
        "writer_us": (writer_cpu_seconds() - writer) / count * 1e6,
        "commit_ms": meter.seconds / len(parts) * 1e3,
    }


def measure_batch(directory: Path, size: int, count: int) -> dict[str, dict[str, float]]:
    store = SqliteStore(directory)
    rounds = range(count // size)
    phases = {}
    phases["insert"] = measure_phase(
        store, [lambda: list(new_jobs(store, size)) for _ in rounds], count
    )
    for name, change in (("lease", leased), ("finish", finished)):
        ids = list(store.live.jobs)
        slices = [ids[i * size : (i + 1) * size] for i in rounds]
        phases[name] = measure_phase(
            store,
            [
                lambda part=part, change=change: [
                    change(store, store.live.live_job(i)) for i in part
                ]
                for part in slices
            ],
            count,
        )
    store.close()
    return phases


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure_fill(directory: Path, count: int) -> dict[str, float]:
    store = SqliteStore(directory)
    meter = Meter()
    for _ in range(count // FILL_BATCH):
        meter.commit(store, list(new_jobs(store, FILL_BATCH)))
    sample = list(store.live.jobs)[:10_000]
    cycle = Meter()
    for part in (sample[i : i + 100] for i in range(0, len(sample), 100)):
        cycle.commit(store, [leased(store, store.live.live_job(job_id)) for job_id in part])
        cycle.commit(store, [finished(store, store.live.live_job(job_id)) for job_id in part])
    figures = {
        "fill_jobs_per_second": count / meter.seconds,
        "fill_worst_pause_ms": meter.worst * 1e3,
        "cycle_us_at_full": cycle.seconds / len(sample) * 1e6,
    }
    started = time.perf_counter()
    store.search(Filter(text="no payload has this"))
    figures["search_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    store.close()
    figures["close_seconds"] = time.perf_counter() - started
    figures["disk_bytes_per_job"] = sum(f.stat().st_size for f in directory.iterdir()) / count
    return figures


def measure_reload(directory: Path, count: int) -> dict[str, float]:
    """Loads the store in a process of its own, to measure the memory of the load alone."""
    before = rss_bytes()
    started = time.perf_counter()
    store = SqliteStore(directory)
    seconds = time.perf_counter() - started
    figures = {"seconds": seconds, "memory_bytes_per_job": (rss_bytes() - before) / count}
    # A change without a clean stop: the next start finds a journal, checks the file and applies it.
    Meter().commit(store, list(new_jobs(store, 1)))
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


def reload_elsewhere(directory: Path, count: int) -> dict[str, float]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        measure_reload(directory, count)
    os.close(writing)
    with os.fdopen(reading) as stream:
        figures: dict[str, float] = json.loads(stream.read())
    os.wait()
    return figures


def show(results: dict[str, dict[str, dict[str, float]]], large: dict[str, float]) -> None:
    console = Console()
    table = Table(title="SQLite store, durable, one batch in flight")
    for column in ("batch", "what", "jobs/s", "µs CPU server", "µs CPU writer", "ms a commit"):
        table.add_column(column, justify="right")
    for size, phases in results.items():
        for name, row in phases.items():
            table.add_row(
                size,
                name,
                f"{row['jobs_per_second']:,.0f}",
                f"{row['main_us']:.1f}",
                f"{row['writer_us']:.1f}",
                f"{row['commit_ms']:.2f}",
            )
    console.print(table)
    for name, figure in large.items():
        console.print(f"{name:40} {figure:,.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs of the large store")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary one is made")
    options = parser.parse_args()
    gc.set_threshold(100_000, 50, 100)
    root = Path(tempfile.mkdtemp(prefix="manyhands-bench-", dir=options.directory))
    try:
        results = {
            str(size): measure_batch(root / f"batch-{size}", size, count)
            for size, count in BATCHES.items()
        }
        large = measure_fill(root / "large", options.jobs)
        for name in ("reload_clean", "reload_after_kill"):
            for key, figure in reload_elsewhere(root / "large", options.jobs).items():
                large[f"{name}_{key}"] = figure
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps({"batches": results, "large": large}, indent=2))
    else:
        show(results, large)


if __name__ == "__main__":
    main()

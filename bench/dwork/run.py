"""Benchmark dwork: manyhands, durable, beside a minimal server in Python (`ceiling.py`), in memory
and with a journal.

Each workload is a fresh server on a free loopback port. All servers of a workload run one after
the other, and in reversed order every other round, so that a slow minute of the machine hits all;
figures are medians over the rounds, ratios are taken within a round. The load comes from `load.c`,
compiled on the spot against libzmq (Debian: libzmq3-dev).

    python bench/dwork/run.py --rounds 5
    python bench/dwork/run.py --workloads work-1x8,work-100x4 --json results.json
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).parent.resolve()
START_SECONDS_MAX = 20.0
CELL_SECONDS_MAX = 300.0
CEILINGS = ("ceiling", "durable ceiling")
SERVERS = (*CEILINGS, "manyhands")
_TICKS = os.sysconf("SC_CLK_TCK")


class Workload(NamedTuple):
    """What is measured, and what fills the server before."""

    name: str
    about: str
    measured: str
    fill: str = ""


WORKLOADS = (
    Workload("create-1", "create 5,000 tasks, 1 a message", "create 5000 1"),
    Workload("create-16", "create 50,000 tasks, 16 a message", "create 50000 16"),
    Workload("load", "load 100,000 tasks, 1,000 a message", "create 100000 1000"),
    Workload(
        "load-graph",
        "load a stencil graph of 100,000 tasks, 1,000 a message",
        "stencil 1000 100 1000",
    ),
    Workload("work-1x1", "steal + complete, n=1, 1 worker", "work 1 1", "create 5000 1000"),
    Workload("work-1x8", "steal + complete, n=1, 8 workers", "work 8 1", "create 20000 1000"),
    Workload(
        "work-100x4", "steal + complete, n=100, 4 workers", "work 4 100", "create 100000 1000"
    ),
    Workload("stencil", "stencil graph of 5,000, n=1, 8 workers", "work 8 1", "stencil 50 100 16"),
)


class Cell(NamedTuple):
    """One run: tasks per second, latency of a pair, CPU time of the server per task."""

    rate: float
    p50_us: float
    cpu_us: float


def compile_load(folder: Path) -> Path:
    program = folder / "load"
    source = str(HERE / "load.c")
    command = ["cc", "-O2", "-o", str(program), source, "-lzmq", "-lpthread"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"load.c cannot be compiled; install libzmq3-dev and a compiler.\n{made.stderr}")
    return program


@contextlib.contextmanager
def serving(kind: str) -> Iterator[tuple[int, str]]:
    """Starts a fresh server; yields its process id and its address."""
    folder = Path(tempfile.mkdtemp(prefix="bench-dwork-"))
    ready = folder / "ready"
    if kind in CEILINGS:
        command = [sys.executable, str(HERE / "ceiling.py"), str(ready)]
        if kind == "durable ceiling":
            command.append(str(folder / "journal"))
    else:
        command = [sys.executable, "-m", "manyhands", "serve", "--data", str(folder / "data")]
        command += ["--ready-file", str(ready), "--dwork", "127.0.0.1:0"]
        for other in ("http", "gearman", "wmp", "amqp"):
            command += [f"--{other}", "off"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{kind} did not start")
            time.sleep(0.02)
        text = ready.read_text()
        yield process.pid, text if kind in CEILINGS else json.loads(text)["dwork"]
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its children."""
    pids = [pid]
    with contextlib.suppress(OSError):
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    ticks = 0
    for each in pids:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def measure(load: Path, kind: str, workload: Workload) -> Cell:
    with serving(kind) as (pid, address):
        url = f"tcp://{address}"
        if workload.fill:
            run_load(load, url, workload.fill)
        before = cpu_seconds(pid)
        found = run_load(load, url, workload.measured)
        spent = cpu_seconds(pid) - before
    tasks = found["tasks"]
    return Cell(tasks / found["seconds"], found.get("p50_us", 0.0), spent / tasks * 1e6)


def run_load(load: Path, url: str, words: str) -> dict[str, float]:
    command = [str(load), url, *words.split()]
    output = subprocess.check_output(command, timeout=CELL_SECONDS_MAX)
    found: dict[str, float] = json.loads(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark dwork servers side by side.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(workload.name for workload in WORKLOADS))
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    chosen = [w for w in WORKLOADS if w.name in options.workloads.split(",")]
    cells: dict[tuple[str, str], list[Cell]] = {}
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as bar:
        load = compile_load(Path(folder))
        row = bar.add_task("measuring", total=options.rounds * len(chosen) * len(SERVERS))
        for number in range(options.rounds):
            for workload in chosen:
                for kind in SERVERS if number % 2 == 0 else SERVERS[::-1]:
                    cells.setdefault((workload.name, kind), []).append(
                        measure(load, kind, workload)
                    )
                    bar.advance(row)
    if options.json is not None:
        figures = {f"{name} {kind}": found for (name, kind), found in cells.items()}
        options.json.write_text(json.dumps(figures, indent=1))
    show(chosen, cells)


def show(chosen: list[Workload], cells: dict[tuple[str, str], list[Cell]]) -> None:
    table = Table("workload", "server", title="dwork, medians over rounds", title_justify="left")
    for title in ("tasks/s", "of the ceiling", "pair p50 µs", "server CPU µs a task"):
        table.add_column(title, justify="right")
    for workload in chosen:
        ceiling = cells[workload.name, "ceiling"]
        for kind in SERVERS:
            found = cells[workload.name, kind]
            ratio = median(c.rate / top.rate for c, top in zip(found, ceiling, strict=True))
            table.add_row(
                workload.about if kind == SERVERS[0] else "",
                kind,
                f"{median(c.rate for c in found):,.0f}",
                f"{ratio:.2f}",
                f"{median(c.p50_us for c in found):,.0f}",
                f"{median(c.cpu_us for c in found):.1f}",
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

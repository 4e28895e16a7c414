"""Benchmark WMP: manyhands as a durable manager, beside a plain echo over the same kind of socket.

Every cell is a fresh server on a free loopback port, filled with jobs, then worked by the workers
of the package in one process beside it: all of them share the machine. The echo has as many peers
with as many messages in flight; a job needs at least five messages (READY, WAKE, GIVE, TAKE, DONE),
so the rate of the echo divided by five is the ceiling. Figures are medians over the rounds.

    python bench/wmp/run.py --rounds 3
    python bench/wmp/run.py --workloads 16x4,16x4-device --json results.json
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

HERE = Path(__file__).parent
START_SECONDS_MAX = 20.0
CELL_SECONDS_MAX = 300.0
MESSAGES_A_JOB_MIN = 5
_TICKS = os.sysconf("SC_CLK_TCK")


class Workload(NamedTuple):
    """What is measured."""

    name: str
    about: str
    workers: int
    slots: int
    jobs: int
    device: bool = False
    idle: bool = False


SHAPES = ((1, 1, 2_000), (1, 8, 6_000), (16, 1, 6_000), (16, 4, 12_000))
WORKLOADS = (
    *(
        Workload(
            f"{w}x{s}{way and '-device'}", f"{w} workers, {s} slots each{way}", w, s, n, bool(way)
        )
        for way in ("", ", through a device")
        for w, s, n in SHAPES
    ),
    *(
        Workload(f"idle-{w}", f"{w} idle workers, a job at a time", w, 1, 150, idle=True)
        for w in (10, 50, 200)
    ),
)


class Cell(NamedTuple):
    """One run."""

    rate: float  # jobs per second
    messages: float  # per job
    p50_ms: float
    cpu_us: float  # of the server and its writer, per job
    load_us: float  # of the workers, per job
    ceiling: float  # jobs per second that the echo would allow; 0 if not measured


@contextlib.contextmanager
def started(command: list[str], ready: Path) -> Iterator[int]:
    """Starts a program that writes a file when it is ready; yields its process id."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"it did not start: {' '.join(command)}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, str]]:
    """Starts a fresh durable server; yields its process id and its WMP address."""
    folder = Path(tempfile.mkdtemp(prefix="bench-wmp-"))
    ready = folder / "ready"
    command = [sys.executable, "-m", "manyhands", "serve", "--data", str(folder / "data")]
    command += ["--ready-file", str(ready), "--wmp", "127.0.0.1:0"]
    for other in ("http", "gearman", "dwork", "amqp"):
        command += [f"--{other}", "off"]
    try:
        with started(command, ready) as pid:
            yield pid, json.loads(ready.read_text())["wmp"]
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def carrying(manager: str) -> Iterator[str]:
    """Starts a device in front of a manager; yields its address."""
    command = [sys.executable, "-m", "manyhands", "device", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--manager", manager], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().decode().split()[1]
    finally:
        process.terminate()
        process.communicate()


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


def load(*words: object) -> dict[str, float]:
    command = [sys.executable, str(HERE / "load.py"), *map(str, words)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, timeout=CELL_SECONDS_MAX))
    return found


def echo_rate(peers: int, depth: int) -> float:
    """Jobs per second, if a job were five messages that are only sent back."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        with started([sys.executable, str(HERE / "echo.py"), str(ready)], ready):
            found = load("echo", ready.read_text(), peers, depth, 20_000)
    return found["jobs"] * 2 / found["seconds"] / MESSAGES_A_JOB_MIN


def measure(workload: Workload) -> Cell:
    ceiling = 0.0 if workload.idle else echo_rate(workload.workers, workload.slots)
    with contextlib.ExitStack() as stack:
        pid, manager = stack.enter_context(serving())
        address = stack.enter_context(carrying(manager)) if workload.device else manager
        if workload.idle:
            before = cpu_seconds(pid)
            found = load("idle", address, workload.workers, workload.jobs, manager)
        else:
            load("fill", manager, workload.jobs)
            before = cpu_seconds(pid)
            found = load("work", address, workload.workers, workload.slots, workload.jobs)
        spent = cpu_seconds(pid) - before
    jobs = found["jobs"]
    return Cell(
        jobs / found["seconds"] if "seconds" in found else 0.0,
        found["messages"] / jobs,
        found.get("p50_ms", 0.0),
        spent / jobs * 1e6,
        found["load_cpu"] / jobs * 1e6,
        ceiling,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark WMP beside a plain echo.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(workload.name for workload in WORKLOADS))
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    chosen = [w for w in WORKLOADS if w.name in options.workloads.split(",")]
    cells: dict[str, list[Cell]] = {}
    with Progress(console=Console(stderr=True)) as bar:
        row = bar.add_task("measuring", total=options.rounds * len(chosen))
        for _ in range(options.rounds):
            for workload in chosen:
                cells.setdefault(workload.name, []).append(measure(workload))
                bar.advance(row)
    if options.json is not None:
        options.json.write_text(json.dumps(cells, indent=1))
    show(chosen, cells)


def show(chosen: list[Workload], cells: dict[str, list[Cell]]) -> None:
    table = Table("workload", title="WMP, durable; medians over rounds", title_justify="left")
    for title in ("jobs/s", "of the ceiling", "messages/job", "p50 ms", "server µs", "workers µs"):
        table.add_column(title, justify="right")
    for workload in chosen:
        found = cells[workload.name]
        rate = median(cell.rate for cell in found)
        ratios = [cell.rate / cell.ceiling for cell in found if cell.ceiling]
        p50_ms = median(cell.p50_ms for cell in found)
        table.add_row(
            workload.about,
            f"{rate:,.0f}" if rate else "",
            f"{median(ratios):.2f}" if ratios else "",
            f"{median(cell.messages for cell in found):.1f}",
            f"{p50_ms:.2f}" if p50_ms else "",
            f"{median(cell.cpu_us for cell in found):.0f}",
            f"{median(cell.load_us for cell in found):.0f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

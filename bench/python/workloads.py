"""What is measured. Each workload runs in rounds, its peers in turns, and gives a table."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tally
from bystander import Bystander
from peers import HERE, PEERS, Program, drained

LIMIT = 600.0
CORES = 2
COROUTINES = 500
THREADS = 16
RATE = 100.0


@dataclass
class Bench:
    """What a run was told, and where its services are."""

    pythons: dict[str, str]  # of the peers to run
    rounds: int
    scale: float
    gearman: str
    failed: set[str] = field(default_factory=set)  # peers that a workload was too much for

    def count(self, jobs: int, least: int = 500) -> int:
        """How many jobs a workload of so many has in this run."""
        return max(least, int(jobs * self.scale) // least * least)

    def program(self, name: str, processes: int, **environment: str) -> Program:
        return Program(PEERS[name], self.pythons[name], processes, **environment)

    def among(self, *names: str) -> list[str]:
        """Those that are run."""
        return [name for name in names if name in self.pythons and name not in self.failed]

    def in_turns(self, names: Sequence[str], measure: Callable[[str], float]) -> dict[str, list]:
        """Rounds of all, each round in the other direction. A peer that fails is left out."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                if name in found:
                    self._measure(name, measure, found)
        return found

    def _measure(
        self, name: str, measure: Callable[[str], float], found: dict[str, list[float]]
    ) -> None:
        try:
            found[name].append(measure(name))
        except subprocess.CalledProcessError as error:
            if name.startswith("ours"):
                raise
            print(f"  {name} failed: {error}", flush=True)
            self.failed.add(name)
            del found[name]
        else:
            print(f"  {name}: {found[name][-1]:,.6g}", flush=True)


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """The median, with the lowest and highest."""
    middle = statistics.median(values)
    return f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"


def ratio(ours: Sequence[float], other: Sequence[float]) -> str:
    """The median of the ratios in each round."""
    return f"{statistics.median(a / b for a, b in zip(ours, other, strict=True)):.2f}"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"\n### {title}\n\nload at the end: {load}\n")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def drain(bench: Bench) -> None:
    """Full queues, emptied by one and by two worker processes; and how fast they were filled."""
    names = bench.among(*bench.pythons)
    fills: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[int, dict[str, list[float]]] = {}

    for processes in (1, CORES):

        def measure(name: str, processes: int = processes) -> float:
            program = bench.program(name, processes)
            filled, rate = drained(program, bench.count(PEERS[name].count), LIMIT)
            fills[name].append(filled)
            return rate

        rates[processes] = bench.in_turns(names, measure)
        names = bench.among(*names)
    ours = "ours"
    rows = []
    for name in names:
        row = [name, spread(fills[name])]
        row.append(ratio(fills[ours], fills[name]) if ours in names else "")
        for found in rates.values():
            row.append(spread(found[name]))
            row.append(ratio(found[ours], found[name]) if ours in names else "")
        rows.append([*row, PEERS[name].promise])
    times = "ours is x times"
    heads = ["peer", "submitted together/s", times]
    heads += ["jobs/s, 1 process", times, f"jobs/s, {CORES} processes", times, "promise"]
    table("Drain", heads, rows)


def submit(bench: Bench) -> None:
    """One at a time, each accepted before the next is submitted; ours from many threads, too."""

    def measure(name: str) -> float:
        tally.reset()
        name, _, threads = name.partition(" ")
        return bench.program(name, 1).run("one", bench.count(5_000), threads or 1)[0]

    names = bench.among("ours", "pgqueuer", "celery")
    if "ours" in names:
        names.insert(1, f"ours {THREADS}")
    found = bench.in_turns(names, measure)
    rows = [
        [
            name.replace(" ", ", ") + " threads" * (" " in name),
            spread(rates),
            ratio(found["ours"], rates) if "ours" in found else "",
            PEERS[name.partition(" ")[0]].promise,
        ]
        for name, rates in found.items()
    ]
    heads = ["peer", "submitted one at a time/s", "ours is x times", "promise"]
    table("Submit", heads, rows)


def results(bench: Bench) -> None:
    """One submitter, two worker processes at once, and the result of each job awaited."""

    def measure(name: str) -> float:
        tally.reset()
        program = bench.program(name, CORES, BENCH_RESULTS="1")
        with program.working():
            return program.run("results", bench.count(20_000 if name == "ours" else 4_000))[0]

    found = bench.in_turns(bench.among("ours", "celery"), measure)
    rows = [
        [name, spread(rates), ratio(found["ours"], rates) if "ours" in found else ""]
        for name, rates in found.items()
    ]
    table("End to end, with results", ["peer", "jobs/s", "ours is x times"], rows)


def latency(bench: Bench) -> None:
    """From submit to result at a steady 100 jobs a second."""
    highest: dict[str, list[float]] = {}

    def measure(name: str) -> float:
        tally.reset()
        program = bench.program(name, CORES, BENCH_RESULTS="1")
        with program.working():
            found = program.run("latency", bench.count(1_000, least=100), RATE)
        highest.setdefault(name, []).append(percentile(found, 0.99))
        return percentile(found, 0.5)

    found = bench.in_turns(bench.among("ours", "celery"), measure)
    rows = [
        [name, spread(medians, ".2f"), spread(highest[name], ".2f")]
        for name, medians in found.items()
    ]
    heads = ["peer", "median, ms", "99 of 100 within, ms"]
    table(f"Latency at {RATE:.0f} jobs/s", heads, rows)


def lone(bench: Bench) -> None:
    """How soon an idle worker starts a job after its submitter has heard that it is on disk."""
    highest: list[float] = []

    def measure(name: str) -> float:
        tally.reset()
        program = bench.program(name, 1, BENCH_TASK="begun")
        with program.working():
            found = program.run("lone", bench.count(1_000, least=100))
        highest.append(percentile(found, 0.99))
        return percentile(found, 0.5)

    medians = bench.in_turns(["ours"], measure)["ours"]
    row = ["ours", spread(medians, ".2f"), spread(highest, ".2f")]
    table("A lone job", ["peer", "median, ms", "99 of 100 within, ms"], [row])


def waiting(bench: Bench) -> None:
    """Jobs that sleep or compute: how much of the time is theirs."""
    rows = []
    for title, task, jobs, concurrency, least in (
        ("10 ms of asyncio.sleep, -c 500", "nap", 100_000, COROUTINES, COROUTINES),
        ("50 ms of CPU, -p 2 -c 1", "burn", 400, 1, 20),
    ):
        count = bench.count(jobs, least)
        processes = CORES if task == "burn" else 1

        def measure(way: str, task: str = task, count: int = count, c: int = concurrency) -> float:
            copies = CORES if task == "burn" else 1
            if way == "bare":
                return bare(task, count, copies, c)
            program = bench.program("ours", copies, BENCH_TASK=task, BENCH_CONCURRENCY=str(c))
            return drained(program, count, LIMIT)[1]

        found = bench.in_turns(["ours", "bare"], measure)
        rates = [spread(found[way], ",.1f") for way in ("ours", "bare")]
        rows.append([title, str(processes), *rates, ratio(found["ours"], found["bare"])])
    table(
        "Jobs that take time",
        ["a job", "processes", "jobs/s", "without a queue", "share"],
        rows,
    )


def bare(task: str, count: int, processes: int, coroutines: int) -> float:
    """Jobs a second without a queue."""
    tally.reset()
    command = [sys.executable, "bare.py", task, str(count // processes), str(coroutines)]
    started = [
        subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE) for _ in range(processes)
    ]
    return sum(float(each.communicate()[0]) for each in started)


def memory(bench: Bench) -> None:
    """A million jobs through one worker: what it holds in the first and the last tenth."""
    count = bench.count(1_000_000)
    tally.reset()
    program = bench.program("ours", 1)
    program.run("fill", count)
    with program.working() as (supervisor,):
        first = held_by(supervisor, count // 10)
        last = held_by(supervisor, count)
    rows = [
        [name, f"{before:,}", f"{after:,}", f"{after / before:.3f}"]
        for name, before, after in zip(("resident KiB", "descriptors"), first, last, strict=True)
    ]
    heads = ["of the worker's process", "after a tenth", "at the end", "ratio"]
    table(f"Memory over {count:,} jobs", heads, rows)


def held_by(supervisor: int, ran: int) -> tuple[int, int]:
    """Memory and descriptors of the supervisor's child, when so many jobs have run."""
    while tally.ran() < ran:
        time.sleep(0.01)
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    child = Path("/proc") / children[0]
    pages = int((child / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, len(list((child / "fd").iterdir()))


def beside(bench: Bench) -> None:
    """What a Gearman client of the same server feels while Python workers drain a queue."""

    def measure(way: str) -> float:
        bystander = Bystander(bench.gearman)
        try:
            if way == "alone":
                time.sleep(max(2.0, 10.0 * bench.scale))
            else:
                drained(bench.program("ours", CORES), bench.count(PEERS["ours"].count), LIMIT)
        finally:
            found = bystander.stop()
        medians.setdefault(way, []).append(percentile(found, 0.5))
        return percentile(found, 0.99)

    medians: dict[str, list[float]] = {}
    found = bench.in_turns(["alone", "beside a drain"], measure)
    rows = [
        [way, spread(medians[way], ".2f"), spread(high, ".2f"), ratio(high, found["alone"])]
        for way, high in found.items()
    ]
    heads = ["a Gearman client", "median, ms", "99 of 100 within, ms", "of that alone"]
    table("Other work", heads, rows)


WORKLOADS: dict[str, Callable[[Bench], None]] = {
    each.__name__: each for each in (drain, submit, results, latency, lone, waiting, memory, beside)
}
# Those that only concern us.
OURS_ALONE = frozenset({"lone", "waiting", "memory", "beside"})

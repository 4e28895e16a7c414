"""Several servers on one database: how fast their workers are, beside those of other queues on the
same database in the same minutes; and how long clients wait when a server dies or leaves.
"""

import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import tally
from bench_postgres import Bench, family_cpu, ratio, spread, table
from peers import HERE, PEERS, Program, interpreter

from tests.e2e.cluster import Cluster, running
from tests.e2e.serving import Served

LIMIT = 120.0
PROCESSES = 2
WAITING_JOBS = 10_000
LONE_COUNT = 500


@contextmanager
def servers(bench: Bench, *names: str) -> Iterator[Cluster]:
    """Running servers, each with its files in a folder of its own."""
    folder = bench.folder / f"servers-{time.monotonic_ns()}"
    folder.mkdir()
    with running(folder, bench.database, *names) as cluster:
        yield cluster


def fill(server: Served, count: int) -> None:
    with httpx.Client(base_url=server.url, timeout=60.0) as http:
        for _ in range(0, count, 500):
            items = [{"queue": "noop", "payload": {"text": "x" * 85}} for _ in range(500)]
            http.post("/api/submit", json={"items": items}).raise_for_status()


# Drains.


def drain(bench: Bench) -> None:
    """A filled queue, emptied by two worker processes, by the hundred; ours are connected to a
    server each, one of which decides.
    """
    names = ("manyhands", "pgqueuer", "procrastinate")
    rates: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    parts: list[tuple[float, float]] = []
    for number in range(bench.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            if name == "manyhands":
                rate, cost, part = _drain_ours(bench)
                parts.append(part)
            else:
                rate, cost = _drain_theirs(bench, name)
            rates[name].append(rate)
            costs[name].append(cost)
            print(f"  {name}: {rate:,.0f}/s, {cost:.0f} µs", flush=True)
    rows = [
        [
            name,
            spread(rates[name], ",.0f"),
            ratio(rates["manyhands"], rates[name]),
            spread(costs[name], ".0f"),
        ]
        for name in names
    ]
    heads = ["", "jobs/s, 2 workers", "ours is x times", "CPU a job in all, µs"]
    table("Drain of a filled queue", heads, rows)
    rows = [
        ["the server that decides", spread([owner for owner, _ in parts])],
        ["the other one, for its half", spread([front for _, front in parts])],
    ]
    table("Ours: CPU of the servers, µs for each job of the drain", ["", ""], rows)


def _drain_ours(bench: Bench) -> tuple[float, float, tuple[float, float]]:
    count = bench.count(PEERS["thin"].count // 4)
    with servers(bench, "a", "b") as cluster, ExitStack() as stack:
        owner = cluster.decider()
        (front,) = set(cluster.servers) - {owner}
        pids = [cluster.servers[name].process.pid for name in (owner, front)]
        fill(cluster.servers[owner], count)
        programs = [
            Program(PEERS["thin"], sys.executable, 1, BENCH_URL=cluster.servers[name].url)
            for name in (owner, front)
        ]
        before = [family_cpu(pid) for pid in pids]

        def start() -> list[int]:
            return [pid for each in programs for pid in stack.enter_context(each.working())]

        rate, cost = _watched(bench, programs[0], count, start, pids)
        spent = [family_cpu(pid) - since for pid, since in zip(pids, before, strict=True)]
        return rate, cost, (spent[0] / count * 1e6, spent[1] / count * 1e6)


def _drain_theirs(bench: Bench, name: str) -> tuple[float, float]:
    peer = PEERS[name]
    count = bench.count(peer.count // 4)
    python = interpreter(peer.requirements, HERE / ".environments")
    address = bench.database.url()
    program = Program(peer, python, PROCESSES, BENCH_POSTGRES=address)
    tally.reset()
    program.run("fill", count)
    with ExitStack() as stack:
        return _watched(bench, program, count, lambda: stack.enter_context(program.working()), [])


def _watched(
    bench: Bench,
    program: Program,
    count: int,
    start: Callable[[], list[int]],
    servers: list[int],
) -> tuple[float, float]:
    """Jobs a second, and the CPU of a job: of workers, servers and PostgreSQL."""
    tally.reset()
    before = bench.database_cpu() + sum(map(family_cpu, servers))
    with program.watching(count, LIMIT) as rate:
        workers = start()
        found = rate()
        spent = bench.database_cpu() + sum(map(family_cpu, servers)) - before
        spent += sum(map(family_cpu, workers))
    return found, spent / count * 1e6


# Waiting.


def _submit(http: httpx.Client) -> None:
    http.post("/api/submit", json={"queue": "noop", "payload": 1}).raise_for_status()


def _lone_ms(server: Served) -> float:
    """The median of requests that wait for each other, over HTTP."""
    took = []
    with httpx.Client(base_url=server.url, timeout=60.0) as http:
        for _ in range(LONE_COUNT):
            began = time.perf_counter()
            _submit(http)
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def takeover(bench: Bench) -> None:
    """The server that decides is killed; a client of another one submits."""
    waited, alone = [], {"the server that decides": [], "another server": []}
    for _ in range(bench.rounds):
        with servers(bench, "a", "b", "c") as cluster:
            owner = cluster.decider()
            other = next(name for name in cluster.servers if name != owner)
            for words, name in zip(alone, (owner, other), strict=True):
                alone[words].append(_lone_ms(cluster.servers[name]))
            fill(cluster.servers[other], WAITING_JOBS)
            with httpx.Client(base_url=cluster.servers[other].url, timeout=60.0) as http:
                _submit(http)
                cluster.kill(owner)
                began = time.perf_counter()
                _submit(http)
                waited.append(time.perf_counter() - began)
    rows = [
        [
            f"kill -9 until the next answer elsewhere, {WAITING_JOBS:,} jobs, s",
            spread(waited, ".2f"),
        ]
    ]
    rows += [
        [f"lone submit over HTTP at {name}, p50, ms", spread(ms, ".2f")]
        for name, ms in alone.items()
    ]
    table("A server dies", ["", ""], rows)


def handover(bench: Bench) -> None:
    """The server that decides is stopped in order; a client of another one submits all the time."""
    waited = []
    for _ in range(bench.rounds):
        with servers(bench, "a", "b") as cluster:
            owner = cluster.decider()
            (other,) = set(cluster.servers) - {owner}
            fill(cluster.servers[other], WAITING_JOBS)
            leaving = cluster.servers.pop(owner).process
            longest = 0.0
            with httpx.Client(base_url=cluster.servers[other].url, timeout=60.0) as http:
                leaving.send_signal(signal.SIGTERM)
                answered = time.perf_counter()
                until = answered + 30.0
                while leaving.poll() is None and answered < until:
                    _submit(http)
                    now = time.perf_counter()
                    longest, answered = max(longest, now - answered), now
            leaving.wait()
            waited.append(longest)
    words = f"SIGTERM: the longest a client elsewhere waited, {WAITING_JOBS:,} jobs, s"
    table("A server leaves", ["", ""], [[words, spread(waited, ".2f")]])

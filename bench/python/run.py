"""Drains full queues with Python workers, ours and others', and prints ratios.

    python bench/python/run.py                     # all peers, 5 rounds
    python bench/python/run.py --peers ours,pgqueuer --rounds 3

Every peer is really installed, into environments of the benchmark's own, and really started, with
PostgreSQL and Redis of its own. Rounds are interleaved; every cell is the median, with the lowest
and highest. A job is a no-op with 100 bytes of arguments. It needs `postgresql` and `redis-server`
of the distribution, and the `manyhands` that runs this file.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import services
import tally

HERE = Path(__file__).parent
LIMIT = 600


@dataclass(frozen=True)
class Peer:
    """How a peer is run, and what it promises."""

    file: str
    count: int
    promise: str
    requirements: str | None = "requirements.txt"
    environment: tuple[tuple[str, str], ...] = ()
    starts_processes_itself: bool = False


_REDIS = "Redis, flushed at each write (AOF always)"
PEERS = {
    "ours": Peer(
        "ours.py",
        200_000,
        "flushed before it is acknowledged; at least once",
        requirements=None,
        starts_processes_itself=True,
    ),
    "ours-async": Peer(
        "ours.py",
        200_000,
        "the same, with a coroutine",
        requirements=None,
        environment=(("BENCH_TASK", "anoop"),),
        starts_processes_itself=True,
    ),
    "thin": Peer("thin.py", 200_000, "our stream without the SDK", requirements=None),
    "pgqueuer": Peer("pgqueuer_peer.py", 100_000, "PostgreSQL, synchronous_commit on"),
    "huey-fsync": Peer(
        "huey_peer.py",
        10_000,
        "SQLite, flushed; at most once",
        environment=(("BENCH_FSYNC", "1"),),
    ),
    "huey": Peer(
        "huey_peer.py",
        20_000,
        "SQLite, not flushed; at most once",
        environment=(("BENCH_FSYNC", "0"),),
    ),
    "dramatiq": Peer("dramatiq_peer.py", 10_000, _REDIS),
    "saq": Peer("saq_peer.py", 10_000, _REDIS),
    "celery": Peer("celery_peer.py", 5_000, _REDIS),
    "arq": Peer("arq_peer.py", 5_000, _REDIS, requirements="requirements-arq.txt"),
    "rq": Peer("rq_peer.py", 1_500, _REDIS),
    "procrastinate": Peer("procrastinate_peer.py", 2_000, "PostgreSQL, synchronous_commit on"),
    "taskiq": Peer("taskiq_peer.py", 10_000, _REDIS),
}


def interpreter(requirements: str | None, folder: Path) -> str:
    """An environment of the benchmark's own; it stays for the next run."""
    if requirements is None:
        return sys.executable
    home = folder / requirements.removesuffix(".txt")
    python = home / "bin" / "python"
    if not python.exists():
        print(f"installing {requirements}", flush=True)
        venv.create(home, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "-r", HERE / requirements]
        subprocess.run(install, check=True)
    return str(python)


def drain(peer: Peer, python: str, processes: int, count: int) -> tuple[float, float]:
    """Jobs a second: submitted, and drained."""
    tally.reset()
    environment = os.environ | dict(peer.environment) | {"BENCH_PROCESSES": str(processes)}
    environment.setdefault("BENCH_FSYNC", "1")
    options = {"env": environment, "cwd": HERE}
    program = [python, str(HERE / peer.file)]
    filled = subprocess.run(
        [*program, "fill", str(count)], check=True, stdout=subprocess.PIPE, **options
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    copies = 1 if peer.starts_processes_itself else processes
    workers = [subprocess.Popen([*program, "work"], **quiet, **options) for _ in range(copies)]
    try:
        watched = subprocess.run(
            [*program, "watch", str(count), str(LIMIT)],
            check=True,
            stdout=subprocess.PIPE,
            **options,
        )
    finally:
        for each in workers:
            each.terminate()
        for each in workers:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
    return float(filled.stdout.split()[-1]), float(watched.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    parser.add_argument("--environments", type=Path, default=HERE / ".environments")
    given = parser.parse_args()
    names = given.peers.split(",")
    numbers = [int(text) for text in given.processes.split(",")]
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pythons = {name: interpreter(PEERS[name].requirements, given.environments) for name in names}
    folder = Path(tempfile.mkdtemp(prefix="manyhands-bench-"))
    os.environ["BENCH_FOLDER"] = str(folder)
    os.environ["BENCH_TALLY"] = str(folder / "tally")
    rates: dict[tuple[str, int], list[float]] = {}
    fills: dict[str, list[float]] = {}
    with ExitStack() as stack:
        os.environ["BENCH_URL"] = stack.enter_context(services.manyhands(folder))
        os.environ["BENCH_POSTGRES"] = stack.enter_context(services.postgres(folder))
        os.environ["BENCH_REDIS"] = stack.enter_context(services.redis(folder))
        for number in range(given.rounds):
            order = names if number % 2 == 0 else names[::-1]
            for processes in numbers:
                for name in order:
                    peer = PEERS[name]
                    count = max(500, int(peer.count * given.scale) // 1000 * 1000)
                    filled, drained = drain(peer, pythons[name], processes, count)
                    fills.setdefault(name, []).append(filled)
                    rates.setdefault((name, processes), []).append(drained)
                    print(f"{name} {processes}: {filled:.0f} in, {drained:.0f} out", flush=True)
    shutil.rmtree(folder)
    show(names, numbers, rates, fills)


def show(
    names: list[str],
    numbers: list[int],
    rates: dict[tuple[str, int], list[float]],
    fills: dict[str, list[float]],
) -> None:
    """The table, with ratios of ours to each by the round."""
    print(f"\nload before this line: {Path('/proc/loadavg').read_text().split()[0]}")
    heads = [
        f"jobs/s, {number} process{'es' * (number > 1)} | ours is x times" for number in numbers
    ]
    print(f"| peer | submitted/s | {' | '.join(heads)} | promise |")
    print("|---" * (3 + 2 * len(numbers)) + "|")
    for name in names:
        cells = [f"{statistics.median(fills[name]):,.0f}"]
        for number in numbers:
            found = rates[name, number]
            ours = rates.get(("ours", number), [])
            ratios = [a / b for a, b in zip(ours, found, strict=False)]
            cells.append(
                f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
            )
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        print(f"| {name} | {' | '.join(cells)} | {PEERS[name].promise} |")


if __name__ == "__main__":
    main()

"""The peers: how each is run, in an environment of its own, and what it promises."""

import contextlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tally

HERE = Path(__file__).parent
REDIS = "redis"
POSTGRES = "postgres"
_STOP_SECONDS = 10


@dataclass(frozen=True)
class Peer:
    """How a peer is run, and what it promises."""

    file: str
    count: int  # jobs of a drain
    promise: str
    needs: str | None = None
    requirements: str | None = "requirements.txt"
    environment: tuple[tuple[str, str], ...] = ()
    starts_processes_itself: bool = False


_AOF = "Redis, flushed at each write (AOF always); at least once"
_SYNC = "PostgreSQL, synchronous_commit on; at least once"
_OURS = "flushed before it is acknowledged; at least once"
PEERS = {
    "ours": Peer("ours.py", 200_000, _OURS, requirements=None, starts_processes_itself=True),
    "ours-async": Peer(
        "ours.py",
        200_000,
        "the same, with a coroutine",
        requirements=None,
        environment=(("BENCH_TASK", "anoop"),),
        starts_processes_itself=True,
    ),
    "thin": Peer("thin.py", 200_000, "our stream without the SDK", requirements=None),
    "pgqueuer": Peer("pgqueuer_peer.py", 100_000, _SYNC, POSTGRES),
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
    "dramatiq": Peer("dramatiq_peer.py", 10_000, _AOF, REDIS),
    "saq": Peer("saq_peer.py", 10_000, _AOF, REDIS),
    "celery": Peer("celery_peer.py", 5_000, _AOF, REDIS),
    "arq": Peer("arq_peer.py", 5_000, _AOF, REDIS, requirements="requirements-arq.txt"),
    "rq": Peer("rq_peer.py", 1_500, _AOF, REDIS),
    "procrastinate": Peer("procrastinate_peer.py", 2_000, _SYNC, POSTGRES),
    "taskiq": Peer("taskiq_peer.py", 10_000, _AOF, REDIS),
}


def interpreter(requirements: str | None, folder: Path) -> str:
    """An environment of the benchmark's own; it stays for the next run."""
    if requirements is None:
        return sys.executable
    home = folder / requirements.removesuffix(".txt")
    python = home / "bin" / "python"
    is_complete = home / "complete"
    if not is_complete.exists():
        print(f"installing {requirements}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "-r", HERE / requirements]
        subprocess.run(install, check=True)
        is_complete.touch()
    return str(python)


class Program:
    """A peer's file, run by its interpreter."""

    def __init__(self, peer: Peer, python: str, processes: int, **environment: str) -> None:
        self._command = [python, str(HERE / peer.file)]
        self._copies = 1 if peer.starts_processes_itself else processes
        chosen = {"BENCH_PROCESSES": str(processes)} | dict(peer.environment) | environment
        self._environment = {"BENCH_FSYNC": "1"} | os.environ | chosen

    def run(self, *arguments: object) -> list[float]:
        """What it printed: numbers."""
        done = subprocess.run(
            [*self._command, *map(str, arguments)],
            env=self._environment,
            cwd=HERE,
            check=True,
            stdout=subprocess.PIPE,
        )
        return [float(text) for text in done.stdout.split()]

    @contextlib.contextmanager
    def watching(self, count: int, limit: float) -> Iterator[Callable[[], float]]:
        """While a drain is watched; the function waits for its end, and gives the rate."""
        command = [*self._command, "watch", str(count), str(limit)]
        with subprocess.Popen(
            command, env=self._environment, cwd=HERE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it looks

            def rate() -> float:
                text, _ = process.communicate()
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, command)
                return float(text)

            try:
                yield rate
            finally:
                process.kill()

    @contextlib.contextmanager
    def working(self) -> Iterator[list[int]]:
        """While its workers work; their process ids."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [*self._command, "work"]
        workers = [
            subprocess.Popen(command, env=self._environment, cwd=HERE, **quiet)
            for _ in range(self._copies)
        ]
        try:
            yield [each.pid for each in workers]
        finally:
            for each in workers:
                each.terminate()
            for each in workers:
                try:
                    each.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    each.kill()
                    each.wait()


def drained(program: Program, count: int, limit: float) -> tuple[float, float]:
    """Jobs a second: submitted together, and drained. The watcher is there before the workers."""
    tally.reset()
    [filled] = program.run("fill", count)
    with program.watching(count, limit) as drain, program.working():
        return filled, drain()

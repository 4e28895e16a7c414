"""Benchmark the qless API of manyhands beside the original qless on a private Redis.

    python bench/qless/run.py --lua PATH_TO/qless.lua        about two minutes
    python bench/qless/run.py --rounds 1 --jobs 500          a first look

The Lua is that of PyPI's ``reqless`` (the one in ``qless-py`` does not load on Redis 7); without
``--lua`` it is taken from the installed package. Redis is Debian's ``redis-server``, once with
``appendfsync always`` and once without persistence. All servers run one after the other in each
round; figures are medians over the rounds, ratios are taken within a round. The load is the same
for all, `load.c`, compiled on the spot: requests are prepared before the clock starts and answers
parsed after it stops, with one request in flight on each connection.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

META = b'{"url": "http://example.org/a/b/c", "n": 1}'
HUNDRED = 100
_LENGTH = struct.Struct("=I")
OPERATIONS = ("add", "get", "complete")


class Shape(NamedTuple):
    """The shape of the load: the number of connections, and of jobs per request."""

    name: str
    connections: int
    batch: int


SHAPES = (
    Shape("one at a time", 1, 1),
    Shape("16 connections", 16, 1),
    Shape("in hundreds", 1, HUNDRED),
)


class Dialect(Protocol):
    """How to talk to a server."""

    def request(self, operation: str, batch: list[str]) -> bytes: ...
    def replies_count(self, operation: str, batch: int) -> int: ...
    def ids(self, answer: bytes, batch: int) -> list[str]: ...


class Http:
    """manyhands."""

    def request(self, operation: str, batch: list[str]) -> bytes:
        if operation == "get":
            count = len(batch)
            return b"GET /get/bench/%d?host=w HTTP/1.1\r\nHost: localhost\r\n\r\n" % count
        if operation == "add":
            items = b",".join(b'{"meta":%s}' % META for _ in batch)
        else:
            items = b",".join(b'{"id":"%s","meta":%s}' % (i.encode(), META) for i in batch)
        body = b'{"host":"w","data":[%s]}' % items
        head = b"POST /%s/bench HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return head % operation.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def replies_count(self, _operation: str, _batch: int) -> int:
        return 0  # an answer has a Content-Length

    def ids(self, answer: bytes, _batch: int) -> list[str]:
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        found = json.loads(answer[answer.find(b"\r\n\r\n") + 4 :])
        assert "errors" not in found, found
        results = found["results"]
        if isinstance(results, dict):
            results = [results]
        return [row["id"] if isinstance(row, dict) else row for row in results]


class Redis:
    """qless: one script, called by its hash. It has no bulk put or complete, so a hundred of them
    are a hundred calls sent together.
    """

    def __init__(self, sha: str) -> None:
        self._sha = sha.encode()
        self._made = 0

    def _call(self, *arguments: bytes) -> bytes:
        words = (b"EVALSHA", self._sha, b"0", *arguments)
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        return b"*%d\r\n%s" % (len(words), parts)

    def request(self, operation: str, batch: list[str]) -> bytes:
        now = b"%.6f" % time.time()
        if operation == "get":
            return self._call(b"pop", now, b"bench", b"w", b"%d" % len(batch))
        if operation == "add":
            calls = []
            for _ in batch:
                self._made += 1
                jid = b"%032x" % self._made
                calls.append(self._call(b"put", now, b"w", b"bench", jid, b"Job", META, b"0"))
            return b"".join(calls)
        return b"".join(
            self._call(b"complete", now, jid.encode(), b"w", b"bench", META) for jid in batch
        )

    def replies_count(self, operation: str, batch: int) -> int:
        return 1 if operation == "get" else batch

    def ids(self, answer: bytes, batch: int) -> list[str]:
        assert not answer.startswith(b"-"), answer[:300]
        if answer.startswith(b"$") and answer[answer.find(b"\r\n") + 2 :][:1] in b"[{":
            found = json.loads(answer[answer.find(b"\r\n") + 2 :])
            return [row["jid"] for row in found]
        return answer.decode().split("\r\n")[: 2 * batch]


def compile_load(folder: Path) -> Path:
    program = folder / "load"
    source = str(Path(__file__).parent / "load.c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), source], check=True)
    return program


def drive(
    load: Path, running: "Running", operation: str, shape: Shape, jobs: list[str]
) -> tuple[float, list[str]]:
    """The seconds it took, and the ids in the answers."""
    dialect = running.dialect
    batches = [jobs[at : at + shape.batch] for at in range(0, len(jobs), shape.batch)]
    requests = [dialect.request(operation, batch) for batch in batches]
    replies = dialect.replies_count(operation, shape.batch)
    done = subprocess.run(
        [str(load), str(running.port), str(shape.connections), str(replies)],
        input=b"".join(_LENGTH.pack(len(request)) + request for request in requests),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"load: {done.stderr.decode()}")
    found: list[str] = []
    at = 0
    while at < len(done.stdout):
        (size,) = _LENGTH.unpack_from(done.stdout, at)
        at += _LENGTH.size
        found += dialect.ids(done.stdout[at : at + size], shape.batch)
        at += size
    return float(done.stderr), found


# Servers.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit("a server did not start")


class Running(NamedTuple):
    """A server that accepts connections."""

    pid: int
    port: int
    dialect: Dialect


@contextlib.contextmanager
def manyhands(folder: Path) -> Iterator[Running]:
    port = free_port()
    arguments = ["serve", "--data", str(folder / "data"), "--http", f"127.0.0.1:{port}"]
    for other in ("gearman", "dwork", "wmp", "amqp"):
        arguments += [f"--{other}", "off"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "manyhands", *arguments], stdout=log, stderr=log
        )
    try:
        wait_for(port)
        yield Running(process.pid, port, Http())
    finally:
        process.terminate()
        process.wait()


def qless(lua: Path, sync: str) -> Callable[[Path], contextlib.AbstractContextManager[Running]]:
    @contextlib.contextmanager
    def start(folder: Path) -> Iterator[Running]:
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        if sync != "off":
            options += ["--appendonly", "yes", "--appendfsync", sync]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
        try:
            wait_for(port)
            text = lua.read_bytes()
            with socket.create_connection(("127.0.0.1", port)) as peer:
                words = (b"SCRIPT", b"LOAD", text)
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
                peer.sendall(b"*3\r\n" + parts)
                answer = peer.recv(1000)
            assert answer.startswith(b"$40"), answer
            yield Running(process.pid, port, Redis(answer.split(b"\r\n")[1].decode()))
        finally:
            process.terminate()
            process.wait()

    return start


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its children."""
    pids = [str(pid)]
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += thread.read_text().split()
    ticks = 0
    for one in pids:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


Cell = dict[tuple[str, str], tuple[float, float]]


def measure(load: Path, running: Running, jobs: int) -> Cell:
    """Jobs per second and microseconds of server CPU per job, by shape and operation."""
    found: Cell = {}
    warm = Shape("warm", 1, 10)
    for shape in (warm, *SHAPES):
        count = 50 if shape is warm else jobs * (10 if shape.batch > 1 else 1)
        ids = [""] * count
        for operation in OPERATIONS:
            before = cpu_seconds(running.pid)
            seconds, back = drive(load, running, operation, shape, ids)
            used = cpu_seconds(running.pid) - before
            if operation == "get":
                assert len(back) == count, (len(back), count)
                ids = back
            found[shape.name, operation] = (count / seconds, used / count * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lua", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2_000)
    options = parser.parse_args()
    lua = options.lua
    if lua is None:
        spec = importlib.util.find_spec("reqless")
        if spec is None or spec.origin is None:
            raise SystemExit("install reqless, or say --lua PATH")
        lua = Path(spec.origin).parent / "lua" / "qless.lua"
    servers = {
        "manyhands": manyhands,
        "qless, fsync always": qless(lua, "always"),
        "qless, in memory": qless(lua, "off"),
    }
    rounds: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as made:
        load = compile_load(Path(made))
        for number in range(options.rounds):
            cells = {}
            for name in list(servers)[:: 1 if number % 2 == 0 else -1]:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    servers[name](Path(folder)) as running,
                ):
                    cells[name] = measure(load, running, options.jobs)
            rounds.append(cells)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    report(rounds)


def report(rounds: list[dict[str, Cell]]) -> None:
    names = ("manyhands", "qless, fsync always", "qless, in memory")
    print("| load | operation | " + " | ".join(f"{name} jobs/s (CPU µs)" for name in names), end="")
    print(" | to fsync always | to in memory |")
    print("|---" * (len(names) + 4) + "|")
    for shape in SHAPES:
        for operation in OPERATIONS:
            key = (shape.name, operation)
            cells = []
            for name in names:
                rate = median(cells_[name][key][0] for cells_ in rounds)
                cpu = median(cells_[name][key][1] for cells_ in rounds)
                cells.append(f"{rate:,.0f} ({cpu:.0f})")
            ratios = [
                median(one["manyhands"][key][0] / one[other][key][0] for one in rounds)
                for other in ("qless, fsync always", "qless, in memory")
            ]
            shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {shape.name} | {operation} | {' | '.join(cells)} | {shown} |")


if __name__ == "__main__":
    main()

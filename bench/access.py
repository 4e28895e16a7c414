"""Measure what an access file costs: processor time of the server per job, with and without.

    python bench/access.py --rounds 12 --jobs 5000

Servers without an access file, with one, and with patterns of queues do the same work in turns, so
that a busy machine matters little. The clients are those of ``bench/encryption.py`` and slower than
the server. Each of them logs in once and keeps its connection, as workers do.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from manyhands.protocols.dwork.codec import Kind, Query, Task, encode

PIPELINE = 50  # requests on their way at a time
KINDS = ("without", "with", "with patterns")
NAME = "bench"
DONE = b'{"data":[{"id":"%s","meta":1}]}'


class Server:
    """``manyhands serve`` in memory."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.token = ""
        options = ["--store", "memory", "--wmp", "off", "--amqp", "off"]
        for name in ("http", "gearman", "dwork"):
            options += [f"--{name}", "127.0.0.1:0"]
        if kind != KINDS[0]:
            file = folder / f"{kind.replace(' ', '-')}.toml"
            new = ["access", "new", NAME, "--role", "worker", "--file", str(file)]
            if kind == KINDS[2]:
                new += ["--queues", "mail.*", "--queues", "bench*", "--queues", "dwork"]
            self.token = subprocess.run(
                [sys.executable, "-m", "manyhands", *new],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            options += ["--access", str(file)]
        ready = folder / f"ready-{kind}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "manyhands", "serve", *options, "--ready-file", str(ready)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not ready.exists():
            assert self.process.poll() is None, "the server has ended"
            time.sleep(0.05)
        self.addresses = json.loads(ready.read_text())

    def cpu_seconds(self) -> float:
        """Of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def connect(self, listener: str) -> socket.socket:
        host, _, port = self.addresses[listener].rpartition(":")
        peer = socket.create_connection((host, int(port)))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)


# A client is a generator: it connects, and then does so many jobs each time it is sent a number.
Client = Iterator[None]
Clients = Callable[[Server, list[int]], Client]


def packet(kind: int, body: bytes = b"") -> bytes:
    return b"\0REQ" + kind.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def read_packets(peer: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """The next packets."""
    held, found = b"", []
    while len(found) < count:
        held += peer.recv(1 << 20)
        while len(held) >= 12 and len(held) >= (end := 12 + int.from_bytes(held[8:12], "big")):
            found.append((int.from_bytes(held[4:8], "big"), held[12:end]))
            held = held[end:]
    return found


def gearman(server: Server, jobs: list[int]) -> Client:
    """Submits, grabs and completes."""
    with server.connect("gearman") as peer:
        if server.token:
            peer.sendall(packet(26, b"token:" + server.token.encode()))
            assert read_packets(peer, 1)[0][0] == 27, "the token is refused"
        peer.sendall(packet(1, b"bench"))
        while True:
            for _ in range(jobs[0] // PIPELINE):
                peer.sendall(packet(18, b"bench\0\0" + b"x" * 100) * PIPELINE)
                assert all(kind == 8 for kind, _ in read_packets(peer, PIPELINE))
                peer.sendall(packet(9) * PIPELINE)
                given = read_packets(peer, PIPELINE)
                assert all(kind == 11 for kind, _ in given)
                handles = [body.split(b"\0")[0] for _, body in given]
                peer.sendall(b"".join(packet(13, handle + b"\0done") for handle in handles))
            yield


def read_answers(peer: socket.socket, count: int) -> list[bytes]:
    """The bodies of the next answers."""
    held, found = b"", []
    while len(found) < count:
        held += peer.recv(1 << 20)
        while (head_end := held.find(b"\r\n\r\n")) > 0:
            head = held[:head_end].lower()
            assert head.startswith(b"http/1.1 200"), held
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            end = head_end + 4 + length
            if len(held) < end:
                break
            found.append(held[head_end + 4 : end])
            held = held[end:]
    return found


def qless(server: Server, jobs: list[int]) -> Client:
    """Adds, gets and completes, an item in each request and a request at a time."""
    head = b"Host: localhost\r\nContent-Type: application/json\r\nX-Qless-Host: bench\r\n"
    if server.token:
        head += b"Authorization: Bearer %s\r\n" % server.token.encode()

    def post(path: bytes, body: bytes) -> bytes:
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        return b"POST %s HTTP/1.1\r\n%s%s%s" % (path, head, length, body)

    with server.connect("http") as peer:
        add = post(b"/add/bench", b'{"data":[{"meta":"%s"}]}' % (b"x" * 100))
        take = b"GET /get/bench HTTP/1.1\r\n%s\r\n" % head
        while True:
            for _ in range(jobs[0]):
                peer.sendall(add)
                read_answers(peer, 1)
                peer.sendall(take)
                item = json.loads(read_answers(peer, 1)[0])["results"]
                peer.sendall(post(b"/complete/bench", DONE % item["id"].encode()))
                read_answers(peer, 1)
            yield


def dwork(server: Server, jobs: list[int]) -> Client:
    """Creates, steals and completes; a hundred tasks are created by one message."""
    context = zmq.Context()
    peer = context.socket(zmq.REQ)
    if server.token:
        peer.setsockopt(zmq.PLAIN_USERNAME, NAME.encode())
        peer.setsockopt(zmq.PLAIN_PASSWORD, server.token.encode())
    peer.connect(f"tcp://{server.addresses['dwork']}")

    def ask(query: Query) -> bytes:
        peer.send(encode(query))
        answer = peer.recv()
        assert answer[:2] != bytes((8, Kind.ERROR)), answer
        return answer

    try:
        while True:
            prefix = os.urandom(4).hex()
            tasks = [Task(name=f"{prefix}-{n}", origin="bench") for n in range(jobs[0])]
            for start in range(0, len(tasks), 100):
                ask(Query(kind=Kind.CREATE, tasks=tuple(tasks[start : start + 100])))
            for task in tasks:
                ask(Query(kind=Kind.STEAL, location="w", n=1))
                ask(Query(kind=Kind.COMPLETE, tasks=(task,), location="w"))
            yield
    finally:
        context.destroy(linger=0)


def measure(
    name: str, make: Clients, servers: dict[str, Server], rounds: int, jobs: int
) -> dict[str, float]:
    """Microseconds of each server for a job: medians of rounds that take turns."""
    jobs_now = [jobs]
    clients = {kind: make(server, jobs_now) for kind, server in servers.items()}
    spent: dict[str, list[float]] = {kind: [] for kind in servers}
    for number in range(rounds + 1):
        order = list(servers) if number % 2 else list(reversed(servers))
        for kind in order:
            before = servers[kind].cpu_seconds()
            next(clients[kind])
            if number:  # the first is for warming up
                spent[kind].append((servers[kind].cpu_seconds() - before) / jobs * 1e6)
    base = spent[KINDS[0]]
    medians = {kind: statistics.median(found) for kind, found in spent.items()}
    shown = [f"{medians[KINDS[0]]:.1f} µs without"]
    for kind in KINDS[1:]:
        ratios = sorted(one / other for one, other in zip(spent[kind], base, strict=True))
        middle = statistics.median(ratios)
        shown.append(f"{medians[kind]:.1f} µs {kind}: {(middle - 1) * 100:+.1f} %")
    print(f"{name}: {', '.join(shown)}", flush=True)
    for client in clients.values():
        client.close()  # type: ignore[attr-defined] - they are generators
    return medians


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=5_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    servers: dict[str, Server] = {}
    try:
        for kind in KINDS:
            servers[kind] = Server(folder, kind)
        measure("gearman job", gearman, servers, given.rounds, given.jobs)
        measure("qless item", qless, servers, given.rounds, given.jobs // 2)
        measure("dwork task", dwork, servers, given.rounds, given.jobs // 4)
    finally:
        for server in servers.values():
            server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

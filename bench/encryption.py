"""Measure the price of TLS and CURVE: processor time of the server per job, with and without.

    python bench/encryption.py --rounds 6 --jobs 3000

One server serves both kinds of addresses; rounds alternate, so that a busy machine matters little.
The client is Python and slower than the server. Handshakes are counted apart.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from manyhands.access.curve_keys import as_text, file_text, new_keys
from manyhands.protocols.dwork.codec import Kind, Query, Task, encode

SERVER_KEYS = new_keys()
PIPELINE = 50  # requests on their way at a time


class Server:
    """``manyhands serve`` in memory, with all addresses twice."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "server.pem"
        key, curve = folder / "server.key", folder / "curve"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost"]
        command += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
        curve.write_text(file_text(SERVER_KEYS, with_secret=True))
        ready = folder / "ready"
        options = ["--store", "memory", "--ready-file", str(ready), "--tls-cert"]
        options += [str(self.certificate), "--tls-key", str(key), "--curve-key", str(curve)]
        for name in ("http", "http-tls", "gearman", "gearman-tls", "dwork", "dwork-curve"):
            options += [f"--{name}", "127.0.0.1:0"]
        options += ["--wmp", "off", "--amqp", "off"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "manyhands", "serve", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not ready.exists():
            time.sleep(0.05)
        self.addresses = json.loads(ready.read_text())

    def cpu_seconds(self) -> float:
        """Of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def connect(self, listener: str) -> socket.socket:
        host, _, port = self.addresses[listener].rpartition(":")
        plain = socket.create_connection((host, int(port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not listener.endswith("_tls"):
            return plain
        context = ssl.create_default_context(cafile=self.certificate)
        return context.wrap_socket(plain, server_hostname="localhost")


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


def gearman(server: Server, listener: str, jobs: int) -> None:
    """Submits, grabs and completes."""
    with server.connect(listener) as peer:
        peer.sendall(packet(1, b"bench"))
        for _ in range(jobs // PIPELINE):
            peer.sendall(packet(18, b"bench\0\0" + b"x" * 100) * PIPELINE)
            read_packets(peer, PIPELINE)
            peer.sendall(packet(9) * PIPELINE)
            handles = [body.split(b"\0")[0] for _, body in read_packets(peer, PIPELINE)]
            peer.sendall(b"".join(packet(13, handle + b"\0done") for handle in handles))


def http(server: Server, listener: str, jobs: int) -> None:
    """Submits, a request at a time."""
    body = json.dumps({"queue": "bench", "payload": "x" * 100}).encode()
    request = b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with server.connect(listener) as peer:
        for _ in range(jobs):
            peer.sendall(request)
            assert peer.recv(1 << 16).startswith(b"HTTP/1.1 200")


def dwork(server: Server, listener: str, jobs: int) -> None:
    """Creates, steals and completes, a request at a time."""
    context = zmq.Context()
    peer = context.socket(zmq.REQ)
    if listener.endswith("_curve"):
        own = new_keys()
        peer.curve_serverkey = as_text(SERVER_KEYS.public).encode()
        peer.curve_publickey = as_text(own.public).encode()
        peer.curve_secretkey = as_text(own.secret).encode()
    peer.connect(f"tcp://{server.addresses[listener]}")
    prefix = os.urandom(4).hex()
    for number in range(jobs):
        task = Task(name=f"{prefix}-{number}", origin="bench")
        for query in (
            Query(kind=Kind.CREATE, tasks=(task,)),
            Query(kind=Kind.STEAL, location="w", n=1),
            Query(kind=Kind.COMPLETE, tasks=(task,), location="w"),
        ):
            peer.send(encode(query))
            peer.recv()
    context.destroy(linger=0)


def handshakes(server: Server, listener: str, jobs: int) -> None:
    """Connects and disconnects."""
    for _ in range(jobs // 10):
        server.connect(listener).close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=3_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    server = Server(folder)
    kinds: list[tuple[str, Callable[[Server, str, int], None], tuple[str, str], int]] = [
        ("gearman job", gearman, ("gearman", "gearman_tls"), given.jobs),
        ("http submit", http, ("http", "http_tls"), given.jobs),
        ("dwork task", dwork, ("dwork", "dwork_curve"), given.jobs // 3),
        ("connection", handshakes, ("gearman", "gearman_tls"), given.jobs),
    ]
    try:
        for name, run, listeners, jobs in kinds:
            spent: dict[str, list[float]] = {listener: [] for listener in listeners}
            for number in range(given.rounds + 1):
                for listener in listeners if number % 2 else reversed(listeners):
                    before = server.cpu_seconds()
                    run(server, listener, jobs)
                    count = jobs // 10 if run is handshakes else jobs
                    if number:  # the first is for warming up
                        spent[listener].append((server.cpu_seconds() - before) / count * 1e6)
            plain, secret = (statistics.median(spent[listener]) for listener in listeners)
            print(
                f"{name}: {plain:.1f} µs without, {secret:.1f} µs with: {secret / plain:.2f} times"
            )
    finally:
        server.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(60)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""A server with sample work over every protocol, to look at in a browser.

    python examples/demo.py                          # until Ctrl-C, on the usual ports
    python examples/demo.py --free-ports --seconds 20

Its data is in a temporary folder that is removed at the end. `make demo` starts it.
"""

import argparse
import contextlib
import json
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import zmq

from manyhands.client import wmp
from manyhands.client.wmp_submitter import Submitter
from manyhands.protocols.dwork.codec import Dep, Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode

FAILURES = (
    ("Timeout", "upstream at 10.1.4.7:443 did not answer in 30 s"),
    ("SMTPError", "550 mailbox unavailable: {0}@example.org"),
    ("KeyError", "'customer_id' is missing in order {0}"),
    ("OutOfMemory", "the picture has {0}00 megapixels"),
)
NAMES = ("ada", "grace", "alan", "edsger", "barbara", "donald", "radia", "ken")
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 5.0  # for all parts together


class Demo:
    """What all parts share: the server's addresses, dice, and whether to continue."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self.http = f"http://{addresses['http']}"
        self.over = threading.Event()
        self.dice = random.Random(7)  # noqa: S311 - sample work, no secrets

    def rest(self, low: float, high: float) -> bool:
        """Wait a while; False when the demonstration is over."""
        return not self.over.wait(self.dice.uniform(low, high))

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:  # noqa: ANN401
        """Send a request with JSON and return its results; None if it was refused."""
        text = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.http + path, text, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError:
            return None
        return found.get("results", found)


# The native API: orders with priorities, tags, delays, limits and dependants.


def orders(demo: Demo) -> None:
    """Submits, at times in bursts."""
    demo.call("/api/limits/database", {"concurrency_max": 3}, "PUT")
    demo.call(
        "/api/queues/orders.ship", {"policy": {"rate": {"count": 40, "per_ms": 10_000}}}, "PUT"
    )
    every = {"queue": "reports", "interval_ms": 20_000, "payload": {"report": "sales"}}
    demo.call("/api/schedules/sales-report", every, "PUT")
    nightly = {
        "queue": "reports",
        "cron": "0 3 * * *",
        "time_zone": "Europe/Vienna",
        "tags": ["nightly"],
    }
    demo.call("/api/schedules/nightly-cleanup", nightly, "PUT")
    number = 1000
    while demo.rest(0.4, 2.0):
        for _ in range(demo.dice.choice((1, 1, 1, 1, 1, 1, 1, 2, 3, 15))):
            number += 1
            customer = demo.dice.choice(NAMES)
            pay = {
                "queue": "orders.pay",
                "payload": {
                    "order": number,
                    "customer": customer,
                    "cents": demo.dice.randint(500, 90_000),
                },
                "priority": demo.dice.choice((0, 0, 0, 5)),
                "tags": [f"customer:{customer}"],
                "limits": ["database"],
                "backoff": {"first_ms": 3_000},
                "attempts_max": 3,
            }
            paid = demo.call("/api/submit", pay)
            if paid is None:
                continue
            ship = {
                "queue": "orders.ship",
                "payload": {"order": number},
                "depends_on": [paid["id"]],
            }
            mail = {
                "queue": "mail",
                "payload": {"to": customer},
                "delay_ms": demo.dice.randint(1, 40) * 1000,
            }
            demo.call("/api/submit", {"items": [ship, mail]})


def native_worker(demo: Demo, name: str, queues: list[str], seconds: float, fails: float) -> None:
    """Claims, reports progress, completes, at times fails or stops reporting."""
    while not demo.over.is_set():
        claim = {"queues": queues, "worker": name, "wait": 2, "term_ms": 15_000}
        for job in demo.call("/api/claim", claim) or ():
            proof = {"id": job["id"], "token": job["token"]}
            if demo.dice.random() < 0.01:
                continue  # stopped reporting: the lease expires
            for step in range(1, 5):
                if not demo.rest(seconds / 8, seconds / 3):
                    return
                demo.call("/api/progress", {**proof, "numerator": step * 25, "denominator": 100})
            if demo.dice.random() < fails:
                code, text = demo.dice.choice(FAILURES)
                message = text.format(demo.dice.randint(1, 9))
                demo.call("/api/fail", {**proof, "code": code, "message": message})
            else:
                demo.call("/api/complete", {**proof, "result": {"by": name, "ok": True}})


# qless: pictures that go from queue to queue.


def pictures(demo: Demo) -> None:
    """Adds to the first queue."""
    while demo.rest(0.3, 1.5):
        count = demo.dice.randint(1, 4)
        items = [
            {"meta": {"file": f"IMG_{demo.dice.randint(1000, 9999)}.jpg", "size": [4032, 3024]}}
            for _ in range(count)
        ]
        demo.call("/add/pictures.scan", {"host": "camera", "data": items})


def qless_worker(demo: Demo, host: str) -> None:
    """Takes several at a time, and moves them on."""
    while demo.rest(0.2, 0.8):
        for queue, onward in (("pictures.scan", "pictures.resize"), ("pictures.resize", None)):
            taken = demo.call(f"/get/{queue}/3?host={host}") or ()
            if not taken or not demo.rest(0.1, 0.6):
                continue
            if demo.dice.random() < 0.05:
                report = [
                    {"id": item["id"], "group": "decoder", "message": "not a JPEG"}
                    for item in taken
                ]
                demo.call(f"/fail/{queue}", {"host": host, "data": report})
                continue
            results = [{"id": item["id"], "meta": {"done": True}, "next": onward} for item in taken]
            demo.call(f"/complete/{queue}", {"host": host, "data": results})


# Gearman, as its clients have spoken it for fifteen years.

CAN_DO, PRE_SLEEP, NOOP, JOB_CREATED, GRAB_JOB, NO_JOB, JOB_ASSIGN = 1, 4, 6, 8, 9, 10, 11
WORK_STATUS, WORK_COMPLETE, WORK_FAIL, SUBMIT_JOB_BG, SET_CLIENT_ID = 12, 13, 14, 18, 22


class Gearman:
    """One connection."""

    def __init__(self, demo: Demo) -> None:
        host, _, port = demo.addresses["gearman"].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, kind: int, *fields: bytes) -> None:
        body = b"\0".join(fields)
        self.socket.sendall(struct.pack(">4sII", b"\0REQ", kind, len(body)) + body)

    def receive(self) -> tuple[int, list[bytes]]:
        head = self._exactly(12)
        _, kind, length = struct.unpack(">4sII", head)
        return kind, self._exactly(length).split(b"\0")

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise ConnectionError("the server hung up")
            found += piece
        return found


def gearman_client(demo: Demo) -> None:
    """Submits in the background."""
    peer = Gearman(demo)
    while demo.rest(0.1, 0.6):
        function = demo.dice.choice((b"reverse", b"reverse", b"wordcount"))
        peer.send(SUBMIT_JOB_BG, function, b"", b"Many hands make light work.")
        peer.receive()


def gearman_worker(demo: Demo, name: bytes) -> None:
    """Sleeps until there is work."""
    peer = Gearman(demo)
    peer.send(SET_CLIENT_ID, name)
    for function in (b"reverse", b"wordcount"):
        peer.send(CAN_DO, function)
    while not demo.over.is_set():
        peer.send(GRAB_JOB)
        kind, fields = peer.receive()
        while kind == NOOP:
            kind, fields = peer.receive()
        if kind == JOB_ASSIGN:
            handle, function, payload = fields[0], fields[1], b"\0".join(fields[2:])
            peer.send(WORK_STATUS, handle, b"1", b"2")
            demo.rest(0.1, 0.8)
            if demo.dice.random() < 0.04:
                peer.send(WORK_FAIL, handle)
            else:
                result = payload[::-1] if function == b"reverse" else b"%d" % len(payload.split())
                peer.send(WORK_COMPLETE, handle, result)
        elif kind == NO_JOB:
            peer.send(PRE_SLEEP)
            if select.select([peer.socket], [], [], 1.0)[0]:
                peer.receive()


# dwork: graphs of named tasks over ZeroMQ.


@contextlib.contextmanager
def dwork_peer(demo: Demo) -> Iterator[Callable[[Query], Query]]:
    """A REQ socket."""
    context = zmq.Context()
    peer = context.socket(zmq.REQ)
    peer.setsockopt(zmq.RCVTIMEO, 60_000)
    peer.setsockopt(zmq.LINGER, 0)
    peer.connect(f"tcp://{demo.addresses['dwork'].split(',')[0].rpartition('=')[2]}")

    def ask(query: Query) -> Query:
        peer.send(encode(query))
        return decode(peer.recv())

    try:
        yield ask
    finally:
        context.destroy(linger=0)


def graphs(demo: Demo) -> None:
    """One build after the other: fetch, compile in parallel, link, test."""
    with dwork_peer(demo) as ask:
        build = 0
        while demo.rest(4.0, 9.0):
            build += 1
            prefix = f"build-{build}"
            parts = [f"{prefix}/compile-{part}" for part in range(demo.dice.randint(3, 8))]
            tasks = [Task(name=f"{prefix}/fetch", origin="demo")]
            tasks += [
                Task(name=part, origin="demo", preds=(Dep(f"{prefix}/fetch"),)) for part in parts
            ]
            tasks.append(Task(name=f"{prefix}/link", origin="demo", preds=tuple(map(Dep, parts))))
            tasks.append(Task(name=f"{prefix}/test", origin="demo", preds=(Dep(f"{prefix}/link"),)))
            ask(Query(kind=Kind.CREATE, tasks=tuple(tasks)))


def dwork_worker(demo: Demo, name: str) -> None:
    """Steals, and completes."""
    with dwork_peer(demo) as ask:
        while demo.rest(0.3, 1.0):
            reply = ask(Query(kind=Kind.STEAL, location=name))
            if reply.kind is not Kind.TRANSFER:
                continue
            demo.rest(0.3, 1.5)
            done = tuple(Task(name=task.name, origin="demo") for task in reply.tasks)
            ask(Query(kind=Kind.COMPLETE, tasks=done, location=name))


# WMP: workers that are woken over ZeroMQ.


def letters(demo: Demo) -> None:
    """Submits letters to translate."""
    submitter = Submitter(demo.addresses["wmp"])
    try:
        while demo.rest(0.5, 2.5):
            submitter.submit(
                "translate", b"Guten Morgen", name=f"letter-{demo.dice.randint(1, 10**9)}"
            )
    finally:
        submitter.close()


def translator(demo: Demo, name: str) -> None:
    """Is woken, works, and waits to be woken again."""

    def translate(job: wmp.Job) -> bytes:
        job.report(1, 2)
        demo.rest(0.3, 1.2)
        if demo.dice.random() < 0.08:
            raise wmp.Failed("no such word in the dictionary")
        return job.payload.upper()

    worker = wmp.Worker([demo.addresses["wmp"]], translate, roles=["translate"], identity=name)
    threading.Thread(target=lambda: (demo.over.wait(), worker.stop()), daemon=True).start()
    worker.run()


# Taskcluster: tasks over its REST API, worked over the native one, and watched over AMQP.


def tasks(demo: Demo) -> None:
    """Submits a task with a deadline."""
    while demo.rest(3.0, 8.0):
        now = datetime.now(UTC)
        who = "release@example.org"
        definition = {
            "version": "0.2.0",
            "provisioner_id": "default",
            "worker_type": "linux",
            "routing": "demo",
            "retries": 1,
            "priority": 0,
            "created": now.isoformat(),
            "deadline": (now + timedelta(minutes=10)).isoformat(),
            "payload": {"command": ["make", "release"]},
            "metadata": {"name": "release", "owner": who, "maintainer": who},
            "tags": {},
        }
        demo.call("/0.2.0/task/new", definition)


def watcher(demo: Demo) -> None:
    """Gets every event over AMQP."""
    import pika  # noqa: PLC0415 - only where it is installed

    patience = "socket_timeout=60&stack_timeout=60"
    where = f"amqp://guest:guest@{demo.addresses['amqp']}/?{patience}"
    connection = pika.BlockingConnection(pika.URLParameters(where))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for exchange in ("task_completed_v1", "task_failed_v1"):
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(queue, exchange, "#")
    for _ in channel.consume(queue, auto_ack=True, inactivity_timeout=1.0):
        if demo.over.is_set():
            break
    connection.close()


def parts() -> Iterator[tuple[Callable[..., None], tuple[Any, ...]]]:
    """Everything that runs beside the server."""
    yield orders, ()
    for number in range(1, 7):
        yield native_worker, (f"shop-{number}", ["orders.pay", "orders.ship"], 1.0, 0.12)
    for number in range(1, 4):
        yield native_worker, (f"mailer-{number}", ["mail"], 0.8, 0.2)
    yield native_worker, ("reporter", ["reports"], 4.0, 0.05)
    yield native_worker, ("linux-1", ["linux"], 5.0, 0.2)
    yield pictures, ()
    yield qless_worker, ("darkroom-1",)
    yield qless_worker, ("darkroom-2",)
    yield gearman_client, ()
    yield gearman_worker, (b"perl-1",)
    yield gearman_worker, (b"php-1",)
    yield graphs, ()
    yield dwork_worker, ("node-1",)
    yield dwork_worker, ("node-2",)
    yield letters, ()
    yield translator, ("translator-1",)
    yield translator, ("translator-2",)
    yield tasks, ()
    yield watcher, ()


def run(demo: Demo, part: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """One part, restarted when it fails."""
    while not demo.over.is_set():
        try:
            part(demo, *arguments)
        except ImportError as error:
            print(f"Without the {part.__name__}: {error.name} is not installed.", file=sys.stderr)
            return
        except Exception:  # noqa: BLE001 - a demonstration goes on
            if not demo.over.is_set():
                print(f"{part.__name__}: {traceback.format_exc(limit=1)}", file=sys.stderr)
            demo.over.wait(1.0)


def serve(folder: Path, *, free_ports: bool) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """A server of its own, and where it listens."""
    ready = folder / "ready"
    command = [sys.executable, "-m", "manyhands", "serve", "--data", str(folder / "data")]
    command += ["--ready-file", str(ready), "--log-level", "warning"]
    if free_ports:
        for listener in ("http", "gearman", "dwork", "wmp", "amqp"):
            command += [f"--{listener}", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise SystemExit(
                "The server did not start; see above. `make demo ARGS=--free-ports` takes ports "
                "that are free."
            )
        time.sleep(0.05)
    return process, json.loads(ready.read_text())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--seconds", type=float, help="end by itself after that long")
    asked.add_argument("--free-ports", action="store_true", help="not the usual ports")
    asked.add_argument("--address-file", type=Path, help="write the address of the pages there")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="manyhands-demo-") as folder:
        process, addresses = serve(Path(folder), free_ports=given.free_ports)
        demo = Demo(addresses)
        signal.signal(signal.SIGTERM, lambda *_: demo.over.set())
        threads = [
            threading.Thread(target=run, args=(demo, part, arguments), daemon=True)
            for part, arguments in parts()
        ]
        for thread in threads:
            thread.start()
        print(f"Look at {demo.http}/ui/ and stop with Ctrl-C.", flush=True)
        if given.address_file is not None:
            given.address_file.write_text(demo.http)
        with contextlib.suppress(KeyboardInterrupt):
            demo.over.wait(given.seconds)
        demo.over.set()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        process.terminate()
        process.wait(60.0)


if __name__ == "__main__":
    main()

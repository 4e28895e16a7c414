"""A WMP peer over a real socket, one message at a time, and devices as programs."""

import contextlib
import itertools
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from manyhands.client.wmp import Job, Worker
from manyhands.protocols.wmp.codec import Command, Control, Packet, decode, encode, pack, unpack
from tests.e2e.serving import SECONDS_MAX, command, environment

REPLY_MS_MAX = 90_000
_numbers = itertools.count()


class Heard:
    """A message as a test looks at it."""

    def __init__(self, packet: Packet) -> None:
        self.packet = packet
        self.control: Control = decode(packet.control)
        self.command = self.control.command
        self.payload = packet.payload

    def __getitem__(self, name: str) -> bytes | None:
        return self.control.get(name.encode())


class Talk:
    """One DEALER."""

    def __init__(
        self,
        address: str,
        routing_id: bytes = b"",
        context: zmq.Context | None = None,
        *,
        comes_back: bool = True,
        login: tuple[str, str] | None = None,
    ) -> None:
        self.context = context or zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.id = routing_id or b"\1test-%d" % next(_numbers)
        self.socket.setsockopt(zmq.ROUTING_ID, self.id)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, REPLY_MS_MAX)
        if not comes_back:
            self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if login is not None:
            self.socket.plain_username, self.socket.plain_password = map(str.encode, login)
        self.socket.connect(f"tcp://{address}")

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def say(
        self,
        command: Command,
        payload: bytes | None = None,
        route: tuple[bytes, ...] = (),
        **values,
    ) -> None:
        """Properties as keywords; a list is a repeated one."""
        properties = []
        for name, value in values.items():
            for each in value if isinstance(value, list) else [value]:
                raw = each if isinstance(each, bytes) else str(each).encode()
                properties.append((name.rstrip("_").replace("_", "-").encode(), raw))
        control = encode(command, *properties)
        self.socket.send_multipart(pack(Packet(route, (), control, payload)))

    def hear(self) -> Heard:
        return Heard(unpack(self.socket.recv_multipart()))

    def expect(self, command: Command) -> Heard:
        heard = self.hear()
        assert heard.command is command, f"{heard.command!r} {heard.control.properties}"
        return heard

    def is_silent(self, ms: int = 300) -> bool:
        return not self.socket.poll(ms)

    # What workers do.

    def take(self, lock: str = "L", **values: Any) -> Heard:
        """GIVE, and the TAKE that answers it."""
        self.say(Command.GIVE, lock=lock, **values)
        return self.expect(Command.TAKE)

    def done(self, taken: Heard, payload: bytes | None = b"", **values: Any) -> None:
        known = {name: taken[name] for name in ("manager", "job", "lease")}
        route = taken.packet.trail
        self.say(Command.DONE, payload, route, **{**known, "status": "ok", "ack": 1, **values})

    def status(self, taken: Heard, payload: bytes | None = None, **values: Any) -> None:
        known = {name: taken[name] for name in ("manager", "job", "lease")}
        self.say(Command.STATUS, payload, taken.packet.trail, **{**known, **values})

    # What submitters do.

    def submit(self, role: str, payload: bytes = b"", **values: Any) -> str:
        self.say(Command.SUBMIT, payload, request="r", role=role, **values)
        reply = self.expect(Command.REPLY)
        assert reply["code"] == b"200", reply["reason"]
        return (reply["job"] or b"").decode()

    def fetch(self, job: str, wait: int = 0) -> Heard:
        self.say(Command.FETCH, request="f", job=job, wait=wait)
        return self.expect(Command.REPLY)


@contextlib.contextmanager
def working(
    *managers: str, handler: Callable[[Job], bytes | None], **options: Any
) -> Iterator[Worker]:
    """Our own worker, in a thread, for the length of a block."""
    worker = Worker(managers, handler, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(SECONDS_MAX)
        assert not thread.is_alive(), "the worker did not stop"


class Carrier:
    """A device, as a program of its own, that has found all its managers."""

    def __init__(self, *managers: str, listen: str = "127.0.0.1:0") -> None:
        for _ in range(10):  # it waits for them for a moment only
            if self._start(managers, listen) == len(managers):
                return
            self.stop()
        raise AssertionError("the device did not reach its managers")

    def _start(self, managers: tuple[str, ...], listen: str) -> int:
        flags = [flag for manager in managers for flag in ("--manager", manager)]
        self.process = subprocess.Popen(
            command("device", "--listen", listen, "--json", *flags),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        told = json.loads(line)
        self.address: str = told["listen"]
        return told["reached"]

    def stop(self) -> dict[str, dict[str, int]]:
        """What it counted."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=SECONDS_MAX)
        assert self.process.returncode == 0
        return json.loads(out)

    def __enter__(self) -> "Carrier":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


def wait_until(true: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)

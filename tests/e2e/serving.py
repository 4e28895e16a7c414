"""Starts the real program on free loopback ports, waits until it is ready, stops it by its id."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

# What must happen is waited for much longer than it ever takes: a busy machine is no failure.
SECONDS_MAX = 90.0


@dataclass
class Served:
    """A server of its own, and how to reach it."""

    process: subprocess.Popen[bytes]
    folder: Path
    addresses: dict[str, str | None]

    @property
    def url(self) -> str:
        return f"http://{self.addresses['http']}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready"

    def log(self) -> str:
        return (self.folder / "stderr").read_text()

    def stop(self, *signals: signal.Signals) -> int:
        """Send signals, wait, give the exit code."""
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)


def environment() -> dict[str, str]:
    """That of the tests, without what would configure the server."""
    return {name: text for name, text in os.environ.items() if not name.startswith("MANYHANDS_")}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "manyhands", *arguments]


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        command(*arguments),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=480,
        **options,
    )


# Where time is no object, servers check every change that they make.
CHECKED = {"MANYHANDS_CHECK_INVARIANTS": "true"} if os.environ.get("CI") else {}


# The store of the servers in a folder, where tests run on another one than they ask for.
store_of: Callable[[Path], str] | None = None


def _with_store(folder: Path, arguments: tuple[str, ...]) -> tuple[str, ...]:
    if store_of is None:
        return arguments
    if "--store" in arguments:
        at = arguments.index("--store")
        arguments = arguments[:at] + arguments[at + 2 :]
    return (*arguments, "--store", store_of(folder))


def start(folder: Path, *arguments: str) -> Served:
    """Start a server whose files are all in the folder."""
    arguments = _with_store(folder, arguments)
    ready = folder / "ready"
    given = ["serve", "--ready-file", str(ready), "--data", str(folder / "data")]
    for listener in ("http", "gearman", "dwork", "wmp", "amqp"):
        if f"--{listener}" not in arguments:
            given += [f"--{listener}", "127.0.0.1:0" if listener == "http" else "off"]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command(*given, *arguments), env=environment() | CHECKED, stdout=out, stderr=err
        )
    deadline = time.monotonic() + SECONDS_MAX
    while (addresses := _addresses_of(process, ready)) is None:
        if process.poll() is not None:
            raise AssertionError(
                f"ended with {process.returncode}: {Served(process, folder, {}).log()}"
            )
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError("the server was not ready in time")
        time.sleep(0.02)
    return Served(process, folder, addresses)


def _addresses_of(process: subprocess.Popen[bytes], ready: Path) -> dict[str, str | None] | None:
    """What the server wrote when it was ready; a killed one before it may have left such a file."""
    try:
        found = json.loads(ready.read_text())
    except FileNotFoundError:
        return None
    return found if found["pid"] == process.pid else None


# Below the ports that the system gives away by itself, with a range for each process of the tests:
# nobody takes one between the choice and the use, or while whoever listened there is away.
_PORTS_FIRST, _PORTS_COUNT, _PORTS_PROCESSES = 12_000, 1_000, 16
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _PORTS_PROCESSES
_steps = itertools.count(random.randrange(_PORTS_COUNT))


def own_port() -> int:
    """A port for something that cannot choose one itself, or comes back to where it was."""
    for _ in range(_PORTS_COUNT):
        port = _PORTS_FIRST + _worker * _PORTS_COUNT + next(_steps) % _PORTS_COUNT
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def own_address() -> str:
    return f"127.0.0.1:{own_port()}"


def is_gone(pid: int) -> bool:
    """A process has let go of all that it had; nobody need have asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is looked at
        return True


def connections_count(address: str) -> int:
    """How many connections somebody who listens there has. A peer that went counts until its end
    was noticed.
    """
    wanted = f"{int(address.rpartition(':')[2]):04X}"
    established, closed_by_peer = "01", "08"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        row[1].rpartition(":")[2] == wanted and row[3] in (established, closed_by_peer)
        for row in rows
    )


def special_file(path: Path, kind: str) -> Path:
    """Something that is no regular file; of devices, one that everybody has."""
    if kind == "device":
        return Path("/dev/null")
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    return path


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Served]:
    """A server for the length of a block."""
    served = start(folder, *arguments)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


@contextlib.contextmanager
def stopping(served: Served) -> Iterator[None]:
    """For the length of a block a server is about to stop, and cannot yet: a request of HTTP, whose
    body is still to come, keeps it waiting.
    """
    host, _, port = (served.addresses["http"] or "").rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        peer.sendall(
            b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
        )
        assert peer.recv(100).startswith(b"HTTP/1.1 100")
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in served.log())
        yield


def wait_until(holds, seconds: float = SECONDS_MAX):
    """Look until it is so; gives what was found."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
    return found


class Api:
    """The native API as tests use it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.http = httpx.Client(base_url=served.url, timeout=120.0)

    def close(self) -> None:
        self.http.close()

    def post(self, path: str, **body) -> httpx.Response:
        return self.http.post(f"/api/{path}", json=body)

    def results(self, path: str, **body):
        """What a command gave; it must have gone well."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()["results"]

    def get(self, path: str):
        """What a question gave; it must have gone well."""
        response = self.http.get(f"/api/{path}")
        assert response.status_code == 200, response.text
        return response.json()["results"]

    def error(self, path: str, **body) -> tuple[int, str]:
        """The status and the code of a refusal."""
        response = self.post(path, **body)
        envelope = response.json()
        assert envelope["results"] is None
        assert envelope["error"]["message"]
        return response.status_code, envelope["error"]["code"]

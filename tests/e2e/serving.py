"""Starts the real program on free loopback ports, waits until it is ready, stops it by its id."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0


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
        return self.process.wait(STOP_SECONDS_MAX)


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
        timeout=60,
        **options,
    )


def start(folder: Path, *arguments: str) -> Served:
    """Start a server whose files are all in the folder."""
    ready = folder / "ready"
    given = ["serve", "--ready-file", str(ready), "--data", str(folder / "data")]
    for listener in ("http", "gearman", "dwork", "wmp", "amqp"):
        if f"--{listener}" not in arguments:
            given += [f"--{listener}", "127.0.0.1:0" if listener == "http" else "off"]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command(*given, *arguments), env=environment(), stdout=out, stderr=err
        )
    deadline = time.monotonic() + START_SECONDS_MAX
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


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Served]:
    """A server for the length of a block."""
    served = start(folder, *arguments)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


def wait_until(holds, seconds: float = 20.0):
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
        self.http = httpx.Client(base_url=served.url, timeout=30.0)

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

"""A real server in a process of its own, for tests across processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from manyhands.dispatch.clock import Clock

_LISTENERS: Final = ("http", "gearman", "dwork", "wmp", "amqp")
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.02


class ServerProcess:
    """``manyhands serve``, from the start of a block to its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses: dict[str, str | None] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``App(url)``, ``MANYHANDS_URL`` or a browser."""
        return f"http://{self.addresses['http']}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "ServerProcess":
        ready, log = self.directory / "ready.json", self.directory / "log"
        given = ["--data", str(self.directory / "data"), "--ready-file", str(ready)]
        for listener in _LISTENERS:
            given += [f"--{listener}", "127.0.0.1:0"]
        with log.open("wb") as lines:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "manyhands", "serve", *given],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=lines,
            )
        clock = Clock()
        deadline_ms = clock.monotonic_ms() + _START_SECONDS * 1000
        while not ready.exists():
            if self._process.poll() is not None or clock.monotonic_ms() > deadline_ms:
                self._stop()
                raise RuntimeError(f"manyhands serve did not start:\n{log.read_text()}")
            time.sleep(_LOOK_SECONDS)
        found = json.loads(ready.read_text())
        self.addresses = {name: found[name] for name in _LISTENERS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """That of the tests, without what would configure the server."""
    return {name: text for name, text in os.environ.items() if not name.startswith("MANYHANDS_")}

"""Starts a real ``manyhands worker`` on a module of its own, and stops it by its id."""

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.e2e.serving import SECONDS_MAX, command, environment, is_gone


class Working:
    """A supervisor, its children, and the folder of the module."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def log(self) -> str:
        return (self.folder / "worker.log").read_text()

    def children(self) -> list[int]:
        """The ids of the child processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        # Children are started from the supervisor's loop, which is its main thread.
        return [int(pid) for pid in path.read_text().split() if not is_gone(int(pid))]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until the log has a text so many times."""
        until(lambda: self.log().count(text) >= count, self.log)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(SECONDS_MAX)


def until(condition: Callable[[], Any], shown: Callable[[], object] = lambda: "") -> Any:
    """Waits for a state that nobody announces; gives what the condition gave."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen in time\n{shown()}")
        time.sleep(0.02)
    return found


def write_module(folder: Path, code: str, name: str = "tasks") -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(code))


@contextlib.contextmanager
def working(
    url: str,
    folder: Path,
    *arguments: str,
    code: str | None = None,
    ready: int = 1,
    **variables: str,
) -> Iterator[Working]:
    """A worker of ``tasks:app`` in the folder, when so many children are ready."""
    if code is not None:
        write_module(folder, code)
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command("worker", "tasks:app", *arguments),
            env=environment() | {"MANYHANDS_URL": url, "PYTHONDONTWRITEBYTECODE": "1"} | variables,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    found = Working(process, folder)
    try:
        if ready:
            until(
                lambda: (
                    found.log().count("connected to the server") >= ready
                    or process.poll() is not None
                ),
                found.log,
            )
            assert process.poll() is None, found.log()
        yield found
    finally:
        pids = [] if process.poll() is not None else found.children()
        if process.poll() is None:
            process.kill()
        process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

"""A child as its supervisor sees it: a process, a pipe each way, and a page."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from manyhands.client.worker import messages
from manyhands.client.worker.memory import peak_bytes
from manyhands.client.worker.options import ChildOptions, CrewOptions, SupervisorOptions
from manyhands.client.worker.page import Page

_MODULE: Final = "manyhands.client.worker.entry"
_VARIABLE: Final = "MANYHANDS_WORKER_CHILD"
_LAST_WORDS_SECONDS: Final = 1.0  # to read why the app cannot be loaded


class Exit(msgspec.Struct, frozen=True):
    """How a process ended."""

    code: int  # negative: minus the signal
    peak_bytes: int

    def __str__(self) -> str:
        memory = f"its memory peaked at {self.peak_bytes // 1024**2} MiB"
        if self.code < 0:
            try:
                name = signal.Signals(-self.code).name
            except ValueError:
                name = f"signal {-self.code}"
            return f"the worker's process was killed by {name}; {memory}"
        return f"the worker's process exited with code {self.code}; {memory}"


class ChildProcess:
    """A running child. Callbacks are called in threads."""

    def __init__(
        self,
        name: str,
        options: SupervisorOptions,
        folder: Path,
        *,
        is_lead: bool,
        heard: Callable[["ChildProcess", messages.Message], None],
        ended: Callable[["ChildProcess", Exit], None],
    ) -> None:
        self.name = name
        self.figures: messages.Figures | None = None
        self.is_ready = False
        self.is_leaving = False  # it was asked to stop, or stops by itself
        self.is_relieved = False  # there is another in its place already
        self.was_killed = False  # by us, so that its jobs are not to blame
        self.page = Page(folder / f"{name}.page", options.concurrency, is_new=True)
        self._heard = heard
        self._ended = ended
        reading, writing = os.pipe()
        child_options = ChildOptions(
            target=options.target,
            crew=CrewOptions(
                name=name,
                concurrency=options.concurrency,
                ahead=options.ahead,
                queues=options.queues,
                order=options.order,
                max_jobs=options.max_jobs,
                max_memory=options.max_memory,
            ),
            page=str(self.page.path),
            pipe=writing,
            grace=options.grace,
            server=options.server,
            log_format=options.log_format,
            log_level=options.log_level,
            is_lead=is_lead,
            framework=options.framework,
        )
        environment = os.environ | {_VARIABLE: msgspec.json.encode(child_options).decode()}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            env=environment,
            pass_fds=(writing,),
        )
        os.close(writing)
        self._reading = self._in_thread(lambda: self._read(reading))
        self._in_thread(self._wait)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def order(self, text: str) -> None:
        """Sends it a message; it may be dead."""
        self.is_leaving = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Ends it at once."""
        self.was_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """After its end."""
        self.page.close()
        self.page.path.unlink(missing_ok=True)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    # In threads.

    def _in_thread(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"manyhands-{self.name}", daemon=True)
        thread.start()
        return thread

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError):
                    self._heard(self, messages.decode.decode(line))

    def _wait(self) -> None:
        _, status, usage = os.wait4(self._process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        if code == messages.UNLOADABLE:
            self._reading.join(_LAST_WORDS_SECONDS)
        self._ended(self, Exit(code, peak_bytes(usage)))

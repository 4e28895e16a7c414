"""`manyhands wmp work`: several commands at once, each for one job, for any number of managers."""

import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

import msgspec
import typer

from manyhands.cli.storing import fail
from manyhands.client.wmp import Job, Refused, Worker
from manyhands.server.clock import Clock

# What is kept of a command's output, from its end.
_RESULT_BYTES: Final = 1024 * 1024
_FAILURE_BYTES: Final = 2_000
_LINE_SECONDS: Final = 0.2


class CommandFailed(Exception):  # noqa: N818 - told to the manager as it is
    """A command ended with an error."""


class Crew:
    """A worker whose jobs are commands, and what it has done."""

    def __init__(
        self,
        managers: Sequence[str],
        command: str,
        *,
        roles: Sequence[str],
        slots: int,
        identity: str,
        count: int,
        as_json: bool,
    ) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            fail(f"--command {command} cannot be taken apart: {error}.")
        if not self._words:
            fail("--command is empty.")
        if "" in roles:
            fail("--role is empty.")
        self._count = count
        self._as_json = as_json
        self._clock = Clock()
        self._lock = threading.Lock()
        self._processes: dict[Job, subprocess.Popen[bytes]] = {}
        self._ended: dict[Job, tuple[str | None, float]] = {}  # failure and seconds, till recorded
        self._completed = self._failed = self._lost = 0
        self._begun = 0
        self._live = sys.stderr.isatty() and not as_json
        self._interrupted = self._killing = False
        self._trouble: str | None = None
        self._worker = Worker(
            managers,
            self._handle,
            roles=roles,
            slots=slots,
            identity=identity,
            on_recorded=self._recorded,
        )

    def run(self) -> int:
        """Until interrupted, or until there were enough; gives the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        if self._live:
            self._draw_until_end(thread)
        while thread.is_alive():
            thread.join(_LINE_SECONDS)
        if self._trouble is not None:
            fail(f"{self._trouble}.")
        typer.echo(self._summary(), err=True)
        return 1 if self._failed else 0

    def _work(self) -> None:
        try:
            self._worker.run()
        except OSError as error:
            self._trouble = str(error)

    def _draw_until_end(self, thread: threading.Thread) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=5, transient=True) as live:
            while thread.is_alive():
                thread.join(_LINE_SECONDS)
                live.update(self._summary())

    def _summary(self) -> str:
        return (
            f"{self._completed} completed, {self._failed} failed, {self._lost} not wanted, "
            f"{len(self._processes)} running"
        )

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._interrupted:
            self._killing = True
            for process in list(self._processes.values()):
                process.terminate()
        self._interrupted = True
        self._worker.stop()

    # One job.

    def _handle(self, job: Job) -> bytes:
        with self._lock:
            self._begun += 1
            if self._count and self._begun > self._count:
                raise Refused
            if self._begun == self._count:
                self._worker.stop()
        began_ms = self._clock.monotonic_ms()
        failure: str | None = None
        try:
            return self._execute(job)
        except CommandFailed as error:
            failure = str(error)
            if self._killing:
                raise Refused from None
            raise
        finally:
            self._ended[job] = (failure, (self._clock.monotonic_ms() - began_ms) / 1000)

    def _execute(self, job: Job) -> bytes:
        """What the command printed."""
        known = {"{job}": job.id, "{role}": job.role, "{name}": job.name}
        words = self._words
        for place, text in known.items():
            words = [word.replace(place, text) for word in words]
        try:
            process = subprocess.Popen(  # noqa: S603 - running them is the purpose
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(f"{words[0]} cannot be run: {error}") from None
        self._processes[job] = process
        job.on_cancel = process.terminate
        if job.cancelled.is_set() or self._killing:
            process.terminate()  # that was said before anybody could be told
        try:
            out, err = process.communicate(job.payload)
        finally:
            del self._processes[job]
        code = process.returncode
        if code == 0:
            return out[-_RESULT_BYTES:]
        text = err[-_FAILURE_BYTES:].decode(errors="replace").strip()
        ended = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        raise CommandFailed(f"{ended}: {text}" if text else ended)

    def _recorded(self, job: Job, reason: str) -> None:
        """The manager knows the end of it, or does not want to."""
        failure, seconds = self._ended.pop(job, (None, 0.0))
        if reason != "recorded":
            self._lost += 1
            word = reason
        elif failure is not None:
            self._failed += 1
            word = "failed"
        else:
            self._completed += 1
            word = "completed"
        if self._as_json:
            facts = {
                "job": job.id,
                "role": job.role,
                "manager": job.manager,
                "outcome": word,
                "failure": failure,
                "seconds": round(seconds, 3),
            }
            typer.echo(msgspec.json.encode(facts).decode())
        elif failure is not None:
            typer.echo(f"{word}\t{job.id}\t{failure.splitlines()[0]}")
        elif not self._live:
            typer.echo(f"{word}\t{job.id}\t{seconds:.3f} s")

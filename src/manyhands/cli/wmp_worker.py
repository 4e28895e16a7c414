"""`manyhands wmp work`: several commands at once, each for one job, for any number of managers."""

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import typer

from manyhands.cli.child import Child, Ended
from manyhands.cli.guardian import Guardian
from manyhands.cli.stops import Stopping
from manyhands.cli.stores import fail, misuse
from manyhands.cli.task_logs import TaskLogs
from manyhands.client.wmp import Job, Refused, Worker
from manyhands.dispatch.clock import Clock

# How much of a command's output is kept, from its end.
_RESULT_BYTES: Final = 1024 * 1024
_LINE_SECONDS: Final = 0.2
_PLACES: Final = re.compile(r"\{(?:job|role|name)\}")


class CommandFailed(Exception):  # noqa: N818 - reported to the manager as it is
    """A command ended with an error."""


class _Ran(msgspec.Struct, frozen=True):
    """The outcome of a job, kept until the manager has recorded it."""

    ended: Ended
    began_at: int
    ended_at: int
    returned: bool = False


class Crew:
    """A worker that runs its jobs as commands, and its results."""

    def __init__(  # noqa: PLR0913 - what was said on the command line
        self,
        managers: Sequence[str],
        command: str,
        *,
        roles: Sequence[str],
        slots: int,
        identity: str,
        count: int,
        stopping: Stopping,
        patience_seconds: float,
        task_seconds: float | None,
        logs: Path | None,
        as_json: bool,
    ) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            misuse(f"--command {command} cannot be parsed: {error}.")
        if not self._words:
            misuse("--command is empty.")
        if "" in roles:
            misuse("--role is empty.")
        self._count = count
        self._as_json = as_json
        self._task_ms = task_seconds * 1000 if task_seconds is not None else None
        self._logs = TaskLogs(logs, f"{identity}.{os.getpid()}") if logs is not None else None
        self._clock = Clock()
        self._lock = threading.Lock()
        self._children: dict[Job, Child] = {}
        self._ran: dict[Job, _Ran] = {}
        self._completed = self._failed = self._lost = self._returned = 0
        self._begun = 0
        self._live = sys.stderr.isatty() and not as_json
        self._stopping = stopping
        self._guardian = Guardian()
        self._trouble: str | None = None
        self._worker = Worker(
            managers,
            self._handle,
            roles=roles,
            slots=slots,
            identity=identity,
            farewell_seconds=patience_seconds,
            on_recorded=self._recorded,
        )

    def run(self) -> int:
        """Works until interrupted or until the limit is reached; returns the exit code."""
        self._stopping.listen()
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        asked_to_finish = asked_to_end = False
        with self._line() as draw:
            while thread.is_alive() and not self._stopping.too_late.is_set():
                self._stopping.attend(_LINE_SECONDS)
                if self._stopping.finishing.is_set() and not asked_to_finish:
                    asked_to_finish = True
                    self._worker.stop()
                if self._stopping.ending.is_set() and not asked_to_end:
                    asked_to_end = True
                    self._end_all()
                draw()
        self._guardian.close()
        if self._trouble is not None:
            fail(f"{self._trouble}.")
        typer.echo(self._summary(), err=True)
        if self._ran:
            fail(
                f"{len(self._ran)} jobs could not be reported or given back, because their "
                f"manager does not answer. They are handed out again when their lease ends."
            )
        return 1 if self._failed else 0

    def _work(self) -> None:
        try:
            self._worker.run()
        except OSError as error:
            self._trouble = str(error)
        finally:
            self._stopping.wake()

    @contextlib.contextmanager
    def _line(self) -> Iterator[Callable[[], None]]:
        """Keeps one line up to date on a terminal; prints nothing elsewhere."""
        if not self._live:
            yield lambda: None
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=5, transient=True) as live:
            yield lambda: live.update(self._summary())

    def _summary(self) -> str:
        returned = f"{self._returned} returned, " if self._returned else ""
        return (
            f"{self._completed} completed, {self._failed} failed, {self._lost} unwanted, "
            f"{returned}{len(self._children)} running"
        )

    def _end_all(self) -> None:
        with self._lock:
            for child in self._children.values():
                child.stop()

    # One job.

    def _handle(self, job: Job) -> bytes:
        with self._lock:
            self._begun += 1
            if self._count and self._begun > self._count:
                raise Refused
            if self._begun == self._count:
                self._worker.stop()
        began_at = self._clock.now()
        ended = self._execute(job)
        returned = not job.cancelled.is_set() and self._stopping.explains(ended)
        self._ran[job] = _Ran(ended, began_at, self._clock.now(), returned)
        if returned:
            raise Refused
        if ended.failure is not None:
            raise CommandFailed(ended.failure)
        return ended.out

    def _execute(self, job: Job) -> Ended:
        known = {"{job}": job.id, "{role}": job.role, "{name}": job.name}
        ours = {
            "MANYHANDS_JOB": job.id,
            "MANYHANDS_TASK": job.name,
            "MANYHANDS_QUEUE": job.role,
            "MANYHANDS_ATTEMPT": str(job.attempt),
            "MANYHANDS_MANAGER": job.manager,
        }
        with contextlib.ExitStack() as stack:
            logs = (
                stack.enter_context(self._logs.files(job.id, job.attempt)) if self._logs else None
            )
            child = Child(
                [_PLACES.sub(lambda found: known[found[0]], word) for word in self._words],
                data=job.payload,
                variables={**os.environ, **ours},
                guardian=self._guardian,
                kill_after_ms=self._stopping.kill_after_ms,
                ms_max=self._task_ms,
                kept_bytes=_RESULT_BYTES,
                logs=logs,
            )
            with self._lock:
                self._children[job] = child
            job.on_cancel = child.stop
            if job.cancelled.is_set() or self._stopping.ending.is_set():
                child.stop()  # stopped before there was a command to end
            try:
                return child.run()
            finally:
                with self._lock:
                    del self._children[job]

    def _recorded(self, job: Job, reason: str) -> None:
        """The manager has recorded the outcome, or does not want it."""
        ran = self._ran.pop(job, None)
        if ran is None:
            return  # refused before it started
        failure = ran.ended.failure
        if reason != "recorded":
            self._lost += 1
            word = reason
        elif ran.returned:
            self._returned += 1
            word = "returned"
        elif failure is not None:
            self._failed += 1
            word = "failed"
        else:
            self._completed += 1
            word = "completed"
        if self._logs is not None:
            self._logs.note(job.id, job.attempt, ran.began_at, ran.ended_at, word, ran.ended)
        seconds = (ran.ended_at - ran.began_at) / 1000
        if self._as_json:
            facts = {
                "job": job.id,
                "role": job.role,
                "manager": job.manager,
                "outcome": word,
                "failure": failure,
                "exit_code": ran.ended.code,
                "signal": ran.ended.signal,
                "attempt": job.attempt,
                "seconds": round(seconds, 3),
            }
            typer.echo(msgspec.json.encode(facts).decode())
        elif failure is not None:
            typer.echo(f"{word}\t{job.id}\t{failure.splitlines()[0]}")
        elif not self._live:
            typer.echo(f"{word}\t{job.id}\t{seconds:.3f} s")

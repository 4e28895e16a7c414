"""`manyhands dwork work`: several commands at once, each for one task, until all are finished."""

import contextlib
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import msgspec
import typer

from manyhands.cli.dwork_link import Link, UnreachableError
from manyhands.cli.storing import fail
from manyhands.server.clock import Clock
from manyhands.wire.dwork import Kind, Query, Task

# What is kept of a command's output, from its end.
_RESULT_BYTES: Final = 64 * 1024
_FAILURE_BYTES: Final = 2_000
_RETRY_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 0.2
# The server keeps a worker that holds nothing waiting for a second before it says no.
_AT_ONCE_MS: Final = 500.0


class Crew:
    """Hands that work side by side, and what they have done."""

    def __init__(
        self,
        server: str,
        seconds: float,
        command: str,
        *,
        location: str,
        is_named: bool,
        count: int,
        forever: bool,
        as_json: bool,
    ) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            fail(f"--command {command} cannot be taken apart: {error}.")
        if not self.words:
            fail("--command is empty.")
        self.forever = forever
        self.is_named = is_named  # so no other crew has its location
        self.stopping = threading.Event()
        self.killing = False
        self.trouble: str | None = None
        self._as_json = as_json
        self._clock = Clock()
        self._started_ms = self._clock.monotonic_ms()
        self._lock = threading.Lock()
        self._live = sys.stderr.isatty() and not as_json
        self._completed = self._failed = self._running = 0
        # Each hand is a worker of its own: the server then knows which of them is idle.
        self._hands = [
            Hand(self, Link(server, seconds), f"{location}/{number}") for number in range(count)
        ]

    def run(self) -> int:
        """Until there is nothing left to do; gives the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        threads = [threading.Thread(target=hand.run, daemon=True) for hand in self._hands]
        for thread in threads:
            thread.start()
        with self._line() as draw:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LINE_SECONDS)
                    draw()
        if self.trouble is not None:
            fail(self.trouble)
        typer.echo(self._summary(), err=True)
        return 1 if self._failed else 0

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.stopping.is_set():
            self.killing = True
            for hand in self._hands:
                hand.kill()
        self.stopping.set()

    @contextlib.contextmanager
    def _line(self) -> Iterator[Callable[[], None]]:
        """One line that is kept up to date on a terminal; nothing elsewhere."""
        if not self._live:
            yield lambda: None
            return
        from rich.console import Console
        from rich.live import Live

        with Live(
            console=Console(stderr=True, highlight=False), refresh_per_second=5, transient=True
        ) as live:
            yield lambda: live.update(self._summary())

    def _summary(self) -> str:
        seconds = (self._clock.monotonic_ms() - self._started_ms) / 1000
        rate = (self._completed + self._failed) / seconds if seconds else 0.0
        return (
            f"{self._completed} completed, {self._failed} failed, {self._running} running, "
            f"{seconds:.0f} s, {rate:.1f} a second"
        )

    def now_ms(self) -> float:
        """For comparison only."""
        return self._clock.monotonic_ms()

    def began(self) -> float:
        """A hand starts on a task; gives the time."""
        with self._lock:
            self._running += 1
        return self.now_ms()

    def ended(self, name: str, began_ms: float, failure: str | None) -> None:
        """A hand is through with a task, and the server knows."""
        seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        with self._lock:
            self._running -= 1
            if failure is None:
                self._completed += 1
            else:
                self._failed += 1
            if self._as_json:
                facts = {"name": name, "failure": failure, "seconds": round(seconds, 3)}
                typer.echo(msgspec.json.encode(facts).decode())
            elif failure is not None:
                typer.echo(f"failed\t{name}\t{failure.splitlines()[0]}")
            elif not self._live:
                typer.echo(f"completed\t{name}\t{seconds:.3f} s")

    def dropped(self) -> None:
        """A hand gave its task back."""
        with self._lock:
            self._running -= 1


class Hand:
    """One task at a time: steal, run, report."""

    def __init__(self, crew: Crew, link: Link, location: str) -> None:
        self._crew = crew
        self._link = link
        self._location = location
        self._goodbye = Query(kind=Kind.EXIT, location=location)
        self._explained = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until told to stop, or until all is finished."""
        crew = self._crew
        try:
            if crew.is_named:
                self._leave()  # what a worker of this name had that was killed
            while not crew.stopping.is_set():
                asked_ms = crew.now_ms()
                reply = self._steal()
                if reply.kind is Kind.TRANSFER:
                    self._work(reply.tasks[0])
                elif reply.kind is Kind.ERROR:
                    crew.trouble = f"the server refused: {reply.reason}."
                    crew.stopping.set()
                elif reply.kind is Kind.EXIT:
                    if not crew.forever:
                        break
                    crew.stopping.wait(_RETRY_SECONDS)
                elif crew.now_ms() - asked_ms < _AT_ONCE_MS:
                    self._explain_idleness()
                    crew.stopping.wait(_RETRY_SECONDS)
            self._leave()
        except UnreachableError as error:
            crew.trouble = str(error)
            crew.stopping.set()

    def _steal(self) -> Query:
        while not self._crew.stopping.is_set():
            try:
                return self._link.ask(Query(kind=Kind.STEAL, location=self._location))
            except UnreachableError:
                # The reply may have been lost with a task in it: have that back first.
                self._link.ask_patiently(self._goodbye)
        return Query(kind=Kind.EXIT)

    def _leave(self) -> None:
        self._link.ask(self._goodbye)

    def _explain_idleness(self) -> None:
        """Only a worker that holds something is not kept waiting."""
        if not self._explained:
            self._explained = True
            typer.echo(
                f"manyhands: {self._location} works on nothing, but another worker of this name "
                f"has tasks, or had. `manyhands dwork leave {self._location}` gives them back.",
                err=True,
            )

    def _work(self, task: Task) -> None:
        crew = self._crew
        began_ms = crew.began()
        result, failure = self._execute(task)
        if crew.killing and failure is not None:
            crew.dropped()  # it goes back with the goodbye
            return
        told = Task(name=task.name, origin=task.origin, result=result, failure=failure)
        report = Query(kind=Kind.COMPLETE, tasks=(told,), location=self._location)
        try:
            reply = self._link.ask(report)
        except UnreachableError:
            reply = self._link.ask_patiently(report)  # said twice, it counts once
        if reply.kind is Kind.ERROR:
            failure = f"the server refused the report: {reply.reason}"
        crew.ended(task.name, began_ms, failure)

    def _execute(self, task: Task) -> tuple[bytes | None, str | None]:
        """What the command printed, and why it failed if it did."""
        words = [word.replace("{name}", task.name) for word in self._crew.words]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running them is the purpose
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except (OSError, ValueError) as error:
            return None, f"{words[0]} cannot be run: {error}"
        out, err = self._process.communicate(task.payload or b"")
        code = self._process.returncode
        self._process = None
        result = out[-_RESULT_BYTES:] or None
        if code == 0:
            return result, None
        text = err[-_FAILURE_BYTES:].decode(errors="replace").strip()
        ended = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        return result, f"{ended}: {text}" if text else ended

    def kill(self) -> None:
        """End the command that runs now."""
        process = self._process
        if process is not None:
            process.terminate()

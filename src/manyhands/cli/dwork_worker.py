"""`manyhands dwork work`: several commands at once, each for one task, until all are finished."""

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import typer
import zmq
from msgspec import Struct

from manyhands.cli.child import Child, Ended
from manyhands.cli.dwork_link import Link, UnreachableError
from manyhands.cli.dwork_progress import GraphProgress
from manyhands.cli.guardian import Guardian
from manyhands.cli.stops import Stopping
from manyhands.cli.stores import fail, misuse
from manyhands.cli.task_logs import TaskLogs
from manyhands.dispatch.clock import Clock
from manyhands.protocols.dwork.codec import Kind, Query, Task

_RETRY_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 0.2
# The server lets an idle worker wait for a second before it answers NotFound.
_AT_ONCE_MS: Final = 500.0
# A Steal is answered within that second; a worker that stops does not wait much longer for it.
_STEAL_MS: Final = 3_000
_PLACES: Final = re.compile(r"\{(?:name|payload)\}")
_AWAY_SECONDS: Final = 0.2
_AWAY_SECONDS_MAX: Final = 5.0
_PULSE_SECONDS: Final = 0.5
# A heartbeat that is not answered by then is repeated, over another connection.
_PULSE_SECONDS_MAX: Final = 5.0
_GRAPH_MS: Final = 2_000


class Plan(Struct, frozen=True, kw_only=True):
    """The settings of a crew."""

    server: str
    seconds: float  # to wait for a reply
    patience_seconds: float  # for an unreachable server
    command: str
    location: str
    is_named: bool  # no other crew has its location: tasks held there are its own
    count: int
    forever: bool
    lease_seconds: float
    retries: int
    task_seconds: float | None
    grace_seconds: float
    kill_after_seconds: float
    logs: Path | None
    as_json: bool


class Crew:
    """Hands that work side by side, and what they have done."""

    def __init__(self, plan: Plan) -> None:
        try:
            self.words = shlex.split(plan.command)
        except ValueError as error:
            misuse(f"--command {plan.command} cannot be parsed: {error}.")
        if not self.words:
            misuse("--command is empty.")
        self.plan = plan
        self.stopping = Stopping(plan.grace_seconds, plan.kill_after_seconds)
        self.logs = TaskLogs(plan.logs, plan.location) if plan.logs is not None else None
        self.guardian = Guardian()
        self.clock = Clock()
        self.trouble: str | None = None
        self.met = False  # the server has answered at least once
        self._started_ms = self.clock.monotonic_ms()
        self._lock = threading.Lock()
        self._live = sys.stderr.isatty() and not plan.as_json
        self._counts = dict.fromkeys(_OUTCOMES, 0)
        self._running = 0
        self._away = False
        self._graph: GraphProgress | None = None
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Each hand is a separate worker, so that the server knows which of them is idle.
        self._hands = [
            Hand(self, Link(plan.server, plan.seconds, context), number)
            for number in range(plan.count)
        ]
        self._pulse_link = Link(plan.server, min(plan.seconds, _PULSE_SECONDS_MAX), context)

    def run(self) -> int:
        """Works until nothing is left to do; returns the exit code."""
        self.stopping.listen()
        threads = [threading.Thread(target=hand.run, daemon=True) for hand in self._hands]
        over = threading.Event()
        pulse = threading.Thread(target=self._keep_alive, args=(over,), daemon=True)
        for thread in (*threads, pulse):
            thread.start()
        stopped = False
        with self._line() as draw:
            while any(thread.is_alive() for thread in threads):
                self.stopping.attend(_LINE_SECONDS)
                if self.stopping.ending.is_set() and not stopped:
                    stopped = True
                    for hand in self._hands:
                        hand.stop()
                draw()
        over.set()
        self.guardian.close()
        typer.echo(self._summary(), err=True)
        unreported = self._counts["unreported"]
        if unreported:
            self.trouble = (
                f"{unreported} tasks could not be reported or given back, because "
                f"{self._pulse_link.url} does not answer. They are handed out again when their "
                f"lease ends, or after `manyhands dwork leave LOCATION`"
            )
        if self.trouble is not None:
            fail(f"{self.trouble}.")
        return 1 if self._counts["failed"] else 0

    @contextlib.contextmanager
    def _line(self) -> Iterator[Callable[[], None]]:
        """Keeps one line up to date on a terminal; prints nothing elsewhere."""
        if not self._live:
            yield lambda: None
            return
        from rich.console import Console
        from rich.live import Live

        self._graph = GraphProgress()
        with Live(
            console=Console(stderr=True, highlight=False), refresh_per_second=5, transient=True
        ) as live:
            yield lambda: live.update(self._summary(self._graph))

    def _summary(self, graph: GraphProgress | None = None) -> str:
        seconds = (self.clock.monotonic_ms() - self._started_ms) / 1000
        counts = self._counts
        rate = (counts["completed"] + counts["failed"]) / seconds if seconds else 0.0
        words = [
            f"{counts['completed']} completed, {counts['failed']} failed, {self._running} running"
        ]
        rare = ("retried", "returned", "unreported", "unwanted")
        words += [f"{counts[outcome]} {outcome}" for outcome in rare if counts[outcome]]
        words.append(f"{seconds:.0f} s, {rate:.1f} per second")
        if graph is not None and graph.counts.done + graph.counts.stolen:
            words.append(f"graph: {graph.sentence()}")
        return ", ".join(words)

    # Heartbeats.

    def _keep_alive(self, over: threading.Event) -> None:
        """Renews the leases of all hands every third of their term, however long commands take."""
        look_at = 0.0
        while not over.wait(self._pulse_seconds()):
            now = self.clock.monotonic_ms()
            for hand in self._hands:
                if hand.beats_at is not None and hand.beats_at <= now:
                    self._beat(hand, over)
            graph = self._graph
            if graph is not None and now >= look_at and self.met and not self._away:
                look_at = now + _GRAPH_MS
                with contextlib.suppress(UnreachableError):
                    reply = self._pulse_link.ask(Query(kind=Kind.OK, detail=True), over.is_set)
                    if reply.counts is not None:
                        graph.see(reply.counts)

    def _pulse_seconds(self) -> float:
        leases = [hand.lease_ms for hand in self._hands if hand.beats_at is not None]
        return min([_PULSE_SECONDS, *(lease_ms / 6_000 for lease_ms in leases)])

    def _beat(self, hand: "Hand", over: threading.Event) -> None:
        query = Query(kind=Kind.STEAL, location=hand.location, n=0, lease_ms=self.lease_ms_wanted)
        with contextlib.suppress(UnreachableError):
            self._pulse_link.ask(query, over.is_set)
            hand.count_on(self.clock.monotonic_ms())

    @property
    def lease_ms_wanted(self) -> int:
        """The lease to ask for; 0 leaves it to the server."""
        return int(self.plan.lease_seconds * 1000)

    # Reports of the hands.

    def answered(self) -> None:
        """The server answered."""
        with self._lock:
            self.met = True
            if self._away:
                self._away = False
                typer.echo(f"manyhands: {self._pulse_link.url} is back.", err=True)

    def unanswered(self) -> None:
        """The server did not answer; this is printed once."""
        with self._lock:
            if not self._away and self.met:
                self._away = True
                typer.echo(
                    f"manyhands: {self._pulse_link.url} does not answer. Commands continue; their "
                    f"results are kept and reported when it is back.",
                    err=True,
                )

    def began(self) -> None:
        """A hand starts on a task."""
        with self._lock:
            self._running += 1

    def ended(self, work: "Work") -> None:
        """A hand has finished a task and reported it."""
        ended, outcome = work.ended, work.outcome
        seconds = (work.ended_at - work.began_at) / 1000
        name, attempt = work.task.name, work.task.attempt or 1
        with self._lock:
            self._running -= 1
            self._counts[outcome] += 1
            if self.plan.as_json:
                facts = {
                    "name": name,
                    "outcome": outcome,
                    "failure": ended.failure,
                    "exit_code": ended.code,
                    "signal": ended.signal,
                    "attempt": attempt,
                    "seconds": round(seconds, 3),
                }
                typer.echo(msgspec.json.encode(facts).decode())
            elif outcome == "completed":
                if not self._live:
                    typer.echo(f"completed\t{name}\t{seconds:.3f} s")
            else:
                typer.echo(f"{outcome}\t{name}\t{(ended.failure or '').partition(chr(10))[0]}")
        if self.logs is not None:
            self.logs.note(name, attempt, work.began_at, work.ended_at, outcome, ended)


_OUTCOMES: Final = (
    "completed",
    "failed",
    "retried",  # failed, will be retried
    "returned",  # given back
    "unreported",  # the server does not know its outcome
    "unwanted",  # the server had given it to another worker, or it had finished
)


class Work:
    """A hand's task and its outcome."""

    def __init__(self, task: Task, began_at: int) -> None:
        self.task = task
        self.began_at = self.ended_at = began_at
        self.ended = Ended(code=None)
        self.outcome = "returned"


class Hand:
    """One task at a time: steal, run, report."""

    def __init__(self, crew: Crew, link: Link, number: int) -> None:
        self.location = f"{crew.plan.location}/{number}"
        self.lease_ms = 0
        self.beats_at: float | None = None  # when its next heartbeat is due
        self._crew = crew
        self._number = number
        self._link = link
        self._steal_query = Query(
            kind=Kind.STEAL, location=self.location, lease_ms=crew.lease_ms_wanted
        )
        self._goodbye = Query(kind=Kind.EXIT, location=self.location)
        self._explained = False
        self._lock = threading.Lock()
        self._child: Child | None = None

    def run(self) -> None:
        """Works until it has to stop, or until everything is finished."""
        try:
            self._run()
        except UnreachableError as error:
            self._crew.trouble = str(error).rstrip(".")
            self._crew.stopping.finishing.set()
        finally:
            self._crew.stopping.wake()

    def _run(self) -> None:
        crew, stopping = self._crew, self._crew.stopping
        returned: Work | None = None
        if crew.plan.is_named:
            self._deliver(self._goodbye)  # tasks of a killed worker of this name
        while returned is None and not stopping.finishing.is_set():
            asked_ms = crew.clock.monotonic_ms()
            reply = self._steal()
            if reply.kind is Kind.TRANSFER:
                if stopping.finishing.is_set():
                    break  # requested before the stop; it goes back with the goodbye
                returned = self._work(reply)
            elif reply.kind is Kind.ERROR:
                crew.trouble = f"the server refused: {reply.reason}"
                stopping.finishing.set()
            elif reply.kind is Kind.EXIT:
                if not crew.plan.forever:
                    break
                stopping.finishing.wait(_RETRY_SECONDS)
            elif crew.clock.monotonic_ms() - asked_ms < _AT_ONCE_MS:
                self._explain_idleness()
                stopping.finishing.wait(_RETRY_SECONDS)
        self._leave(returned)

    # Requests.

    def _deliver(self, query: Query, too_late: threading.Event | None = None) -> Query:
        """Repeats a request, which must be safe to repeat, until the server has answered it. Raises
        UnreachableError when the patience runs out, or if it is too late.
        """
        crew = self._crew
        too_late = too_late or crew.stopping.too_late
        seconds = crew.plan.patience_seconds if crew.met else crew.plan.seconds
        until_ms = crew.clock.monotonic_ms() + seconds * 1000
        pause = _AWAY_SECONDS
        while True:
            try:
                reply = self._link.ask(query, too_late.is_set)
            except UnreachableError:
                if crew.clock.monotonic_ms() >= until_ms or too_late.is_set():
                    raise
            else:
                # An Exit with a reason means that the server stops and recorded nothing.
                if reply.kind is not Kind.EXIT or reply.reason is None:
                    crew.answered()
                    return reply
                if crew.clock.monotonic_ms() >= until_ms:
                    raise UnreachableError(f"{self._link.url} is stopping.")
            crew.unanswered()
            too_late.wait(pause)
            pause = min(2 * pause, _AWAY_SECONDS_MAX)

    def _steal(self) -> Query:
        stopping, clock = self._crew.stopping, self._crew.clock
        while not stopping.finishing.is_set():
            asked_ms = clock.monotonic_ms()

            def enough(asked_ms: float = asked_ms) -> bool:
                return stopping.finishing.is_set() and clock.monotonic_ms() > asked_ms + _STEAL_MS

            try:
                reply = self._link.ask(self._steal_query, enough)
            except UnreachableError:
                waited_ms = clock.monotonic_ms() - asked_ms
                if not self._crew.met and waited_ms >= self._crew.plan.seconds * 1000:
                    raise  # it was never there; otherwise it went away meanwhile
            else:
                if reply.kind is not Kind.EXIT or reply.reason is None:
                    self._crew.answered()
                    return reply
            # The reply may have been lost with a task in it: give that back first.
            self._crew.unanswered()
            if not stopping.finishing.wait(_AWAY_SECONDS):
                try:
                    self._deliver(self._goodbye, stopping.finishing)
                except UnreachableError:
                    if not stopping.finishing.is_set():
                        raise
        return Query(kind=Kind.NOT_FOUND)

    def _leave(self, returned: Work | None) -> None:
        """Gives back unfinished tasks; no attempt is charged."""
        crew = self._crew
        if returned is None:
            until_ms = crew.clock.monotonic_ms() + _STEAL_MS
            with contextlib.suppress(UnreachableError):
                self._link.ask(self._goodbye, lambda: crew.clock.monotonic_ms() > until_ms)
            return
        try:
            self._deliver(self._goodbye)
        except UnreachableError:
            returned.outcome = "unreported"
        self.beats_at = None
        crew.ended(returned)

    def _explain_idleness(self) -> None:
        """Warns about an idle worker that is answered at once: the server thinks it holds tasks."""
        if not self._explained:
            self._explained = True
            typer.echo(
                f"manyhands: {self.location} is idle, but another worker of this name "
                f"holds tasks, or did. `manyhands dwork leave {self.location}` gives them back.",
                err=True,
            )

    # Working.

    def _work(self, reply: Query) -> Work | None:
        """Runs the task; returns what has to go back."""
        crew = self._crew
        work = Work(reply.tasks[0], crew.clock.now())
        crew.began()
        self.lease_ms = reply.lease_ms or 0
        self.count_on(crew.clock.monotonic_ms())
        work.ended = self._execute(work.task)
        work.ended_at = crew.clock.now()
        if crew.stopping.explains(work.ended):
            return work
        try:
            self._report(work)
        except UnreachableError:
            work.outcome = "unreported"
            raise
        finally:
            self.beats_at = None
            crew.ended(work)
        return None

    def count_on(self, now_ms: float) -> None:
        """Restarts the time until the next heartbeat."""
        if self.lease_ms:
            self.beats_at = now_ms + self.lease_ms / 3

    def _report(self, work: Work) -> None:
        task, ended = work.task, work.ended
        # A task with its own number of attempts is retried until those are used up: the server
        # counts.
        is_allowed = (task.attempts_used or 0) < self._crew.plan.retries
        retry = ended.failure is not None and (task.attempts_max is not None or is_allowed)
        report = Task(
            name=task.name,
            origin=task.origin,
            result=ended.out or None,
            failure=ended.failure,
            retry=retry,
        )
        reply = self._deliver(Query(kind=Kind.COMPLETE, tasks=(report,), location=self.location))
        if reply.kind is Kind.ERROR:
            refused = f"the server refused the report: {reply.reason}"
            work.ended = msgspec.structs.replace(ended, failure=refused)
            work.outcome = "failed"
        elif reply.kind is Kind.NOT_FOUND:
            work.outcome = "unwanted"
        elif ended.failure is None:
            work.outcome = "completed"
        else:
            spent = (task.attempts_used or 0) + 1 >= (task.attempts_max or sys.maxsize)
            work.outcome = "retried" if retry and not spent else "failed"

    def _execute(self, task: Task) -> Ended:
        crew = self._crew
        attempt = task.attempt or 1
        payload = task.payload.decode(errors="replace") if task.payload is not None else task.name
        known = {"{name}": task.name, "{payload}": payload}
        words = [_PLACES.sub(lambda found: known[found[0]], word) for word in crew.words]
        ours = {
            "MANYHANDS_TASK": task.name,
            "MANYHANDS_ATTEMPT": str(attempt),
            "MANYHANDS_LOCATION": self.location,
            "MANYHANDS_SLOT": str(self._number),
        }
        plan = crew.plan
        with contextlib.ExitStack() as stack:
            logs = stack.enter_context(crew.logs.files(task.name, attempt)) if crew.logs else None
            child = Child(
                words,
                data=task.payload or b"",
                variables={**os.environ, **ours},
                guardian=crew.guardian,
                kill_after_ms=crew.stopping.kill_after_ms,
                ms_max=plan.task_seconds * 1000 if plan.task_seconds is not None else None,
                logs=logs,
            )
            with self._lock:
                self._child = child
            if crew.stopping.ending.is_set():
                child.stop()  # stopped before there was a command to end
            ended = child.run()
            with self._lock:
                self._child = None
        return ended

    def stop(self) -> None:
        """Ends the running command."""
        with self._lock:
            if self._child is not None:
                self._child.stop()

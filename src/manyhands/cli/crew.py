"""Hands that work side by side over the HTTP API: claim, run a command, report."""

import contextlib
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from msgspec import Raw, Struct

from manyhands.cli.child import Child, Ended
from manyhands.cli.content import as_bytes, as_content
from manyhands.cli.guardian import Guardian
from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, give_up
from manyhands.cli.output import plain, print_json, print_styled, short_id, span
from manyhands.cli.stops import Stopping
from manyhands.cli.task_logs import TaskLogs
from manyhands.dispatch.clock import Clock

# How much of a command's output is kept, from its end.
_RESULT_BYTES: Final = 1024 * 1024
_MESSAGE_LINE: Final = 200
_LOOK_SECONDS: Final = 0.2
_PULSE_SECONDS: Final = 0.5
# A lease is renewed every third of its term, and at least this often: that is how soon a command
# whose job was cancelled is ended.
_RENEW_MS_MAX: Final = 3_000
_CLAIM_SECONDS: Final = 20.0
# Over TLS a waiting claim cannot be called off, so it does not wait for long.
_SECURE_CLAIM_SECONDS: Final = 2.0
_AWAY_SECONDS: Final = 0.2
_AWAY_SECONDS_MAX: Final = 5.0
_REPLY_SECONDS: Final = 30.0
_UNAVAILABLE: Final = 503
_TOO_LARGE: Final = 413
_PLACES: Final = re.compile(r"\{(?:job|queue)\}")
_STYLES: Final = {"completed": "green", "failed": "red", "cancelled": "yellow", "lost": "yellow"}


class Plan(Struct, frozen=True, kw_only=True):
    """The settings of a crew."""

    words: tuple[str, ...]
    queues: tuple[str, ...]
    slots: int
    name: str
    count: int
    until_empty: bool
    lease_ms: int | None
    task_ms: float | None
    patience_ms: float
    logs: Path | None
    as_json: bool


class Claimed(Struct):
    """A job as it was handed out."""

    id: str
    queue: str
    token: str
    encoding: str
    payload: Raw
    attempts_used: int
    term_ms: int | None = None


class _Claims(Struct):
    results: list[Claimed]


_decode_claims = msgspec.json.Decoder(_Claims).decode


class Held:
    """A job of a hand, its command and its outcome."""

    def __init__(self, job: Claimed, child: Child, now_ms: float) -> None:
        self.job = job
        self.child = child
        self.lost = ""  # why the server no longer wants it
        self.renew_at = 0.0
        self.renewed(now_ms)

    def renewed(self, now_ms: float) -> None:
        """The lease was granted or renewed at this moment."""
        self.renew_at = now_ms + min(_RENEW_MS_MAX, (self.job.term_ms or 10**9) / 3)


class Crew:
    """All hands, and what they have done."""

    def __init__(self, link: HttpLink, plan: Plan, stopping: Stopping) -> None:
        self.link = link
        self.plan = plan
        self.stopping = stopping
        self.clock = Clock()
        self.guardian = Guardian()
        self.logs = TaskLogs(plan.logs, f"{plan.name}.{os.getpid()}") if plan.logs else None
        self.trouble: UnansweredError | RefusedError | None = None
        self.met = False  # the server has answered at least once
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._begun = 0
        self._away = False
        self._counts = dict.fromkeys(("completed", "failed", "returned", "cancelled", "lost"), 0)
        self._hands = [Hand(self) for _ in range(plan.slots)]

    def run(self) -> int:
        """Works until there is a reason to stop; returns the exit code."""
        self.stopping.listen()
        if sys.stderr.isatty() and not self.plan.as_json:
            queues = ", ".join(map(plain, self.plan.queues))
            print_styled(
                f"Working for {queues} at {self.link.name}, {self.plan.slots} at once; "
                f"stop with Ctrl-C.",
                "dim",
                err=True,
            )
        threads = [threading.Thread(target=hand.run, daemon=True) for hand in self._hands]
        over = threading.Event()
        pulse = threading.Thread(target=self._keep_alive, args=(over,), daemon=True)
        for thread in (*threads, pulse):
            thread.start()
        ended = False
        while any(thread.is_alive() for thread in threads):
            self.stopping.attend(_LOOK_SECONDS)
            if self.stopping.finishing.is_set():
                for hand in self._hands:
                    hand.hang_up()
            if self.stopping.ending.is_set() and not ended:
                ended = True
                self._end_all()
        over.set()
        self.guardian.close()
        if self.trouble is not None:
            give_up(self.trouble)
        typer.echo(self._summary(), err=True)
        return 1 if self._counts["failed"] else 0

    def _summary(self) -> str:
        rare = [f"{self._counts[word]} {word}" for word in ("returned", "cancelled", "lost")
                if self._counts[word]]  # fmt: skip
        return ", ".join(
            [f"{self._counts['completed']} completed", f"{self._counts['failed']} failed", *rare]
        )

    def _end_all(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.child.stop()

    # What the hands ask and report.

    def may_begin(self) -> bool:
        """Whether another job may be taken; counts it."""
        with self._lock:
            if self.plan.count and self._begun >= self.plan.count:
                return False
            self._begun += 1
            return True

    def not_begun(self) -> None:
        """There was no job to take."""
        with self._lock:
            self._begun -= 1

    def hold(self, held: Held) -> None:
        """A command is about to start."""
        with self._lock:
            self._held[held.job.id] = held

    def let_go(self, held: Held) -> None:
        """The command has ended; from now on its hand deals with the lease."""
        with self._lock:
            self._held.pop(held.job.id, None)

    def answered(self) -> None:
        """The server answered."""
        with self._lock:
            self.met = True
            if self._away:
                self._away = False
                typer.echo(f"manyhands: {self.link.name} is back.", err=True)

    def unanswered(self) -> None:
        """The server did not answer; this is printed once."""
        with self._lock:
            if not self._away and self.met and not self.stopping.finishing.is_set():
                self._away = True
                typer.echo(
                    f"manyhands: {self.link.name} does not answer. Commands continue; their "
                    f"results are kept and reported when it is back.",
                    err=True,
                )

    def ended(self, held: Held, ended: Ended, began_at: int, outcome: str) -> None:
        """A hand has finished a job and reported it."""
        ended_at = self.clock.now()
        job, attempt = held.job, held.job.attempts_used + 1
        line = plain((ended.complaint or ended.failure or "").strip().rpartition("\n")[2])
        with self._lock:
            self._counts[outcome] += 1
            if self.plan.as_json:
                print_json(
                    {
                        "job": job.id,
                        "queue": job.queue,
                        "outcome": outcome,
                        "failure": ended.failure,
                        "exit_code": ended.code,
                        "signal": ended.signal,
                        "attempt": attempt,
                        "seconds": round((ended_at - began_at) / 1000, 3),
                    }
                )
            elif sys.stdout.isatty():
                said = f"  {line[:_MESSAGE_LINE]}" if outcome != "completed" and line else ""
                print_styled(
                    f"{outcome:<9}  {short_id(job.id)}  {job.queue}  "
                    f"{span(ended_at - began_at)}{said}",
                    _STYLES.get(outcome, ""),
                )
            else:
                detail = f"{ended_at - began_at} ms" if outcome == "completed" else line
                typer.echo(f"{outcome}\t{job.id}\t{plain(job.queue)}\t{detail}")
            sys.stdout.flush()
        if self.logs is not None:
            self.logs.note(job.id, attempt, began_at, ended_at, outcome, ended)

    # Renewal.

    def _keep_alive(self, over: threading.Event) -> None:
        link = self.link.twin()
        while not over.wait(_PULSE_SECONDS):
            now = self.clock.monotonic_ms()
            with self._lock:
                due = [held for held in self._held.values() if held.renew_at <= now]
            if due:
                with contextlib.suppress(UnansweredError, RefusedError):
                    self._renew(link, due)

    def _renew(self, link: HttpLink, due: list[Held]) -> None:
        items = [{"id": held.job.id, "token": held.job.token} for held in due]
        answer = link.ask("POST", "/api/renew", {"items": items}, seconds=_REPLY_SECONDS)
        now = self.clock.monotonic_ms()
        refused = {row["index"]: row for row in answer.get("errors", [])}
        for index, held in enumerate(due):
            if index in refused:
                # A job that was cancelled or given to another worker.
                state = refused[index].get("state")
                held.lost = "cancelled" if state == "cancelled" else "lost"
                held.child.stop()
            else:
                held.renewed(now)


class Hand:
    """One job at a time."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._claims = crew.link.twin()
        self._reports = crew.link.twin()
        plan = crew.plan
        wait = _SECURE_CLAIM_SECONDS if crew.link.is_secure else _CLAIM_SECONDS
        self._wait = 0.0 if plan.until_empty else wait
        self._body: dict[str, Any] = {
            "queues": plan.queues,
            "worker": plan.name,
            "wait": self._wait,
        }
        if plan.lease_ms is not None:
            self._body["term_ms"] = plan.lease_ms

    def run(self) -> None:
        """Works until it has to stop."""
        stopping = self._crew.stopping
        try:
            while not stopping.finishing.is_set() and self._crew.may_begin():
                job = self._claim()
                if job is None:
                    self._crew.not_begun()
                    if self._crew.plan.until_empty and not stopping.finishing.is_set():
                        break
                elif stopping.finishing.is_set():
                    self._report("release", {"id": job.id, "token": job.token})
                else:
                    self._work(job)
        except (UnansweredError, RefusedError) as error:
            self._crew.trouble = error
            stopping.finishing.set()
        finally:
            stopping.wake()

    def hang_up(self) -> None:
        """Calls off a claim that waits; a job that is on its way already still arrives."""
        self._claims.hang_up()

    def _claim(self) -> Claimed | None:
        """A job, or None if there is none. Raises UnansweredError when the patience runs out."""
        crew, stopping = self._crew, self._crew.stopping
        until_ms = crew.clock.monotonic_ms() + crew.plan.patience_ms
        pause = _AWAY_SECONDS
        while not stopping.finishing.is_set():
            # The first answer comes at once: a server that is lost after it may come back, while a
            # wrong address is a mistake.
            body = self._body if crew.met else self._body | {"wait": 0}
            try:
                answer: _Claims = self._claims.ask(
                    "POST",
                    "/api/claim",
                    body,
                    seconds=self._wait + _REPLY_SECONDS,
                    decode=_decode_claims,
                )
            except (UnansweredError, RefusedError) as error:
                if stopping.finishing.is_set():
                    return None  # it was called off
                away = not isinstance(error, RefusedError) or error.status == _UNAVAILABLE
                if not away or not crew.met or crew.clock.monotonic_ms() >= until_ms:
                    raise
                crew.unanswered()
                stopping.finishing.wait(pause)
                pause = min(2 * pause, _AWAY_SECONDS_MAX)
            else:
                crew.answered()
                return answer.results[0] if answer.results else None
        return None

    def _work(self, job: Claimed) -> None:
        crew = self._crew
        began_at = crew.clock.now()
        held, ended = self._execute(job)
        proof = {"id": job.id, "token": job.token}
        if held.lost:
            outcome = held.lost
        elif crew.stopping.explains(ended):
            outcome = self._report("release", proof) or "returned"
        elif ended.failure is None:
            outcome, ended = self._complete(proof, ended)
        else:
            outcome = self._report("fail", {**proof, **_failure(ended)}) or "failed"
        crew.ended(held, ended, began_at, outcome)

    def _complete(self, proof: dict[str, str], ended: Ended) -> tuple[str, Ended]:
        value, encoding = as_content(ended.out)
        body: dict[str, Any] = {**proof, "result": value, "encoding": encoding}
        try:
            return self._report("complete", body) or "completed", ended
        except RefusedError as error:
            if error.status != _TOO_LARGE:
                raise
            wrong = Ended(code=0, failure=f"the result was refused: {error}", out=b"")
            failure = {"code": "result_too_large", "message": str(error), "retry": False}
            return self._report("fail", {**proof, **failure}) or "failed", wrong

    def _report(self, what: str, body: dict[str, Any]) -> str:
        """Repeats a report, which is safe, until the server has answered. Returns why the server
        does not want it, or nothing.
        """
        crew = self._crew
        too_late = crew.stopping.too_late
        until_ms = crew.clock.monotonic_ms() + crew.plan.patience_ms
        pause = _AWAY_SECONDS
        while True:
            try:
                self._reports.ask("POST", f"/api/{what}", body, seconds=_REPLY_SECONDS)
            except RefusedError as error:
                if error.status == _TOO_LARGE:
                    raise
                if error.status != _UNAVAILABLE:
                    return "lost"
            except UnansweredError:
                pass
            else:
                crew.answered()
                return ""
            if crew.clock.monotonic_ms() >= until_ms or too_late.is_set():
                raise UnansweredError(
                    f"job {body['id']} could not be reported or given back, because "
                    f"{self._reports.name} does not answer. It is handed out again when its lease "
                    f"ends."
                )
            crew.unanswered()
            too_late.wait(pause)
            pause = min(2 * pause, _AWAY_SECONDS_MAX)

    def _execute(self, job: Claimed) -> tuple[Held, Ended]:
        crew = self._crew
        known = {"{job}": job.id, "{queue}": job.queue}
        attempt = job.attempts_used + 1
        variables = {
            "MANYHANDS_JOB": job.id,
            "MANYHANDS_QUEUE": job.queue,
            "MANYHANDS_ATTEMPT": str(attempt),
        }
        with contextlib.ExitStack() as stack:
            logs = stack.enter_context(crew.logs.files(job.id, attempt)) if crew.logs else None
            child = Child(
                [_PLACES.sub(lambda found: known[found[0]], word) for word in crew.plan.words],
                data=as_bytes(job.payload, job.encoding),
                variables={**os.environ, **variables},
                guardian=crew.guardian,
                kill_after_ms=crew.stopping.kill_after_ms,
                ms_max=crew.plan.task_ms,
                kept_bytes=_RESULT_BYTES,
                logs=logs,
            )
            held = Held(job, child, crew.clock.monotonic_ms())
            crew.hold(held)
            if crew.stopping.ending.is_set():
                child.stop()  # stopped before there was a command to end
            try:
                return held, child.run()
            finally:
                crew.let_go(held)


def _failure(ended: Ended) -> dict[str, str]:
    """How a failed command is reported."""
    if ended.timed_out:
        code = "timeout"
    elif ended.signal is not None:
        code = f"signal_{ended.signal}"
    elif ended.code is not None:
        code = f"exit_{ended.code}"
    else:
        code = "not_started"
    return {"code": code, "message": ended.complaint or ended.failure or ""}

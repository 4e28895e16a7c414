"""Answers of the qless API: the envelope, the load, and errors."""

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from manyhands.dispatch.ask import ask_many
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.loggers import get_logger
from manyhands.model.commands import Command
from manyhands.model.roles import ANYBODY, Caller
from manyhands.net.http_short_way import Head, Headers, Request
from manyhands.protocols.qless.answers import ItemError
from manyhands.web.admission import Admission
from manyhands.web.envelope import Problem, envelope, error_envelope
from manyhands.web.exchange import Defences, headers_of

_log = get_logger("manyhands.http")
_MIB: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_MS: Final = 1_000


class Answering:
    """Sends every answer of this API."""

    def __init__(
        self, dispatcher: Dispatcher, ids: Ids, admission: Admission, *, load_always: bool
    ) -> None:
        self.defences: Defences | None = None
        self._admission = admission
        self._dispatcher = dispatcher
        self._ids = ids
        self._monotonic_ms = dispatcher.clock.monotonic_ms
        self._load = Load(dispatcher.clock.monotonic_ms)
        self._load_always = load_always

    def guarded(self, serve: Callable[[Request], None]) -> Callable[[Request], None]:
        """Wraps a route in the defences; its problems become answers."""

        def guarded(request: Request) -> None:
            request.started_ms = self._monotonic_ms()
            try:
                head = request.head
                connection = request.connection.connection
                if head.is_allowed and (head.guard is None or head.peer == connection.address):
                    connection.caller = head.caller  # whose end is that of the connection
                    serve(request)
                else:
                    self._let_in(request, serve)
            except Problem as found:
                self.fail(request, found)
            except Exception:  # noqa: BLE001 - a defect of ours: this peer gets 500, others go on
                self._fail_ourselves(request)

        return guarded

    def _let_in(self, request: Request, serve: Callable[[Request], None]) -> None:
        assert self.defences is not None
        head = request.head
        self.defences.check(head.headers, host_needed=True)
        if head.method == "GET":  # only the routes that take work have a GET
            self.defences.check_taking(head.headers)
        near = request.connection.credentials(head.headers)

        def go_on(caller_of: Callable[[], Caller]) -> None:
            if request.connection.is_lost:
                return
            try:
                self._admit(head, near.address or "", caller_of)
                connection = request.connection.connection
                connection.caller = head.caller
                head.peer = connection.address
                serve(request)
            except Problem as found:
                self.fail(request, found)
            except Exception:  # noqa: BLE001
                self._fail_ourselves(request)

        self._admission.identify(head.headers, near, go_on)

    def _admit(self, head: Head, address: str, caller_of: Callable[[], Caller]) -> None:
        caller = ANYBODY
        try:
            caller = caller_of()
            self._admission.check_changing(caller)
        except Problem as found:
            path = head.path.decode("ascii", "replace")
            sent = f"{head.method} {path}"
            self._admission.record(found, caller, address, "qless", "work", sent)
            raise
        head.caller = caller
        head.guard = self._admission.guard(caller, address, "qless")
        # A head says who sends it only if it has credentials.
        head.is_allowed = self._admission.is_said_by(head.headers)

    def ask(
        self, request: Request, commands: Sequence[Command], finish: Callable[[list[Any]], None]
    ) -> None:
        """Asks the dispatcher; problems while handling the replies become answers, too."""

        def guarded(replies: list[Any]) -> None:
            try:
                finish(replies)
            except Problem as found:
                self.fail(request, found)
            except Exception:  # noqa: BLE001
                self._fail_ourselves(request)

        guard = request.head.guard
        ask_many(self._dispatcher.ask if guard is None else guard.ask, commands, guarded)

    def answer(
        self, request: Request, results: object, beside: dict[str, Any] | None = None
    ) -> None:
        """Answers with success."""
        if self.wants_load(request.head.query):
            beside = {**(beside or {}), "load": self._load.sample()}
        elapsed_ms = self._monotonic_ms() - request.started_ms
        request.send(200, envelope(results, elapsed_ms, beside), request.notes)

    def many(self, request: Request, results: object, errors: list[ItemError]) -> None:
        """Answers a batch; errors are in the order of its items."""
        errors.sort(key=lambda error: error["index"])
        self.answer(request, results, {"errors": errors} if errors else None)

    def fail(self, request: Request, problem: Problem) -> None:
        """Answers with a problem."""
        elapsed_ms = self._monotonic_ms() - request.started_ms
        notes: Headers = request.notes
        if problem.status == 405:
            notes = (*notes, (b"allow", b"POST"))
        notes = (*notes, *headers_of(problem.status))
        request.send(problem.status, error_envelope(problem, elapsed_ms), notes)

    def _fail_ourselves(self, request: Request) -> None:
        request_id = self._ids.token()[:16]
        _log.error(
            "request failed",
            request_id=request_id,
            method=request.head.method,
            path=request.head.path[:200].decode("latin-1"),
            exc_info=True,
        )
        sentence = "an internal error; see the server's log"
        self.fail(request, Problem(500, "internal", sentence, {"request_id": request_id}))

    def wants_load(self, query: bytes) -> bool:
        """Whether the answer should include the server's load."""
        return self._load_always or (b"load=1" in query and b"load=1" in query.split(b"&"))

    def load(self) -> dict[str, float]:
        """The server's load."""
        return self._load.sample()


class Load:
    """The load of this process, sampled at most once a second."""

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._at_ms = monotonic_ms()
        self._used = _cpu_seconds()
        self._last: dict[str, float] | None = None

    def sample(self) -> dict[str, float]:
        """The recent share of one core and the resident memory in MiB."""
        now_ms = self._monotonic_ms()
        elapsed_ms = now_ms - self._at_ms
        if self._last is None or elapsed_ms >= _SAMPLE_MS:
            used = _cpu_seconds()
            share = (used - self._used) * 1000 / max(elapsed_ms, 1.0)
            self._last = {"cpu": round(share, 3), "memory": round(_resident_bytes() / _MIB, 1)}
            self._at_ms, self._used = now_ms, used
        return self._last


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:  # not Linux: use the peak instead
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

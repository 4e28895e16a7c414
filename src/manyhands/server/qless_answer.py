"""Answers of the qless API: the envelope, the load, and what becomes of an error."""

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from manyhands.model.commands import Command
from manyhands.protocols.http_envelope import Problem, envelope, error_envelope
from manyhands.server.asking import ask_many
from manyhands.server.http_exchange import Defences, headers_of
from manyhands.server.http_short_way import Head, Headers, Request

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.http")
_MIB: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_MS: Final = 1_000


class Answering:
    """Every answer of this API leaves through here."""

    def __init__(self, server: "Server") -> None:
        self.defences: Defences | None = None
        self._access = server.access
        self._dispatcher = server.dispatcher
        self._ids = server.ids
        self._monotonic_ms = server.clock.monotonic_ms
        self._load = Load(server.clock.monotonic_ms)
        self._load_always = server.config.qless_load

    def guarded(self, serve: Callable[[Request], None]) -> Callable[[Request], None]:
        """A route behind the defences, whose problems become answers."""

        def guarded(request: Request) -> None:
            request.started_ms = self._monotonic_ms()
            try:
                head = request.head
                if not head.is_allowed:
                    self._let_in(head)
                serve(request)
            except Problem as found:
                self.fail(request, found)
            except Exception:  # noqa: BLE001 - our own defect; that peer hears of it, others go on
                self._fail_ourselves(request)

        return guarded

    def _let_in(self, head: Head) -> None:
        assert self.defences is not None
        self.defences.check(head.headers, host_needed=True)
        self._access.check(head.headers, changes=True)
        head.is_allowed = True

    def ask(
        self, request: Request, commands: Sequence[Command], finish: Callable[[list[Any]], None]
    ) -> None:
        """Ask the dispatcher; problems in what is done with the replies become answers, too."""

        def guarded(replies: list[Any]) -> None:
            try:
                finish(replies)
            except Problem as found:
                self.fail(request, found)
            except Exception:  # noqa: BLE001
                self._fail_ourselves(request)

        ask_many(self._dispatcher, commands, guarded)

    def answer(
        self, request: Request, results: object, beside: dict[str, Any] | None = None
    ) -> None:
        """Success."""
        if self.wants_load(request.head.query):
            beside = {**(beside or {}), "load": self._load.sample()}
        elapsed_ms = self._monotonic_ms() - request.started_ms
        request.send(200, envelope(results, elapsed_ms, beside), request.notes)

    def many(self, request: Request, results: object, errors: list[dict[str, Any]]) -> None:
        """A batch, with what was refused of it."""
        self.answer(request, results, {"errors": errors} if errors else None)

    def fail(self, request: Request, problem: Problem) -> None:
        """Not this."""
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
        """Whether the answer tells how busy the server is."""
        return self._load_always or (b"load=1" in query and b"load=1" in query.split(b"&"))

    def load(self) -> dict[str, float]:
        """The server's load."""
        return self._load.sample()


class Load:
    """How busy this process is, looked at once a second at most."""

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._at_ms = monotonic_ms()
        self._used = _cpu_seconds()
        self._last: dict[str, float] | None = None

    def sample(self) -> dict[str, float]:
        """The share of one core that was used of late, and the resident memory in MiB."""
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
    except OSError:  # another system: the most that was ever used
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

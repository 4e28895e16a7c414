"""The job that runs here: what a task knows about it, and what it can report (P58)."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from manyhands.client.errors import Cancelled

_current: ContextVar["Job | None"] = ContextVar("manyhands_job", default=None)
_log: Final = logging.getLogger("manyhands.job")


class Released(BaseException):
    """P63: ends a task whose job goes back uncharged. Raised by ``job.release()``."""


class Reporter(Protocol):
    """How the reports of a job leave."""

    def progress(self, done: int, total: int, seconds_left: int | None) -> None:
        """How far it is."""

    def emit(self, piece: bytes) -> None:
        """A piece of its result."""


class Job:
    """The job that runs."""

    def __init__(
        self,
        job_id: str,
        *,
        task: str,
        queue: str,
        attempt: int,
        reporter: Reporter,
        deadline: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.id = job_id
        self.task = task
        self.queue = queue
        self.attempt = attempt  # the first one is 1
        self.deadline = deadline
        self.headers: Mapping[str, str] = headers or {}
        self.why: str | None = None  # why it is no longer wanted
        self.is_shielded = False
        self._reporter = reporter
        fields = {"job_id": job_id, "task": task, "queue": queue, "attempt": attempt}
        self.log = logging.LoggerAdapter(_log, fields)  # P65

    def __repr__(self) -> str:
        return f"<Job {self.id} of task {self.task}, attempt {self.attempt}>"

    def progress(self, done: float, total: float = 0, seconds_left: float | None = None) -> None:
        """Reports how far it is; ``total`` 0 is unknown."""
        left = None if seconds_left is None else max(0, round(seconds_left))
        self._reporter.progress(max(0, round(done)), max(0, round(total)), left)

    def emit(self, value: Any) -> None:  # noqa: ANN401 - bytes, text or JSON
        """Sends a piece of the result to those who wait for it: bytes, text, or JSON."""
        if isinstance(value, str):
            value = value.encode()
        elif not isinstance(value, bytes):
            value = msgspec.json.encode(value)
        self._reporter.emit(value)

    @property
    def cancelled(self) -> bool:
        """Whether the job is no longer wanted here."""
        return self.why is not None

    def check(self) -> None:
        """Raises ``Cancelled`` if the job is no longer wanted here."""
        if self.why is not None:
            raise Cancelled(self.why)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Inside, the task is not interrupted, even if the job is cancelled."""
        before, self.is_shielded = self.is_shielded, True
        try:
            yield
        finally:
            self.is_shielded = before

    def release(self) -> None:
        """Gives the job back uncharged, and ends the task: not now, not here."""
        raise Released


def current_job() -> Job:
    """The job that the caller works for."""
    job = _current.get()
    if job is None:
        raise RuntimeError(
            "no job runs here: current_job() is for functions that a worker calls; in a test, use"
            " manyhands.testing.job_for"
        )
    return job


def enter_job(job: Job) -> "Token[Job | None]":
    """From now on this is the current job, in this context."""
    return _current.set(job)


def leave_job(token: "Token[Job | None]") -> None:
    """No longer."""
    _current.reset(token)

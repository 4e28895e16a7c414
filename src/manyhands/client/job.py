"""The job that runs here, as its task sees it."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol

import msgspec

from manyhands.client.errors import Cancelled

_encode: Final = msgspec.json.Encoder().encode
_log: Final = logging.getLogger("manyhands.job")
PIECE_BYTES_MAX: Final = 1024 * 1024
LINE_CHARACTERS_MAX: Final = 8_000  # of a record, with its traceback; what follows is cut
_COUNT_MAX: Final = 2**53 - 1  # what JSON holds exactly


class Released(BaseException):
    """P63: ends a task whose job goes back uncharged."""


class Desk(Protocol):
    """Where a running job reports to: a worker, or a test."""

    def progress(self, done: int, total: int, seconds_left: int | None) -> None:
        """How far it is. The latest report wins."""

    def emit(self, piece: bytes) -> None:
        """A piece of the result."""

    def log(self, line: str, *, warning: bool) -> None:
        """A line for the log of the job."""

    def unshielded(self) -> None:
        """The last shield is gone, and the job is no longer wanted."""


class Job:
    """A job in progress: what it is, and what may be reported about it. Any thread or coroutine of
    the task may use it.
    """

    __slots__ = (
        "_deadline",
        "_desk",
        "_shields",
        "attempt",
        "headers",
        "id",
        "queue",
        "task",
        "why",
    )

    def __init__(
        self,
        job_id: str,
        task: str,
        queue: str,
        attempt: int,
        headers: Mapping[str, str],
        desk: Desk,
        deadline: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self.id = job_id
        self.task = task
        self.queue = queue
        self.attempt = attempt  # 1 is the first
        self.headers = headers
        self.why: str | None = None  # why it is no longer wanted
        self._desk = desk
        self._deadline = deadline
        self._shields = 0

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def deadline(self) -> datetime | None:
        """When the job is given up, if it has a deadline."""
        return self._deadline()

    @property
    def log(self) -> logging.Logger:
        """A logger. Its records name the job, as all records made inside a job do; a worker sends
        them to the server too, for the job's page.
        """
        return _log

    # Reporting.

    def progress(self, done: float, total: float = 0, seconds_left: float | None = None) -> None:
        """P59: how far the job is, in units of your own; of fractions, such as 0.37 of 1, three
        digits are kept. Returns at once; at most ten reports a second leave, the latest ones.
        """
        left = None if seconds_left is None else _count(seconds_left)
        if total and (done % 1 or total % 1):  # the server keeps whole numbers
            done, total = done * 1_000, total * 1_000
        self._desk.progress(_count(done), _count(total), left)

    def emit(self, value: Any) -> None:  # noqa: ANN401 - bytes, text, or any JSON
        """P59: a piece of the result, for those who wait for the job: bytes, text, or JSON."""
        if isinstance(value, bytes | bytearray | memoryview):
            piece = bytes(value)
        else:
            piece = value.encode() if isinstance(value, str) else _encode(value)
        if len(piece) > PIECE_BYTES_MAX:
            raise ValueError(f"a piece has at most {PIECE_BYTES_MAX} bytes, not {len(piece)}")
        self._desk.emit(piece)

    # Ending early.

    @property
    def cancelled(self) -> bool:
        """P60: whether the job is no longer wanted; ``why`` says why."""
        return self.why is not None

    def check(self) -> None:
        """Raises ``Cancelled`` if the job is no longer wanted."""
        if self.why is not None:
            raise Cancelled(self.why)

    @property
    def is_shielded(self) -> bool:
        """Whether the task is not to be interrupted now."""
        return self._shields > 0

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """P60: the block is not interrupted; a cancellation waits until its end."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if self.why is not None and not self._shields:
                self._desk.unshielded()

    def release(self) -> NoReturn:
        """P63: gives the job back uncharged, and ends the task."""
        raise Released


def _count(number: float) -> int:
    """What the server can hold of a number."""
    return min(max(0, round(number)), _COUNT_MAX)


current: Final[ContextVar[Job]] = ContextVar("manyhands_job")


class _Sender(logging.Handler):
    """Sends the records of ``job.log`` to the server."""

    def emit(self, record: logging.LogRecord) -> None:
        job = current.get(None)
        if job is None:
            return
        try:
            line = self.format(record)[:LINE_CHARACTERS_MAX]
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
        else:
            job._desk.log(line, warning=record.levelno >= logging.WARNING)  # noqa: SLF001


def send_records() -> None:
    """Has this process send what its jobs write to their logs."""
    if not any(isinstance(handler, _Sender) for handler in _log.handlers):
        _log.addHandler(_Sender())


def current_job() -> Job:
    """P58: the job that runs here."""
    job = current.get(None)
    if job is None:
        raise RuntimeError(
            "no job runs here: current_job() is for code that a worker runs; a task that is called "
            "directly has none"
        )
    return job

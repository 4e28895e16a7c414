"""Exceptions: errors of the server, errors of a job, and words that a task may raise."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

_DELAY_SECONDS_MAX: Final = 1e9
_UNAUTHORIZED: Final = 401
FAILED: Final = "failed"  # the code of a task's own `Fail` that names no other
RETRY_AFTER_SECONDS: Final = 1.0  # for a full queue, if the server names no time
# Codes of refusals that pass with time, so that the same is asked again, and how long after.
PASSING: Final = frozenset({"store_full", "store_failed", "shutting_down", "unavailable"})
AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 2.0


# Errors of the server. Its codes are those of the native API, so the names end in no `Error`.


class Refused(Exception):  # noqa: N818
    """The server refused a request: a code for programs, a sentence for people."""

    def __init__(self, code: str, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.detail: Mapping[str, Any] = detail or {}


class QueueFull(Refused):
    """The queue has as many jobs as it may have. Try again after ``retry_after`` seconds."""

    def __init__(
        self,
        message: str,
        detail: Mapping[str, Any] | None = None,
        retry_after: float = RETRY_AFTER_SECONDS,
    ) -> None:
        super().__init__("queue_full", message, detail)
        self.retry_after = retry_after


def problem_of(status: int, problem: "Problem | None") -> "Problem":
    """What a response that refuses a request means; ``problem`` is its own, if it has one."""
    if problem is None:
        sentence = f"the server answered with status {status} and no reason; check its address"
        return Problem("unknown", sentence)
    if status == _UNAUTHORIZED:
        sentence = f"{problem.message}; pass token=…, or set MANYHANDS_TOKEN"
        return Problem(problem.code, sentence, problem.detail)
    return problem


class Unavailable(Refused):
    """No server answered in time.

    ``maybe_accepted``: the request was sent at least once, so that it may have been carried out.
    ``ids``: the jobs it was about; a submit under the same id never makes a second job.
    """

    def __init__(
        self,
        message: str,
        code: str = "unavailable",
        *,
        ids: tuple[str, ...] = (),
        maybe_accepted: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.ids = ids
        self.maybe_accepted = maybe_accepted


def refusal(code: str, message: str, detail: Mapping[str, Any] | None = None) -> Refused:
    """The exception for a code of the API."""
    if code == "queue_full":
        sentence = f"{message}; try again in {RETRY_AFTER_SECONDS:g} s, or let workers catch up"
        return QueueFull(sentence, detail)
    return Refused(code, message, detail)


# Errors of a job.


class JobFailed(Exception):  # noqa: N818
    """The job failed for good; ``code`` and ``message`` are those of its last attempt."""

    def __init__(
        self, job_id: str, code: str, message: str, traceback: str = "", attempts: int = 0
    ) -> None:
        said = (code, message) if code != FAILED else (message,)
        text = "".join(f": {each}" for each in said if each)
        super().__init__(f"job {job_id} failed{text}")
        self.id = job_id
        self.code = code
        self.message = message
        self.traceback = traceback
        self.attempts = attempts


class JobCancelled(Exception):  # noqa: N818
    """The job was cancelled, and why; ``cause`` is the id of a dependency that failed."""

    def __init__(self, job_id: str, reason: str, cause: str | None = None) -> None:
        because = f"{reason}, {cause}" if cause else reason
        super().__init__(f"job {job_id} was cancelled: {because}")
        self.id = job_id
        self.reason = reason
        self.cause = cause


class ResultGone(Exception):  # noqa: N818
    """The job is no longer on record, or its result is not kept."""

    def __init__(self, job_id: str, sentence: str) -> None:
        super().__init__(f"job {job_id}: {sentence}")
        self.id = job_id


# Words inside a task.


class Retry(Exception):  # noqa: N818
    """Raised in a task: try again, after ``delay`` (seconds, or a ``timedelta``) or by the backoff
    of the job.
    """

    def __init__(self, message: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(message or "the task asked for a retry")
        if isinstance(delay, timedelta):
            delay = delay.total_seconds()
        is_number = isinstance(delay, int | float)
        if delay is not None and not (is_number and abs(delay) < _DELAY_SECONDS_MAX):
            raise ValueError(f"a delay is seconds or a timedelta, not {delay!r}")
        self.delay = delay


class Fail(Exception):  # noqa: N818
    """Raised in a task: it failed for good, and a retry would not help."""

    def __init__(self, message: str = "", *, code: str = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Cancelled(BaseException):
    """Raised inside a task that runs in a thread, when its job is no longer wanted."""

    def __init__(self, why: str = "cancelled") -> None:
        super().__init__(why)
        self.why = why


class Problem(Struct, frozen=True):
    """The error of an answer over HTTP."""

    code: str = "unknown"
    message: str = ""
    detail: dict[str, Any] = {}

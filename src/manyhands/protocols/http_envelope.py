"""The envelope that every JSON answer over HTTP comes in, and errors as values that can be raised.

Shared by all protocols that are spoken on the HTTP listener.
"""

from typing import Any, Final

import msgspec

encode: Final = msgspec.json.Encoder().encode


class Problem(Exception):  # noqa: N818 - it is an answer, not an accident
    """What a peer asked wrongly, or cannot have: a status, a code, a sentence."""

    def __init__(
        self, status: int, code: str, message: str, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail


def envelope(results: object, elapsed_ms: float, beside: dict[str, Any] | None = None) -> bytes:
    """A success."""
    if beside is None:
        return b'{"results":%b,"time":{"total":%.3f}}' % (encode(results), elapsed_ms)
    return encode({"results": results, **beside, "time": {"total": round(elapsed_ms, 3)}})


def error_envelope(
    problem: Problem, elapsed_ms: float, beside: dict[str, Any] | None = None
) -> bytes:
    """A failure: no results, and why."""
    error: dict[str, Any] = {"code": problem.code, "message": problem.message}
    if problem.detail is not None:
        error["detail"] = problem.detail
    return envelope(None, elapsed_ms, {"error": error, **(beside or {})})


def plain(number: float) -> float:
    """A whole number without a fraction: who has sent 5 may not be able to read 5.0."""
    whole = int(number)
    return whole if whole == number else number


def bare_error(problem: Problem) -> bytes:
    """The same for an API that has no envelope."""
    told = {"message": problem.message}
    return encode(told | {"error": problem.code} if problem.code else told)

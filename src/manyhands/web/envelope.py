"""The envelope of every JSON answer over HTTP, and errors that can be raised.

Shared by all protocols on the HTTP listener.
"""

from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

encode: Final = msgspec.json.Encoder().encode

# Any whole number in a body: beyond this, many JSON parsers lose digits.
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]

T = TypeVar("T")


class Time(Struct, frozen=True):
    """How long it took."""

    total: Annotated[float, msgspec.Meta(ge=0, description="milliseconds")]


class Answer(Struct, Generic[T], frozen=True, kw_only=True):
    """A successful answer."""

    results: T
    time: Time


class Error(Struct, frozen=True):
    """What went wrong: a code for programs, a sentence for people."""

    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class Failed(Struct, frozen=True, kw_only=True):
    """A failed answer: no results, and the reason."""

    results: None
    error: Error
    time: Time


class Problem(Exception):  # noqa: N818 - it is an answer, not an accident
    """A request that is wrong or cannot be met: a status, a code, a sentence."""

    def __init__(
        self, status: int, code: str, message: str, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail


def envelope(results: object, elapsed_ms: float, beside: object = None) -> bytes:
    """Encodes a success; the fields of ``beside`` are put next to the results."""
    more = b"" if beside is None else encode(beside)[1:-1]
    if not more:
        return b'{"results":%b,"time":{"total":%.3f}}' % (encode(results), elapsed_ms)
    return b'{"results":%b,%b,"time":{"total":%.3f}}' % (encode(results), more, elapsed_ms)


def error_envelope(problem: Problem, elapsed_ms: float) -> bytes:
    """Encodes a failure: no results, and the reason."""
    detail = UNSET if problem.detail is None else problem.detail
    error = Error(problem.code, problem.message, detail)
    return envelope(None, elapsed_ms, {"error": error})


def plain(number: float) -> float:
    """A whole number without a fraction, because a client that sent 5 may not be able to
    read 5.0.
    """
    whole = int(number)
    return whole if whole == number else number


def bare_error(problem: Problem) -> bytes:
    """Encodes a failure for an API without an envelope."""
    body = {"message": problem.message}
    return encode(body | {"error": problem.code} if problem.code else body)

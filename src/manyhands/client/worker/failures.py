"""What exceptions in a task mean for its job."""

import contextlib
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

import manyhands
from manyhands.client.errors import Fail, Retry
from manyhands.client.worker_stream import Failed

DETAILS_BYTES_MAX: Final = 64 * 1024
MESSAGE_CHARS_MAX: Final = 64 * 1024
CODE_CHARS_MAX: Final = 200
# What stands between us and the user's code.
_OURS: Final = (str(Path(manyhands.__file__).parent / "client"), contextlib.__file__)
_CUT: Final = b"\n[...]\n"


def code_of(error: BaseException) -> str:
    """P62: the name of its class, with that of its package unless it is Python's own."""
    kind = type(error)
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


def details_of(error: BaseException) -> bytes:
    """The traceback, without our own frames, of bounded size."""
    try:
        shown = traceback.TracebackException(type(error), error, _theirs(error.__traceback__))
        text = "".join(shown.format()).encode(errors="replace")
    except Exception as other:  # noqa: BLE001 - what a class of the user's does when it is shown
        return f"the traceback cannot be shown: {code_of(other)}".encode(errors="replace")
    if len(text) <= DETAILS_BYTES_MAX:
        return text
    half = (DETAILS_BYTES_MAX - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The first frame of the user's, and what follows."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found


def failure(
    held: tuple[str, str], error: BaseException, give_up_on: tuple[type[BaseException], ...]
) -> Failed:
    """The report on an attempt that ended with an exception."""
    message = _message(error)
    if isinstance(error, Fail):
        return (*held, _code(error.code), message, details_of(error), False, None)
    if isinstance(error, Retry):
        delay_ms = None if error.delay is None else max(0, round(error.delay * 1000))
        return (*held, "retry", message, b"", True, delay_ms)
    retry = not isinstance(error, give_up_on)
    return (*held, _code(code_of(error)), message, details_of(error), retry, None)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - a class of the user's
        text = f"its text cannot be shown: {code_of(other)}"
    return _fit(text, MESSAGE_CHARS_MAX)


def _code(code: object) -> str:
    """A user's code: whatever it is, the failure is reported."""
    try:
        return _fit(str(code), CODE_CHARS_MAX)
    except Exception:  # noqa: BLE001 - an object of the user's
        return "failed"


def _fit(text: str, chars_max: int) -> str:
    """What UTF-8 cannot hold is replaced."""
    return text[:chars_max].encode(errors="replace").decode()

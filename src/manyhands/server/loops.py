"""What the dispatcher needs of an event loop; a simulation brings its own. And what is said of the
errors that a loop meets by itself.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

_log = structlog.get_logger("manyhands.loops")
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
_REPEAT_SECONDS: Final = 60.0


class Timer(Protocol):
    """Something that was put off."""

    def cancel(self) -> None:
        """Not any more."""


class Loop(Protocol):
    """A turn at a time, timers, and files that become readable or writable."""

    def call_soon(self, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...
    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def add_writer(self, fd: int, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def remove_reader(self, fd: int, /) -> bool: ...
    def remove_writer(self, fd: int, /) -> bool: ...


class LoopErrors:
    """The handler of a loop's errors. Without files to spare, asyncio complains for each peer that
    might be waiting, thousands of times a second, and again if it is stopped before it has tried
    once more: here that is a line a minute.
    """

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
            if loop.time() >= self._silent_until:
                self._silent_until = loop.time() + _REPEAT_SECONDS
                _log.error("too many files are open; new peers have to wait", why=error.strerror)
            return
        message = context.get("message", "")
        if not (isinstance(error, ValueError) and "._start_serving(" in message):
            loop.default_exception_handler(context)

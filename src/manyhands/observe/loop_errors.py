"""Handles the errors that an event loop reports by itself."""

import asyncio
import errno
from typing import Any, Final

from manyhands.loggers import get_logger

_log = get_logger("manyhands.loop_errors")
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
_REPEAT_SECONDS: Final = 60.0


class LoopErrors:
    """The handler of a loop's errors. When open files run out, asyncio reports an error for each
    peer that might be waiting, thousands of times a second, and again if it is stopped before its
    next try: here that is one line per minute.
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

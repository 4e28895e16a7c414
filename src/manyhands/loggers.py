"""Loggers: fields beside a sentence, on top of the standard library's logging.

Nothing here configures anything, since the server may be a guest in another program: its records go
wherever that program sends them, as plain text. ``observe/logs.py`` formats them for our own.
"""

import logging
from typing import Any, Final, cast

import structlog

_NOT_SHOWN: Final = frozenset({"event", "level", "logger", "timestamp"})


class _Fields(dict[str, Any]):
    """A record as text: the sentence, and its fields behind it."""

    def copy(self) -> "_Fields":
        return _Fields(self)

    def __str__(self) -> str:
        shown = (f"{key}={value!r}" for key, value in self.items() if key not in _NOT_SHOWN)
        return " ".join((str(self.get("event", "")), *shown))


# Those that a record of any logger passes, also of other libraries.
SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)
# A list of our own, so that another program's structlog and ours leave each other alone.
PROCESSORS: Final[list[structlog.typing.Processor]] = [
    *SHARED,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of this name."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        PROCESSORS,
        structlog.stdlib.BoundLogger,
        _Fields,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, logger)

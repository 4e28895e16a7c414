"""Logs: for people on a terminal, as JSON lines elsewhere."""

import logging
import sys
from pathlib import Path
from typing import Literal, TextIO

import structlog

from manyhands.config.files import refuse_special
from manyhands.loggers import SHARED


class LogFile(logging.StreamHandler[TextIO]):
    """A file that may be moved away: after ``reopen`` lines go to a new one of the same name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._open())

    def _open(self) -> TextIO:
        refuse_special(self._path)
        return self._path.open("a", encoding="utf-8")

    def reopen(self) -> None:
        """Reopens the file. Raises OSError, and keeps the old one, if that fails."""
        before = self.setStream(self._open())
        if before is not None:
            before.close()


def set_up_logs(
    log_format: Literal["auto", "console", "json"], level: str, file: Path | None = None
) -> LogFile | None:
    """Sends all log lines, ours and those of libraries, to standard error or a file, in one format.
    Returns the file's handler, if any; raises OSError if it cannot be written.
    """
    on_terminal = file is None and sys.stderr.isatty()
    console = log_format == "console" or (log_format == "auto" and on_terminal)
    renderer: structlog.typing.Processor
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=on_terminal)
    else:
        renderer = structlog.processors.JSONRenderer()
    log_file = LogFile(file) if file is not None else None
    handler = log_file or logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return log_file

"""The terminal of a worker: all its processes and their tasks write on it, and its last line is the
live view (``view.py``).
"""

import io
import os
import sys
from typing import Final

CLEAR: Final = "\r\x1b[2K"
_COLUMNS: Final = 80


def has_view(log_format: str) -> bool:
    """Whether there is a live view: somebody looks, and no program reads."""
    return sys.stderr.isatty() and log_format == "text"


def columns() -> int:
    """How wide it is now; some terminals do not say."""
    return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS


def share(log_format: str) -> None:
    """Has what this process writes take the place of the live view, instead of part of it."""
    if not has_view(log_format):
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty():
            setattr(sys, name, _Sharing(stream.buffer, stream.encoding, stream.errors))


class _Sharing(io.TextIOWrapper):
    """A stream that writes the line it has begun anew with each piece: meanwhile the view may have
    been drawn over it.
    """

    def __init__(self, buffer: io.BufferedWriter, encoding: str, errors: str) -> None:
        super().__init__(buffer, encoding, errors, write_through=True)
        self._begun = ""

    def write(self, text: str, /) -> int:
        begun = self._begun + text
        last = begun[max(begun.rfind("\n"), begun.rfind("\r")) + 1 :]
        self._begun = last if len(last) < columns() else ""  # only one row can be cleared
        super().write(f"{CLEAR}{begun}")
        self.flush()
        return len(text)

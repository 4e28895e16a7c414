"""Files about the commands that a worker ran: the output of each, and a list of all."""

import contextlib
import csv
import hashlib
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import typer

from manyhands.cli.child import Ended
from manyhands.cli.stores import fail

_PLAIN: Final = re.compile(r"[A-Za-z0-9_+=@,-][A-Za-z0-9_.+=@,-]{0,99}")
_NAME_CHARACTERS: Final = 80
_COLUMNS: Final = (
    *("start", "end", "seconds", "attempt", "outcome", "exit_code", "signal", "task"),
)


class TaskLogs:
    """A folder of logs. Its list is named after the worker, so that many may share the folder."""

    def __init__(self, folder: Path, location: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._complained = False
        file = folder / f"jobs.{file_name(location)}.tsv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_new = not file.exists()
            self._list = file.open("a", encoding="utf-8", newline="", buffering=1)
        except OSError as error:
            fail(f"--logs {folder}: {error.strerror}.")
        self._rows = csv.writer(self._list, dialect="excel-tab", lineterminator="\n")
        if is_new:
            self._rows.writerow(_COLUMNS)

    @contextlib.contextmanager
    def files(self, name: str, attempt: int) -> Iterator[tuple[IO[bytes], IO[bytes]] | None]:
        """Files for a task's standard output and standard error; None if they cannot be opened."""
        stem = f"{file_name(name)}.{attempt}"
        with contextlib.ExitStack() as stack:
            try:
                found = tuple(
                    stack.enter_context((self._folder / f"{stem}.{end}").open("wb", buffering=0))
                    for end in ("out", "err")
                )
            except OSError as error:
                self._complain(error)
                yield None
                return
            yield found[0], found[1]

    def note(
        self, name: str, attempt: int, began_at: int, ended_at: int, outcome: str, ended: Ended
    ) -> None:
        """Adds a line to the list. Instants are milliseconds since the epoch."""
        row = (
            _instant(began_at), _instant(ended_at), f"{(ended_at - began_at) / 1000:.3f}",
            attempt, outcome, ended.code, ended.signal, name,
        )  # fmt: skip
        with self._lock:
            try:
                self._rows.writerow(["" if value is None else value for value in row])
            except OSError as error:
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Reports an error once; work continues without logs."""
        if not self._complained:
            self._complained = True
            typer.echo(f"manyhands: logs cannot be written: {error.strerror}.", err=True)


def file_name(name: str) -> str:
    """A unique file name for any task name."""
    if _PLAIN.fullmatch(name):
        return name
    short = re.sub(r"[^A-Za-z0-9_+=@,-]+", "_", name)[:_NAME_CHARACTERS]
    return f"{short}.{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _instant(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")

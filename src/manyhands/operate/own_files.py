"""Files that the server writes beside its store: ready file, pid file, log."""

import os
from pathlib import Path
from typing import Final

import msgspec

from manyhands.config import Config
from manyhands.config.files import open_draft, refuse_special

_READABLE_MODE: Final = 0o644  # scripts of other users wait for these


def check_own_files(config: Config) -> None:
    """Checks the files before anything is started; raises OSError with a sentence."""
    for path in (config.ready_file, config.pid_file, config.log_file):
        if path is not None:
            refuse_special(path)


def write_whole(path: Path, text: bytes) -> None:
    """Writes a file atomically: a program that waits for it may read it at once."""
    refuse_special(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(open_draft(draft, _READABLE_MODE), "wb") as file:
        file.write(text)
    draft.replace(path)


def write_own_files(config: Config, addresses: dict[str, str | None]) -> None:
    """Writes the ready file and the pid file, once the server is ready."""
    if config.pid_file is not None:
        write_whole(config.pid_file, b"%d\n" % os.getpid())
    if config.ready_file is not None:
        content = msgspec.json.encode({"pid": os.getpid(), **addresses})
        write_whole(config.ready_file, content + b"\n")


def remove_own_files(config: Config) -> None:
    """Removes them when the server stops."""
    for path in (config.ready_file, config.pid_file):
        if path is not None:
            path.unlink(missing_ok=True)

"""Files named by options and arguments: which may be written, and which others may read."""

import os
import stat
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600  # payloads may be secret
_OTHERS: Final = 0o007


class SpecialFileError(OSError):
    """The file to write is a device, a directory, a pipe or a socket."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a regular file; name a regular file or a new one")


def refuse_special(path: Path) -> None:
    """Refuses everything but a regular file: a device that is replaced is gone for every program on
    the machine.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise SpecialFileError(path)


def open_draft(path: Path, mode: int = PRIVATE_MODE) -> int:
    """Opens a new file to write, which gets its real name when complete. What an earlier try left
    behind is removed; a link in its place is not followed.
    """
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def is_open_to_others(path: Path) -> bool:
    """Whether every user of the machine may read or change the file. A group may: that is how a
    service gets access to a file that it does not own.
    """
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False  # it cannot be read at all, which is reported where it is needed

"""Before a data directory is used: that nobody else uses it, and that its file is ours and whole.

Nothing in here changes a file that it finds fault with: what is damaged stays as it is, for a
closer look or for repair.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

import apsw

from manyhands.store import journal, schema
from manyhands.store.store import StoreError

_LOCK_NAME: Final = "manyhands.lock"
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
# A full check takes a second for each GiB, or as long as the disk needs to read it. After a clean
# stop, larger files are trusted.
_CHECKED_BYTES_MAX: Final = 1024 * 1024 * 1024
# The writer of a server that was killed finishes its last commit: a moment, not more.
_LOCK_TRIES: Final = 200
_LOCK_REST_SECONDS: Final = 0.05
_ADVICE: Final = (
    "The file was left as it is. Put a backup in its place, or move it away to start empty."
)
# Nothing that a backup would help against: no room, no right, no file to spare.
_NOT_DAMAGE: Final = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.FullError,
    apsw.IOError,
    apsw.NoMemError,
    apsw.PermissionsError,
    apsw.ReadOnlyError,
)


class DirectoryLock:
    """Held by one server, and by its writer until that has finished too."""

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self.descriptor = os.open(directory / _LOCK_NAME, flags, 0o600)
        except OSError as error:
            raise _no_directory(directory, error) from None
        try:
            self._take(directory)
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(self.descriptor)
            raise _no_directory(directory, error) from None
        except StoreError:
            os.close(self.descriptor)
            raise

    def _take(self, directory: Path) -> None:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _is_alive(self._holder()):
                    break
                time.sleep(_LOCK_REST_SECONDS)
            else:
                return
        holder = self._holder()
        if not _is_alive(holder):
            raise StoreError(
                f"the data directory {directory} is still in use: the server with process id "
                f"{holder} has ended, and the process that writes for it is still at work on what "
                "was acknowledged. Try again in a moment."
            )
        raise StoreError(
            f"the data directory {directory} is in use by the server with process id "
            f"{holder or 'unknown'}. Stop that one, or use another directory."
        )

    def _holder(self) -> int | None:
        word = os.pread(self.descriptor, 32, 0).strip()
        return int(word) if word.isdigit() else None

    def release(self) -> None:
        """Let go. The lock ends when the writer has let go too."""
        os.close(self.descriptor)


def _no_directory(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"the data directory {directory} cannot be used: {error.strerror}.")


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return True  # whoever it is holds the lock at this moment
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def inspect(file: Path) -> bool:
    """Whether a file that passed for ours still needs a full check. Raises StoreError if it is
    not ours, not whole, or too new.
    """
    log = file.with_name(file.name + "-wal")
    log_bytes = log.stat().st_size if log.exists() else 0
    _inspect_header(file, log_bytes)
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            # Else the last one to close would write the log into the file.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            version = int(connection.pragma("user_version"))
            if version < schema.VERSION:
                _refuse_journal(file)
                check(connection, file)
        finally:
            connection.close()
    except apsw.Error as error:
        raise unusable(file, error) from None
    if version > schema.VERSION:
        raise StoreError(
            f"{file} was written by a newer version of manyhands (schema {version}; this one knows "
            f"up to {schema.VERSION}). Run that version, or move the file away."
        )
    if version < schema.VERSION:
        schema.migrate(file)
        return False
    return log_bytes > 0 or file.stat().st_size <= _CHECKED_BYTES_MAX


def _refuse_journal(file: Path) -> None:
    if journal.segments(file.parent):
        raise StoreError(
            f"{file} was written by an older version of manyhands, and its journal has not been "
            "applied. Start and stop that version once, then this one."
        )


def _inspect_header(file: Path, log_bytes: int) -> None:
    with file.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
    if not header:
        raise damaged(file, "it is empty")
    if not header.startswith(_MAGIC[: len(header)]):
        raise StoreError(f"{file} is not a database of manyhands. {_ADVICE}")
    if len(header) < _HEADER_BYTES:
        raise damaged(file, f"it ends after {len(header)} bytes")
    if int.from_bytes(header[68:72]) != schema.APPLICATION_ID:
        raise StoreError(f"{file} is a database of another program. {_ADVICE}")
    page_bytes = int.from_bytes(header[16:18])
    pages_bytes = int.from_bytes(header[28:32]) * (65536 if page_bytes == 1 else page_bytes)
    size = file.stat().st_size
    # While there is a log, the end of the file may still be in it.
    if log_bytes == 0 and size < pages_bytes:
        raise damaged(file, f"it ends after {size} of {pages_bytes} bytes")


def check(connection: apsw.Connection, file: Path) -> None:
    """Walk over the whole file; slow if it is large."""
    try:
        found = str(connection.execute("PRAGMA quick_check(1)").get)
    except apsw.Error as error:
        raise unusable(file, error) from None
    if found != "ok":
        raise damaged(file, found.replace("\n", " "))


def unusable(file: Path, error: Exception) -> StoreError:
    """The sentence for a file that cannot be opened or read: not all of that is damage."""
    if isinstance(error, apsw.Error) and not isinstance(error, _NOT_DAMAGE):
        return damaged(file, str(error))
    return StoreError(f"{file} cannot be used: {error}.")


def damaged(file: Path, what: str) -> StoreError:
    """The sentence for a file that cannot be trusted."""
    return StoreError(f"{file} is damaged: {what}. {_ADVICE}")

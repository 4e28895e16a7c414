"""Checks before a data directory is used: no other process uses it, and its file is ours and
intact.

Nothing here changes a file that fails a check: damage stays as it is, for inspection or repair.
"""

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Final

import apsw

from manyhands.config.files import PRIVATE_MODE
from manyhands.store.contract import StoreError
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.writer import journal

_LOCK_NAME: Final = "manyhands.lock"
# Errors of file systems that can lock only files.
_NO_DIRECTORY_LOCKS: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP})
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
# A full check takes a second per GiB, or as long as the disk needs to read the file. After a clean
# stop, larger files are trusted.
_CHECKED_BYTES_MAX: Final = 1024 * 1024 * 1024
_INDEXES_CHECKED_BYTES_MAX: Final = 256 * 1024 * 1024  # checking them takes three times as long
# The writer of a killed server needs only a moment to finish its last commit.
_LOCK_TRIES: Final = 200
_LOCK_REST_SECONDS: Final = 0.05
_ADVICE: Final = (
    "The file was left as it is. Put a backup in its place, or move it away to start empty."
)
# Errors that a backup would not help with: no space, no permission, no free descriptor.
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
    """Held by one server, and by its writer until that has finished too.

    The directory itself is locked, so that removing a lock file that looks stale does not let a
    second server in. The file names the holder. It is locked as well, for servers of older versions
    and for file systems that cannot lock directories (NFS).
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._directory = os.open(directory, flags)
        except OSError as error:
            raise _no_directory(directory, error) from None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(directory / _LOCK_NAME, flags, PRIVATE_MODE)
        except OSError as error:
            os.close(self._directory)
            raise _no_directory(directory, error) from None
        try:
            self._take(directory)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            self.release()
            raise _no_directory(directory, error) from None
        except StoreError:
            self.release()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """A process that inherits these holds the lock too."""
        return self._directory, self._file

    def _take(self, directory: Path) -> None:
        for _ in range(_LOCK_TRIES):
            if self._try():
                return
            if _is_alive(self._holder()):
                break
            time.sleep(_LOCK_REST_SECONDS)
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

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_LOCKS:
                raise
        return True

    def _holder(self) -> int | None:
        word = os.pread(self._file, 32, 0).strip()
        return int(word) if word.isdigit() else None

    def release(self) -> None:
        """Releases the lock. It stays held until the writer has released it too."""
        os.close(self._file)
        os.close(self._directory)


def _no_directory(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"the data directory {directory} cannot be used: {error.strerror}.")


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return True  # the process holds the lock at this moment, whatever its id
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def make_private(directory: Path) -> None:
    """Makes files private that earlier versions left readable for other users."""
    for path in directory.glob("manyhands.*"):
        if path.is_file() and path.stat().st_mode & 0o077:
            # Another user's file, or a file system without permissions: it is used as it is.
            with contextlib.suppress(PermissionError):
                path.chmod(PRIVATE_MODE)


def inspect(file: Path) -> bool:
    """Whether a file that passed the quick checks still needs a full one. Raises StoreError if it
    is not ours, not intact, too new, or too old for its journal. Changes nothing.
    """
    log_bytes = inspect_header(file)
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            # Otherwise the last connection to close would copy the log into the file.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            version = int(connection.pragma("user_version"))
            if version < schema.OLDEST_REPLAYED:
                _refuse_journal(file)
            if version < schema.VERSION:
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
    return log_bytes > 0 or file.stat().st_size <= _CHECKED_BYTES_MAX


def _refuse_journal(file: Path) -> None:
    if journal.segments(file.parent):
        raise StoreError(
            f"{file} was written by an older version of manyhands, and its journal has not been "
            "applied. Start and stop that version once, then this one."
        )


def inspect_header(file: Path) -> int:
    """Checks from the header that the file is ours and complete; returns the bytes of its log."""
    log = file.with_name(file.name + "-wal")
    log_bytes = log.stat().st_size if log.exists() else 0
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
    return log_bytes


def check(connection: apsw.Connection, file: Path) -> None:
    """Checks the whole file; slow if it is large. For a large one, whether every row is in every
    index is left to `manyhands check`.
    """
    thorough = file.stat().st_size <= _INDEXES_CHECKED_BYTES_MAX
    try:
        found = str(
            connection.execute(f"PRAGMA {'integrity' if thorough else 'quick'}_check(1)").get
        )
    except apsw.Error as error:
        raise unusable(file, error) from None
    if found != "ok":
        raise damaged(file, found.replace("\n", " "))


def unusable(file: Path, error: Exception) -> StoreError:
    """The error for a file that cannot be opened or read; not every cause is damage."""
    if isinstance(error, apsw.Error) and not isinstance(error, _NOT_DAMAGE):
        return damaged(file, str(error))
    return StoreError(f"{file} cannot be used: {error}.")


def damaged(file: Path, what: str) -> StoreError:
    """The error for a file that cannot be trusted."""
    return StoreError(f"{file} is damaged: {what}. {_ADVICE}")


def damaged_record(file: Path, error: Exception) -> StoreError:
    """The error for a file with a damaged record; the others may be intact."""
    return StoreError(
        f"{file} is damaged: {error}. The file was left as it is. `manyhands check` lists all "
        "damage. Put a backup in its place; or save what is whole with `manyhands export`, and "
        "import that into an empty directory."
    )

"""The store's writer on a disk that fails, or dying, when it is told to by a file that lies beside
the database and is named after it:

``…-fail-sync``, ``…-fail-write``: no sync or write of the database succeeds;
``…-hold-sync``: no sync of the database comes to an end, and ``…-held`` tells of the first one;
``…-journal-sync``, ``…-journal-write``, ``…-journal-full``: the same for the journal, or no room;
``…-die-kept``: it is killed when the journal is synced, before anybody is told;
``…-die-applying``, ``…-die-applied``: in the midst of a transaction, or just after its commit;
``…-hang-up``: it lets go of the server instead of a sync of the journal, and does not end;
``…-behind`` (looked for at the start): nothing is applied unless somebody asks for it.
"""

import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path

import apsw

from manyhands.store.sqlite.writer import apply, journal
from manyhands.store.sqlite.writer import process as writer

DATABASE = Path(sys.argv[2])


def is_told(what: str) -> bool:
    return DATABASE.with_name(f"{DATABASE.name}-{what}").exists()


def die_if_told(what: str) -> None:
    if is_told(f"die-{what}"):
        os.kill(os.getpid(), signal.SIGKILL)


def fail_if_told(what: str, code: int) -> None:
    if is_told(f"fail-{what}"):
        error = apsw.IOError(f"the disk failed a {what}")
        error.extendedresult = code
        raise error


class FaultyFile(apsw.VFSFile):
    def __init__(self, name, flags):
        super().__init__("unix", name, flags)

    def xSync(self, flags):  # noqa: N802
        while is_told("hold-sync"):
            DATABASE.with_name(f"{DATABASE.name}-held").touch()
            time.sleep(0.005)
        fail_if_told("sync", apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)

    def xWrite(self, data, offset):  # noqa: N802
        fail_if_told("write", apsw.SQLITE_IOERR_WRITE)
        super().xWrite(data, offset)


class FaultyDisk(apsw.VFS):
    def __init__(self):
        super().__init__("faulty", "unix", makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802
        return FaultyFile(name, flags)


class FaultySystem:
    """What the journal calls the system."""

    def __getattr__(self, name):
        return getattr(os, name)

    def pwritev(self, descriptor, buffers, offset):
        if is_told("journal-write"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pwritev(descriptor, buffers, offset)

    def fdatasync(self, descriptor):
        if is_told("journal-sync"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if is_told("hang-up"):
            socket.socket(fileno=int(sys.argv[1])).shutdown(socket.SHUT_RDWR)
            signal.pause()
        os.fdatasync(descriptor)
        die_if_told("kept")

    def posix_fallocate(self, descriptor, start, size):
        if is_told("journal-full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(descriptor, start, size)


class DyingApplier(apply.Applier):
    def apply(self, frames):
        for step in super().apply(frames):
            if self._connection.in_transaction:
                die_if_told("applying")
            yield step
        die_if_told("applied")


if __name__ == "__main__":
    disk = FaultyDisk()
    journal.os = FaultySystem()
    writer.Applier = DyingApplier
    if is_told("behind"):
        writer._WINDOW_SECONDS = writer._IDLE_SECONDS = 3600.0
        writer._WINDOW_BYTES = writer._WINDOW_BYTES_MAX = 1 << 60
    writer.main(sys.argv[1:])

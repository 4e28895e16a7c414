"""The store's writer on a disk that fails when it is told to: while a file named ``…-fail-sync``
(or ``…-fail-write``) lies beside the database, no sync (or write) succeeds.
"""

import sys
from pathlib import Path

import apsw

from manyhands.store import writer

DATABASE = Path(sys.argv[2])


def fail_if_told(what: str, code: int) -> None:
    if DATABASE.with_name(f"{DATABASE.name}-fail-{what}").exists():
        error = apsw.IOError(f"the disk failed a {what}")
        error.extendedresult = code
        raise error


class FaultyFile(apsw.VFSFile):
    def __init__(self, name, flags):
        super().__init__("unix", name, flags)

    def xSync(self, flags):  # noqa: N802
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


if __name__ == "__main__":
    disk = FaultyDisk()
    writer.main(sys.argv[1:])

"""Rewrites a database without the space that dropped rows left in it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from manyhands.config.files import open_draft
from manyhands.store.contract import StoreError
from manyhands.store.sqlite import opening
from manyhands.store.sqlite.copies import sync_file
from manyhands.store.sqlite.recovery import recover

_BUSY_MS: Final = 5_000
_REPORT_EVERY_STEPS: Final = 200_000  # of SQLite's virtual machine: tens of milliseconds
_MIB: Final = 1024 * 1024


def store_bytes(file: Path) -> int:
    """Disk space used by the database, its log and its journal."""
    return sum(
        path.stat().st_size
        for path in file.parent.glob("manyhands.*")
        if path.name.startswith((file.name, "manyhands.journal-")) and ".before-v" not in path.name
    )


def compact(file: Path, report: Callable[[int, int], None]) -> None:
    """Applies the journal, then replaces the file by a compact copy. Needs the directory's lock. A
    crash leaves either the old file or the new one.
    """
    opening.inspect(file)
    recover(file)
    draft = file.with_name(file.name + ".new")
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(_BUSY_MS)
            opening.check(connection, file)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            _copy(connection, draft, report)
        finally:
            connection.close()
        log = file.with_name(file.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise StoreError(f"{file} is being read by another program; nothing was changed.")
        draft.rename(file)
        sync_file(file.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"{file} cannot be compacted: {error}. It was left as it is.") from None
    finally:
        draft.unlink(missing_ok=True)


def _copy(connection: apsw.Connection, draft: Path, report: Callable[[int, int], None]) -> None:
    pages = connection.pragma("page_count") - connection.pragma("freelist_count")
    size = pages * connection.pragma("page_size")
    space = os.statvfs(draft.parent)
    if space.f_bavail * space.f_frsize < size:
        raise StoreError(
            f"{draft.parent} has no room for a copy of {size // _MIB} MiB beside the database."
        )
    os.close(open_draft(draft))

    def look() -> bool:
        report(min(draft.stat().st_size, size), size)
        return False  # continue

    connection.set_progress_handler(look, _REPORT_EVERY_STEPS)
    connection.execute("VACUUM INTO ?", (str(draft),))
    connection.set_progress_handler(None)
    copy = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        opening.check(copy, draft)
        copy.pragma("journal_mode", "wal")
    finally:
        copy.close()
    sync_file(draft)

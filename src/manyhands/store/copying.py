"""Copies of a database in use, and files that are on disk when they are said to be."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from manyhands.store.store import StoreError

_STEP_PAGES: Final = 1_000  # 4 MB at a time: a few milliseconds


def copy_database(source: apsw.Connection, target: Path) -> Iterator[tuple[int, int]]:
    """Copy what is committed now, in steps; yields (pages left, pages in all). The target gets
    its name when the copy is whole and on disk. The connection is busy until the end.
    """
    if target.exists():
        raise StoreError(f"{target} exists already. Name another file, or move that one away.")
    draft = target.with_name(target.name + ".part")
    try:
        draft.unlink(missing_ok=True)
        # Payloads may be secret: nobody else reads the copy either.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.") from None
    copy = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # One snapshot for all steps; else each commit would make the copy start over.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM facts").fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_STEP_PAGES)
                yield backup.remaining, backup.page_count
        # No journal belongs to a copy, not even the one that lies where it is put.
        copy.execute("UPDATE facts SET value = '{}' WHERE key = 'journal'")
        copy.close()
        sync_file(draft)
        draft.rename(target)
        sync_file(target.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"the copy to {target} failed: {error}.") from None
    finally:
        copy.close()
        draft.unlink(missing_ok=True)
        if source.in_transaction:
            source.execute("ROLLBACK")


def sync_file(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Copies of a database in use, and syncing of files and directories."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from manyhands.config.files import open_draft
from manyhands.store.contract import StoreError

_STEP_PAGES: Final = 1_000  # 4 MB at a time: a few milliseconds


def copy_database(source: apsw.Connection, target: Path) -> Iterator[tuple[int, int]]:
    """Copies the committed state in steps; yields (pages left, total pages). The target gets its
    name when the copy is complete and on disk. The connection is busy until the end.
    """
    if os.path.lexists(target):
        raise StoreError(f"{target} exists already. Name another file, or move that one away.")
    draft = target.with_name(target.name + ".part")
    try:
        os.close(open_draft(draft))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}.") from None
    copy = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # One snapshot for all steps; otherwise each commit would make the copy start over.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM facts").fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_STEP_PAGES)
                yield backup.remaining, backup.page_count
        # No journal belongs to a copy, not even one that is in the target directory.
        copy.execute("DELETE FROM facts WHERE key = 'journal'")
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
    """Syncs a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Syncs the names in a folder and in all folders below it; the files are synced already."""
    for below, _, _ in os.walk(folder, topdown=False):
        sync_file(Path(below))

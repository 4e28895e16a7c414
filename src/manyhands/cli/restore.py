"""`manyhands restore`: puts a backup in place of an empty store."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.output import print_json
from manyhands.cli.stores import AsJson, ConfigFile, Data, config_of, errors_shown, progress


def restore(
    source: Annotated[
        Path, typer.Argument(help="File that `manyhands backup` has written.", metavar="FILE")
    ],
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a data directory without a store; the server must not run.

    The backup is checked first, and FILE.artifacts is restored with it. A store that is already
    there is never overwritten: move it away, or name another directory.

    Examples:

      manyhands restore /backups/manyhands-today.db

      manyhands restore copy.db --data /var/lib/manyhands-drill --json
    """
    found = config_of(data, config)

    from manyhands.dispatch.clock import Clock
    from manyhands.operate.artifacts import FOLDER
    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite import schema
    from manyhands.store.sqlite.copies import copy_database
    from manyhands.store.sqlite.opening import DirectoryLock
    from manyhands.store.sqlite.reader import open_reader

    clock = Clock()
    started_ms = clock.monotonic_ms()
    folder = source.with_name(source.name + ".artifacts")
    with errors_shown():
        if not source.is_file():
            raise StoreError(f"{source} is not a file.")
        lock = DirectoryLock(found.data)
        try:
            target, artifacts = found.data / schema.FILE_NAME, found.data / FOLDER
            # A journal would belong to the database that was there before.
            before = [*found.data.glob("manyhands.db*"), *found.data.glob("manyhands.*journal*")]
            for place in (*sorted(before), artifacts):
                if os.path.lexists(place):
                    raise StoreError(
                        f"{place} already exists. Move it away, or name another directory with "
                        f"--data."
                    )
            _check(source)
            if folder.is_dir():
                with progress("copying artifacts"):
                    _copy_folder(folder, artifacts)
            # Last: without the database, there is no store.
            connection = open_reader(source)
            try:
                with progress("copying") as tell:
                    for left, total in copy_database(connection, target):
                        tell(total - left, total)
            finally:
                connection.close()
            size = target.stat().st_size
        finally:
            lock.release()
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        facts = {"data": str(found.data), "bytes": size, "seconds": round(seconds, 3)}
        print_json(facts)
    else:
        typer.echo(
            f"{found.data}: {size:,} bytes checked and restored in {seconds:.1f} s. "
            f"Start the server: manyhands serve --data {found.data}"
        )


def _check(source: Path) -> None:
    """Raises StoreError if the backup is damaged, or from a later version."""
    import apsw

    from manyhands.cli.backup import check_copy
    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite import schema
    from manyhands.store.sqlite.opening import check, inspect_header, unusable
    from manyhands.store.sqlite.reader import open_reader

    inspect_header(source)
    try:
        connection = open_reader(source)
        try:
            version = int(connection.pragma("user_version"))
            if version > schema.VERSION:
                raise StoreError(
                    f"{source} has schema {version} and this version of manyhands knows "
                    f"{schema.VERSION}; use the version that wrote it."
                )
            if version < schema.VERSION:
                check(connection, source)  # the server upgrades it at its start
                return
        finally:
            connection.close()
        damage = check_copy(source)
    except apsw.Error as error:
        raise unusable(source, error) from None
    if damage:
        raise StoreError(f"{source} is damaged: {damage[0]}")


def _copy_folder(source: Path, target: Path) -> None:
    """Copies files and syncs them, and all names; the folder gets its name when it is complete."""
    from manyhands.store.sqlite.copies import sync_file, sync_tree

    draft = target.with_name(target.name + ".part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shutil.copytree(source, draft)
        for below, _, names in os.walk(draft):
            for name in names:
                sync_file(Path(below, name))
        sync_tree(draft)
        draft.rename(target)
        sync_file(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)

"""`manyhands backup`: a consistent copy of the store, while the server runs."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from manyhands.cli.stores import (
    AsJson,
    ConfigFile,
    Data,
    config_of,
    errors_shown,
    progress,
    reading,
)


def backup(
    target: Annotated[Path, typer.Argument(help="File to write; it must not exist yet.")],
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the store into one file; the server may run meanwhile.

    The copy is a complete database and is checked. Artifacts that workers have uploaded, if any,
    are copied to TARGET.artifacts. To restore, stop the server and put both into an empty data
    directory, as manyhands.db and artifacts.

    Examples:

      manyhands backup /backups/manyhands-today.db

      manyhands backup --data /var/lib/manyhands --json copy.db
    """
    found = config_of(data, config)

    from manyhands.dispatch.clock import Clock
    from manyhands.operate.artifacts import Artifacts
    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite.copies import copy_database, sync_file, sync_tree

    clock = Clock()
    started_ms = clock.monotonic_ms()
    artifacts = Artifacts(found.data)
    folder = target.with_name(target.name + ".artifacts")
    draft = folder.with_name(folder.name + ".part")
    with errors_shown():
        if os.path.lexists(folder):
            raise StoreError(f"{folder} already exists. Name another file, or move that one away.")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            # Twice: before, so that files removed meanwhile are included; and after, so that
            # nothing is missing that the copied database refers to.
            with progress("copying artifacts") as report:
                artifacts.copy_to(draft, report)
            with reading(found.data) as connection, progress("copying") as report:
                for left, total in copy_database(connection, target):
                    report(total - left, total)
            try:
                with progress("copying artifacts") as report:
                    count, copied_bytes = artifacts.copy_to(draft, report)
                if draft.exists():
                    sync_tree(draft)
                    draft.rename(folder)
                    sync_file(folder.parent)
            except BaseException:
                target.unlink()
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        damage = check_copy(target)
        size = target.stat().st_size
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        facts = {
            "file": str(target),
            "bytes": size,
            "artifacts": count,
            "artifact_bytes": copied_bytes,
            "damage": damage,
            "seconds": round(seconds, 3),
        }
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        if count:
            typer.echo(f"{folder}: {count:,} artifacts, {copied_bytes:,} bytes.")
        typer.echo(f"{target}: {size:,} bytes copied and checked in {seconds:.1f} s.")
        for sentence in damage:
            typer.echo(f"manyhands: damaged, also in the store: {sentence}", err=True)
    if damage:
        raise SystemExit(1)


def check_copy(target: Path) -> list[str]:
    """Sentences about what is damaged in the copy."""
    from manyhands.store.sqlite.inspection import Checker
    from manyhands.store.sqlite.opening import check
    from manyhands.store.sqlite.reader import open_reader

    damage: list[str] = []
    copy = open_reader(target)
    try:
        check(copy, target)
        checker = Checker(copy, damage)
        checker.check_settings()
        with progress("checking jobs") as report:
            checker.check_jobs(report)
        with progress("checking events") as report:
            checker.check_events(report)
    finally:
        copy.close()
    return damage

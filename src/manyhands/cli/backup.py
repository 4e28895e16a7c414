"""`manyhands backup`: a copy of the store that is whole, while the server goes on."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from manyhands.cli.storing import AsJson, ConfigFile, Data, config_of, progress, reading, told


def backup(
    target: Annotated[Path, typer.Argument(help="File to write; it must not exist yet.")],
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the store into one file; the server may run meanwhile.

    The copy is a database of its own, checked before it gets its name. To restore it, stop the
    server and put it into an empty data directory as manyhands.db.

    Examples:

      manyhands backup /backups/manyhands-today.db

      manyhands backup --data /var/lib/manyhands --json copy.db
    """
    found = config_of(data, config)

    from manyhands.server.clock import Clock
    from manyhands.store.copying import copy_database
    from manyhands.store.opening import check
    from manyhands.store.reading import open_reader

    clock = Clock()
    started_ms = clock.monotonic_ms()
    with told():
        with reading(found.data) as connection, progress("copying") as tell:
            for left, total in copy_database(connection, target):
                tell(total - left, total)
        copy = open_reader(target)
        try:
            check(copy, target)
        finally:
            copy.close()
        size = target.stat().st_size
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        facts = {"file": str(target), "bytes": size, "seconds": round(seconds, 3)}
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        typer.echo(f"{target}: {size:,} bytes copied and checked in {seconds:.1f} s.")

"""`manyhands migrate`: makes or updates the tables of a PostgreSQL store."""

import os
from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.stores import ConfigFile, errors_shown, misuse
from manyhands.config import FILE_VARIABLE, DatabaseAddress, load_config

Store = Annotated[
    str | None,
    typer.Option(
        "--store", help="Address of the database (default: that of serve).", metavar="URL"
    ),
]


def migrate(
    *,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the statements, and change nothing.")
    ] = False,
    store: Store = None,
    config: ConfigFile = None,
) -> None:
    """Make the tables of a PostgreSQL store, or bring them to this version.

    `serve` does it by itself where its role may create tables. Where it may not, run this as a role
    that does, or hand what --print prints to whoever looks after the database.

    Examples:

      manyhands migrate --store postgresql://admin@db1/jobs

      manyhands migrate --store postgresql://db1/jobs --print > tables.sql
    """
    file = config or (Path(named) if (named := os.environ.get(FILE_VARIABLE)) else None)
    address = load_config({"store": store}, os.environ, file).config.store
    if not isinstance(address, DatabaseAddress):
        misuse("only a PostgreSQL store is migrated by hand; name it with --store postgresql://….")

    import psycopg

    from manyhands.store.postgres import schema, sessions

    with errors_shown():
        if only_print:
            typer.echo(_statements(address), nl=False)
            return
        try:
            with sessions.connect(address) as connection:
                sessions.check_server(connection, unsafe_commits=True)
                before = schema.migrate(connection, address)
        except psycopg.Error as error:
            raise sessions.unusable(address, error) from None
    if before is None:
        typer.echo(f"{address} has its tables now, version {schema.VERSION}.")
    elif before == schema.VERSION:
        typer.echo(f"{address} has version {before} already; nothing was changed.")
    else:
        typer.echo(f"{address} has version {schema.VERSION} now; it had {before}.")


def _statements(address: DatabaseAddress) -> str:
    """What the database lacks; everything, if it cannot be asked."""
    import psycopg

    from manyhands.store.postgres import schema, sessions

    try:
        with sessions.connect(address) as connection:
            version = schema.version_of(connection, address.schema)
    except psycopg.Error:
        version = None
    if version is None:
        return schema.statements(address.schema)
    return schema.migrations_from(address.schema, version)

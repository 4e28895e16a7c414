"""`manyhands limit`: named limits on how many jobs run at once."""

import sys
from typing import Annotated, Final
from urllib.parse import quote

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import Cell, Column, number, print_json, print_table, readable
from manyhands.cli.stores import AsJson, fail

limit = typer.Typer(
    help="List, set and delete named limits.",
    epilog="Example: manyhands limit set database 2",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="The limit's name.", metavar="NAME")]
_COLUMNS: Final = (
    Column("LIMIT", folds=True),
    Column("RUNNING", right=True),
    Column("AT ONCE", right=True),
)


def _path(name: str) -> str:
    if not name:
        fail("the name of a limit is empty.")
    return f"/api/limits/{quote(name, safe='')}"


@limit.command(name="list")
@connected
def list_limits(
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List named limits and how much of each is in use.

    Example:

      manyhands limit list
    """
    rows = link.every("/api/limits")
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows and sys.stdout.isatty():
        typer.echo("There are no limits. Set one: manyhands limit set database 2")
    else:
        print_table(
            _COLUMNS,
            [
                [
                    row["name"],
                    number(row["used"], "red" if row["used"] >= row["concurrency_max"] else ""),
                    Cell(str(row["concurrency_max"])),
                ]
                for row in rows
            ],
        )


@limit.command(name="set")
@connected
def set_limit(
    name: Name,
    concurrency: Annotated[
        int, typer.Argument(min=0, help="Jobs that may run at once.", metavar="NUMBER")
    ],
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Set how many jobs with this limit may run at once, in all queues together.

    Examples:

      manyhands limit set database 2

      manyhands submit report --limit database
    """
    found = link.put(_path(name), {"concurrency_max": concurrency})
    if as_json:
        print_json(found)
    else:
        noun = "job" if concurrency == 1 else "jobs"
        typer.echo(readable(f"{name}: {concurrency} {noun} at once."))


@limit.command()
@connected
def delete(
    name: Name,
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Delete a limit; the jobs that have it are no longer held back by it.

    Example:

      manyhands limit delete database
    """
    found = link.delete(_path(name))
    if as_json:
        print_json(found)
    else:
        typer.echo(readable(f"{name} is deleted."))

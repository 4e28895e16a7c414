"""`manyhands limit`: named limits on how many jobs run at once."""

from typing import Annotated, Final

import typer

from manyhands.cli import suggestions
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.named import add_delete, path_of, print_named
from manyhands.cli.output import Cell, Column, number, plural, print_json, readable
from manyhands.cli.stores import AsJson

limit = typer.Typer(
    help="List, set and delete named limits.",
    epilog="Example: manyhands limit set database 2",
    no_args_is_help=True,
)
Name = Annotated[
    str, typer.Argument(help="The limit's name.", metavar="NAME", autocompletion=suggestions.limits)
]
_COLUMNS: Final = (
    Column("LIMIT", folds=True),
    Column("RUNNING", right=True),
    Column("CONCURRENCY", right=True),
)


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
    print_named(
        link.every("/api/limits"),
        _COLUMNS,
        lambda row: [
            row["name"],
            number(row["used"], "red" if row["used"] >= row["concurrency_max"] else ""),
            Cell(str(row["concurrency_max"])),
        ],
        if_none="There are no limits. Set one: manyhands limit set database 2",
        as_json=as_json,
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
    found = link.put(path_of("limit", name), {"concurrency_max": concurrency})
    if as_json:
        print_json(found)
    else:
        typer.echo(readable(f"{name}: {plural(concurrency, 'job')} at once."))


add_delete(
    limit,
    "limit",
    Name,
    "Delete a limit; the jobs that have it are no longer held back by it.",
    "database",
)

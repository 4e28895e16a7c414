"""`manyhands servers`: the servers on the same database, and stopping one of them in order."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    NOTHING,
    Cell,
    Column,
    number,
    print_json,
    print_table,
    readable,
    span,
)
from manyhands.cli.stores import AsJson

servers = typer.Typer(
    help="List the servers on the same database; drain one of them.",
    epilog="Example: manyhands servers list",
    no_args_is_help=True,
)
_COLUMNS: Final = (
    Column("SERVER", folds=True),
    Column("STATE"),
    Column("PART"),
    Column("UP FOR", right=True),
    Column("ADDRESS"),
    Column("JOBS", right=True),
    Column("DECIDED/S", right=True),
    Column("FORWARDED/S", right=True),
    Column("COMMIT P99", right=True),
    Column("LINK", right=True),
    Column("VERSION"),
)


@servers.command(name="list")
@connected
def list_servers(
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List the servers, the longest running first.

    One decides about all jobs; the others pass on what their clients ask. LINK is the last round
    trip from the server that answers. In a pipe, a server is a line with tabs.

    Examples:

      manyhands servers list

      manyhands servers list --json | jq -r 'select(.decides).name'
    """
    found = link.get("/api/servers")
    if as_json:
        for server in found:
            print_json(server)
        return
    live = sys.stdout.isatty()
    now = link.now() if live else 0
    print_table(_COLUMNS, [_row(server, now, live=live) for server in found])


def _row(server: Mapping[str, Any], now: int, *, live: bool) -> list[Cell | str]:
    state = server["state"]
    since = server["since"]
    link = server["round_trip_ms"]
    if server["here"]:
        round_trip = Cell(NOTHING, "dim")
    elif not server["linked"]:
        round_trip = Cell("none", "bold red")
    else:
        round_trip = Cell(_milliseconds(link))
    return [
        Cell(server["name"], "bold"),
        Cell(state, "" if state == "serving" else "bold red" if state == "dead" else "yellow"),
        "decides" if server["decides"] else "front",
        span(now - since) if live else str(since),
        server["address"] or NOTHING,
        NOTHING if server["unfinished_jobs"] is None else number(server["unfinished_jobs"]),
        _rate(server["decided_per_second"]),
        _rate(server["forwarded_per_second"]),
        _milliseconds(server["commit_p99_ms"]),
        round_trip,
        server["version"],
    ]


def _rate(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _milliseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} ms"


@servers.command()
@connected
def drain(
    name: Annotated[str, typer.Argument(help="The server's name.", metavar="NAME")],
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Have a server hand over to the others, let its clients finish, and stop.

    As SIGTERM does. Its process exits with code 0.

    Example:

      manyhands servers drain jobs2
    """
    found = link.post(f"/api/servers/{quote(name, safe='')}/drain", {})
    if as_json:
        print_json(found)
    else:
        typer.echo(readable(f"{name} hands over and stops."))

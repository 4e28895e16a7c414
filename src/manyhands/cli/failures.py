"""`manyhands failures`: what went wrong, in groups."""

import sys
from typing import Annotated, Final

import typer

from manyhands.cli import suggestions
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    Cell,
    Column,
    Row,
    number,
    plural,
    print_json,
    print_styled,
    print_table,
    span,
)
from manyhands.cli.stores import AsJson
from manyhands.model.failures import headline

_COUNT: Final = 20
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = (
    Column("FAILED", right=True),
    Column("RETRYING", right=True),
    Column("LAST", right=True, spare=2),
    Column("24 HOURS", spare=3),
    Column("FAILURE", folds=True, shortest=36),
    Column("QUEUES", folds=True, spare=1),
    Column("GROUP"),
)


@connected
def failures(
    *,
    link: HttpLink,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            help="Only jobs of this queue.",
            metavar="QUEUE",
            autocompletion=suggestions.queues,
        ),
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="The latest first, not the largest.")
    ] = False,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=1, max=1_000, help="Number of groups.", metavar="NUMBER"),
    ] = _COUNT,
    as_json: AsJson = False,
) -> None:
    """Show failed jobs, and those being retried, in groups with similar failures.

    The last column is for `manyhands retry --failure GROUP` and `manyhands jobs failure:GROUP`. In
    a pipe, a group is a line with tabs: failed jobs, jobs being retried, instant of the last
    failure (milliseconds), the last 24 hours, failure, queues, group.

    Examples:

      manyhands failures

      manyhands failures --queue mail --latest
    """
    order = "latest" if latest else "count"
    page = link.page("/api/failures", queue=queue, order=order, count=count)
    groups = page["results"]
    if as_json:
        for group in groups:
            print_json(group)
        return
    live = sys.stdout.isatty()
    if live and not groups:
        print_styled("No job has failed or is being retried.", "green")
        return
    now = link.now() if live else 0
    rows: list[Row] = [
        [
            number(group["count"], "bold red"),
            number(group["retrying"], "yellow"),
            f"{span(now - group['last_at'])} ago" if live else str(group["last_at"]),
            _bars(group["trend"]) if live else ",".join(map(str, group["trend"])),
            Cell(headline(group["code"], group["message"])),
            ", ".join(group["queues"]),
            Cell(group["group"], "dim"),
        ]
        for group in groups
    ]
    print_table(_COLUMNS, rows)
    if live and page["groups"] > len(groups):
        more = page["groups"] - len(groups)
        print_styled(f"… and {plural(more, 'group')} more: -n {page['groups']}", "dim")


def _bars(trend: list[int]) -> str:
    most = max(trend) or 1
    top = len(_BARS) - 1
    return "".join(_BARS[-(-count * top // most)] for count in trend)

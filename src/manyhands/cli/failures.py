"""`manyhands failures`: what went wrong, in groups."""

import shutil
import sys
from typing import Annotated, Final

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    Cell,
    Column,
    Row,
    first_line,
    number,
    plural,
    print_json,
    print_styled,
    print_table,
    span,
)
from manyhands.cli.stores import AsJson

_COUNT: Final = 20
_TREND: Final = 2  # a column that is left out where there is little room
_WIDE_COLUMNS: Final = 110
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = (
    Column("JOBS", right=True),
    Column("LAST", right=True),
    Column("24 HOURS"),
    Column("FAILURE", folds=True),
    Column("QUEUES", folds=True),
    Column("GROUP"),
)


@connected
def failures(
    *,
    link: HttpLink,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only jobs of this queue.", metavar="QUEUE")
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
    """Show failed jobs in groups with similar failures.

    The last column is for `manyhands retry --failure GROUP` and `manyhands jobs failure:GROUP`. In
    a pipe, a group is a line with tabs: jobs, instant of the last failure (milliseconds), the last
    24 hours, failure, queues, group.

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
        print_styled("No job has failed.", "green")
        return
    now = link.now() if live else 0
    rows: list[Row] = [
        [
            number(group["count"], "bold red"),
            f"{span(now - group['last_at'])} ago" if live else str(group["last_at"]),
            _bars(group["trend"]) if live else ",".join(map(str, group["trend"])),
            Cell(": ".join(part for part in (group["code"], first_line(group["message"])) if part)),
            ", ".join(group["queues"]),
            Cell(group["group"], "dim"),
        ]
        for group in groups
    ]
    columns = list(_COLUMNS)
    if live and shutil.get_terminal_size().columns < _WIDE_COLUMNS:
        del columns[_TREND]
        rows = [[*row[:_TREND], *row[_TREND + 1 :]] for row in rows]
    print_table(columns, rows)
    if live and page["groups"] > len(groups):
        more = page["groups"] - len(groups)
        print_styled(f"… and {plural(more, 'group')} more: -n {page['groups']}", "dim")


def _bars(trend: list[int]) -> str:
    most = max(trend) or 1
    top = len(_BARS) - 1
    return "".join(_BARS[-(-count * top // most)] for count in trend)

"""`manyhands workers`: which worker holds which jobs, and for how long."""

import sys
from collections.abc import Mapping
from typing import Any, Final

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    NOTHING,
    Cell,
    Column,
    number,
    print_json,
    print_table,
    short_id,
    span,
)
from manyhands.cli.stores import AsJson

_COLUMNS: Final = (
    Column("WORKER", folds=True),
    Column("PROTOCOL", spare=1),
    Column("ADDRESS", spare=3),
    Column("JOBS", right=True),
    Column("HOLDING FOR", right=True),
    Column("LEASE ENDS", right=True, spare=2),
    Column("QUEUE", folds=True),
    Column("JOB"),
)


@connected
def workers(
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List workers that hold jobs, the one that has held a job for longest first.

    Queue and job are those of its oldest lease. `manyhands expire --worker NAME` takes its jobs
    away. In a pipe, a worker is a line with tabs, with instants in milliseconds instead of
    durations.

    Examples:

      manyhands workers

      manyhands workers --json | jq -r .name
    """
    found = link.every("/api/workers")
    found.sort(key=lambda worker: _oldest(worker)["claimed_at"])
    if as_json:
        for worker in found:
            print_json(worker)
        return
    live = sys.stdout.isatty()
    if live and not found:
        typer.echo("No worker holds a job.")
        return
    now = link.now() if live else 0
    print_table(_COLUMNS, [_row(worker, now, live=live) for worker in found])


def _oldest(worker: Mapping[str, Any]) -> dict[str, Any]:
    return min(worker["leases"], key=lambda lease: lease["claimed_at"])


def _row(worker: Mapping[str, Any], now: int, *, live: bool) -> list[Cell | str]:
    lease = _oldest(worker)
    ends_at = lease["expires_at"]
    if lease["lapsed"]:
        ends = Cell("expired", "bold red")
    elif ends_at is None:
        ends = Cell("never" if live else NOTHING, "dim")
    else:
        ends = Cell(f"in {span(ends_at - now)}" if live else str(ends_at))
    return [
        Cell(worker["name"] or NOTHING, "bold"),
        worker["realm"],
        worker["address"],
        number(worker["leases_count"]),
        span(now - lease["claimed_at"]) if live else str(lease["claimed_at"]),
        ends,
        lease["queue"],
        short_id(lease["id"]),
    ]

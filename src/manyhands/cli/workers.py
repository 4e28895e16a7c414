"""`manyhands workers`: which worker holds which jobs, and for how long; and which are idle."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    NOTHING,
    Cell,
    Column,
    Row,
    ago,
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
    Column("LAST SEEN", right=True, spare=4),
)
_IDLE_MS_MAX: Final = 600_000


@connected
def workers(
    *,
    link: HttpLink,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also idle workers that were last seen up to a day ago."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List workers: those that hold jobs, the longest first, then idle ones.

    Queue and job are those of the oldest lease, or the queues that an idle worker waits for. An
    idle worker is listed if it waits for work or was seen in the last ten minutes. `manyhands
    expire --worker NAME` takes jobs away. In a pipe, a worker is a line with tabs, with instants in
    milliseconds instead of durations: name, protocol, address, jobs, start and end of the oldest
    lease, queue, job, last sign of an idle worker.

    Examples:

      manyhands workers

      manyhands workers --json | jq -r .name
    """
    now = link.now()
    busy, idle = [], []
    for worker in link.every("/api/workers", idle="true"):
        if worker["leases"]:
            busy.append(worker)
        elif everything or _is_here(worker, now):
            idle.append(worker)
    busy.sort(key=lambda worker: _oldest(worker)["claimed_at"])
    idle.sort(key=lambda worker: (worker["awaits"] is None, -(worker["seen_at"] or 0)))
    found = busy + idle
    if as_json:
        for worker in found:
            print_json(worker)
        return
    live = sys.stdout.isatty()
    if live and not found:
        typer.echo("No worker is known. Start one: manyhands work mail --command …")
        return
    rows = [_busy_row(worker, now, live=live) for worker in busy]
    print_table(_COLUMNS, rows + [_idle_row(worker, now, live=live) for worker in idle])


def _is_here(worker: Mapping[str, Any], now: int) -> bool:
    """Whether an idle worker waits for work, or did something a moment ago."""
    return worker["awaits"] is not None or now - (worker["seen_at"] or 0) < _IDLE_MS_MAX


def _oldest(worker: Mapping[str, Any]) -> dict[str, Any]:
    return min(worker["leases"], key=lambda lease: lease["claimed_at"])


def _busy_row(worker: Mapping[str, Any], now: int, *, live: bool) -> Row:
    lease = _oldest(worker)
    ends_at = lease["expires_at"]
    if lease["lapsed"]:
        ends = Cell("expired", "bold red")
    elif ends_at is None:
        ends = Cell("never" if live else NOTHING, "dim")
    else:
        ends = Cell(f"in {span(ends_at - now)}" if live else str(ends_at))
    since = span(now - lease["claimed_at"]) if live else str(lease["claimed_at"])
    return [*_who(worker), since, ends, lease["queue"], short_id(lease["id"]), NOTHING]


def _idle_row(worker: Mapping[str, Any], now: int, *, live: bool) -> Row:
    awaits, seen_at = worker["awaits"], worker["seen_at"]
    if awaits is not None:
        waits = Cell(f"waits for {', '.join(awaits) or 'any'}" if live else ",".join(awaits), "dim")
    elif live and worker["last_queue"]:
        waits = Cell(f"last in {worker['last_queue']}", "dim")
    else:
        waits = Cell(NOTHING, "dim")
    seen = ago(seen_at, now) if live or seen_at is None else str(seen_at)
    return [*_who(worker), NOTHING, NOTHING, waits, NOTHING, seen]


def _who(worker: Mapping[str, Any]) -> Row:
    name = Cell(worker["name"] or NOTHING, "bold" if worker["leases"] else "")
    return [name, worker["realm"], worker["address"] or NOTHING, number(worker["leases_count"])]

"""`manyhands schedule`: jobs that are submitted again and again."""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from manyhands.cli import suggestions
from manyhands.cli.content import as_content
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.named import add_delete, add_pausing, path_of, print_named
from manyhands.cli.output import (
    NOTHING,
    Cell,
    Column,
    ago,
    moment,
    number,
    print_facts,
    print_json,
    readable,
    short_id,
    span,
)
from manyhands.cli.stores import AsJson, fail, misuse

schedule = typer.Typer(
    help="List, show, set, pause, resume, run and delete schedules.",
    epilog="Example: manyhands schedule set nightly reports --cron '0 3 * * *'",
    no_args_is_help=True,
)
Name = Annotated[
    str,
    typer.Argument(
        help="The schedule's name.", metavar="NAME", autocompletion=suggestions.schedules
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(
        help="Names of schedules.", metavar="NAME...", autocompletion=suggestions.schedules
    ),
]
# What a job of a schedule has from it.
_TEMPLATE: Final = ("queue", "payload", "encoding", "priority", "tags", "limits", "headers")
_COLUMNS: Final = (
    Column("SCHEDULE", folds=True),
    Column("QUEUE", folds=True),
    Column("WHEN", folds=True),
    Column("NEXT", right=True),
    Column("FIRED", right=True, spare=2),
    Column("LAST JOB", spare=1),
)


def _when(row: Mapping[str, Any]) -> str:
    if row["interval_ms"] is not None:
        return f"every {span(row['interval_ms'])}"
    return f"{row['cron']} {row['time_zone']}"


@schedule.command(name="list")
@connected
def list_schedules(
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List schedules, and when each submits its next job.

    Example:

      manyhands schedule list
    """
    live = sys.stdout.isatty()
    print_named(
        link.every("/api/schedules"),
        _COLUMNS,
        lambda row: [
            Cell(row["id"], "bold"),
            row["queue"],
            _when(row),
            Cell("paused", "yellow")
            if row["paused"]
            else Cell(ago(row["next_at"], link.now()) if live else str(row["next_at"])),
            number(row["fired_count"]),
            short_id(row["last_job_id"]) if row["last_job_id"] else NOTHING,
        ],
        if_none="There are no schedules. See `manyhands schedule set --help`.",
        as_json=as_json,
    )


@schedule.command()
@connected
def show(
    name: Name,
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Show one schedule.

    Example:

      manyhands schedule show nightly
    """
    found = _found(link, name)
    if as_json:
        print_json(found)
        return
    print_facts(
        [
            ("schedule", found["id"]),
            ("queue", found["queue"]),
            ("when", _when(found)),
            ("next", "paused" if found["paused"] else moment(found["next_at"])),
            ("fired", str(found["fired_count"])),
            ("last job", found["last_job_id"] or NOTHING),
            ("catches up", str(found["backlog_max"])),
            ("one at a time", "yes" if found["unique"] else "no"),
            ("priority", f"{found['priority']:g}"),
            ("tags", ", ".join(found["tags"]) or NOTHING),
            ("limits", ", ".join(found["limits"]) or NOTHING),
            ("payload", _as_text(found["payload"])),
        ]
    )


def _as_text(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _found(link: HttpLink, name: str) -> dict[str, Any]:
    rows = link.every("/api/schedules")
    found = next((row for row in rows if row["id"] == name), None)
    if found is None:
        fail(f"there is no schedule {name}; `manyhands schedule list` shows all.")
    return found  # type: ignore[no-any-return]


@schedule.command(name="set")
@connected
def set_schedule(  # noqa: PLR0913 - each is a flag
    name: Name,
    queue: Annotated[
        str,
        typer.Argument(
            help="The queue to submit to.", metavar="QUEUE", autocompletion=suggestions.queues
        ),
    ],
    payload: Annotated[
        str, typer.Argument(help="Data for the worker; - is standard input.", show_default=False)
    ] = "",
    *,
    link: HttpLink,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", help="A job each time this has passed.", metavar=METAVAR, parser=seconds()
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option("--cron", help="Minute, hour, day, month, day of the week.", metavar="LINE"),
    ] = None,
    time_zone: Annotated[
        str,
        typer.Option("--time-zone", help="For --cron, such as Europe/Berlin.", metavar="ZONE"),
    ] = "UTC",
    catch_up: Annotated[
        int,
        typer.Option(
            "--catch-up",
            min=0,
            help="Missed jobs to submit after an outage, for --every.",
            metavar="NUMBER",
        ),
    ] = 1,
    unique: Annotated[
        bool, typer.Option("--unique", help="Skip while its last job is unfinished.")
    ] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Submit nothing for now.")] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", help="A tag for its jobs; may be repeated.", metavar="TAG"),
    ] = None,
    priority: Annotated[
        float, typer.Option("--priority", "-p", help="Higher goes first.", metavar="NUMBER")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Create or replace a schedule.

    Examples:

      manyhands schedule set nightly reports '{"all": true}' --cron '0 3 * * *' --time-zone Europe/Berlin

      manyhands schedule set pulse health --every 30s --unique
    """  # noqa: E501 - an example is one line
    if (every is None) == (cron is None):
        misuse("a schedule needs --every or --cron, and not both.")
    body: dict[str, Any] = {
        "queue": queue,
        "backlog_max": catch_up,
        "unique": unique,
        "paused": paused,
        "priority": priority,
        "tags": tag or [],
    }
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode(errors="surrogateescape")
    if data:
        body["payload"], body["encoding"] = as_content(data)
    if every is not None:
        body["interval_ms"] = round(every * 1000)
    else:
        body |= {"cron": cron, "time_zone": time_zone}
    found = link.put(path_of("schedule", name), body)
    if as_json:
        print_json(found)
    else:
        next_at = f"the next job is due {moment(found['next_at'])}"
        typer.echo(readable(f"{name}: {'it is paused' if paused else next_at}."))


def _set_paused(
    link: HttpLink,
    names: list[str],
    paused: bool,  # noqa: FBT001
) -> Iterator[tuple[Any, str]]:
    for name in names:
        found = link.put(path_of("schedule", name), {"paused": paused})
        resumed = f"{name} is resumed; the next job is due {moment(found['next_at'])}."
        yield found, f"{name} is paused." if paused else resumed


add_pausing(
    schedule,
    "schedule",
    Names,
    _set_paused,
    "Submit no more jobs of these schedules for now.",
    "Submit the jobs of these schedules again; those missed meanwhile are not caught up.",
    "nightly",
)


@schedule.command()
@connected
def run(
    name: Name,
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Submit one job of a schedule now, besides those that are due anyway.

    Example:

      manyhands schedule run nightly
    """
    found = _found(link, name)
    body = {key: found[key] for key in _TEMPLATE if found[key] not in (None, [], {})}
    job = link.post("/api/submit", body | found["terms"])
    if as_json:
        print_json(job)
    else:
        typer.echo(job["id"])


add_delete(
    schedule,
    "schedule",
    Name,
    "Delete a schedule; the jobs that it has submitted stay.",
    "nightly",
)

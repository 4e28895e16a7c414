"""`manyhands jobs`: lists jobs that match a search."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    Cell,
    Column,
    ago,
    print_json,
    print_styled,
    print_table,
    short_id,
    span,
    state_cell,
)
from manyhands.cli.stores import AsJson
from manyhands.model.failures import headline
from manyhands.model.traces import telling_line

_COUNT: Final = 20
_COUNT_PIPE: Final = 100
_PAGE_COUNT: Final = 1_000
_COLUMNS: Final = (
    Column("ID"),
    Column("QUEUE", folds=True),
    Column("STATE"),
    Column("AGE", right=True),
    Column("ATTEMPTS", right=True, spare=1),
    Column("DETAIL", folds=True, shortest=24),
)


@connected
def jobs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to look for, as in the search of the pages; without it, the newest jobs.",
            metavar="[SEARCH]...",
        ),
    ] = None,
    *,
    link: HttpLink,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=0,
            help="Maximum number of jobs; 0 is all (default: 20 on a terminal, 100 in a pipe).",
            metavar="NUMBER",
            show_default=False,
        ),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first.

    The search has words with qualifiers, all of which must match: state:failed,cancelled queue:mail
    tag:urgent worker:host-7 protocol:gearman name:task-3 key:k id:8cd39c41 failure:GROUP age>1h
    age<5m is:retrying; other words are looked for in the payload, the name and the failure. In a
    pipe, a job is a line with tabs: id, queue, state, instant of its submission (milliseconds),
    attempts, detail.

    Examples:

      manyhands jobs

      manyhands jobs state:failed queue:mail 'age<1h'

      manyhands jobs 'tag:campaign-7' -n 0 --json | jq -r .id
    """
    from manyhands.cli.identity import find_job, is_tail
    from manyhands.cli.search import search

    now = link.now()
    bounded = count is None
    words = words or []
    wanted, job_id = search(" ".join(words), now)
    live = sys.stdout.isatty()
    if job_id is None and len(words) == 1 and is_tail(words[0]):
        # As on the pages, a part of an id finds its job; there is no other use of such a word.
        rows = link.get("/api/jobs", id_tail=words[0].lower()) or link.get("/api/jobs", **wanted)
        more = False
    elif job_id is not None:
        given = next((word for word in words if word.startswith("id:")), words[0])
        given = given.removeprefix("id:")
        rows, more = [find_job(link, given.strip('"'))], False
    else:
        if count is None:
            count = _COUNT if live and not as_json else _COUNT_PIPE
        rows, more = _listed(link, wanted, count, oldest=oldest)
    if more and bounded and (as_json or not live):
        typer.echo(f"manyhands: only the first {len(rows):,}; -n 0 lists all.", err=True)
    if as_json:
        for row in rows:
            print_json(row)
        return
    if live and not rows:
        typer.echo("No job matches.")
        return
    print_table(_COLUMNS, [_row(row, now, live=live) for row in rows])
    if live and more:
        print_styled(f"… there are more: -n {4 * len(rows)}", "dim")


def _listed(
    link: HttpLink, wanted: dict[str, Any], count: int, *, oldest: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The jobs, and whether there are more."""
    order = "oldest" if oldest else "newest"
    found: list[dict[str, Any]] = []
    after: int | None = None
    while True:
        left = count - len(found) if count else _PAGE_COUNT
        page = link.page(
            "/api/jobs", **wanted, order=order, count=min(left, _PAGE_COUNT), after=after
        )
        found += page["results"]
        after = page["next"]
        if after is None or (count and len(found) >= count):
            return found, after is not None


def _row(job: Mapping[str, Any], now: int, *, live: bool) -> list[Cell | str]:
    return [
        short_id(job["id"]),
        job["queue"],
        state_cell(job["state"]),
        span(now - job["submitted_at"]) if live else str(job["submitted_at"]),
        str(job["lease_number"]),
        Cell(detail(job, now), "red" if job["state"] == "failed" else ""),
    ]


def detail(job: Mapping[str, Any], now: int) -> str:
    """What there is to say about a job in one line."""
    state, lease, failure = job["state"], job["lease"], job["failure"]
    said = ""
    if failure is not None:
        said = headline(failure["code"], telling_line(failure["message"]))
    if state == "leased" and lease is not None:
        worker = lease["holder"]["name"] or lease["holder"]["address"]
        return f"{worker} for {span(now - lease['claimed_at'])}"
    if state == "delayed":
        due = ago(job["run_at"], now)
        return f"retry {due}: {said}" if said else due
    if state == "completed" or not (said or job["reason"]):
        return ", ".join(job["tags"])
    return said or job["reason"]

"""Tasks that the server has on record, listed and retried over the native API."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import typer

from manyhands.cli.bulk import watch
from manyhands.cli.http_link import HttpLink
from manyhands.cli.profiles import destination
from manyhands.cli.stores import fail
from manyhands.model.job import State

_PAGE_COUNT: Final = 1_000
_IDS_COUNT_MAX: Final = 10_000  # in one operation


def show_tasks(
    http: str | None,
    token_file: Path | None,
    queue: str,
    *,
    states: Sequence[State],
    count: int,
    as_json: bool,
) -> int:
    """Prints a table on a terminal, plain lines elsewhere; returns how many there were."""
    link = HttpLink(destination(http, token_file=token_file))
    rows = []
    for row in _tasks(link, queue, states):
        rows.append(_facts(row))
        if len(rows) == count:
            break
    if as_json:
        for facts in rows:
            typer.echo(msgspec.json.encode(facts).decode())
    elif sys.stdout.isatty() and rows:
        _print_table(rows)
    else:
        for facts in rows:
            typer.echo("\t".join(str(value) for value in facts.values()))
    return len(rows)


def retry_tasks(
    http: str | None, token_file: Path | None, queue: str, names: Sequence[str], *, as_json: bool
) -> None:
    """Retries the tasks of these names, or all that failed."""
    link = HttpLink(destination(http, token_file=token_file))
    if names:
        latest = {name: _latest(link, queue, name) for name in names}
        wrong = [
            f"{name} ({row['state'] if row is not None else 'unknown'})"
            for name, row in latest.items()
            if row is None or row["state"] != State.FAILED
        ]
        if wrong:
            fail(f"not failed: {', '.join(wrong)}. Nothing was done.")
        ids = [row["id"] for row in latest.values() if row is not None]
    else:
        ids = [row["id"] for row in _tasks(link, queue, [State.FAILED])]
    changed, refused = 0, 0
    for first in range(0, len(ids), _IDS_COUNT_MAX):
        body = {"action": "retry", "ids": ids[first : first + _IDS_COUNT_MAX]}
        bulk = watch(link, link.post("/api/bulk", body))
        changed += bulk["changed"]
        refused += sum(bulk["refused"].values())
    if as_json:
        typer.echo(msgspec.json.encode({"retried": changed, "refused": refused}).decode())
    else:
        typer.echo(f"retried {changed} tasks" + (f", {refused} were refused" if refused else ""))
    if refused:
        raise SystemExit(1)


def _tasks(link: HttpLink, queue: str, states: Sequence[State]) -> Iterator[dict[str, Any]]:
    """Tasks, oldest first. A failure counts only until the task is created again."""
    given = {"queue": queue, "order": "oldest", "count": str(_PAGE_COUNT)}
    if states:
        given["state"] = ",".join(states)
    while True:
        page = link.page(f"/api/jobs?{urlencode(given)}")
        for row in page["results"]:
            if row["state"] == State.FAILED and "name" in row:
                latest = _latest(link, queue, row["name"])
                if latest is None or latest["id"] != row["id"]:
                    continue
            yield row
        if page.get("next") is None:
            return
        given["after"] = str(page["next"])


def _latest(link: HttpLink, queue: str, name: str) -> dict[str, Any] | None:
    given = {"queue": queue, "name": name, "count": "1"}
    while True:
        page = link.page(f"/api/jobs?{urlencode(given)}")
        if page["results"] or page.get("next") is None:
            return page["results"][0] if page["results"] else None
        given["after"] = str(page["next"])


def _facts(row: dict[str, Any]) -> dict[str, object]:
    failure = row.get("failure") or {}
    lines = (failure.get("message") or failure.get("code") or "").strip().splitlines()
    lease = row.get("lease") or {}
    return {
        "state": row["state"],
        "attempts": row["attempts_used"],
        "name": row.get("name") or row["id"],
        "location": (lease.get("holder") or {}).get("name") or "",
        "failure": lines[-1] if lines else "",
    }


def _print_table(rows: Sequence[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for key in rows[0]:
        table.add_column(key, overflow="fold")
    for facts in rows:
        table.add_row(*(str(value) for value in facts.values()))
    Console(highlight=False, markup=False).print(table)

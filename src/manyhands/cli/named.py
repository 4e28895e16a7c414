"""Things that have a name: their path in the API, listing them, and deleting one."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import typer

from manyhands.cli.http_link import HttpLink
from manyhands.cli.output import Column, Row, print_json, print_table, readable
from manyhands.cli.stores import misuse


def path_of(kind: str, name: str) -> str:
    """The path of a `queue`, `limit` or `schedule`."""
    if not name:
        misuse(f"the name of a {kind} is empty.")
    return f"/api/{kind}s/{quote(name, safe='')}"


def print_named(
    found: Iterable[dict[str, Any]],
    columns: Sequence[Column],
    row: Callable[[dict[str, Any]], Row],
    *,
    if_none: str,
    as_json: bool,
) -> None:
    """A table, or lines of JSON; on a terminal, a sentence if there are none."""
    rows = list(found)
    if as_json:
        for one in rows:
            print_json(one)
    elif not rows and sys.stdout.isatty():
        typer.echo(if_none)
    else:
        print_table(columns, [row(one) for one in rows])


def delete_named(link: HttpLink, kind: str, name: str, *, as_json: bool) -> None:
    """Deletes it, and says so."""
    found = link.delete(path_of(kind, name))
    if as_json:
        print_json(found)
    else:
        typer.echo(readable(f"{name} is deleted."))

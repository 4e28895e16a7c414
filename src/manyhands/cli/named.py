"""Things that have a name: their path in the API, listing, pausing and deleting them."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import typer

from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import Column, Row, print_json, print_table, readable
from manyhands.cli.stores import AsJson, misuse


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


def add_delete(group: typer.Typer, kind: str, name_kind: Any, what: str, example: str) -> None:  # noqa: ANN401
    """Adds the command that deletes one of them."""

    def delete(name: name_kind, *, link: HttpLink, as_json: AsJson = False) -> None:
        found = link.delete(path_of(kind, name))
        if as_json:
            print_json(found)
        else:
            typer.echo(readable(f"{name} is deleted."))

    _add(group, kind, delete, what, example)


def add_pausing(
    group: typer.Typer,
    kind: str,
    names_kind: Any,  # noqa: ANN401
    set_paused: Callable[[HttpLink, list[str], bool], Iterable[tuple[Any, str]]],
    pauses: str,
    resumes: str,
    example: str,
) -> None:
    """Adds the commands that pause and resume some of them. ``set_paused`` gives, for each, the
    answer and a sentence.
    """

    def pause(names: names_kind, *, link: HttpLink, as_json: AsJson = False) -> None:
        _print_each(set_paused(link, names, True), as_json=as_json)  # noqa: FBT003

    def resume(names: names_kind, *, link: HttpLink, as_json: AsJson = False) -> None:
        _print_each(set_paused(link, names, False), as_json=as_json)  # noqa: FBT003

    _add(group, kind, pause, pauses, example)
    _add(group, kind, resume, resumes, example)


def _add(
    group: typer.Typer, kind: str, command: Callable[..., None], what: str, example: str
) -> None:
    name = command.__name__
    text = f"{what}\n\nExample:\n\n  manyhands {kind} {name} {example}"
    group.command(name=name, help=text)(connected(command))


def _print_each(done: Iterable[tuple[Any, str]], *, as_json: bool) -> None:
    for answer, sentence in done:
        if as_json:
            print_json(answer)
        else:
            typer.echo(readable(sentence))

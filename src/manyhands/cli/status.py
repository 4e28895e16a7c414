"""`manyhands status`: how things are, at a glance."""

import shutil
import sys
import textwrap
from typing import Annotated, Final

import typer
from msgspec.structs import asdict

from manyhands.cli.attention import Note, gathered
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.output import (
    plain,
    print_json,
    print_styled,
    print_table,
    readable,
)
from manyhands.cli.stores import AsJson

_SHOWN_MAX: Final = 20
_INDENT: Final = 17
_ABOUT_MAX: Final = 120


@connected
def status(
    *,
    link: HttpLink,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every queue, not only the busiest twenty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the queues and what needs attention; exits 1 if something needs a person.

    Exit codes: 0 all is well, 1 something needs a person (or the server does not answer), 2 wrong
    arguments. In a pipe, each queue is a line with tabs: name, ready, running, delayed,
    retrying, blocked, failed, completed, oldest wait (milliseconds), workers; what needs attention
    goes to standard error.

    Examples:

      manyhands status

      manyhands status --json | jq .attention

      manyhands status > /dev/null || page-somebody
    """
    from manyhands.cli.picture import COLUMNS, busiest, queue_row, take_picture

    picture = take_picture(link)
    found = picture.notes()
    if as_json:
        print_json(
            {
                "version": picture.about["version"],
                "uptime_ms": picture.about["uptime_ms"],
                "totals": picture.totals(),
                "retrying": picture.retrying(),
                "rate": picture.rate,
                "last_minute": picture.minute,
                "attention": [asdict(note) for note in found],
                "queues": picture.queues,
            }
        )
    else:
        live = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns
        if live:
            for line in textwrap.wrap(plain(picture.headline()), width):
                print_styled(line, "dim")
            typer.echo()
        queues = busiest(picture.queues)
        shown = queues[:_SHOWN_MAX] if live and not everything else queues
        if shown:
            print_table(COLUMNS, [queue_row(queue) for queue in shown])
        elif live:
            typer.echo("There are no queues yet. Submit a job: manyhands submit mail 'hello'")
        if len(shown) < len(queues):
            print_styled(f"… and {len(queues) - len(shown):,} more: --all shows them", "dim")
        _print_notes(gathered(found), live=live)
    if found:
        raise SystemExit(1)


def _print_notes(found: list[Note], *, live: bool) -> None:
    if not live:
        for note in found:
            words = ": ".join(part for part in (note.what, note.about, note.detail) if part)
            typer.echo(readable(words), err=True)
        return
    typer.echo()
    if not found:
        print_styled("✓ Nothing needs attention.", "green")
        return
    print_styled("Needs attention", "bold")
    width = shutil.get_terminal_size().columns
    for note in found:
        about = note.about if len(note.about) <= _ABOUT_MAX else f"{note.about[:_ABOUT_MAX]}…"
        words = ": ".join(part for part in (about, note.detail) if part)
        style = "red" if note.level == "bad" else "yellow"
        # By hand, so that a command below stays in one line, to be copied.
        first, *more = textwrap.wrap(plain(words), max(20, width - _INDENT)) or [""]
        print_styled(f"  {note.what:<{_INDENT - 4}}  {first}", style)
        for line in (*more, *((note.remedy,) if note.remedy else ())):
            print_styled(f"{'':<{_INDENT}}{line}", style if line in more else "dim")

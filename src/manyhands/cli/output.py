"""What commands print: tables with colours on a terminal, lines with tabs in a pipe, JSON."""

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec
import typer
from msgspec import Struct

from manyhands.config.durations import as_duration

NOTHING = "-"
# The state as people call it; the API's own word stands in pipes and in JSON.
STATE_WORDS = {"leased": "running"}
STATE_STYLES = {
    "blocked": "magenta",
    "delayed": "blue",
    "ready": "cyan",
    "leased": "bold yellow",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "dim",
}


class Cell(Struct, frozen=True):
    """A text, and how it looks on a terminal."""

    text: str
    style: str = ""


# One cell for each column.
Row = Sequence["Cell | str"]


class Column(Struct, frozen=True):
    """The heading of a column, and how it is set on a terminal."""

    title: str
    right: bool = False
    folds: bool = False  # is cut where the terminal is narrow
    wraps: bool = False  # goes on in the next line there


def print_json(value: object) -> None:
    """One line of JSON."""
    typer.echo(msgspec.json.encode(value).decode())


def print_table(columns: Sequence[Column], rows: Sequence[Row], title: str = "") -> None:
    """A table on a terminal; elsewhere a line for each row, with tabs between the cells."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(plain(_text(cell)) for cell in row))
        return
    from rich.console import Console

    Console(highlight=False).print(table_of(columns, rows, title))


def table_of(columns: Sequence[Column], rows: Sequence[Row], title: str = "") -> Any:  # noqa: ANN401 - rich is imported where there is a terminal
    """The same, for a display that is drawn again and again."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None,
        header_style="bold",
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        # Other columns stay whole: an id that is cut is of no use.
        widest = max((len(_text(row[index])) for row in rows), default=0)
        least = 8 if column.folds or column.wraps else max(widest, len(column.title))
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            min_width=least,
        )
    for row in rows:
        table.add_row(
            *(
                Text(plain(_text(cell)), style=cell.style if isinstance(cell, Cell) else "")
                for cell in row
            )
        )
    return table


def print_styled(text: str, style: str = "", *, err: bool = False) -> None:
    """A line, in colour on a terminal."""
    stream = sys.stderr if err else sys.stdout
    if not style or not stream.isatty():
        typer.echo(plain(text), err=err)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=err, highlight=False, soft_wrap=True).print(Text(plain(text), style=style))


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def plain(text: str) -> str:
    """A text from outside in one line: control characters could rewrite the screen, and marks of
    direction could show something else than there is.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_sign, text))


def readable(text: str) -> str:
    """The same for a text that may have several lines."""
    return "\n".join(plain(line.expandtabs(4)) for line in text.splitlines())


def _sign(character: str) -> str:
    if character in "\n\t\r":
        return " "
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return "\ufffd"
    return character


def state_cell(state: str) -> Cell:
    """A state, coloured; on a terminal in the usual word."""
    word = STATE_WORDS.get(state, state) if sys.stdout.isatty() else state
    return Cell(word, STATE_STYLES.get(state, ""))


def number(count: int, style: str = "") -> Cell:
    """A number; zero is faint on a terminal, and plain digits stand in a pipe."""
    if not sys.stdout.isatty():
        return Cell(str(count))
    return Cell(f"{count:,}", style if count else "dim")


def plural(count: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def span(ms: float | None) -> str:
    """A duration, or a dash."""
    return NOTHING if ms is None else as_duration(ms)


def ago(at: int | None, now: int) -> str:
    """How long ago an instant was, or in how long it will be."""
    if at is None:
        return NOTHING
    if at > now:
        return f"in {as_duration(at - now)}"
    return f"{as_duration(now - at)} ago"


def moment(at: int | None) -> str:
    """An instant, in the time zone of this machine."""
    from datetime import UTC, datetime

    if at is None:
        return NOTHING
    try:
        return (
            datetime.fromtimestamp(at / 1000, UTC)
            .astimezone()
            .isoformat(" ", timespec="milliseconds")
        )
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"


def short_id(job_id: str) -> str:
    """The end of an id, which commands accept as well; the beginning is much the same for all
    jobs of a day. In a pipe, all of it.
    """
    if not sys.stdout.isatty() or len(job_id) <= _TAIL:
        return job_id
    return job_id[-_TAIL:]


_TAIL = 12


def first_line(text: str) -> str:
    """The line that tells: of a traceback the last one, otherwise the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1].strip() if lines[0].startswith("Traceback (most recent") else lines[0].strip()

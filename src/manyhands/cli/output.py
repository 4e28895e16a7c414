"""What commands print: tables with colours on a terminal, lines with tabs in a pipe, JSON."""

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import typer
from msgspec import Struct

from manyhands.config.durations import as_duration

NOTHING = "-"
_TAIL: Final = 12  # digits of an id that are shown
_GAP: Final = 2  # between columns
_HEADING_MIN: Final = 4
_NAME_MIN: Final = 8
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
    shortest: int = 16  # how far it is cut or wrapped, if it is
    spare: int = 0  # is left out where it is narrower still, those with the highest number first

    def least(self, widest: int) -> int:
        """The width that it needs, if its texts need this much."""
        if self.folds or self.wraps:
            return min(widest, self.shortest)
        return widest


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

    console = Console(highlight=False)
    console.print(table_of(columns, rows, console.width, title))


def table_of(columns: Sequence[Column], rows: Sequence[Row], room: int, title: str = "") -> Any:  # noqa: ANN401 - rich is imported where there is a terminal
    """The same, for a display that is drawn again and again. Cells are cut, and columns left out,
    until the table fits: what may not be cut is of no use in part, such as an id.
    """
    from rich.table import Table
    from rich.text import Text

    widths = fitted(columns, rows, room)
    table = Table(
        box=None,
        header_style="bold",
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for at, width in widths.items():
        column = columns[at]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            width=width,
        )
    for row in rows:
        cells = [row[at] for at in widths]
        table.add_row(
            *(
                Text(plain(_text(cell)), style=cell.style if isinstance(cell, Cell) else "")
                for cell in cells
            )
        )
    return table


def fitted(columns: Sequence[Column], rows: Sequence[Row], room: int) -> dict[int, int]:
    """The columns that are shown, by their place, and how wide each is."""
    from rich.cells import cell_len

    values = [
        max((cell_len(plain(_text(row[at]))) for row in rows), default=0)
        for at in range(len(columns))
    ]
    widest = {at: max(cell_len(column.title), values[at]) for at, column in enumerate(columns)}

    def needed(widths: dict[int, int]) -> int:
        return sum(widths.values()) + _GAP * (len(widths) - 1)

    least = {at: column.least(widest[at]) for at, column in enumerate(columns)}
    while needed(least) > room:
        spare = max(least, key=lambda at: columns[at].spare)
        if not columns[spare].spare:
            break
        del least[spare]
    # Where that is not enough, headings of numbers are cut, then names by more; never the values.
    for at in [at for at in least if columns[at].right]:
        if needed(least) > room:
            least[at] = max(_HEADING_MIN, least[at] - (needed(least) - room), values[at])
    for at in [at for at in least if columns[at].folds or columns[at].wraps]:
        if needed(least) > room:
            least[at] = min(least[at], max(_NAME_MIN, least[at] - (needed(least) - room)))
    # The room that is left goes to those that are cut, the shortest first.
    widths = dict(least)
    cut = sorted((at for at in least if least[at] < widest[at]), key=widest.__getitem__)
    for place, at in enumerate(cut):
        share = (room - needed(widths)) // (len(cut) - place)
        widths[at] = min(widest[at], widths[at] + max(0, share))
    return widths


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """A line for each, aligned on a terminal, with a tab in a pipe."""
    width = max((len(key) for key, _ in facts), default=0) + _GAP
    for key, text in facts:
        if sys.stdout.isatty():
            typer.echo(f"  {key:<{width}}{plain(text)}")
        else:
            typer.echo(f"{key}\t{plain(text)}")


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


def duration(ms: int | None) -> str:
    """A duration in a table; milliseconds in a pipe."""
    return span(ms) if ms is None or sys.stdout.isatty() else str(ms)


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

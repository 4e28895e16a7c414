"""`manyhands top`: the queues of a server, live, on the whole screen."""

import contextlib
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from manyhands.cli.attention import gathered
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected
from manyhands.cli.output import (
    NOTHING,
    Cell,
    Column,
    print_json,
    print_table,
    span,
    table_of,
)
from manyhands.cli.picture import COLUMNS, Picture, queue_row, take_picture
from manyhands.cli.stores import AsJson, fail

Row = Mapping[str, Any]
# A key, what it sorts by, and how; names go up, numbers down.
_SORTS: Final[dict[str, tuple[str, Callable[[Row], Any]]]] = {
    "n": ("name", lambda queue: queue["name"]),
    "r": ("ready", lambda queue: -queue["counts"]["ready"]),
    "l": ("running", lambda queue: -queue["counts"]["leased"]),
    "d": ("delayed", lambda queue: -queue["counts"]["delayed"]),
    "y": ("retrying", lambda queue: -queue["retrying"]),
    "b": ("blocked", lambda queue: -queue["counts"]["blocked"]),
    "f": ("failed", lambda queue: -queue["counts"]["failed"]),
    "c": ("completed", lambda queue: -queue["counts"]["completed"]),
    "o": ("oldest", lambda queue: -(queue["oldest_ready_age_ms"] or 0)),
    "s": ("done/s", lambda queue: -(queue["rate"] or 0)),
}
_SORT_NAMES: Final = {word: key for key, (word, _) in _SORTS.items()}
_NOTES_MAX: Final = 6
_HEAD_LINES: Final = 4  # above the queues
_UP, _DOWN, _PAGE_UP, _PAGE_DOWN = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~"
_KEYS_BYTES: Final = 1_024
# An arrow is several characters that arrive together.
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
_HELP: Final = (
    "q quit",
    "↑↓ scroll",
    "sort, again to reverse:",
    *(f"{key} {word}" for key, (word, _) in _SORTS.items()),
)


@connected
def top(
    *,
    link: HttpLink,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            "-n",
            help="Time between two updates.",
            metavar=METAVAR,
            parser=seconds(0.2, 3600),
            show_default="2s",
        ),
    ] = 2.0,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help=f"Sort by {', '.join(_SORT_NAMES)}.",
            metavar="COLUMN",
            autocompletion=lambda: list(_SORT_NAMES),
        ),
    ] = "ready",
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, as in a pipe, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Watch the queues live, on the whole screen; sort with one key, leave with q.

    The keys are shown at the bottom. Pressing the key of the present column again reverses it. In a
    pipe, with --once or --json the sorted queues are printed once, in the columns of `manyhands
    status`.

    Examples:

      manyhands top

      manyhands top --sort failed --every 5s
    """
    if sort not in _SORT_NAMES:
        raise typer.BadParameter(f"--sort is one of {', '.join(_SORT_NAMES)}.")
    screen = Screen(link, _SORT_NAMES[sort], every)
    if as_json:
        screen.look()
        for queue in screen.sorted_queues():
            print_json({key: value for key, value in queue.items() if key != "rate"})
        return
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        screen.look()
        screen.print_once()
        return
    screen.run()


class Screen:
    """What is shown, how it is sorted, and where it is scrolled to."""

    def __init__(self, link: HttpLink, sort: str, every_seconds: float) -> None:
        from manyhands.dispatch.clock import Clock

        self._link = link
        self._clock = Clock()
        self._every_ms = every_seconds * 1000
        self._sort = sort
        self._reversed = False
        self._first_row = 0
        self._picture: Picture | None = None
        self._rows: list[dict[str, Any]] = []
        self._completed: dict[str, int] = {}
        self._looked_ms = 0.0
        self._trouble = ""

    # The server.

    def look(self) -> None:
        """Asks the server; a server that is away is shown as such."""
        picture = take_picture(self._link)
        now_ms = self._clock.monotonic_ms()
        passed = (now_ms - self._looked_ms) / 1000
        known = self._completed
        self._rows = []
        for queue in picture.queues:
            before = known.get(queue["name"])
            completed = queue["counts"]["completed"]
            # Retention removes finished jobs, so the number may fall. The first time there is none.
            rate = None if before is None else max(0, completed - before) / passed
            self._rows.append({**queue, "rate": rate})
        self._completed = {queue["name"]: queue["counts"]["completed"] for queue in picture.queues}
        self._looked_ms = now_ms
        self._picture = picture

    def _look_again(self) -> None:
        try:
            with _quiet():
                self.look()
            self._trouble = ""
        except (UnansweredError, RefusedError) as error:
            self._trouble = str(error)
        except SystemExit:
            self._trouble = f"{self._link.name} does not answer"

    # The screen.

    def run(self) -> None:
        """Draws until the user leaves."""
        from rich.console import Console
        from rich.live import Live

        self.look()  # a server that was never there is an error, not a picture
        console = Console(highlight=False)
        with (
            _keys() as key_within,
            Live(self._draw(console), console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                left_ms = self._looked_ms + self._every_ms - self._clock.monotonic_ms()
                key = key_within(max(0.0, left_ms / 1000))
                if key in ("q", "\x03", "\x04"):
                    return
                if key is None:
                    self._look_again()
                    self._looked_ms = self._clock.monotonic_ms()
                else:
                    self._press(key, console.height)
                live.update(self._draw(console), refresh=True)

    def print_once(self) -> None:
        """The table alone."""
        columns, rows = self._table()
        # There is no second look to measure a rate by.
        at = len(columns) - 2
        print_table(columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows])

    def sorted_queues(self) -> list[dict[str, Any]]:
        """In the order that was asked for."""
        rows = sorted(self._rows, key=lambda queue: queue["name"])
        rows.sort(key=_SORTS[self._sort][1], reverse=self._reversed)
        return rows

    def _press(self, key: str, height: int) -> None:
        if key in _SORTS:
            self._reversed = key == self._sort and not self._reversed
            self._sort = key
            self._first_row = 0
        steps = {_UP: -1, _DOWN: 1, "k": -1, "j": 1, _PAGE_UP: -height, _PAGE_DOWN: height}
        last = max(0, len(self._rows) - 1)
        self._first_row = min(last, max(0, self._first_row + steps.get(key, 0)))

    def _table(self, count: int | None = None) -> tuple[list[Column], list[list[Cell]]]:
        rows = self.sorted_queues()
        last = None if count is None else self._first_row + count
        columns = [*COLUMNS[:-1], Column("DONE/S", right=True, spare=1), COLUMNS[-1]]
        word = "QUEUE" if self._sort == "n" else _SORTS[self._sort][0].upper()
        marked = [
            Column(
                f"{column.title} {'▲' if self._reversed else '▼'}"
                if column.title == word
                else column.title,
                right=column.right,
                folds=column.folds,
                spare=column.spare,
            )
            for column in columns
        ]
        cells = []
        for queue in rows[self._first_row : last]:
            *most, workers = queue_row(queue)
            rate = NOTHING if queue["rate"] is None else f"{queue['rate']:,.1f}"
            cells.append([*most, Cell(rate, "" if queue["rate"] else "dim"), workers])
        return marked, cells

    def _draw(self, console: Any) -> Any:  # noqa: ANN401 - types of rich
        from rich.console import Group
        from rich.text import Text

        picture = self._picture
        assert picture is not None
        totals = picture.totals()
        head = Text(picture.headline(), style="bold", no_wrap=True, overflow="ellipsis")
        sums = Text(
            f"{totals['ready']:,} ready   {totals['leased']:,} running   "
            f"{totals['delayed']:,} delayed   {picture.retrying():,} retrying   "
            f"{totals['blocked']:,} blocked   "
            f"{totals['failed']:,} failed   wait p95 {_p95(picture, 'wait_ms')}   "
            f"run p95 {_p95(picture, 'run_ms')}",
            no_wrap=True,
            overflow="ellipsis",
        )
        # The queues get most of the screen.
        notes_max = min(_NOTES_MAX, max(1, console.height // 4))
        found = gathered(picture.notes(), notes_max)
        notes = [
            Text(
                f"! {note.what}  {note.about}  {note.detail}",
                style="red" if note.level == "bad" else "yellow",
                no_wrap=True,
                overflow="ellipsis",
            )
            for note in found[:notes_max]
        ] or [Text("✓ Nothing needs attention.", style="green")]
        if self._trouble:
            notes = [
                Text(f"! {self._trouble.rstrip('.')}; trying again …", style="bold white on red")
            ]
        keys = _wrapped(_HELP, console.width)
        room = max(1, console.height - _HEAD_LINES - len(notes) - 2 - len(keys))
        columns, rows = self._table(room)
        below = len(self._rows) - self._first_row - len(rows)
        more = Text(f"… {below} more below" if below > 0 else "", style="dim")
        padding = [Text("")] * (room - len(rows))
        return Group(
            head,
            sums,
            *notes,
            Text(""),
            table_of(columns, rows, console.width),
            *padding,
            more,
            *(
                Text(line.ljust(console.width), style="reverse", no_wrap=True, overflow="crop")
                for line in keys
            ),
        )


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Lines of this width; a part is not broken."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _p95(picture: Picture, name: str) -> str:
    found = picture.minute[name]
    return span(found["p95"] if found else None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sentences of a link would be printed into the picture."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
    ):
        yield


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """The keys of the terminal one by one, without waiting for Enter."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        fail("top needs a terminal; in a pipe, use `manyhands status`.")

    pressed: list[str] = []

    def key_within(wait_seconds: float) -> str | None:
        if not pressed:
            if not select.select([descriptor], [], [], wait_seconds)[0]:
                return None
            data = os.read(descriptor, _KEYS_BYTES)
            # Without a terminal there is nobody to draw for.
            pressed.extend(_KEY.findall(data.decode(errors="replace")) or ["q"])
        return pressed.pop(0)

    try:
        tty.setcbreak(descriptor)
        yield key_within
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

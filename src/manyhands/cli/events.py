"""`manyhands events`: the log of changes, as it was and as it grows."""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected
from manyhands.cli.output import (
    STATE_STYLES,
    STATE_WORDS,
    moment,
    plain,
    print_json,
    short_id,
    span,
)
from manyhands.cli.stores import AsJson, misuse

_COUNT: Final = 20
_RUNNING: Final = re.compile(r"^running(?=\.|$)")
_PAGE: Final = 1_000
_WAIT_SECONDS: Final = 60.0
_AWAY_SECONDS: Final = 0.5
# A pattern that matches few: how far back events are read for it.
_LOOKED_AT_MAX: Final = 100_000


@connected
def events(
    pattern: Annotated[
        str,
        typer.Argument(
            help="STATE.PROTOCOL.ID.QUEUE; * is one word, # any number of words.",
            metavar="[PATTERN]",
            show_default=False,
        ),
    ] = "",
    *,
    link: HttpLink,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new events until interrupted.")
    ] = False,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=0, help="Number of past events.", metavar="NUMBER"),
    ] = _COUNT,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, help="Start after the event of this number.", metavar="SEQ"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the latest events, and with -f every new one.

    An event is a change of a job's state. Dots in the name of a queue separate words, so failed.#
    are all failures and #.mail those of the queue mail. In a pipe, an event is a line with tabs:
    number, instant (milliseconds), state, queue, job, worker, reason.

    Examples:

      manyhands events -f

      manyhands events -f 'failed.#'

      manyhands events -f '#.mail' --json | jq -r .id
    """
    from manyhands.protocols.topic_patterns import Pattern
    from manyhands.ui.events import problem_of

    # As lists call it; the log has the engine's word.
    pattern = _RUNNING.sub("leased", pattern)
    problem = problem_of(pattern)
    if problem:
        misuse(problem[0].lower() + problem[1:])
    wanted = Pattern(pattern) if pattern else None
    show = print_json if as_json else _printer()
    try:
        shown = 0
        for event in _log(link, wanted, count, after, follow=follow):
            show(event)
            shown += 1
        if not shown and count and sys.stdout.isatty() and not as_json:
            typer.echo("No event matches." if pattern else "Nothing has happened yet.")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _log(
    link: HttpLink,
    wanted: Any,  # noqa: ANN401 - a pattern, or None
    count: int,
    after: int | None,
    *,
    follow: bool,
) -> Iterator[dict[str, Any]]:
    if after is None:
        last = link.page("/api/events", after=10**15, count=1)["last_seq"]
        past, cursor = _past(link, wanted, count, last), last
        yield from past
    else:
        cursor = after
        while True:
            page = link.page("/api/events", after=cursor, count=_PAGE)
            yield from _matching(page["results"], wanted)
            cursor = page["next"]
            if not page["results"]:
                break
    away = False
    while follow:
        sys.stdout.flush()
        try:
            page = link.ask(
                "GET",
                "/api/events",
                query={"after": cursor, "count": _PAGE, "wait": _WAIT_SECONDS},
                seconds=_WAIT_SECONDS + 30,
            )
        except (UnansweredError, RefusedError) as error:
            if not away:
                typer.echo(f"manyhands: {str(error).rstrip('.')}; waiting for it.", err=True)
            away = True
            time.sleep(_AWAY_SECONDS)
            continue
        away = False
        if page["first_seq"] > cursor + 1 and cursor:
            missed = page["first_seq"] - cursor - 1
            typer.echo(f"manyhands: {missed:,} events were dropped by retention.", err=True)
        cursor = max(page["next"], page["first_seq"] - 1)
        yield from _matching(page["results"], wanted)


def _past(
    link: HttpLink,
    wanted: Any,  # noqa: ANN401
    count: int,
    last: int,
) -> list[dict[str, Any]]:
    """The latest matching events, oldest first."""
    found: list[dict[str, Any]] = []
    upper = last
    step = count if wanted is None else _PAGE
    while len(found) < count and upper > 0 and last - upper < _LOOKED_AT_MAX:
        lower = max(0, upper - min(step, _PAGE))
        page = link.page("/api/events", after=lower, count=upper - lower)
        found = [*_matching(page["results"], wanted, upper), *found]
        upper = lower
        if lower < page["first_seq"]:
            break
    return found[-count:] if count else []


def _matching(
    rows: list[dict[str, Any]],
    wanted: Any,  # noqa: ANN401
    upper: int | None = None,
) -> Iterator[dict[str, Any]]:
    for row in rows:
        if upper is not None and row["seq"] > upper:
            return
        words = [row["state"], row["realm"], row["id"], *row["queue"].split(".")]
        if wanted is None or wanted.matches(words):
            yield row


def _printer() -> Any:  # noqa: ANN401 - a function of one event
    if not sys.stdout.isatty():
        return lambda event: typer.echo(
            "\t".join(
                (
                    str(event["seq"]),
                    str(event["at"]),
                    event["state"],
                    plain(event["queue"]),
                    event["id"],
                    _worker(event),
                    plain(event["reason"] or ""),
                )
            )
        )
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)

    def show(event: Mapping[str, Any]) -> None:
        state = event["state"]
        word = STATE_WORDS.get(state, state)
        said = [plain(event["reason"]).replace("_", " ")] if event["reason"] else []
        if _worker(event):
            said.append(f"by {_worker(event)}")
        if state in ("completed", "failed") and event["lasted_ms"]:
            said.append(f"after {span(event['lasted_ms'])}")
        console.print(
            Text.assemble(
                (moment(event["at"])[11:23], "dim"),
                "  ",
                (f"{word:<9}", STATE_STYLES[state]),
                "  ",
                (short_id(event["id"]), "dim"),
                "  ",
                (plain(event["queue"]), "bold"),
                "  ",
                ", ".join(said),
            )
        )

    return show


def _worker(event: Mapping[str, Any]) -> str:
    holder = event["holder"]
    return plain(holder["name"] or holder["address"]) if holder else ""

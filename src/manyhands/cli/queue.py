"""`manyhands queue`: lists, shows, pauses and configures queues."""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from manyhands.cli import suggestions
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected, give_up
from manyhands.cli.named import add_delete, add_pausing, path_of, print_named
from manyhands.cli.output import (
    duration,
    plural,
    print_facts,
    print_json,
    print_styled,
    readable,
    span,
    state_cell,
)
from manyhands.cli.stores import AsJson, misuse
from manyhands.config.durations import read_ms

queue = typer.Typer(
    help="List, show, pause, resume, configure and delete queues.",
    epilog="Example: manyhands queue set mail --concurrency 4 --rate 100/1s",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Argument(help="The queue's name.", metavar="QUEUE", autocompletion=suggestions.queues),
]
Names = Annotated[
    list[str],
    typer.Argument(help="Names of queues.", metavar="QUEUE...", autocompletion=suggestions.queues),
]
_RATE: Final = re.compile(r"(\d{1,12})/(.+)")
# Settings that hold milliseconds, in the order in which they are shown.
_IN_MS: Final = frozenset({"lease_ms", "attempt_ms_max", "grace_ms", "record_ms"})


@queue.command(name="list")
@connected
def list_queues(
    pattern: Annotated[
        str, typer.Argument(help="Part of the name.", metavar="[TEXT]", show_default=False)
    ] = "",
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List all queues by name.

    Examples:

      manyhands queue list

      manyhands queue list mail --json
    """
    from manyhands.cli.picture import COLUMNS, queue_row

    print_named(
        (row for row in link.every("/api/queues") if pattern in row["name"]),
        COLUMNS,
        queue_row,
        if_none="There is no such queue." if pattern else "There are no queues.",
        as_json=as_json,
    )


@queue.command()
@connected
def show(
    name: Name,
    *,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """Show one queue: its jobs, its speed in the last hour, its settings.

    Example:

      manyhands queue show mail
    """
    found = link.get(path_of("queue", name))
    total = link.page("/api/history", range="1h", queue=name)["total"]
    if as_json:
        print_json({**found, "last_hour": total})
        return
    counts = found["counts"]
    live = sys.stdout.isatty()
    if live:
        print_styled(name + ("  (paused)" if found["paused"] else ""), "bold")

    def number(count: int) -> str:
        return f"{count:,}" if live else str(count)

    facts = [] if live else [("queue", name), ("paused", "yes" if found["paused"] else "no")]
    facts += [(state_cell(state).text, number(counts[state])) for state in counts]
    facts.append(("retrying", number(found["retrying"])))
    facts.append(("oldest ready", duration(found["oldest_ready_age_ms"])))
    facts += [("held back", wait["sentence"]) for wait in found.get("waits", ())]
    facts.append(("workers waiting", "yes" if found["awaited"] else "no"))
    facts.append(
        (
            "last hour",
            f"{number(total['submitted'])} submitted, {number(total['completed'])} completed, "
            f"{number(total['failed'])} failed",
        )
    )
    facts.append(("failed attempts", f"{number(total['failed_attempts'])} in the last hour"))
    for word, key in (("waited", "wait_ms"), ("ran", "run_ms")):
        if total[key]:
            facts.append((word, f"p50 {span(total[key]['p50'])}, p95 {span(total[key]['p95'])}"))
    print_facts(facts + _policy_lines(found["policy"]))


def _policy_lines(policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings by the names of their flags, where they have one."""
    flags = {key: word for word, key in _SETTINGS.items()}
    lines: list[tuple[str, str]] = []
    for key, value in policy.items():
        if value is None:
            continue
        if key in _IN_MS:
            text = span(value)
        elif key == "rate":
            text = f"{value['count']}/{span(value['per_ms'])}"
        elif key == "backoff":
            text = (
                f"{span(value['first_ms'])}, then times {value['factor']:g}, at most "
                f"{span(value['ms_max'])}"
            )
        else:
            text = str(value).lower()
        lines.append((flags.get(key, key), text))
    return lines


def _set_paused(
    link: HttpLink,
    names: list[str],
    paused: bool,  # noqa: FBT001
) -> Iterator[tuple[Any, str]]:
    # A queue that does not exist would be created: a misspelt name must not go unnoticed.
    known = [link.get(path_of("queue", name)) for name in names]
    for found in known:
        name, ready = found["name"], found["counts"]["ready"]
        link.put(path_of("queue", name), {"paused": paused})
        held = f"; {plural(ready, 'ready job')} held back" if ready else ""
        sentence = f"{name} is paused{held}." if paused else f"{name} is resumed."
        yield {"name": name, "paused": paused}, sentence


add_pausing(
    queue,
    "queue",
    Names,
    _set_paused,
    "Hand out no more jobs of these queues; submits still work.",
    "Hand out the jobs of these queues again.",
    "mail reports",
)


def _rate(text: str) -> dict[str, int]:
    found = _RATE.fullmatch(text)
    per = found[2] if found is not None else ""
    ms = read_ms(per if per[:1].isdigit() else f"1{per}") if found is not None else None
    if found is None or not ms:
        raise typer.BadParameter(f"{text!r} is not a rate: use COUNT/DURATION, such as 100/1m.")
    return {"count": int(found[1]), "per_ms": round(ms)}


def _setting(flag: str, metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - of typer
    return typer.Option(flag, help=text, metavar=metavar, show_default=False, **more)


def _duration(flag: str, text: str) -> Any:  # noqa: ANN401
    return _setting(flag, METAVAR, text, parser=seconds())


@queue.command(name="set")
@connected
def set_queue(  # noqa: PLR0913 - each is a flag
    name: Name,
    *,
    link: HttpLink,
    attempts: Annotated[
        int | None,
        _setting("--attempts", "NUMBER", "Maximum number of attempts; -1 is unlimited.", min=-1),
    ] = None,
    backoff: Annotated[
        float | None, _duration("--backoff", "Pause before the first retry; later ones double.")
    ] = None,
    backoff_max: Annotated[
        float | None, _duration("--backoff-max", "Longest pause between retries.")
    ] = None,
    lease: Annotated[float | None, _duration("--lease", "Term of a lease; 0 is no expiry.")] = None,
    attempt_max: Annotated[
        float | None, _duration("--attempt-max", "Longest attempt, even if it is renewed.")
    ] = None,
    concurrency: Annotated[
        int | None, _setting("--concurrency", "NUMBER", "Running jobs at once.", min=0)
    ] = None,
    rate: Annotated[
        dict[str, int] | None,
        _setting("--rate", "COUNT/DURATION", "Jobs handed out in this time.", parser=_rate),
    ] = None,
    jobs_max: Annotated[
        int | None,
        _setting("--jobs-max", "NUMBER", "Unfinished jobs; more are refused.", min=0),
    ] = None,
    keep: Annotated[float | None, _duration("--keep", "How long finished jobs are kept.")] = None,
    keep_count: Annotated[
        int | None, _setting("--keep-count", "NUMBER", "How many finished jobs are kept.", min=0)
    ] = None,
    unset: Annotated[
        list[str] | None,
        _setting("--unset", "FLAG", "Remove a setting, such as rate; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Configure a queue, created if it is new; settings that are not named stay as they are.

    Examples:

      manyhands queue set mail --attempts 10 --backoff 30s --backoff-max 1h

      manyhands queue set mail --concurrency 4 --rate 100/1m

      manyhands queue set mail --unset rate
    """
    given = {
        "attempts_max": attempts,
        "lease_ms": _ms(lease),
        "attempt_ms_max": _ms(attempt_max),
        "concurrency_max": concurrency,
        "rate": rate,
        "jobs_max": jobs_max,
        "record_ms": _ms(keep),
        "records_max": keep_count,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    try:
        policy = link.ask("GET", path_of("queue", name))["results"]["policy"]
    except RefusedError as error:
        if error.code != "unknown_queue":
            give_up(error)
        policy = {}
    except UnansweredError as error:
        give_up(error)
    if backoff is not None or backoff_max is not None:
        pauses = dict(policy.get("backoff") or {})
        if backoff is not None:
            pauses["first_ms"] = _ms(backoff)
        if backoff_max is not None:
            pauses["ms_max"] = _ms(backoff_max)
        changes["backoff"] = pauses
    removed = [_SETTINGS.get(word) or misuse(f"--unset {word}: use one of {', '.join(_SETTINGS)}.")
               for word in unset or []]  # fmt: skip
    if not changes and not removed:
        misuse("nothing to set; see `manyhands queue set --help`.")
    policy = {**policy, **changes}
    for key in removed:
        policy.pop(key, None)
    link.put(path_of("queue", name), {"policy": policy})
    found = link.get(path_of("queue", name))
    if as_json:
        print_json(found)
        return
    settings = ", ".join(f"{key} {text}" for key, text in _policy_lines(found["policy"]))
    typer.echo(readable(f"{name}: {settings or 'no settings'}"))


_SETTINGS: Final = {
    "attempts": "attempts_max",
    "backoff": "backoff",
    "lease": "lease_ms",
    "attempt-max": "attempt_ms_max",
    "concurrency": "concurrency_max",
    "rate": "rate",
    "jobs-max": "jobs_max",
    "keep": "record_ms",
    "keep-count": "records_max",
}


def _ms(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


add_delete(
    queue,
    "queue",
    Name,
    "Delete a queue and its settings; one with unfinished jobs is refused.",
    "mail",
)

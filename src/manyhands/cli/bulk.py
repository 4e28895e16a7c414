"""`manyhands retry`, `cancel`, `move`, `priority`, `expire`: one action on many jobs of a running
server; `manyhands bulk` shows the operations.
"""

import inspect
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
import typer

from manyhands.cli import suggestions
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.identity import full_ids
from manyhands.cli.numbers import finite
from manyhands.cli.output import NOTHING, STATE_WORDS, Column, ago, print_json, print_table
from manyhands.cli.stores import AsJson, fail, misuse, progress
from manyhands.model.job import State

_LOOK_SECONDS = 0.2
# How each is asked about, previewed and reported; with a number of jobs in the place of the braces.
_WORDS = {
    "retry": ("Retry {}", "{} would be retried", "Retried {}"),
    "cancel": ("Cancel {}", "{} would be cancelled", "Cancelled {}"),
    "move": ("Move {}", "{} would be moved", "Moved {}"),
    "priority": ("Change the priority of {}", "{} would be reprioritised", "Reprioritised {}"),
    "expire": (
        "End the lease of {}",
        "the lease of {} would be ended",
        "Ended the lease of {}",
    ),
}
_COLUMNS = (
    Column("OPERATION"),
    Column("STARTED", right=True, spare=1),
    Column("STATE"),
    Column("BY", folds=True, spare=2),
    Column("WHAT", wraps=True),
)

_FILTER = "Which jobs"
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of jobs, or ends of ids, instead of a filter.", metavar="[ID]..."),
]


def _condition(flag: str, metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - of typer
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=_FILTER, **more)


# States in the words of lists and pages; the API's own word is understood as well.
_STATES = {STATE_WORDS.get(state, state.value): state for state in State}


def _state(word: str) -> State:
    try:
        return _STATES.get(word) or State(word)
    except ValueError:
        raise typer.BadParameter(f"a state is one of {', '.join(_STATES)}; not “{word}”.") from None


# The filter: key of the API's filter, and the annotation of the flag.
_CONDITIONS: dict[str, tuple[str, Any]] = {
    "queue": (
        "queue",
        Annotated[
            str | None,
            _condition(
                "--queue", "QUEUE", "Only jobs of this queue.", autocompletion=suggestions.queues
            ),
        ],
    ),
    "state": (
        "state",
        Annotated[
            list[State] | None,
            _condition(
                "--state",
                "STATE",
                f"Only jobs in this state; may be repeated: {', '.join(_STATES)}.",
                parser=_state,
                autocompletion=lambda: list(_STATES),
            ),
        ],
    ),
    "tag": ("tag", Annotated[str | None, _condition("--tag", "TAG", "Only jobs with this tag.")]),
    "worker": (
        "worker",
        Annotated[
            str | None,
            _condition("--worker", "NAME", "Only jobs that this worker holds or held."),
        ],
    ),
    "code": (
        "failure_code",
        Annotated[
            str | None, _condition("--code", "CODE", "Only jobs that failed with this code.")
        ],
    ),
    "failure": (
        "failure",
        Annotated[
            str | None,
            _condition("--failure", "GROUP", "Only jobs of this group of `manyhands failures`."),
        ],
    ),
    "older_than": (
        "age_min",
        Annotated[
            float | None,
            _condition(
                "--older-than", METAVAR, "Only jobs that are older than this.", parser=seconds()
            ),
        ],
    ),
    "text": (
        "text",
        Annotated[
            str | None,
            _condition(
                "--text", "TEXT", "Only jobs with this text in their payload, name or failure."
            ),
        ],
    ),
}
_HOW: dict[str, tuple[Any, Any]] = {
    "dry_run": (
        Annotated[bool, typer.Option("--dry-run", help="Only show the number of jobs.")],
        False,
    ),
    "yes": (
        Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")],
        False,
    ),
    "as_json": (AsJson, False),
}
_Command = TypeVar("_Command", bound=Callable[..., None])


def _with_flags(command: _Command) -> _Command:
    """Adds the flags of the filter, and those common to all operations, to a command."""
    named = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    shared = {name: (annotation, None) for name, (_, annotation) in _CONDITIONS.items()}
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in (shared | _HOW).items()
    ]
    command.__dict__["__signature__"] = inspect.Signature([*named, *added])
    return command


class _Operation:
    """One operation: counted, confirmed, started, watched."""

    def __init__(self, action: str, ids: list[str] | None, flags: dict[str, Any]) -> None:
        self._link: HttpLink = flags["link"]
        self._flags = flags
        self._words = _WORDS[action]
        self._body: dict[str, Any] = {"action": action}
        given = _conditions(flags)
        if ids and given:
            misuse("name ids or a filter, not both.")
        if ids:
            self._body["ids"] = full_ids(self._link, ids)
        elif given:
            if action == "expire":
                given.setdefault("state", [State.LEASED])  # others have no lease to end
            self._body["filter"] = given
        else:
            misuse("which jobs? Name ids, or a filter such as --queue; see --help.")

    def run(self, **more: object) -> None:
        """Runs the operation, from the count to the result."""
        if more.get("queue") == "":
            misuse("--into is empty.")
        self._body |= {key: value for key, value in more.items() if value is not None}
        preview = self._link.post("/api/bulk", {**self._body, "dry_run": True})
        if not (preview["expected"] or self._flags["as_json"]):
            self._print(preview, "No job matches; nothing was done.")
            return
        if self._flags["dry_run"]:
            self._print(preview, f"{self._words[1].format(_jobs(preview))}.")
            return
        if not self._agreed(preview):
            fail("nothing was done.")
        found = watch(self._link, self._link.post("/api/bulk", self._body))
        self._print(found, summary(found))
        if found["state"] != "completed" or found["refused"]:
            raise SystemExit(1)

    def _agreed(self, preview: dict[str, Any]) -> bool:
        if self._flags["yes"]:
            return True
        if not sys.stdin.isatty():
            fail(f"{_jobs(preview)}: use --yes to continue without a question.")
        try:
            return typer.confirm(f"{self._words[0].format(_jobs(preview))}?", err=True)
        except typer.Abort:
            typer.echo(err=True)
            return False

    def _print(self, facts: dict[str, Any], sentence: str) -> None:
        typer.echo(msgspec.json.encode(facts).decode() if self._flags["as_json"] else sentence)


def _conditions(flags: dict[str, Any]) -> dict[str, Any]:
    """The filter. An empty condition is a mistake: ignoring it would match more jobs."""
    found: dict[str, Any] = {}
    for name, (key, _) in _CONDITIONS.items():
        value = flags[name]
        if value is None or value == []:
            continue
        if value == "":
            misuse(f"--{name.replace('_', '-')} is empty.")
        found[key] = value
    return found


def _jobs(preview: dict[str, Any]) -> str:
    number = f"{preview['expected']:,} job" + ("" if preview["expected"] == 1 else "s")
    return number if preview["expected_all"] else f"more than {number}"


def watch(link: HttpLink, bulk: dict[str, Any]) -> dict[str, Any]:
    """Watches an operation until it ends. An interrupt ends the watching, not the operation."""
    try:
        with progress(bulk["action"]) as report:
            while bulk["state"] == "active":
                report(bulk["done"], max(bulk["expected"], bulk["done"]))
                time.sleep(_LOOK_SECONDS)
                bulk = link.get(f"/api/bulk/{bulk['id']}")
    except KeyboardInterrupt:
        fail(
            f"operation {bulk['id']} continues in the server; watch it with "
            f"`manyhands bulk {bulk['id']}`, stop it with `manyhands bulk {bulk['id']} --cancel`."
        )
    except SystemExit:  # there was no answer, which was reported
        typer.echo(
            f"manyhands: operation {bulk['id']} continues when the server is back; watch it with "
            f"`manyhands bulk {bulk['id']}`.",
            err=True,
        )
        raise
    return bulk


def summary(bulk: dict[str, Any]) -> str:
    """An operation in one line."""
    noun = "job" if bulk["expected"] == 1 else "jobs"
    parts = [
        _WORDS[bulk["action"]][2].format(f"{bulk['changed']:,} of {bulk['expected']:,} {noun}")
    ]
    if bulk["passed"]:
        parts.append(f"{bulk['passed']:,} no longer matched")
    parts += [f"{count:,} refused ({why})" for why, count in bulk["refused"].items()]
    if bulk["state"] != "completed":
        parts.append("still active" if bulk["state"] == "active" else "then stopped")
    return ", ".join(parts) + "."


@connected
@_with_flags
def retry(
    ids: Ids = None,
    *,
    into: Annotated[
        str | None, typer.Option("--into", help="Requeue into this queue instead.", metavar="QUEUE")
    ] = None,
    delay: Annotated[
        float,
        typer.Option(
            help="Delay before they are ready.", metavar=METAVAR, parser=seconds(), show_default="0"
        ),
    ] = 0.0,
    delay_ms: Annotated[int, typer.Option(help="The same in milliseconds.", hidden=True)] = 0,
    **flags: Any,  # noqa: ANN401 - see `_with_flags`
) -> None:
    """Run failed jobs again, under the same ids.

    Shows how many there are and asks before it starts. The server does the work: it continues if
    this command is interrupted, and after a restart of the server.

    Examples:

      manyhands retry --queue mail --state failed

      manyhands retry --code timeout --older-than 1h --delay 5m --yes --json

      manyhands retry 0192f0c1a2b3c4d5e6f708192a3b4c5d
    """
    _Operation("retry", ids, flags).run(queue=into, delay_ms=delay_ms or round(delay * 1000))


@connected
@_with_flags
def cancel(
    ids: Ids = None,
    *,
    reason: Annotated[
        str | None, typer.Option(help="Recorded with each job.", metavar="TEXT")
    ] = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Cancel unfinished jobs, and the jobs that depend on them.

    Examples:

      manyhands cancel --queue mail --state ready --state delayed

      manyhands cancel --tag campaign-7 --reason "wrong text" --yes
    """
    _Operation("cancel", ids, flags).run(reason=reason)


@connected
@_with_flags
def move(
    into: Annotated[str, typer.Option("--into", help="The target queue.", metavar="QUEUE")],
    ids: Ids = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Move unfinished jobs to another queue; their leases end.

    Examples:

      manyhands move --queue mail --state ready --into mail-slow
    """
    _Operation("move", ids, flags).run(queue=into)


@connected
@_with_flags
def priority(
    to: Annotated[
        float,
        typer.Option(
            "--to", callback=finite, help="The new priority; higher goes first.", metavar="NUMBER"
        ),
    ],
    ids: Ids = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Set the priority of unfinished jobs.

    Examples:

      manyhands priority --to 10 --queue mail --tag urgent
    """
    _Operation("priority", ids, flags).run(priority=to)


@connected
@_with_flags
def expire(
    ids: Ids = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """End leases at once, as if they had expired: for workers that hang.

    The jobs are retried as their attempts allow; the worker that held one can no longer change it.

    Examples:

      manyhands expire 8cd39c41b2aa

      manyhands expire --worker encoder-7 --yes
    """
    _Operation("expire", ids, flags).run()


@connected
def bulk(
    operation: Annotated[
        str | None,
        typer.Argument(help="Id of an operation; without it, all are listed.", metavar="[ID]"),
    ] = None,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it.")] = False,
    link: HttpLink,
    as_json: AsJson = False,
) -> None:
    """List operations on many jobs, watch one, or stop it.

    Examples:

      manyhands bulk

      manyhands bulk 3f2a9c5d7e1b4860 --cancel
    """
    if operation == "" or (operation is None and cancel):
        misuse("which operation? `manyhands bulk` lists them.")
    if operation is None:
        rows = link.get("/api/bulk")
    else:
        path = f"/api/bulk/{quote(operation, safe='')}"
        rows = [watch(link, link.post(f"{path}/cancel", {}) if cancel else link.get(path))]
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows:
        if sys.stdout.isatty():
            typer.echo("There are no operations on many jobs.")
    elif operation is not None:
        typer.echo(summary(rows[0]))
    else:
        live = sys.stdout.isatty()
        now = link.now() if live else 0
        print_table(
            _COLUMNS,
            [
                [
                    row["id"],
                    ago(row["created_at"], now) if live else str(row["created_at"]),
                    row["state"],
                    row["who"] or NOTHING,
                    summary(row),
                ]
                for row in rows
            ],
        )

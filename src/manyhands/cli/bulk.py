"""`manyhands retry`, `cancel`, `move`, `priority`: one action on many jobs of a running server;
`manyhands bulk` shows the operations.
"""

import inspect
import math
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
import typer

from manyhands.cli.http_link import HttpLink, Server, TokenFile
from manyhands.cli.numbers import finite
from manyhands.cli.stores import AsJson, fail, progress
from manyhands.model.job import State

_LOOK_SECONDS = 0.2

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of jobs, instead of a filter.")]
# The filter: flag, key of the API's filter, kind of value, help.
_CONDITIONS: dict[str, tuple[str, str, Any, str]] = {
    "queue": ("--queue", "queue", str | None, "Only jobs of this queue."),
    "state": ("--state", "state", list[State] | None, "Only jobs in this state; may be repeated."),
    "tag": ("--tag", "tag", str | None, "Only jobs with this tag."),
    "worker": ("--worker", "worker", str | None, "Only jobs that this worker holds or held."),
    "code": ("--code", "failure_code", str | None, "Only jobs that failed with this code."),
    "failure": ("--failure", "failure", str | None, "Only jobs of this group of failures."),
    "older_than": (
        "--older-than",
        "age_min",
        float | None,
        "Only jobs older than this many seconds.",
    ),
    "text": ("--text", "text", str | None, "Only jobs with this text in their payload."),
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
    "server": (Server, None),
    "token_file": (TokenFile, None),
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
    shared = {
        name: (Annotated[kind, typer.Option(flag, help=text)], None)
        for name, (flag, _, kind, text) in _CONDITIONS.items()
    }
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
        self._link = HttpLink(flags["server"], flags["token_file"])
        self._flags = flags
        self._body: dict[str, Any] = {"action": action}
        given = _conditions(flags)
        if ids and given:
            fail("name ids or a filter, not both.")
        if ids:
            self._body["ids"] = ids
        elif given:
            self._body["filter"] = given
        else:
            fail("which jobs? Name ids, or a filter such as --queue; see --help.")

    def run(self, **more: object) -> None:
        """Runs the operation, from the count to the result."""
        if more.get("queue") == "":
            fail("--into is empty.")
        self._body |= {key: value for key, value in more.items() if value is not None}
        preview = self._link.post("/api/bulk", {**self._body, "dry_run": True})
        if self._flags["dry_run"]:
            self._print(preview, f"{_jobs(preview)} would be tried.")
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
        return typer.confirm(f"{self._body['action']} {_jobs(preview)}?", err=True)

    def _print(self, facts: dict[str, Any], sentence: str) -> None:
        typer.echo(msgspec.json.encode(facts).decode() if self._flags["as_json"] else sentence)


def _conditions(flags: dict[str, Any]) -> dict[str, Any]:
    """The filter. An empty condition is a mistake: ignoring it would match more jobs."""
    found: dict[str, Any] = {}
    for name, (flag, key, _, _) in _CONDITIONS.items():
        value = flags[name]
        if value is None or value == []:
            continue
        if value == "":
            fail(f"{flag} is empty.")
        if isinstance(value, float) and not math.isfinite(value):
            fail(f"{flag} is not a number of seconds.")
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
    parts = [f"{bulk['action']} {bulk['state']}: {bulk['changed']:,} of {bulk['expected']:,} jobs"]
    if bulk["passed"]:
        parts.append(f"{bulk['passed']:,} no longer matched")
    parts += [f"{count:,} refused ({why})" for why, count in bulk["refused"].items()]
    return ", ".join(parts) + "."


@_with_flags
def retry(
    ids: Ids = None,
    *,
    into: Annotated[
        str | None, typer.Option("--into", help="Requeue into this queue instead.")
    ] = None,
    delay_ms: Annotated[int, typer.Option(help="Delay in milliseconds before they are ready.")] = 0,
    **flags: Any,  # noqa: ANN401 - see `_with_flags`
) -> None:
    """Run failed jobs again, under the same ids.

    Shows how many there are and asks before it starts. The server does the work: it continues if
    this command is interrupted, and after a restart of the server.

    Examples:

      manyhands retry --queue mail --state failed

      manyhands retry --code timeout --older-than 3600 --yes --json

      manyhands retry 0192f0c1a2b3c4d5e6f708192a3b4c5d
    """
    _Operation("retry", ids, flags).run(queue=into, delay_ms=delay_ms)


@_with_flags
def cancel(
    ids: Ids = None,
    *,
    reason: Annotated[str | None, typer.Option(help="Reason, shown with each job.")] = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Cancel unfinished jobs, and the jobs that depend on them.

    Examples:

      manyhands cancel --queue mail --state ready --state delayed

      manyhands cancel --tag campaign-7 --reason "wrong text" --yes
    """
    _Operation("cancel", ids, flags).run(reason=reason)


@_with_flags
def move(
    into: Annotated[str, typer.Option("--into", help="The target queue.")],
    ids: Ids = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Move unfinished jobs to another queue; their leases end.

    Examples:

      manyhands move --queue mail --state ready --into mail-slow
    """
    _Operation("move", ids, flags).run(queue=into)


@_with_flags
def priority(
    to: Annotated[
        float, typer.Option("--to", callback=finite, help="The new priority; higher goes first.")
    ],
    ids: Ids = None,
    **flags: Any,  # noqa: ANN401
) -> None:
    """Set the priority of unfinished jobs.

    Examples:

      manyhands priority --to 10 --queue mail --tag urgent
    """
    _Operation("priority", ids, flags).run(priority=to)


def bulk(
    operation: Annotated[
        str | None, typer.Argument(help="Id of an operation; without it, all are listed.")
    ] = None,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it.")] = False,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List operations on many jobs, watch one, or stop it.

    Examples:

      manyhands bulk

      manyhands bulk 3f2a9c5d7e1b4860 --cancel
    """
    link = HttpLink(server, token_file)
    if operation == "" or (operation is None and cancel):
        fail("which operation? `manyhands bulk` lists them.")
    if operation is None:
        rows = link.get("/api/bulk")
    else:
        path = f"/api/bulk/{quote(operation, safe='')}"
        rows = [watch(link, link.post(f"{path}/cancel", {}) if cancel else link.get(path))]
    if as_json:
        typer.echo(msgspec.json.encode(rows if operation is None else rows[0]).decode())
    elif not rows:
        typer.echo("there are no operations.")
    else:
        for row in rows:
            typer.echo(f"{row['id']}  {summary(row)}")

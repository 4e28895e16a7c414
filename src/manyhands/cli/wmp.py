"""`manyhands wmp`: submit, inspect and work on jobs, over ZeroMQ as any peer would."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.numbers import finite
from manyhands.cli.stores import AsJson, fail
from manyhands.cli.worker_flags import (
    GRACE_SECONDS,
    KILL_AFTER_SECONDS,
    Grace,
    KillAfter,
    Logs,
    Seconds,
    TaskTimeout,
)

if TYPE_CHECKING:
    from manyhands.client.wmp_submitter import Answer, Submitter

wmp = typer.Typer(
    help="Submit jobs and work on them, over WMP (ZeroMQ).",
    epilog="Example: manyhands wmp submit mail 'to: all' --wait 1m",
    no_args_is_help=True,
)

Manager = Annotated[
    str, typer.Option("--manager", "-m", help="The server's WMP address.", metavar="HOST:PORT")
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        help="Time to wait for the job to finish.",
        metavar=METAVAR,
        parser=seconds(0, 86_400),
        show_default="0",
    ),
]
_MANAGER = "127.0.0.1:7714"
_SECONDS = 30.0


@contextlib.contextmanager
def _submitter(manager: str, seconds: float) -> Iterator["Submitter"]:
    from manyhands.client.wmp_submitter import RefusedError, Submitter, UnreachableError

    try:
        with contextlib.closing(Submitter(manager, seconds)) as submitter:
            yield submitter
    except UnreachableError as error:
        fail(str(error))
    except RefusedError as error:
        fail(f"{str(error).rstrip('.')}.")


def _show(answer: "Answer", *, as_json: bool) -> None:
    payload = answer.payload.decode(errors="replace") if answer.payload is not None else None
    facts = {
        "job": answer.job,
        "state": answer.state,
        "progress": answer.progress,
        "reason": answer.reason,
        "payload": payload,
    }
    facts = {key: value for key, value in facts.items() if value}
    if as_json:
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        typer.echo("\n".join(f"{key}\t{value}" for key, value in facts.items()))


@wmp.command()
def submit(  # noqa: PLR0913 - each is a flag
    role: Annotated[str, typer.Argument(help="The role, which is a queue.")],
    payload: Annotated[str, typer.Argument(help="Data for the worker; - is standard input.")] = "",
    *,
    name: Annotated[str, typer.Option(help="A name that is passed to the worker.")] = "",
    priority: Annotated[
        float | None, typer.Option(callback=finite, help="Higher goes first.")
    ] = None,
    delay: Annotated[
        float,
        typer.Option(
            help="Delay before it is ready.",
            metavar=METAVAR,
            parser=seconds(),
            show_default="0",
        ),
    ] = 0.0,
    key: Annotated[
        str | None,
        typer.Option(
            help="Create no second job with this key while one is unfinished, or for 24 hours."
        ),
    ] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="Maximum number of attempts.")] = None,
    wait: Wait = 0.0,
    manager: Manager = _MANAGER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id; it is on disk by then.

    With --wait, also print the outcome.

    Examples:

      manyhands wmp submit mail 'to: everybody' --priority 5

      manyhands wmp submit resize - --key photo-17 --wait 1m < photo.jpg
    """
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    with _submitter(manager, timeout) as submitter:
        answer = submitter.submit(
            role,
            data,
            name=name,
            priority=priority,
            delay_ms=int(delay * 1000),
            key=key.encode() if key is not None else None,
            attempts=attempts,
        )
        if wait:
            answer = submitter.fetch(answer.job, wait)
    if as_json or wait:
        _show(answer, as_json=as_json)
    else:
        typer.echo(answer.job)
    if wait and answer.state != "completed":
        raise SystemExit(1)


@wmp.command()
def fetch(
    job: Annotated[str, typer.Argument(help="The job's id.")],
    *,
    wait: Wait = 0.0,
    manager: Manager = _MANAGER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the state and result of a job; exits 1 unless completed.

    Example:

      manyhands wmp fetch 0192f0c8d1d57c3f8e1b2a3c4d5e6f70 --wait 1m
    """
    with _submitter(manager, timeout) as submitter:
        answer = submitter.fetch(job, wait)
    _show(answer, as_json=as_json)
    if answer.state != "completed":
        raise SystemExit(1)


@wmp.command()
def close(
    job: Annotated[str, typer.Argument(help="The job's id.")],
    *,
    manager: Manager = _MANAGER,
    timeout: Seconds = _SECONDS,
) -> None:
    """Cancel a job and notify its worker; a finished one stays as it is.

    Example:

      manyhands wmp close 0192f0c8d1d57c3f8e1b2a3c4d5e6f70
    """
    with _submitter(manager, timeout) as submitter:
        submitter.cancel(job)


@wmp.command()
def work(  # noqa: PLR0913 - each is a flag
    *,
    managers: Annotated[
        list[str] | None,
        typer.Option(
            "--manager", "-m", help="A manager or device; may be repeated.", metavar="HOST:PORT"
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", help="A role to work for; may be repeated; default: any."),
    ] = None,
    command: Annotated[
        str,
        typer.Option(
            "--command", "-c", help="Command to run; {job}, {role} and {name} are replaced."
        ),
    ],
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=1_000, help="Commands to run at once.")
    ] = 1,
    identity: Annotated[
        str, typer.Option(help="The worker's name (default: the host's name).")
    ] = "",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many jobs.")
    ] = 0,
    task_timeout: TaskTimeout = None,
    logs: Logs = None,
    grace: Grace = GRACE_SECONDS,
    kill_after: KillAfter = KILL_AFTER_SECONDS,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            help="Time to wait at the end for unreachable managers, to report to them.",
            metavar=METAVAR,
            parser=seconds(0, 86_400),
            show_default="1d",
        ),
    ] = 86_400.0,
    as_json: AsJson = False,
) -> None:
    """Run jobs as commands, for one or more managers, until interrupted.

    Exits 1 if some failed. A command gets the job's payload on standard input, and as
    MANYHANDS_JOB, _TASK, _QUEUE, _ATTEMPT and _MANAGER the job's id, name, role, attempt and
    manager. The last MiB that it prints becomes the result; with a status other than 0 the job is
    retried later. It runs in its own session, and any process it leaves running there is ended with
    it. When a job is cancelled, its command is ended.

    Ctrl-C (SIGINT): running commands finish, no more are started; a second one ends them. SIGTERM
    and SIGHUP, as Slurm sends at a time limit or scancel: running commands have --grace to finish,
    then they get SIGTERM and --kill-after later SIGKILL. Unfinished jobs go back to
    their manager; they have not failed, and it costs no attempt.

    Examples:

      manyhands wmp work --role mail --command 'sendmail -t' -j 8

      manyhands wmp work -m jobs-1:7714 -m jobs-2:7714 -c './{role} --job {job}' -j 32
    """
    import socket

    from manyhands.cli.stops import Stopping
    from manyhands.cli.wmp_worker import Crew

    crew = Crew(
        managers or [_MANAGER],
        command,
        roles=roles or [],
        slots=jobs,
        identity=identity or socket.gethostname() or "localhost",
        count=count,
        stopping=Stopping(grace, kill_after),
        patience_seconds=patience,
        task_seconds=task_timeout,
        logs=logs,
        as_json=as_json,
    )
    raise SystemExit(crew.run())

"""`manyhands work`: a worker that runs a command for each job."""

import shlex
import shutil
from typing import Annotated

import typer

from manyhands.cli import suggestions
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, connected
from manyhands.cli.stores import AsJson, misuse
from manyhands.cli.worker_flags import (
    GRACE_SECONDS,
    KILL_AFTER_SECONDS,
    Grace,
    KillAfter,
    Logs,
    TaskTimeout,
)


@connected
def work(  # noqa: PLR0913 - each is a flag
    queues: Annotated[
        list[str],
        typer.Argument(
            help="Queues to work for; the first has precedence.",
            metavar="QUEUE...",
            autocompletion=suggestions.queues,
        ),
    ],
    *,
    link: HttpLink,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            "-c",
            help="Command to run for each job; {job} and {queue} are replaced.",
            metavar="COMMAND",
        ),
    ],
    slots: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=1, max=1_000, help="Commands to run at once.", metavar="NUMBER"
        ),
    ] = 1,
    name: Annotated[
        str,
        typer.Option(
            "--name", help="The worker's name (default: the host's name).", metavar="NAME"
        ),
    ] = "",
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=0, help="Stop after this many jobs.", metavar="NUMBER"),
    ] = 0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when no job is ready.")
    ] = False,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease",
            help="Term of a lease, renewed while the command runs (default: the job's, or 1m).",
            metavar=METAVAR,
            parser=seconds(1),
            show_default=False,
        ),
    ] = None,
    task_timeout: TaskTimeout = None,
    logs: Logs = None,
    grace: Grace = GRACE_SECONDS,
    kill_after: KillAfter = KILL_AFTER_SECONDS,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            help="Time to wait for a server that has gone away.",
            metavar=METAVAR,
            parser=seconds(),
            show_default="1d",
        ),
    ] = 86_400.0,
    as_json: AsJson = False,
) -> None:
    """Run a command for each job of these queues, until interrupted.

    The command gets the payload on standard input, and as MANYHANDS_JOB, _QUEUE and _ATTEMPT the
    job's id, its queue and the number of the attempt. What it prints (the last MiB) becomes the
    result. With an exit code other than 0 the attempt has failed, with the end of its standard
    error as message, and the job is retried as its attempts allow. The command is not passed to a
    shell; use sh -c '…' for pipes and variables.

    It runs in its own session, and any process it leaves running there is ended with it. If the job
    is cancelled or its lease is lost, the command and its children are ended.

    Ctrl-C (SIGINT): running commands finish, no more are started; a second one ends them. SIGTERM
    and SIGHUP: running commands have --grace to finish, then they get SIGTERM and --kill-after
    later SIGKILL. Unfinished jobs go back to the server; they have not failed, and it costs no
    attempt.

    Exit codes: 0 no command failed, 1 some did, or the server did not answer, 2 wrong arguments.

    Examples:

      manyhands work mail --command 'sendmail -t' -j 8

      manyhands work thumbnails --command "sh -c 'convert - -resize 200 png:-'" --task-timeout 2m

      manyhands work urgent later --command ./run.py --until-empty
    """
    from manyhands.cli.crew import Crew, Plan
    from manyhands.cli.stops import Stopping

    try:
        words = shlex.split(command)
    except ValueError as error:
        misuse(f"--command {command} cannot be parsed: {error}.")
    if not words:
        misuse("--command is empty.")
    if shutil.which(words[0]) is None:
        misuse(f"--command: there is no program {words[0]}.")
    if "" in queues:
        misuse("the name of a queue is empty.")
    plan = Plan(
        words=tuple(words),
        queues=tuple(queues),
        slots=slots,
        name=name or _host(),
        count=count,
        until_empty=until_empty,
        lease_ms=None if lease is None else round(lease * 1000),
        task_ms=None if task_timeout is None else task_timeout * 1000,
        patience_ms=patience * 1000,
        logs=logs,
        as_json=as_json,
    )
    raise SystemExit(Crew(link, plan, Stopping(grace, kill_after)).run())


def _host() -> str:
    import socket

    return socket.gethostname() or "localhost"

"""`manyhands dwork`: create, inspect and work on task graphs, over ZeroMQ as any client would."""

import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import TokenFile
from manyhands.cli.numbers import finite
from manyhands.cli.profiles import DEFAULT_URL
from manyhands.cli.stores import AsJson, fail, misuse, progress
from manyhands.cli.worker_flags import (
    GRACE_SECONDS,
    KILL_AFTER_SECONDS,
    Grace,
    KillAfter,
    Logs,
    Seconds,
    TaskTimeout,
)
from manyhands.config import URL_VARIABLE
from manyhands.model.job import State

if TYPE_CHECKING:
    from manyhands.protocols.dwork.codec import Counts, Query, Task

dwork = typer.Typer(
    help="Create task graphs and work on them, over dwork's protocol.",
    epilog="Example: manyhands dwork load graph.txt && manyhands dwork work -j 8",
    no_args_is_help=True,
)

Server = Annotated[
    str, typer.Option("--server", "-s", help="The server's dwork address.", metavar="HOST:PORT")
]
Location = Annotated[
    str | None, typer.Option("--location", help="The worker's name (default: the host's name).")
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        help="Time to wait for a server that has gone away.",
        metavar=METAVAR,
        parser=seconds(),
        show_default="1d",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        help=f"The server's HTTP address (default: {URL_VARIABLE}, then {DEFAULT_URL}).",
        metavar="URL",
    ),
]
QueueName = Annotated[
    str, typer.Option("--queue", help="The endpoint's name, if the server has several.")
]
Count = Annotated[int, typer.Option("-n", min=0, help="Maximum number; 0 is all.")]
_QUEUE = "dwork"
_SERVER = "127.0.0.1:6125"
_PATIENCE = 86_400.0
_LOOK_SECONDS = 0.5
_SECONDS = 30.0
_BATCH_COUNT = 1_000


def _ask(server: str, seconds: float, query: "Query") -> "Query":
    from manyhands.cli.dwork_link import Link, UnreachableError, error_of
    from manyhands.protocols.dwork.codec import Kind

    try:
        reply = Link(server, seconds).ask(query)
    except UnreachableError as error:
        fail(str(error))
    trouble = error_of(reply)
    if trouble is not None and not (query.kind is Kind.STEAL and reply.kind is Kind.EXIT):
        fail(f"{trouble}.")
    return reply


def _host() -> str:
    import socket

    return socket.gethostname() or "localhost"


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())


@dwork.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    *,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", help="A task that must finish first; may be repeated."),
    ] = None,
    payload: Annotated[str | None, typer.Option(help="Data for the worker.")] = None,
    priority: Annotated[
        float | None, typer.Option(callback=finite, help="Higher goes first.")
    ] = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Create a task, or add predecessors to one that exists.

    Examples:

      manyhands dwork create compile

      manyhands dwork create link --after compile --after assets
    """
    from manyhands.protocols.dwork.codec import Dep, Kind, Query, Task

    task = Task(
        name=name,
        origin=_host(),
        preds=tuple(Dep(dep) for dep in after or ()),
        payload=payload.encode() if payload is not None else None,
        priority=priority,
    )
    _ask(server, timeout, Query(kind=Kind.CREATE, tasks=(task,)))
    if as_json:
        _print_json({"created": name, "after": after or []})
    else:
        typer.echo(f"created {name}")


@dwork.command()
def load(
    file: Annotated[
        Path,
        typer.Argument(help="File of lines NAME,DEP,DEP… or of JSON; - is standard input."),
    ],
    *,
    again: Annotated[bool, typer.Option("--again", help="Run finished tasks again.")] = False,
    skip: Annotated[
        int, typer.Option("--skip", min=0, help="Skip this many tasks, which are already loaded.")
    ] = 0,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Load a graph from a file, or resume it.

    Each line is a task: its name and its predecessors, separated by commas, in any order. Finished
    tasks are left alone, also those of earlier runs as long as the server has them on record;
    unfinished tasks stay as they are; failed or cancelled ones run again. So to resume a graph that
    was interrupted, or to extend it, load it again.

    Lines may also be JSON objects: "name", and optionally "after" (a list of names), "command" or
    "payload", "priority" (higher goes first), "attempts" (how often it is tried), and
    "cancel_on_failure" (cancelled, instead of held, if a predecessor failed).

    If the server goes away meanwhile, loading continues when it is back within the timeout.

    Examples:

      manyhands dwork load graph.txt

      manyhands dwork load graph.jsonl && manyhands dwork work -c 'sh -c {payload}'

      generate-graph | manyhands dwork load - --again
    """
    from manyhands.cli.dwork_graph import read_graph
    from manyhands.cli.dwork_link import Link, UnreachableError, error_of
    from manyhands.dispatch.clock import Clock
    from manyhands.protocols.dwork.codec import Kind, Made, Query

    tasks = read_graph(file, _host())
    clock = Clock()
    started_ms = clock.monotonic_ms()
    link = Link(server, timeout)
    made = dict.fromkeys(("added", "there", "done", "again"), 0)
    with progress("loading") as report:
        for first in range(skip, len(tasks), _BATCH_COUNT):
            batch = tuple(tasks[first : first + _BATCH_COUNT])
            try:
                reply = link.ask_patiently(Query(kind=Kind.CREATE, tasks=batch, resume=not again))
            except UnreachableError as error:
                fail(f"{error} {first} tasks are loaded; continue with --skip {first}.")
            except KeyboardInterrupt:
                fail(f"interrupted. {first} tasks are loaded; continue with --skip {first}.")
            trouble = error_of(reply)
            if trouble is not None:
                fail(f"tasks {first + 1} to {first + len(batch)} were refused: {trouble}.")
            found = reply.made or Made(added=len(batch))
            made["added"] += found.added
            made["there"] += found.there
            made["done"] += found.done
            made["again"] += found.again
            report(first + len(batch), len(tasks))
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        count = max(0, len(tasks) - skip)
        _print_json({"tasks": count, "seconds": round(seconds, 3), **made})
    else:
        typer.echo(f"loaded {_made(made)} in {seconds:.1f} s")


def _made(made: dict[str, int]) -> str:
    words = [f"{made['added']} tasks"]
    if made["again"]:
        words.append(f"{made['again']} of them again because they had failed or were cancelled")
    if made["there"]:
        words.append(f"{made['there']} existed")
    if made["done"]:
        words.append(f"{made['done']} were done")
    return ", ".join(words)


@dwork.command()
def status(
    *, server: Server = _SERVER, timeout: Seconds = _SECONDS, as_json: AsJson = False
) -> None:
    """Show the progress of the graph.

    Counts the tasks done, failed, held by failed ones, running, ready and waiting. A finished graph
    is known until the next one begins or the server is restarted.

    Example:

      manyhands dwork status --server cluster:6125
    """
    from manyhands.cli.dwork_progress import GraphProgress, facts_of

    graph = GraphProgress()
    graph.see(_counts(server, timeout))
    if as_json:
        _print_json(facts_of(graph.counts))
    else:
        typer.echo(graph.sentence())


def _counts(server: str, timeout: float) -> "Counts":
    from manyhands.protocols.dwork.codec import Kind, Query

    counts = _ask(server, timeout, Query(kind=Kind.OK, detail=True)).counts
    if counts is None:
        fail("the server cannot say: it speaks dwork, but is not manyhands.")
    return counts


@dwork.command()
def wait(
    *,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    patience: Patience = _PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Wait until nothing is left to work on.

    Shows a bar on a terminal. Exits 1 if tasks failed, were cancelled, or are held because of
    others.

    Examples:

      manyhands dwork wait && ./evaluate

      manyhands dwork wait --server cluster:6125 --json
    """
    import time

    from manyhands.cli.dwork_link import Link, UnreachableError
    from manyhands.cli.dwork_progress import GraphProgress, ended_of, facts_of, is_drained, total_of
    from manyhands.dispatch.clock import Clock
    from manyhands.protocols.dwork.codec import Kind, Query

    link, clock, graph = Link(server, timeout), Clock(), GraphProgress()
    answered_ms: float | None = None
    with progress("dwork") as report:
        while True:
            try:
                reply = link.ask(Query(kind=Kind.OK, detail=True))
                if reply.kind is Kind.OK and reply.counts is None:
                    fail("the server cannot say: it speaks dwork, but is not manyhands.")
                if reply.counts is not None:
                    answered_ms = clock.monotonic_ms()
                    graph.see(reply.counts)
                    report(ended_of(reply.counts) + reply.counts.held, total_of(reply.counts))
                    if is_drained(reply.counts):
                        break
            except UnreachableError as error:
                if answered_ms is None or clock.monotonic_ms() - answered_ms > patience * 1000:
                    fail(str(error))
            except KeyboardInterrupt:
                fail(f"interrupted; the graph continues: {graph.sentence()}.")
            time.sleep(_LOOK_SECONDS)
    counts = graph.counts
    if as_json:
        _print_json(facts_of(counts))
    else:
        typer.echo(graph.sentence())
    if counts.failed or counts.cancelled or counts.held:
        raise SystemExit(1)


@dwork.command()
def lookup(
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    *,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a task's state, predecessors and outcome.

    Exits 1 if the task is unknown. Tasks of finished graphs are known as long as the server has
    them on record.

    Example:

      manyhands dwork lookup link --json
    """
    from manyhands.protocols.dwork.codec import Kind, Query

    reply = _ask(server, timeout, Query(kind=Kind.LOOKUP, name=name))
    if reply.kind is Kind.NOT_FOUND:
        fail(f"there is no task {name}.")
    (task,) = reply.tasks
    instant = _date if sys.stdout.isatty() and not as_json else str
    facts = _facts(task, reply.location, instant)
    if as_json:
        _print_json(facts)
    else:
        typer.echo("\n".join(f"{key}\t{_shown(value)}" for key, value in facts.items()))


def _facts(task: "Task", location: str | None, instant: Callable[[int], str]) -> dict[str, object]:
    facts: dict[str, object] = {
        "name": task.name,
        "state": _state(task),
        "location": location,
        "origin": task.origin,
        "after": [dep.name for dep in task.preds],
        "attempt": task.attempt,
        "priority": task.priority,
        "payload": task.payload.decode(errors="replace") if task.payload is not None else None,
        "result": task.result.decode(errors="replace") if task.result is not None else None,
        "failure": task.failure,
        "log": [f"{entry.phase.name.lower()} {instant(entry.at_us)}" for entry in task.log],
    }
    return {key: value for key, value in facts.items() if value not in (None, [])}


def _state(task: "Task") -> str:
    if task.state in ("completed", "failed", "cancelled"):
        return task.state  # the log calls all of them recorded
    return task.log[-1].phase.name.lower() if task.log else "unknown"


def _date(at_us: int) -> str:
    try:
        return datetime.fromtimestamp(at_us / 1e6).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(at_us)  # a creator may write anything


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@dwork.command(name="list")
def list_tasks(
    *,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help="Only tasks in this state; may be repeated."),
    ] = None,
    count: Count = 0,
    queue: QueueName = _QUEUE,
    http: Http = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List tasks: state, attempts, name.

    The oldest come first; tasks of earlier graphs are included. This uses the server's HTTP
    address, which has the records.

    Examples:

      manyhands dwork list --state leased --state ready

      manyhands dwork list --queue physics --json
    """
    from manyhands.cli.dwork_records import show_tasks

    show_tasks(http, token_file, queue, states=state or [], count=count, as_json=as_json)


@dwork.command()
def failed(
    *,
    count: Count = 0,
    queue: QueueName = _QUEUE,
    http: Http = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List failed tasks, each with the last line of its error.

    The oldest come first. Exits 1 if there are any. This uses the server's HTTP address.

    Example:

      manyhands dwork failed --http http://cluster:7700
    """
    from manyhands.cli.dwork_records import show_tasks

    states = [State.FAILED]
    if show_tasks(http, token_file, queue, states=states, count=count, as_json=as_json):
        raise SystemExit(1)


@dwork.command()
def retry(
    names: Annotated[list[str] | None, typer.Argument(help="Names of failed tasks.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All tasks that failed.")] = False,
    queue: QueueName = _QUEUE,
    http: Http = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Run failed tasks again; the tasks held because of them follow.

    This uses the server's HTTP address; `manyhands retry` can select by more than names.

    Examples:

      manyhands dwork retry plot-7 plot-8

      manyhands dwork retry --all --http http://cluster:7700
    """
    from manyhands.cli.dwork_records import retry_tasks

    if bool(names) == everything:
        misuse("which tasks? Name them, or use --all.")
    retry_tasks(http, token_file, queue, names or [], as_json=as_json)


@dwork.command()
def steal(
    *,
    count: Annotated[int, typer.Option("-n", min=1, help="Maximum number of tasks.")] = 1,
    location: Location = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take tasks and print their names; exits 1 if there are none.

    Example:

      manyhands dwork steal -n 10 --location node-7
    """
    from manyhands.protocols.dwork.codec import Kind, Query

    query = Query(kind=Kind.STEAL, location=location or _host(), n=count)
    reply = _ask(server, timeout, query)
    names = [task.name for task in reply.tasks]
    finished = reply.kind is Kind.EXIT
    if as_json:
        _print_json({"tasks": names, "finished": finished})
    elif names:
        typer.echo("\n".join(names))
    else:
        typer.echo("everything is finished" if finished else "nothing is ready", err=True)
    if not names:
        raise SystemExit(1)


@dwork.command()
def complete(
    names: Annotated[list[str], typer.Argument(help="Names of tasks.")],
    *,
    failure: Annotated[
        str | None,
        typer.Option(help="Report them as failed, with this reason; tasks after them are held."),
    ] = None,
    result: Annotated[str | None, typer.Option(help="The result.")] = None,
    location: Location = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Report tasks as completed or failed.

    Exits 1 if some were not found.

    Examples:

      manyhands dwork complete compile link

      manyhands dwork complete compile --failure 'disk full'
    """
    from manyhands.protocols.dwork.codec import Kind, Query, Task

    data = result.encode() if result is not None else None
    tasks = tuple(Task(name=n, origin=_host(), result=data, failure=failure) for n in names)
    query = Query(kind=Kind.COMPLETE, tasks=tasks, location=location or _host())
    reply = _ask(server, timeout, query)
    missing = [task.name for task in reply.tasks] if reply.kind is Kind.NOT_FOUND else []
    if as_json:
        _print_json({"ended": [n for n in names if n not in missing], "not_found": missing})
    elif missing:
        typer.echo(f"not found: {', '.join(missing)}", err=True)
    if missing:
        raise SystemExit(1)


@dwork.command()
def leave(
    location: Annotated[str, typer.Argument(help="The worker's name.")],
    *,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
) -> None:
    """Give back the tasks of a lost worker; exits 1 if it is unknown.

    Example:

      manyhands dwork leave node-7
    """
    from manyhands.protocols.dwork.codec import Kind, Query

    reply = _ask(server, timeout, Query(kind=Kind.EXIT, location=location))
    if reply.kind is Kind.NOT_FOUND:
        fail(f"{location} is unknown.")


@dwork.command()
def work(  # noqa: PLR0913 - each is a flag
    *,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            "-c",
            help="Command to run; {name} is the task's name, {payload} its payload or name.",
        ),
    ] = "sh -c {name}",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=1_000, help="Commands to run at once.")
    ] = 1,
    location: Annotated[
        str | None,
        typer.Option(
            "--location",
            help="The worker's name (default: the host's name with Slurm's job, step and rank, or "
            "with the process id).",
        ),
    ] = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Keep waiting for tasks when everything is finished.")
    ] = False,
    retries: Annotated[
        int, typer.Option("--retries", min=0, help="Retry a failed task this many times.")
    ] = 0,
    task_timeout: TaskTimeout = None,
    logs: Logs = None,
    grace: Grace = GRACE_SECONDS,
    kill_after: KillAfter = KILL_AFTER_SECONDS,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            metavar=METAVAR,
            parser=seconds(0, 86_400),
            show_default="2m",
            help="Silence after which the server hands out the tasks again; heartbeats "
            "are sent every third of it; 0 is never.",
        ),
    ] = 120.0,
    patience: Patience = _PATIENCE,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Run tasks as commands until all are finished.

    Exits 1 if some failed. A command gets the task's payload on standard input, and its name,
    attempt, location and slot as MANYHANDS_TASK, _ATTEMPT, _LOCATION and _SLOT. The last 64 KiB
    that it prints become the result; a status other than 0 is a failure. It runs in its own
    session, and any process it leaves running there is ended with it.

    Ctrl-C (SIGINT): running commands finish, no more are started; a second one ends them. SIGTERM
    and SIGHUP, as Slurm sends at a time limit or scancel: running commands have --grace to finish,
    then they get SIGTERM and --kill-after later SIGKILL. Unfinished tasks go back
    to the server; they have not failed, and it costs no attempt.

    If the server goes away, commands continue, and their results are reported when it is back.
    Started with the location of a worker that was killed, it first gives back the tasks of that
    worker.

    Examples:

      manyhands dwork work --command 'sh -c {name}' -j 8

      manyhands dwork work -c './simulate --case {name}' -j 32 --retries 2 --logs logs

      srun manyhands dwork work --server login1:6125 -j 16
    """
    from manyhands.cli.dwork_worker import Crew, Plan

    own, is_own = _own_location()
    plan = Plan(
        server=server,
        seconds=timeout,
        patience_seconds=patience,
        command=command,
        location=location or own,
        is_named=location is not None or is_own,
        count=jobs,
        forever=forever,
        lease_seconds=lease,
        retries=retries,
        task_seconds=task_timeout,
        grace_seconds=grace,
        kill_after_seconds=kill_after,
        logs=logs,
        as_json=as_json,
    )
    raise SystemExit(Crew(plan).run())


def _own_location() -> tuple[str, bool]:
    """A unique name, and whether a restarted worker gets the same one."""
    rank = os.environ.get("SLURM_PROCID")
    if rank is None:
        return f"{_host()}.{os.getpid()}", False
    job, step = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return f"{_host()}.{job}.{step}.{rank}", True

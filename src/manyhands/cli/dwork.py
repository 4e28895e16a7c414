"""`manyhands dwork`: create, look at and work on task graphs, over ZeroMQ as any client would."""

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from manyhands.cli.storing import fail, progress

if TYPE_CHECKING:
    from manyhands.wire.dwork import Query, Task

dwork = typer.Typer(
    help="Create task graphs and work on them, over dwork's own protocol.",
    no_args_is_help=True,
)

Server = Annotated[
    str, typer.Option("--server", "-s", help="The server's dwork address.", metavar="HOST:PORT")
]
Seconds = Annotated[
    float, typer.Option("--timeout", min=0.01, max=86_400, help="Seconds to wait for a reply.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Location = Annotated[
    str | None, typer.Option("--location", help="The worker's name; else that of this host.")
]
_SERVER = "127.0.0.1:6125"
_SECONDS = 30.0
_BATCH_COUNT = 1_000


def _ask(server: str, seconds: float, query: "Query") -> "Query":
    from manyhands.cli.dwork_link import Link, UnreachableError, told_off
    from manyhands.wire.dwork import Kind

    try:
        reply = Link(server, seconds).ask(query)
    except UnreachableError as error:
        fail(str(error))
    trouble = told_off(reply)
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
        list[str] | None, typer.Option("--after", help="A task that comes first; may be repeated.")
    ] = None,
    payload: Annotated[str | None, typer.Option(help="Data for the worker.")] = None,
    priority: Annotated[float | None, typer.Option(help="Higher goes first.")] = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Create a task, or add predecessors to one that exists.

    Examples:

      manyhands dwork create compile

      manyhands dwork create link --after compile --after assets
    """
    from manyhands.wire.dwork import Dep, Kind, Query, Task

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
    file: Annotated[Path, typer.Argument(help="File of lines NAME,DEP,DEP…; - is standard input.")],
    *,
    skip: Annotated[
        int, typer.Option("--skip", min=0, help="Leave out so many tasks: they are loaded already.")
    ] = 0,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Load a graph: one task a line, its name and those that come before it, with commas. Lines
    may stand in any order.

    If the server goes away meanwhile, loading goes on when it is back within the timeout. What
    was loaded is kept: it can be left out of another try, or loaded again as long as nobody has
    worked on it.

    Examples:

      manyhands dwork load graph.txt

      manyhands dwork load graph.txt --skip 42000

      generate-graph | manyhands dwork load -
    """
    from manyhands.cli.dwork_graph import read_graph
    from manyhands.cli.dwork_link import Link, UnreachableError, told_off
    from manyhands.server.clock import Clock
    from manyhands.wire.dwork import Kind, Query

    tasks = read_graph(file, _host())
    clock = Clock()
    started_ms = clock.monotonic_ms()
    link = Link(server, timeout)
    with progress("loading") as tell:
        for first in range(skip, len(tasks), _BATCH_COUNT):
            batch = tuple(tasks[first : first + _BATCH_COUNT])
            try:
                reply = link.ask_patiently(Query(kind=Kind.CREATE, tasks=batch))
            except UnreachableError as error:
                fail(f"{error} {first} tasks are loaded; go on with --skip {first}.")
            except KeyboardInterrupt:
                fail(f"interrupted. {first} tasks are loaded; go on with --skip {first}.")
            trouble = told_off(reply)
            if trouble is not None:
                fail(f"tasks {first + 1} to {first + len(batch)} were refused: {trouble}.")
            tell(first + len(batch), len(tasks))
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        _print_json({"tasks": max(0, len(tasks) - skip), "seconds": round(seconds, 3)})
    else:
        typer.echo(f"loaded {max(0, len(tasks) - skip)} tasks in {seconds:.1f} s")


@dwork.command()
def status(
    *, server: Server = _SERVER, timeout: Seconds = _SECONDS, as_json: AsJson = False
) -> None:
    """Show how many tasks there are, and how many are ready.

    Example:

      manyhands dwork status --server cluster:6125
    """
    from manyhands.wire.dwork import Kind, Query

    reply = _ask(server, timeout, Query(kind=Kind.OK))
    if as_json:
        active = next((word for word in (reply.name or "").split() if word.isdigit()), "0")
        _print_json({"active": int(active), "ready": reply.n or 0})
    else:
        typer.echo(reply.name)


@dwork.command()
def lookup(
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    *,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show where a task is, what it waits for, and what became of it; exits 1 if it is unknown.

    Example:

      manyhands dwork lookup link --json
    """
    from manyhands.wire.dwork import Kind, Query

    reply = _ask(server, timeout, Query(kind=Kind.LOOKUP, name=name))
    if reply.kind is Kind.NOT_FOUND:
        fail(f"there is no task {name}. Names end with their graph; records of it stay.")
    (task,) = reply.tasks
    instant = _date if sys.stdout.isatty() and not as_json else str
    facts = _facts(task, reply.location, instant)
    if as_json:
        _print_json(facts)
    else:
        typer.echo("\n".join(f"{key}\t{_shown(value)}" for key, value in facts.items()))


def _facts(task: "Task", location: str | None, instant: Callable[[int], str]) -> dict[str, object]:
    from manyhands.wire.dwork import Phase

    facts: dict[str, object] = {
        "name": task.name,
        "state": Phase(task.log[-1].phase).name.lower() if task.log else "unknown",
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


def _date(at_us: int) -> str:
    try:
        return datetime.fromtimestamp(at_us / 1e6).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(at_us)  # a creator may write anything


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@dwork.command()
def steal(
    *,
    count: Annotated[int, typer.Option("-n", min=1, help="At most so many tasks.")] = 1,
    location: Location = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take tasks to work on, and print their names; exits 1 if there are none.

    Example:

      manyhands dwork steal -n 10 --location node-7
    """
    from manyhands.wire.dwork import Kind, Query

    query = Query(kind=Kind.STEAL, location=location or _host(), n=count)
    reply = _ask(server, timeout, query)
    names = [task.name for task in reply.tasks]
    finished = reply.kind is Kind.EXIT
    if as_json:
        _print_json({"tasks": names, "finished": finished})
    elif names:
        typer.echo("\n".join(names))
    else:
        typer.echo("all is finished" if finished else "nothing is ready", err=True)
    if not names:
        raise SystemExit(1)


@dwork.command()
def complete(
    names: Annotated[list[str], typer.Argument(help="Names of tasks.")],
    *,
    failure: Annotated[
        str | None, typer.Option(help="Say that they failed, and why; those after them are held.")
    ] = None,
    result: Annotated[str | None, typer.Option(help="What came out.")] = None,
    location: Location = None,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Report the end of tasks; exits 1 if some of them were not found.

    Examples:

      manyhands dwork complete compile link

      manyhands dwork complete compile --failure 'disk full'
    """
    from manyhands.wire.dwork import Kind, Query, Task

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
    """Give back everything that a worker holds, because it is gone; exits 1 if it is unknown.

    Example:

      manyhands dwork leave node-7
    """
    from manyhands.wire.dwork import Kind, Query

    reply = _ask(server, timeout, Query(kind=Kind.EXIT, location=location))
    if reply.kind is Kind.NOT_FOUND:
        fail(f"nothing is known of {location}.")


@dwork.command()
def work(
    *,
    command: Annotated[
        str, typer.Option("--command", "-c", help="What to run; {name} is the task's name.")
    ] = "sh -c {name}",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, max=1_000, help="At once.")] = 1,
    location: Location = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Go on when all is finished: there may be more.")
    ] = False,
    server: Server = _SERVER,
    timeout: Seconds = _SECONDS,
    as_json: AsJson = False,
) -> None:
    """Run tasks as commands until all are finished; exits 1 if some failed.

    A command gets the task's payload on standard input. What it prints becomes the result; a
    status other than 0 is a failure. An interrupt lets running commands end; a second one ends
    them and gives their tasks back. Started with the location of a worker that was killed, it
    gives back first what that one had.

    Examples:

      manyhands dwork work --command 'sh -c {name}' -j 8

      manyhands dwork work -c './simulate --case {name}' -j 32 --forever
    """
    from manyhands.cli.dwork_worker import Crew

    crew = Crew(
        server,
        timeout,
        command,
        location=location or _host(),
        is_named=location is not None,
        count=jobs,
        forever=forever,
        as_json=as_json,
    )
    raise SystemExit(crew.run())

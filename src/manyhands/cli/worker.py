"""`manyhands worker`: runs the tasks of an app."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.stores import fail

if TYPE_CHECKING:
    from manyhands.client.app import App

_APP_HELP = "The app: tasks:app, tasks (the only App in it), package.tasks:make()."
Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help=_APP_HELP)]
_DJANGO = "manyhands.contrib.django"


def _option(flag: str, text: str, *more: str, **settings: Any) -> Any:  # noqa: ANN401
    name = flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, *more, envvar=f"MANYHANDS_WORKER_{name}", help=text, **settings)


def worker(  # noqa: PLR0913, PLR0917 - one for each flag
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help=f"{_APP_HELP} Needed unless --django."),
    ] = None,
    processes: Annotated[
        str,
        _option(
            "--processes",
            "Child processes; auto: one for each core.",
            "-p",
            metavar="NUMBER|auto",
        ),
    ] = "1",
    concurrency: Annotated[
        int, _option("--concurrency", "Jobs at once in each process.", "-c", min=1)
    ] = 16,
    queues: Annotated[
        str | None,
        _option(
            "--queues",
            "Queues of the app, names or patterns, with commas.",
            metavar="QUEUE,…",
        ),
    ] = None,
    order: Annotated[
        str,
        _option(
            "--order",
            "Jobs by priority, queues in turns; or queues one after the other, as listed.",
            metavar="priority_in_turns|listed",
        ),
    ] = "priority_in_turns",
    server: Annotated[
        str | None,
        _option("--server", "Address of the server, instead of the app's.", "--url", metavar="URL"),
    ] = None,
    name: Annotated[
        str | None,
        _option("--name", "First part of the workers' names; default: the host's.", metavar="NAME"),
    ] = None,
    ahead: Annotated[
        int | None,
        _option("--ahead", "Most jobs fetched ahead; default: by run time.", min=0, max=500),
    ] = None,
    grace: Annotated[
        float,
        _option(
            "--grace",
            "Time that running jobs get to finish after SIGTERM.",
            metavar=METAVAR,
            parser=seconds(),
            show_default="30s",
        ),
    ] = 30.0,
    max_jobs: Annotated[
        int | None, _option("--max-jobs", "Replace a process after so many jobs.", min=1)
    ] = None,
    max_memory: Annotated[
        int | None, _option("--max-memory", "Replace a process above so many MiB.", min=1)
    ] = None,
    log_format: Annotated[
        str, _option("--log-format", "Format of the log.", metavar="text|json")
    ] = "text",
    log_level: Annotated[
        str,
        _option("--log-level", "Minimum level of log lines.", metavar="debug|info|warning|error"),
    ] = "info",
    metrics: Annotated[
        str | None,
        _option("--metrics", "Serve metrics and /healthz there.", metavar="HOST:PORT"),
    ] = None,
    *,
    reload: Annotated[
        bool, _option("--reload/--no-reload", "Restart when the code changes.")
    ] = False,
    allow_pickle: Annotated[
        bool,
        _option("--allow-pickle/--no-allow-pickle", "Take functions that were pickled and signed."),
    ] = False,
    django: Annotated[
        bool,
        _option("--django/--no-django", "Set Django up first; the app is its task backend's."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import the app, list its tasks, and exit.")
    ] = False,
) -> None:
    """Run the tasks of an app, in child processes under a supervisor.

    Examples:

      manyhands worker tasks:app

      manyhands worker tasks:app --processes 8 --concurrency 1

      manyhands worker tasks:app --queues 'mail*,thumbnail' --reload

      DJANGO_SETTINGS_MODULE=shop.settings manyhands worker --django
    """
    from manyhands.client.worker.names import check_name
    from manyhands.client.worker.options import ORDERS, SupervisorOptions

    # For the child processes, which load the app.
    os.environ["MANYHANDS_WORKER_ALLOW_PICKLE"] = str(allow_pickle).lower()
    _require(order in ORDERS, f"--order is {' or '.join(ORDERS)}")
    _require(log_format in ("text", "json"), "--log-format is text or json")
    levels = ("debug", "info", "warning", "error")
    _require(log_level.lower() in levels, f"--log-level is one of {', '.join(levels)}")
    try:
        check_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    count = (os.cpu_count() or 1) if processes == "auto" else _number(processes)
    framework = _DJANGO if django else None
    if target is None:
        _require(django, "name the app, such as tasks:app; only --django needs no name")
        target = f"{_DJANGO}:app()"
    chosen = tuple(text.strip() for text in (queues or "").split(",") if text.strip())
    options = SupervisorOptions(
        target=target,
        processes=count,
        concurrency=concurrency,
        queues=chosen,
        order=order,
        ahead=ahead,
        server=server,
        name=name,
        grace=grace,
        max_jobs=max_jobs,
        max_memory=None if max_memory is None else max_memory * 1024**2,
        log_format=log_format,
        log_level=log_level.lower(),
        reload=reload,
        metrics=metrics,
        framework=framework,
    )
    if check:
        _check(target, chosen, framework)
    else:
        _supervise(options)


def _require(is_true: bool, sentence: str) -> None:  # noqa: FBT001
    if not is_true:
        raise typer.BadParameter(sentence)


def _number(text: str) -> int:
    _require(text.isdigit() and int(text) > 0, "--processes is 1 or more, or auto")
    return int(text)


def _check(target: str, queues: tuple[str, ...], framework: str | None) -> None:
    from manyhands.client.worker import listing
    from manyhands.client.worker.crew import chosen
    from manyhands.client.worker.run import Catalogue

    app = load(target, framework)
    try:
        typer.echo(listing.table(app, chosen(Catalogue(app).queues, queues)))
    except ValueError as error:
        fail(str(error))


def _supervise(options: object) -> None:
    """Replaces this program by the supervisor, which is smaller without our command line."""
    import msgspec

    from manyhands.client.worker import supervisor

    os.environ[supervisor.VARIABLE] = msgspec.json.encode(options).decode()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", supervisor.__name__])  # noqa: S606


def load(target: str, framework: str | None = None) -> "App[Any]":
    """The app of a command, or the user's own traceback."""
    from manyhands.client.worker import targets

    try:
        return targets.load(target, framework)
    except targets.TargetError as error:
        typer.echo(error.trace, err=True, nl=False)
        fail(str(error))

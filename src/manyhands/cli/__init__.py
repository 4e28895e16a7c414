"""The `manyhands` command: reads arguments, calls the parts that do the work, prints the outcome.

Holds no logic of its own. Each command is a row of the table below and is imported when it is used;
heavy imports stay inside the command that needs them, so that help and short commands answer at
once.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer

from manyhands import __version__
from manyhands.cli.group import Lazy, LazyGroup
from manyhands.config import ConfigError

# Each command: the heading it is listed under, its name, where it is, and what it does.
COMMANDS: Final = (
    Lazy("Server", "serve", "manyhands.cli.serve:serve", "Start the server."),
    Lazy(
        "Server",
        "access",
        "manyhands.cli.access:access",
        "Make, list, test and remove callers of the access file.",
    ),
    Lazy(
        "Server",
        "config",
        "manyhands.cli.show_config:show_config",
        "Show the configuration that serve would use.",
    ),
    Lazy(
        "Server",
        "doctor",
        "manyhands.cli.doctor:doctor",
        "Check ports, disk, clock, limits and configuration.",
    ),
    Lazy(
        "Server",
        "version",
        "manyhands.cli.version:version",
        "Show the versions of manyhands and its platform.",
    ),
    Lazy(
        "Server",
        "completion",
        "manyhands.cli.completion:completion",
        "Print the completion script of a shell.",
    ),
    Lazy(
        "Look",
        "status",
        "manyhands.cli.status:status",
        "Queues and what needs attention; exits 1 if anything does.",
    ),
    Lazy("Look", "top", "manyhands.cli.top:top", "The queues, live, on the whole screen."),
    Lazy("Look", "jobs", "manyhands.cli.jobs:jobs", "List jobs that match a search."),
    Lazy(
        "Look",
        "job",
        "manyhands.cli.job:job",
        "Show one job: story, why it waits, payload, result.",
    ),
    Lazy(
        "Look",
        "failures",
        "manyhands.cli.failures:failures",
        "Failed jobs, grouped by what went wrong.",
    ),
    Lazy(
        "Look",
        "workers",
        "manyhands.cli.workers:workers",
        "Which worker holds what, and for how long.",
    ),
    Lazy(
        "Look",
        "servers",
        "manyhands.cli.servers:servers",
        "List the servers on the same database; drain one.",
    ),
    Lazy("Look", "events", "manyhands.cli.events:events", "The log of changes; -f follows it."),
    Lazy(
        "Jobs",
        "submit",
        "manyhands.cli.submit:submit",
        "Submit a job, and wait for its result if you like.",
    ),
    Lazy("Jobs", "work", "manyhands.cli.work:work", "Run a command for each job of a queue."),
    Lazy("Jobs", "worker", "manyhands.cli.worker:worker", "Run the tasks of a Python app."),
    Lazy("Jobs", "retry", "manyhands.cli.bulk:retry", "Run failed jobs again."),
    Lazy("Jobs", "cancel", "manyhands.cli.bulk:cancel", "Cancel unfinished jobs."),
    Lazy("Jobs", "move", "manyhands.cli.bulk:move", "Move unfinished jobs to another queue."),
    Lazy("Jobs", "priority", "manyhands.cli.bulk:priority", "Set the priority of unfinished jobs."),
    Lazy("Jobs", "expire", "manyhands.cli.bulk:expire", "End leases of workers that hang."),
    Lazy("Jobs", "bulk", "manyhands.cli.bulk:bulk", "List, watch or stop operations on many jobs."),
    Lazy(
        "Queues, schedules, limits",
        "queue",
        "manyhands.cli.queue:queue",
        "List, show, pause, resume, set and delete queues.",
    ),
    Lazy(
        "Queues, schedules, limits",
        "schedule",
        "manyhands.cli.schedule:schedule",
        "List, show, set and delete schedules.",
    ),
    Lazy(
        "Queues, schedules, limits",
        "limit",
        "manyhands.cli.limit:limit",
        "List, set and delete named limits.",
    ),
    Lazy(
        "Queues, schedules, limits",
        "apply",
        "manyhands.cli.apply:apply",
        "Set schedules, limits and queues as a Python app declares them.",
    ),
    Lazy("Store", "backup", "manyhands.cli.backup:backup", "Copy the store while the server runs."),
    Lazy("Store", "restore", "manyhands.cli.restore:restore", "Put a backup in place."),
    Lazy("Store", "check", "manyhands.cli.check:check", "Verify database, journal and artifacts."),
    Lazy("Store", "compact", "manyhands.cli.compact:compact", "Shrink the file of the store."),
    Lazy(
        "Store",
        "export",
        "manyhands.cli.export_jobs:export_jobs",
        "Write everything as lines of JSON.",
    ),
    Lazy("Store", "import", "manyhands.cli.import_jobs:import_jobs", "Read an export."),
    Lazy(
        "Store",
        "migrate",
        "manyhands.cli.migrate:migrate",
        "Make or update the tables of a PostgreSQL store.",
    ),
    Lazy(
        "Other protocols",
        "dwork",
        "manyhands.cli.dwork:dwork",
        "Task graphs over dwork's protocol.",
    ),
    Lazy("Other protocols", "wmp", "manyhands.cli.wmp:wmp", "Jobs over WMP (ZeroMQ)."),
    Lazy(
        "Other protocols",
        "device",
        "manyhands.cli.device:device",
        "Carry messages between WMP workers and managers.",
    ),
)
_WIDE_COLUMNS: Final = 110
# Set by the shell while it completes a command line.
COMPLETION_VARIABLE: Final = "_MANYHANDS_COMPLETE"


class _Commands(LazyGroup):
    table = COMMANDS
    # Boxes take room: where there is little, names of flags would be cut.
    markup: Literal["rich"] | None = (
        "rich"
        if sys.stdout.isatty()
        and sys.stderr.isatty()
        and shutil.get_terminal_size().columns >= _WIDE_COLUMNS
        else None
    )


app = typer.Typer(
    cls=_Commands,
    epilog="Start with: manyhands serve",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_Commands.markup,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"manyhands {__version__}")
        raise typer.Exit


@app.callback()
def _manyhands(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version; `manyhands version` says more.",
            callback=lambda value: _print_version(wanted=value),
            is_eager=True,
        ),
    ] = False,
) -> None:
    """A durable job server: one engine behind many job protocols."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits: 0 on success, 2 when arguments or configuration are wrong."""
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
        # Each candidate has to stay in one line, with all of its help.
        os.environ["COLUMNS"] = "1000"
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        app(words, prog_name="manyhands")
    except ConfigError as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader of the output has closed it; nothing may be flushed into it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None

"""The `manyhands` command: reads arguments, calls the parts that do the work, prints the outcome.

Holds no logic of its own. Heavy imports stay inside the command that needs them, so that help and
short commands answer at once.
"""

import sys
from collections.abc import Sequence

import typer

from manyhands.cli.apply import apply
from manyhands.cli.backup import backup
from manyhands.cli.bulk import bulk, cancel, move, priority, retry
from manyhands.cli.check import check
from manyhands.cli.compact import compact
from manyhands.cli.device import device
from manyhands.cli.dwork import dwork
from manyhands.cli.export_jobs import export_jobs
from manyhands.cli.import_jobs import import_jobs
from manyhands.cli.serve import serve
from manyhands.cli.show_config import show_config
from manyhands.cli.version import version
from manyhands.cli.wmp import wmp
from manyhands.cli.worker import worker
from manyhands.config import ConfigError

app = typer.Typer(
    help="A durable job server: one engine behind many job protocols.",
    epilog="Start with: manyhands serve",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() and sys.stderr.isatty() else None,
)
app.command(name="serve")(serve)
app.command(name="worker")(worker)
app.command(name="apply")(apply)
app.command(name="config")(show_config)
app.command(name="backup")(backup)
app.command(name="check")(check)
app.command(name="compact")(compact)
app.command(name="export")(export_jobs)
app.command(name="import")(import_jobs)
app.command(name="retry")(retry)
app.command(name="cancel")(cancel)
app.command(name="move")(move)
app.command(name="priority")(priority)
app.command(name="bulk")(bulk)
app.command(name="version")(version)
app.command(name="device")(device)
app.add_typer(dwork, name="dwork")
app.add_typer(wmp, name="wmp")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits: 0 on success, 2 when arguments or configuration are wrong."""
    try:
        app(arguments)
    except ConfigError as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise SystemExit(2) from None

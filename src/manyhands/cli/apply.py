"""`manyhands apply`: schedules, limits and settings of queues, as code declares them."""

from typing import Annotated

import typer

from manyhands.cli.output import plural
from manyhands.cli.stores import fail
from manyhands.cli.worker import Target, load


def apply(
    target: Target,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only show the difference; exit 1 if there is one.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove schedules that the code no longer has.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show how the server's schedules, limits and queue settings differ from those of an app, and
    change them.

    Examples:

      manyhands apply tasks:app --check

      manyhands apply tasks:app --prune --yes
    """
    from manyhands.client.errors import Refused
    from manyhands.client.worker.declared import Registry
    from manyhands.client.worker.targets import full_name

    app = load(target)
    try:
        registry = Registry(app, full_name(app, target))
        differences = registry.differences()
        stale = registry.stale_schedules() if prune else []
        for difference in differences:
            typer.echo(str(difference))
        for name in stale:
            typer.echo(f"schedule {name}: the code no longer has it")
        if not differences and not stale:
            typer.echo("Nothing to change: the server is as the code has it.")
            return
        if check:
            raise typer.Exit(1)
        if not (yes or typer.confirm("Change the server?")):
            raise typer.Exit(1)
        for difference in differences:
            registry.put(difference.setting)
        for name in stale:
            registry.remove_schedule(name)
    except (Refused, ValueError) as error:
        fail(str(error))
    typer.echo(f"Changed {plural(len(differences) + len(stale), 'setting')}.")

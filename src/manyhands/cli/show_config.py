"""`manyhands config`: shows the effective configuration and the source of each value."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from manyhands.cli.flags import Flag, load_from_flags, with_config_flags
from manyhands.config import OPTIONS, LoadedConfig, as_toml, load_config


@with_config_flags
def show_config(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(help="Only check this file, ignoring environment and flags.", metavar="FILE"),
    ] = None,
    **flags: Flag,
) -> None:
    """Show the configuration that serve would use.

    It takes the same flags as serve. The output is a table on a terminal, and TOML that can be read
    back in a pipe.

    Examples:

      manyhands config

      manyhands config > manyhands.toml

      manyhands config --check manyhands.toml
    """
    if check is not None:
        load_config({}, {}, check)
        answer = msgspec.json.encode({"file": str(check), "valid": True}).decode()
        typer.echo(answer if as_json else f"{check} is a valid configuration.")
        return
    loaded = load_from_flags(flags)
    if as_json:
        typer.echo(_json(loaded))
    elif sys.stdout.isatty():
        _print_table(loaded)
    else:
        typer.echo(_toml(loaded))


def _json(loaded: LoadedConfig) -> str:
    rows = {
        name: {"value": loaded.plain(name), "source": source}
        for name, source in loaded.sources.items()
    }
    return msgspec.json.format(msgspec.json.encode(rows)).decode()


def _toml(loaded: LoadedConfig) -> str:
    return "\n".join(
        f"{_comment(loaded, name)}{name} = {as_toml(loaded.plain(name))}  # {source}"
        for name, source in loaded.sources.items()
    )


def _comment(loaded: LoadedConfig, name: str) -> str:
    """A secret is not shown, so its line cannot be read back."""
    return "# " if OPTIONS[name].secret and getattr(loaded.config, name) is not None else ""


def _print_table(loaded: LoadedConfig) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("option", "value", "source", "meaning", box=None, header_style="bold")
    for name, source in loaded.sources.items():
        style = "dim" if source == "default" else "green"
        value = Text(as_toml(loaded.plain(name)))
        table.add_row(name, value, Text(source, style=style), OPTIONS[name].help)
    Console().print(table)

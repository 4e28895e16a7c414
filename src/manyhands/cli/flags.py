"""Turns the definition of the options into flags, and given flags into a configuration."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from manyhands.config import (
    FILE_VARIABLE,
    OPTIONS,
    VARIABLE_PREFIX,
    LoadedConfig,
    Option,
    load_config,
)

Flag = str | bool | None

_Command = TypeVar("_Command", bound=Callable[..., None])


def with_config_flags(command: _Command) -> _Command:
    """Adds a flag for the file and one for every option to a command that takes `**flags`."""
    named = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        _file_parameter(),
        *(_option_parameter(option) for option in OPTIONS.values() if not option.secret),
    ]
    # Typer reads its options from the signature, so they are added there.
    command.__dict__["__signature__"] = inspect.Signature([*named, *added])
    return command


def load_from_flags(flags: Mapping[str, Flag]) -> LoadedConfig:
    """The configuration from these flags, the environment and the file."""
    texts = {name: _as_text(flag) for name, flag in flags.items() if name != "config"}
    return load_config(texts, os.environ, file_of(flags))


def file_of(flags: Mapping[str, Flag]) -> Path | None:
    """The TOML file that the flags or the environment name."""
    file = flags.get("config") or os.environ.get(FILE_VARIABLE)
    return Path(str(file)) if file else None


def forget_environment() -> None:
    """Removes the variables of the configuration, once loaded: child processes of the server do not
    need them, and they may hold secrets.
    """
    for variable in [name for name in os.environ if name.startswith(VARIABLE_PREFIX)]:
        del os.environ[variable]


def _as_text(flag: Flag) -> str | None:
    return str(flag).lower() if isinstance(flag, bool) else flag


def _file_parameter() -> inspect.Parameter:
    text = f"TOML file with options (default: {FILE_VARIABLE})."
    declaration = typer.Option("--config", help=text, metavar="FILE", show_default=False)
    return _parameter("config", Annotated[str | None, declaration])


def _option_parameter(option: Option) -> inspect.Parameter:
    if isinstance(option.default, bool):
        names = f"{option.flag}/--no-{option.flag.removeprefix('--')}"
        switch = typer.Option(names, help=option.help, show_default=False)
        return _parameter(option.name, Annotated[bool | None, switch])
    # Values stay text here, so that a wrong one gets the same sentence wherever it was given.
    value = typer.Option(
        option.flag,
        help=f"{option.help} (default {option.default}, example {option.example})",
        metavar="VALUE",
        show_default=False,
    )
    return _parameter(option.name, Annotated[str | None, value])


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )

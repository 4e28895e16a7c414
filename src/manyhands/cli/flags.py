"""Turns the definition of the options into flags, and given flags into a configuration."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from manyhands.config import (
    FILE_VARIABLE,
    LISTENERS_BUILT,
    OPTIONS,
    Listen,
    LoadedConfig,
    Option,
    load_config,
)

Flag = str | bool | None

_Command = TypeVar("_Command", bound=Callable[..., None])


def with_config_flags(command: _Command) -> _Command:
    """Gives a command that takes `**flags` a flag for the file and one for every option."""
    named = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        _file_parameter(),
        *(_option_parameter(option) for option in OPTIONS.values() if not option.secret),
    ]
    # Typer learns its options from the signature, so the signature is where they are added.
    command.__dict__["__signature__"] = inspect.Signature([*named, *added])
    return command


def load_from_flags(flags: Mapping[str, Flag]) -> LoadedConfig:
    """The configuration that these flags, the environment and the named file make together."""
    given = dict(flags)
    file = given.pop("config", None) or os.environ.get(FILE_VARIABLE)
    texts = {name: _as_text(flag) for name, flag in given.items()}
    return load_config(texts, os.environ, Path(str(file)) if file else None)


def _as_text(flag: Flag) -> str | None:
    return str(flag).lower() if isinstance(flag, bool) else flag


def _file_parameter() -> inspect.Parameter:
    text = f"TOML file with options (else {FILE_VARIABLE})."
    declaration = typer.Option("--config", help=text, metavar="FILE", show_default=False)
    return _parameter("config", Annotated[str | None, declaration])


def _option_parameter(option: Option) -> inspect.Parameter:
    if isinstance(option.default, bool):
        names = f"{option.flag}/--no-{option.flag.removeprefix('--')}"
        switch = typer.Option(names, help=option.help, show_default=False)
        return _parameter(option.name, Annotated[bool | None, switch])
    # Values stay text here, so that a wrong one gets the same sentence wherever it was written.
    value = typer.Option(
        option.flag,
        help=f"{option.help} (default {option.default}, example {option.example})",
        metavar="VALUE",
        show_default=False,
        hidden=isinstance(option.kind, Listen) and option.name not in LISTENERS_BUILT,
    )
    return _parameter(option.name, Annotated[str | None, value])


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )

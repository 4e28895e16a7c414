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
from manyhands.config.kinds import (
    Broker,
    Choice,
    Duration,
    FilePath,
    FunctionName,
    Listen,
    ListenMany,
    Networks,
    Origins,
    Reachable,
    ServerName,
    Size,
    StoreName,
    Whole,
)

Flag = str | bool | None

# How the help groups the options: by the first of these that a name begins with.
_PANELS = {
    "Addresses": (
        "http",
        "http_tls",
        "gearman",
        "gearman_tls",
        "dwork",
        "dwork_curve",
        "wmp",
        "wmp_curve",
        "amqp",
        "amqp_tls",
        "server_name",
    ),
    "Several servers": ("cluster", "advertise", "cluster_"),
    "Storage": (
        "data",
        "store",
        "unsafe_commits",
        "retention_",
        "result_retention_",
        "disk_",
        "payload_bytes_max",
        "memory",
    ),
    "Access": (
        "access",
        "tokens",
        "tokens_file",
        "read_only",
        "insecure",
        "tls_",
        "curve_key",
        "zeromq_plain",
        "trusted_proxies",
        "cors_",
    ),
    "Process and logs": ("log_", "ready_file", "pid_file", "drain_"),
    "Gearman": ("gearman_", "job_retries", "exceptions"),
    "dwork": ("dwork_",),
    "WMP": ("wmp_",),
    "AMQP": ("amqp_",),
    "qless": ("qless_",),
    "Tuning": ("loop", "commit_pace_", "ride_", "check_invariants"),
}
_ORDER = list(_PANELS)
_METAVARS: dict[type, str] = {
    Broker: "URL",
    Duration: "DURATION",
    FilePath: "PATH",
    FunctionName: "MODULE:NAME",
    Listen: "HOST:PORT|off",
    Reachable: "HOST:PORT",
    ListenMany: "[NAME=]HOST:PORT,…|off",
    Networks: "NETWORKS",
    Origins: "ORIGINS",
    ServerName: "NAME",
    Size: "SIZE",
    Whole: "NUMBER",
}

_Command = TypeVar("_Command", bound=Callable[..., None])


def with_config_flags(command: _Command) -> _Command:
    """Adds a flag for the file and one for every option to a command that takes `**flags`."""
    named = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    given = sorted(OPTIONS.values(), key=lambda option: _ORDER.index(panel_of(option.name)))
    added = [
        _file_parameter(),
        *(_option_parameter(option) for option in given if not option.secret),
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
    panel = panel_of(option.name)
    if isinstance(option.default, bool):
        names = f"{option.flag}/--no-{option.flag.removeprefix('--')}"
        text = f"{option.help} (default {'on' if option.default else 'off'})"
        switch = typer.Option(names, help=text, show_default=False, rich_help_panel=panel)
        return _parameter(option.name, Annotated[bool | None, switch])
    facts = [f"default {option.default}"]
    if not isinstance(option.kind, Choice | StoreName) and option.example != str(option.default):
        facts.append(f"example {option.example}")
    # Values stay text here, so that a wrong one gets the same sentence wherever it was given.
    value = typer.Option(
        option.flag,
        help=f"{option.help} ({', '.join(facts)})",
        metavar=_metavar(option),
        show_default=False,
        autocompletion=_words_of(option),
        rich_help_panel=panel,
    )
    return _parameter(option.name, Annotated[str | None, value])


def panel_of(name: str) -> str:
    """The group of an option. A name stands for itself, or for all that begin with it."""
    for panel, names in _PANELS.items():
        if name in names:
            return panel
    return next(
        panel
        for panel, names in _PANELS.items()
        if any(start.endswith("_") and name.startswith(start) for start in names)
    )


def _words_of(option: Option) -> Callable[[], list[str]] | None:
    """What a shell offers as its value."""
    kind = option.kind
    return (lambda: list(kind.words)) if isinstance(kind, Choice) else None


def _metavar(option: Option) -> str:
    """The words that are accepted, or what kind of value it is."""
    kind = option.kind
    if isinstance(kind, Choice):
        return "|".join(kind.words)
    if isinstance(kind, StoreName):
        return "sqlite|memory|postgresql://…"
    return _METAVARS[type(kind)]


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )

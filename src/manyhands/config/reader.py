"""Loads the effective configuration.

A flag overrides the environment, which overrides the file, which overrides the default.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from manyhands.config.files import is_open_to_others
from manyhands.config.kinds import (
    Address,
    Endpoints,
    Plain,
    WrongValueError,
    as_plain,
)
from manyhands.config.options import OPTIONS, VARIABLE_PREFIX, Config, Option
from manyhands.config.profiles import Profile, read_profiles
from manyhands.config.tokens import Token, Tokens

# Names the TOML file itself, so it is not a key of that file.
FILE_VARIABLE: Final = "MANYHANDS_CONFIG"
# Read by commands that talk to a running server, not by the server itself.
URL_VARIABLE: Final = "MANYHANDS_URL"
TOKEN_VARIABLE: Final = "MANYHANDS_TOKEN"  # noqa: S105 - its name, no token
PROFILE_VARIABLE: Final = "MANYHANDS_PROFILE"
_OTHER_VARIABLES: Final = (
    FILE_VARIABLE,
    URL_VARIABLE,
    TOKEN_VARIABLE,
    PROFILE_VARIABLE,
    "MANYHANDS_CA",
    "MANYHANDS_CERT",
    "MANYHANDS_KEY",
    "MANYHANDS_CURVE_SERVER",
    "MANYHANDS_CURVE_CLIENT_KEY",
)
# A table of the file beside the options.
_PROFILES: Final = "profiles"
# A Kubernetes service called `manyhands` sets the first in every container of its namespace; `dwork
# work` and `wmp work` set the others for the commands that they run.
_FOREIGN_VARIABLE: Final = re.compile(
    r"MANYHANDS_((SERVICE|PORT)(_.*)?|ATTEMPT|JOB|LOCATION|MANAGER|QUEUE|SLOT|TASK)"
)


class ConfigError(Exception):
    """A wrong key or value. Its text is a sentence: where, which key, what is wrong, what to
    use.
    """


class LoadedConfig(msgspec.Struct, frozen=True):
    """The effective configuration, and the source of every value."""

    config: Config
    sources: Mapping[str, str]

    def plain(self, name: str) -> Plain:
        """The value of an option as it is written in the file."""
        return as_plain(OPTIONS[name].kind, getattr(self.config, name))


def load_config(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None
) -> LoadedConfig:
    """Combines flags (by option name), environment and file; raises `ConfigError` on any mistake.

    A flag that is None and an empty variable count as not given.
    """
    raws: dict[str, tuple[object, str]] = {}
    if file is not None:
        raws |= _read_file(file)
    raws |= _read_environ(environ)
    raws |= {
        name: (raw, f"flag {OPTIONS[name].flag}") for name, raw in flags.items() if raw is not None
    }
    values: dict[str, Any] = {
        name: _read_value(OPTIONS[name], raw, source) for name, (raw, source) in raws.items()
    }
    config = Config(**values)
    sources = {name: raws[name][1] if name in raws else "default" for name in OPTIONS}
    _check_exposure(config, sources)
    _check_tls(config, sources)
    _check_curve(config, sources)
    _check_cluster(config, sources)
    return LoadedConfig(config, sources)


def warnings_of(loaded: LoadedConfig, file: Path | None) -> list[str]:
    """Sentences about secrets that other users of the machine can read."""
    config, sources = loaded.config, loaded.sources
    found = [
        f"{name} {path} can be read by every user of this machine; fix that with chmod 600"
        for name, path in (
            ("tokens_file", config.tokens_file),
            ("amqp_users", config.amqp_users),
            ("tls_key", config.tls_key),
            ("curve_key", config.curve_key),
            ("cluster_secret_file", config.cluster_secret_file),
            ("cluster_tls_key", config.cluster_tls_key),
        )
        if path is not None and is_open_to_others(path)
    ]
    store = config.store
    with_password = [
        name
        for name, has_password in (
            ("store", not isinstance(store, str) and store.has_password),
            ("amqp_relay", config.amqp_relay is not None and config.amqp_relay.has_password),
        )
        if has_password
    ]
    found += [
        f"the password in {OPTIONS[name].flag} can be read by every user of this machine, who may "
        f"list its processes; {name} in the file or MANYHANDS_{name.upper()} keeps it from them"
        for name in with_password
        if sources[name].startswith("flag")
    ]
    secrets = [*(["tokens"] if config.tokens else ()), *with_password]
    holds_secret = any(sources[name].startswith("file") for name in secrets)
    if file is not None and holds_secret and is_open_to_others(file):
        found.append(
            f"{file} holds a secret and can be read by every user of this machine; "
            "fix that with chmod 600"
        )
    return found


def as_toml(plain: object) -> str:
    """A value as TOML, for lines that can be read back."""
    if isinstance(plain, str):
        # Arguments and variables need not be Unicode, but output must be.
        plain = plain.encode(errors="replace").decode()
    # JSON writes text, numbers, true and false exactly as TOML does.
    if isinstance(plain, Plain):
        return msgspec.json.encode(plain).decode()
    return str(plain)


def load_profiles(file: Path) -> dict[str, Profile]:
    """The profiles in a file. Raises `ConfigError`."""
    table, text = _read_toml(file)
    return _read_profiles(table, text, file)


def _read_profiles(table: Mapping[str, Any], text: str, file: Path) -> dict[str, Profile]:
    try:
        return read_profiles(table.get(_PROFILES, {}))
    except WrongValueError as error:
        raise ConfigError(
            f"file {file} line {_line_of(_PROFILES, text)}: profiles cannot be used because "
            f"{error}; a profile has a url, and a token or a token_file."
        ) from None


def _read_toml(file: Path) -> tuple[dict[str, Any], str]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"file {file} is not UTF-8 text, as TOML has to be.") from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"file {file} is not valid TOML: {error}.") from None


def _read_file(file: Path) -> dict[str, tuple[object, str]]:
    table, text = _read_toml(file)
    _read_profiles(table, text, file)
    raws: dict[str, tuple[object, str]] = {}
    for key, raw in table.items():
        if key == _PROFILES:
            continue
        source = f"file {file} line {_line_of(key, text)}"
        if key not in OPTIONS:
            raise _unknown(source, key, OPTIONS)
        raws[key] = (raw, source)
    return raws


def _line_of(key: str, text: str) -> int:
    # A key starts its line, bare, quoted, dotted or as a table; valid TOML has it exactly once.
    opening = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if opening.match(line)), 1)


def _read_environ(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    names = {option.variable: option.name for option in OPTIONS.values()}
    raws: dict[str, tuple[object, str]] = {}
    for variable, raw in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or not raw:
            continue
        if variable in names:
            raws[names[variable]] = (raw, f"environment variable {variable}")
        elif variable not in _OTHER_VARIABLES and not _FOREIGN_VARIABLE.fullmatch(variable):
            raise _unknown("environment", variable, names)
    return raws


def _unknown(source: str, key: str, known: Iterable[str]) -> ConfigError:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else "`manyhands config` lists all options."
    return ConfigError(f"{source}: {key} is not an option; {hint}")


def _read_value(option: Option, raw: object, source: str) -> object:
    try:
        return option.kind.read(raw)
    except WrongValueError as error:
        # A database address may hold a password, which must not appear on a screen or in a log.
        if option.secret:
            raise ConfigError(
                f"{source}: {option.name} cannot be used because {error}; "
                f"use {option.kind.accepted}."
            ) from None
        shown = "that address" if _may_hold_password(raw) else as_toml(raw)
        raise ConfigError(
            f"{source}: {option.name} cannot be {shown} because {error}; "
            f"use {option.kind.accepted}."
        ) from None


def _may_hold_password(raw: object) -> bool:
    """Whether it looks like the address of a database, however wrong it is."""
    return isinstance(raw, str) and any(part in raw for part in ("://", "@", "password"))


# Listeners that authenticate their peers once there is a list of users.
_ASKING_WHO: Final = ("amqp", "amqp_tls")
# Addresses where peers speak TLS.
_WITH_TLS: Final = ("http_tls", "gearman_tls", "amqp_tls")


def _check_tls(config: Config, sources: Mapping[str, str]) -> None:
    if config.tls_cert is not None and config.tls_key is not None:
        return
    for name in _WITH_TLS:
        address = getattr(config, name)
        if address is not None:
            raise ConfigError(
                f'{sources[name]}: {name} cannot be "{address}" because TLS needs a certificate '
                "and its key; use an address together with tls_cert and tls_key."
            )


def _check_curve(config: Config, sources: Mapping[str, str]) -> None:
    for name in ("dwork_curve", "wmp_curve"):
        where = getattr(config, name)
        if where is not None and config.curve_key is None:
            raise ConfigError(
                f'{sources[name]}: {name} cannot be "{where}" because CURVE needs the keys of this '
                "server; use an address together with curve_key."
            )


def _check_cluster(config: Config, sources: Mapping[str, str]) -> None:
    if config.cluster is not None and isinstance(config.store, str):
        raise ConfigError(
            f'{sources["cluster"]}: cluster cannot be "{config.cluster}" because several servers '
            "share a PostgreSQL database; use it together with store = postgresql://…"
        )
    if config.advertise is not None and config.cluster is None:
        raise ConfigError(
            f'{sources["advertise"]}: advertise cannot be "{config.advertise}" because there is no '
            "address to be reached at; use it together with cluster."
        )
    names = ("cluster_tls_cert", "cluster_tls_key", "cluster_tls_ca")
    missing = [name for name in names if getattr(config, name) is None]
    for name in names:
        file = getattr(config, name)
        if file is not None and missing:
            raise ConfigError(
                f'{sources[name]}: {name} cannot be "{file}" because both ends of a link show a '
                f"certificate; use it together with {' and '.join(missing)}."
            )


# What protects an address that other machines can reach.
_REMEDIES: Final = {
    "http": "tokens_file or ",
    "http_tls": "tls_client_ca, tokens_file or ",
    "gearman_tls": "tls_client_ca or ",
    "amqp_tls": "tls_client_ca, amqp_users or ",
}


def _check_links(config: Config, sources: Mapping[str, str]) -> None:
    """Whoever has a link may do anything, so neither access nor insecure makes up for this."""
    address = config.cluster
    if address is None or address.is_loopback:
        return
    if config.cluster_secret_file is None and config.cluster_tls_ca is None:
        raise ConfigError(
            f'{sources["cluster"]}: cluster cannot be "{address}" because other machines could '
            f"pass themselves off as a server; use a loopback address such as "
            f"127.0.0.1:{address.port}, or any address together with cluster_secret_file, or with "
            "cluster_tls_cert, cluster_tls_key and cluster_tls_ca."
        )


def _check_exposure(config: Config, sources: Mapping[str, str]) -> None:
    _check_links(config, sources)
    if config.insecure or config.access is not None:
        return
    asks_who = config.tokens is not None or config.tokens_file is not None
    for name in OPTIONS:
        if name in ("advertise", "cluster"):
            continue
        if name in ("http", "http_tls") and asks_who:
            continue
        if name in _WITH_TLS and config.tls_client_ca is not None:
            continue
        if name in _ASKING_WHO and config.amqp_users is not None:
            continue
        for address in _addresses(getattr(config, name)):
            if address.is_loopback:
                continue
            remedy = _REMEDIES.get(name, "")
            raise ConfigError(
                f'{sources[name]}: {name} cannot be "{address}" because other machines could reach '
                "it without authentication; use a loopback address such as "
                f"127.0.0.1:{address.port}, or any address together with {remedy}"
                "access (manyhands access new NAME makes its file) or insecure = true."
            )


def _addresses(value: object) -> list[Address]:
    if isinstance(value, Endpoints):
        return [endpoint.address for endpoint in value.each]
    return [value] if isinstance(value, Address) else []


def read_tokens_file(file: Path) -> list[Token]:
    """The tokens in a file, one on each line; # begins a comment."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"tokens_file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"tokens_file {file} is not UTF-8 text.") from None
    try:
        found = Tokens().read(text)
    except WrongValueError as error:
        raise ConfigError(f"tokens_file {file} cannot be used because {error}.") from None
    return list(found.each) if found is not None else []

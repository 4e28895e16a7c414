"""The access file: callers with their roles, queues and credentials, as TOML.

The server only reads it. ``manyhands access`` writes it; people may, too.
"""

import base64
import binascii
import datetime as dt
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from manyhands.access.callers import (
    Callers,
    Entry,
    Network,
    Password,
    read_password,
    token_digest,
)
from manyhands.config import Config, ConfigError, Token, read_tokens_file
from manyhands.config.files import is_open_to_others
from manyhands.loggers import get_logger
from manyhands.model.limits import QUEUE_NAME_BYTES_MAX
from manyhands.model.roles import Caller, Role

_log = get_logger("manyhands.access")

CALLER_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
CREDENTIALS: Final = ("token", "password", "certificate", "curve", "address")
_KEYS: Final = frozenset({"name", "role", "queues", "expires", *CREDENTIALS})
_QUEUES_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_TOKEN: Final = re.compile(r"sha256:([0-9a-f]{64})")


class AccessFileError(OSError):
    """The file cannot be used; its text is a sentence without secrets."""


def read_access_file(file: Path) -> list[Entry]:
    """The entries of a file. Raises AccessFileError."""
    try:
        if file.stat().st_size > _FILE_BYTES_MAX:
            raise AccessFileError(f"the access file {file} is larger than 16 MiB.")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise AccessFileError(f"the access file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise AccessFileError(f"the access file {file} is not UTF-8 text.") from None
    if is_open_to_others(file):
        raise AccessFileError(
            f"the access file {file} can be read or changed by every user of this machine;"
            f" chmod 600 {file} keeps them out."
        )
    try:
        return read_access(text)
    except AccessFileError as error:
        raise AccessFileError(f"the access file {file} cannot be used: {error}.") from None


def read_access(text: str) -> list[Entry]:
    """The entries in a text. Raises AccessFileError."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The message quotes at most a position, never the text.
        place = re.search(r"line \d+", str(error))
        where = f", see {place.group()}" if place else ""
        raise AccessFileError(f"it is not TOML{where}") from None
    unknown = sorted(set(found) - {"caller"})
    if unknown:
        raise AccessFileError(f"{unknown[0][:64]} is unknown; it has [[caller]] tables")
    tables = found.get("caller", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise AccessFileError("callers are written as [[caller]]")
    entries = [_entry(number, table) for number, table in enumerate(tables, start=1)]
    _check_names(entries)
    return entries


def _entry(number: int, table: Mapping[str, Any]) -> Entry:
    name = table.get("name")
    if not isinstance(name, str) or not CALLER_NAME.fullmatch(name):
        raise AccessFileError(
            f"caller {number} needs a name of up to 64 letters, digits and any of . _ @ -"
        )
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise AccessFileError(f"{name} has an unknown key {unknown[0][:64]}")
    role = table.get("role")
    if role not in tuple(Role):
        raise AccessFileError(f"the role of {name} must be one of {', '.join(Role)}")
    given = [key for key in CREDENTIALS if key in table]
    if len(given) != 1:
        raise AccessFileError(f"{name} needs exactly one of {', '.join(CREDENTIALS)}")
    kind = given[0]
    text = table[kind]
    value = _READERS[kind](text) if isinstance(text, str) else None
    if value is None:
        raise AccessFileError(f"the {kind} of {name} {_SENTENCES[kind]}")
    return Entry(
        caller=Caller(name, Role(role), _queues(name, table.get("queues"))),
        expires_at=_expires(name, table.get("expires")),
        **{kind: value},
    )


def _queues(name: str, given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if (
        not isinstance(given, list)
        or not 0 < len(given) <= _QUEUES_MAX
        or not all(
            isinstance(text, str) and 0 < len(text.encode()) <= QUEUE_NAME_BYTES_MAX
            for text in given
        )
    ):
        raise AccessFileError(
            f"the queues of {name} must be patterns such as mail.*; leave them out for all queues"
        )
    return () if "*" in given else tuple(given)


def _expires(name: str, given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, dt.datetime) and given.tzinfo is not None:
        return int(given.timestamp() * 1000)
    raise AccessFileError(
        f"expires of {name} must be an instant with a time zone, such as 2030-01-31T00:00:00Z"
    )


def _check_names(entries: Sequence[Entry]) -> None:
    known: dict[str, Caller] = {}
    for entry in entries:
        caller = entry.caller
        if known.setdefault(caller.name, caller) != caller:
            raise AccessFileError(f"{caller.name} has two entries with different roles or queues")


def _token(text: str) -> bytes | None:
    found = _TOKEN.fullmatch(text)
    return None if found is None else bytes.fromhex(found.group(1))


def _certificate(text: str) -> str | None:
    return text if 0 < len(text) <= 1_024 else None


def read_curve(text: str) -> bytes | None:
    """A public key, as 64 hexadecimal digits or as base64; None if this is neither."""
    try:
        key = bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if len(key) == 32 else None


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _password(text: str) -> Password | None:
    return read_password(text)


_READERS: Final[Mapping[str, Any]] = {
    "token": _token,
    "password": _password,
    "certificate": _certificate,
    "curve": read_curve,
    "address": _network,
}
_SENTENCES: Final = {
    "token": "must be sha256: and 64 hexadecimal digits; manyhands access new makes one",
    "password": "must be a scrypt hash; manyhands access new --password makes one",
    "certificate": "must be a subject such as CN=mailer,O=Example, or a name in it",
    "curve": "must be a public key of 32 bytes, in hexadecimal or base64",
    "address": "must be a network such as 10.1.0.0/16, without bits beyond its prefix",
}


def entry_of(token: Token) -> Entry:
    """The entry of a token that the configuration names."""
    return Entry(caller=Caller(token.name, token.role), token=token_digest(token.secret))


def entries_of(config: Config) -> list[Entry]:
    """Everything that the configuration names: tokens, and the access file. Raises ConfigError or
    AccessFileError.
    """
    tokens = list(config.tokens.each) if config.tokens is not None else []
    if config.tokens_file is not None:
        tokens += read_tokens_file(config.tokens_file)
    entries = [entry_of(token) for token in tokens]
    if config.access is not None:
        entries += read_access_file(config.access)
    return entries


def callers_of(config: Config, now: Callable[[], int]) -> Callers:
    """The callers that the configuration names. Raises ConfigError or AccessFileError."""
    return Callers(entries_of(config), asks_everyone=config.access is not None, now=now)


def reload_callers(callers: Callers, config: Config) -> None:
    """Reads the files again. If one is broken, everything stays as it was, and the log says so."""
    try:
        entries = entries_of(config)
    except (AccessFileError, ConfigError) as error:
        _log.error("callers stay as they were: a file cannot be used", reason=str(error))
    else:
        callers.replace(entries)
        _log.info("callers were read again", count=len(entries))

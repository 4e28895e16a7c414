"""The address of a database: what libpq takes, and the schema that holds the tables."""

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

PREFIXES: Final = ("postgresql://", "postgres://")
_SCHEMA: Final = "manyhands"
# A name that needs no quotes in SQL, so that it can be written as it is.
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# A connection that has silently died is noticed within seconds; the address may say otherwise.
_DEFAULTS: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
    "fallback_application_name": "manyhands",
}


class DatabaseAddress(Struct, frozen=True):
    """Where the tables are. ``conninfo`` may hold a password, so only ``shown`` is for people."""

    conninfo: str
    shown: str
    schema: str = _SCHEMA

    @property
    def has_password(self) -> bool:
        """Whether the address contains a password."""
        parts = urlsplit(self.conninfo)
        return ":" in parts.netloc.rpartition("@")[0] or "password" in dict(parse_qsl(parts.query))

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__


def read_address(text: str) -> DatabaseAddress:
    """Reads a URL. Raises ValueError with a sentence that does not contain a password."""
    try:
        parts = urlsplit(text)
        given = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        raise ValueError("it is no URL of a database") from None
    schema = given.pop("schema", _SCHEMA)
    if not _NAME.fullmatch(schema):
        raise ValueError(
            "the schema may have lower-case letters, digits and underscores, 63 at most"
        )
    if "target_session_attrs" in given:
        raise ValueError("target_session_attrs is always read-write, and cannot be set")
    query = urlencode({**_DEFAULTS, **given, "target_session_attrs": "read-write"}, quote_via=quote)
    conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    return DatabaseAddress(conninfo, _shown(parts.netloc, parts.path, schema), schema)


def _shown(netloc: str, path: str, schema: str) -> str:
    """The address without what is secret: the password, and options that may hold one."""
    user, at, hosts = netloc.rpartition("@")
    user = user.partition(":")[0]
    suffix = "" if schema == _SCHEMA else f"?schema={schema}"
    return f"postgresql://{user}{at}{hosts}{path}{suffix}"

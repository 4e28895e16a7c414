"""Kinds of values: how each is read, from TOML or from text, and how it is shown.

A kind knows neither the key it is read for nor where the text came from.
"""

import ipaddress
import re
from pathlib import Path
from typing import Final, Literal, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

import msgspec

from manyhands.config.database import PREFIXES, DatabaseAddress, read_address
from manyhands.config.durations import in_unit

# Leaves room for a job id within the 64 bytes of a Gearman handle.
SERVER_NAME_BYTES_MAX: Final = 24
_SERVER_NAME: Final = re.compile(rf"[A-Za-z0-9.-]{{1,{SERVER_NAME_BYTES_MAX}}}")
_FUNCTION_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]+)")

_ORIGIN: Final = re.compile(
    r"(?:http://(?!.*:80$)|https://(?!.*:443$))(?:[a-z0-9._-]+|\[[0-9a-f:]+\])(?::[1-9][0-9]{0,4})?"
)
_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>|KiB|MiB|GiB|TiB)")
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_ENDPOINT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The queue of an endpoint that has no name of its own.
DWORK_QUEUE: Final = "dwork"

# What a value looks like in TOML and in JSON.
Plain = str | int | bool

Store = Literal["sqlite", "memory"] | DatabaseAddress


class Address(msgspec.Struct, frozen=True):
    """Where a listener binds. Port 0 lets the system choose."""

    host: str  # an IPv6 address has no brackets here
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. The only name known to be local is localhost."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Endpoint(msgspec.Struct, frozen=True):
    """An address and the queue behind it, which is a separate namespace."""

    name: str
    address: Address

    def __str__(self) -> str:
        return str(self.address) if self.name == DWORK_QUEUE else f"{self.name}={self.address}"


class Endpoints(msgspec.Struct, frozen=True):
    """The endpoints of several graphs."""

    each: tuple[Endpoint, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.each))


class WrongValueError(ValueError):
    """Completes "KEY cannot be VALUE because …"; a kind knows neither the key nor the place."""


class Kind(Protocol):
    """One way to read a value, from TOML (typed) or from a flag or variable (always text)."""

    @property
    def accepted(self) -> str: ...

    def read(self, raw: object) -> object: ...


class Choice(msgspec.Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def accepted(self) -> str:
        return ", ".join(self.words[:-1]) + " or " + self.words[-1]

    def read(self, raw: object) -> str:
        if raw not in self.words:
            raise WrongValueError("there is no such choice")
        return str(raw)


class StoreName(msgspec.Struct, frozen=True):
    """Where jobs are kept: a word, or the address of a database."""

    accepted: str = "sqlite, memory or postgresql://USER@HOST/DATABASE"

    def read(self, raw: object) -> Store:
        if isinstance(raw, str) and raw.startswith(PREFIXES):
            try:
                return read_address(raw)
            except ValueError as error:
                raise WrongValueError(str(error)) from None
        return cast("Store", Choice(("sqlite", "memory")).read(raw))


class Whole(msgspec.Struct, frozen=True):
    """A whole number between two bounds, or `none` where that is allowed."""

    minimum: int
    maximum: int
    or_none: bool = False

    @property
    def accepted(self) -> str:
        numbers = f"a whole number from {self.minimum} to {self.maximum}"
        return f"{numbers}, or none" if self.or_none else numbers

    def read(self, raw: object) -> int | None:
        if self.or_none and raw == "none":
            return None
        if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,18}", raw):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise WrongValueError("it is not a whole number")
        if not self.minimum <= raw <= self.maximum:
            raise WrongValueError("it is out of range")
        return raw


class Duration(Whole, frozen=True, kw_only=True):
    """A whole number of a unit, or a duration with units of its own, such as `5m`."""

    unit: str  # the one that a bare number counts in

    @property
    def accepted(self) -> str:
        least, most = (f"{bound}{self.unit}" for bound in (self.minimum, self.maximum))
        durations = f"a duration from {least} to {most}, such as {_UNIT_EXAMPLES[self.unit]}"
        return f"{durations}, or none" if self.or_none else durations

    def read(self, raw: object) -> int | None:
        if not isinstance(raw, str) or raw == "none" or re.fullmatch(r"-?[0-9]+", raw):
            return super().read(raw)
        found = in_unit(raw, self.unit)
        if found is None:
            raise WrongValueError("it is not a duration")
        if found != int(found):
            raise WrongValueError(f"it is not a whole number of {_UNIT_NAMES[self.unit]}")
        return super().read(int(found))


_UNIT_EXAMPLES: Final = {"ms": "5ms", "s": "90s or 5m", "h": "12h or 2d", "d": "7d or 4w"}
_UNIT_NAMES: Final = {"ms": "milliseconds", "s": "seconds", "h": "hours", "d": "days"}


class Size(msgspec.Struct, frozen=True):
    """A number of bytes, with or without a unit, or `none` where that is allowed."""

    minimum: int
    maximum: int
    or_none: bool = False

    @property
    def accepted(self) -> str:
        least, most = as_size(self.minimum), as_size(self.maximum)
        sizes = f"a size from {least} to {most}, such as 512MiB or 2GiB"
        return f"{sizes}, or none" if self.or_none else sizes

    def read(self, raw: object) -> int | None:
        if self.or_none and raw == "none":
            return None
        if isinstance(raw, str):
            match = _SIZE.fullmatch(raw)
            if match is None:
                raise WrongValueError("it is not a size")
            raw = int(match["number"]) * _UNITS[match["unit"]]
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise WrongValueError("it is not a size")
        if not self.minimum <= raw <= self.maximum:
            raise WrongValueError("it is out of range")
        return raw


def as_size(count: int) -> str:
    """A number of bytes as a multiple of the largest unit that divides it."""
    unit = max((unit for unit in _UNITS if count % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{count // _UNITS[unit]}{unit}"


class Switch(msgspec.Struct, frozen=True):
    """True or false; in variables also 1 or 0, as is customary there."""

    accepted: str = "true or false"

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if raw not in ("true", "false", "1", "0"):
            raise WrongValueError("it is neither true nor false")
        return raw in ("true", "1")


class FilePath(msgspec.Struct, frozen=True):
    """A path, relative to the working directory, or `none` where that is allowed."""

    or_none: bool = False

    @property
    def accepted(self) -> str:
        return "a path, or none" if self.or_none else "a path"

    def read(self, raw: object) -> Path | None:
        if self.or_none and raw == "none":
            return None
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise WrongValueError("it is not a path")
        return Path(raw)


class ServerName(msgspec.Struct, frozen=True):
    """The name that job handles carry."""

    accepted: str = f"1 to {SERVER_NAME_BYTES_MAX} letters, digits, dots and hyphens"

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not _SERVER_NAME.fullmatch(raw):
            raise WrongValueError("it cannot be part of a job handle")
        return raw


class Networks(msgspec.Struct, frozen=True):
    """Addresses or networks separated by commas, or `none`."""

    accepted: str = "addresses or networks such as 10.0.0.0/8, separated by commas, or none"

    def read(self, raw: object) -> str | None:
        if raw == "none":
            return None
        if not isinstance(raw, str):
            raise WrongValueError("it is not text")
        for text in raw.split(","):
            try:
                ipaddress.ip_network(text.strip(), strict=False)
            except ValueError:
                raise WrongValueError(f"there is no network {text.strip()!r}") from None
        return raw


class Origins(msgspec.Struct, frozen=True):
    """Origins of web pages, separated by commas, or `none`."""

    accepted: str = "origins such as https://app.example, separated by commas, or none"

    def read(self, raw: object) -> str | None:
        if raw == "none":
            return None
        if not isinstance(raw, str):
            raise WrongValueError("it is not text")
        origins = [text.strip() for text in raw.split(",")]
        for text in origins:
            if not _ORIGIN.fullmatch(text):
                # Browsers send it in this form, and it is compared unchanged.
                raise WrongValueError(
                    f"{text!r} is not an origin: http or https, a host in lower case, and a port"
                    " unless it is the usual one"
                )
        return ",".join(origins)


class FunctionName(msgspec.Struct, frozen=True):
    """A function that can be imported, or `none`."""

    accepted: str = "MODULE:FUNCTION, or none"

    def read(self, raw: object) -> str | None:
        if raw == "none":
            return None
        if not isinstance(raw, str) or not _FUNCTION_NAME.fullmatch(raw):
            raise WrongValueError("it does not name a function in a module")
        return raw


class Listen(msgspec.Struct, frozen=True):
    """The address of one listener, or `off`."""

    @property
    def accepted(self) -> str:
        return "HOST:PORT, [IPV6]:PORT or off"

    def read(self, raw: object) -> Address | None:
        if raw == "off":
            return None
        match = _ADDRESS.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise WrongValueError("it is not an address with a port")
        if match["v6"] is not None:
            try:
                ipaddress.IPv6Address(match["v6"])
            except ValueError:
                raise WrongValueError("there is no IPv6 address in the brackets") from None
        port = int(match["port"])
        if port > 65535:
            raise WrongValueError("a port is at most 65535")
        return Address(match["v6"] or match["host"], port)


class ListenMany(Listen, frozen=True):
    """Addresses of one listener, each with the name of its queue, or `off`."""

    @property
    def accepted(self) -> str:
        return "HOST:PORT or NAME=HOST:PORT, separated by commas, or off"

    def read(self, raw: object) -> Endpoints | None:  # type: ignore[override]
        if raw == "off":
            return None
        if not isinstance(raw, str):
            raise WrongValueError("it is not an address with a port")
        endpoints: dict[str, Endpoint] = {}
        for part in raw.split(","):
            name, equals, place = part.strip().rpartition("=")
            name = name if equals else DWORK_QUEUE
            if not _ENDPOINT_NAME.fullmatch(name):
                raise WrongValueError("a name has only letters, digits, dots, hyphens, underscores")
            address = super().read(place)
            if address is None:
                raise WrongValueError("off cannot be combined with addresses")
            if name in endpoints:
                raise WrongValueError(f"there are two addresses for {name}")
            endpoints[name] = Endpoint(name, address)
        return Endpoints(tuple(endpoints.values()))


class BrokerAddress(msgspec.Struct, frozen=True):
    """A broker's address and the account to use. Shown without the password."""

    host: str
    port: int
    virtual_host: str
    user: str
    password: str
    secure: bool
    has_password: bool = False  # otherwise it is the well-known default

    def __str__(self) -> str:
        scheme = "amqps" if self.secure else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        account = quote(self.user, safe="")
        return f"{scheme}://{account}@{host}:{self.port}/{quote(self.virtual_host, safe='')}"


class Broker(msgspec.Struct, frozen=True):
    """The URL of a broker, or `none`."""

    accepted: str = "amqp://USER:PASSWORD@HOST:PORT/VHOST, amqps://… or none"

    def read(self, raw: object) -> BrokerAddress | None:
        if raw == "none":
            return None
        try:
            url = urlsplit(raw if isinstance(raw, str) else "")
            port = url.port
        except ValueError:
            raise WrongValueError("it is not a URL") from None
        if url.scheme not in ("amqp", "amqps") or not url.hostname or url.query or url.fragment:
            raise WrongValueError("it is not the URL of a broker")
        secure = url.scheme == "amqps"
        return BrokerAddress(
            host=url.hostname,
            port=port or (5671 if secure else 5672),
            virtual_host=unquote(url.path[1:]) or "/",
            user=unquote(url.username or "guest"),
            password=unquote(url.password or "guest"),
            secure=secure,
            has_password=url.password is not None,
        )


def as_plain(kind: Kind, value: object) -> Plain:
    """A value as it is written in the file."""
    if value is None:
        return "off" if isinstance(kind, Listen) else "none"
    if isinstance(kind, Size) and isinstance(value, int):
        return as_size(value)
    return value if isinstance(value, bool | int) else str(value)

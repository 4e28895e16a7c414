"""The one definition of every option, and how the effective configuration comes about.

A field of `Config` is at once a TOML key, an environment variable and a flag. A flag wins over the
environment, that over the file, that over the default. A new option is a new field, no more.
"""

import difflib
import ipaddress
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, get_args
from urllib.parse import quote, unquote, urlsplit

import msgspec

from manyhands.model import limits

# Listeners that exist in this version. The others are `off` and refuse an address.
LISTENERS_BUILT: Final[tuple[str, ...]] = ("http", "gearman", "dwork", "wmp", "amqp")

# Names the TOML file itself, so it is no key of that file.
FILE_VARIABLE: Final = "MANYHANDS_CONFIG"
_VARIABLE_PREFIX: Final = "MANYHANDS_"
# A Kubernetes service called `manyhands` puts these into every container beside it.
_FOREIGN_VARIABLE: Final = re.compile(r"MANYHANDS_(SERVICE|PORT)(_.*)?")

_MIB: Final = 1024 * 1024
# A payload is held in memory whole, more than once; beyond this one job could end the server.
_PAYLOAD_BYTES_CEILING: Final = limits.PAYLOAD_BYTES_MAX
# Leaves room for a job id within the 64 bytes of a Gearman handle.
_SERVER_NAME_BYTES_MAX: Final = 24
_SERVER_NAME: Final = re.compile(rf"[A-Za-z0-9.-]{{1,{_SERVER_NAME_BYTES_MAX}}}")
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]+)")

_ENDPOINT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The queue of an endpoint that has no name of its own.
_DWORK_QUEUE: Final = "dwork"
_FUNCTION_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

# What a value looks like in TOML and in JSON.
Plain = str | int | bool

Store = Literal["sqlite", "memory"]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Loop = Literal["auto", "uvloop", "asyncio"]
RelayFrom = Literal["now", "earliest"]
DworkExit = Literal["auto", "always", "never"]
DworkUnknown = Literal["done", "wait"]
WmpWake = Literal["needed", "all"]
DedupCompleted = Literal["never", "same_queue"]


class ConfigError(Exception):
    """A wrong key or value. Its text is a sentence: where, which key, what is wrong, what fits."""


class Address(msgspec.Struct, frozen=True):
    """Where a listener binds. Port 0 lets the system choose."""

    host: str  # an IPv6 address stands here without its brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; of names, that is known of localhost alone."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Endpoint(msgspec.Struct, frozen=True):
    """An address and the queue behind it, which is a namespace of its own."""

    name: str
    address: Address

    def __str__(self) -> str:
        return str(self.address) if self.name == _DWORK_QUEUE else f"{self.name}={self.address}"


class Endpoints(msgspec.Struct, frozen=True):
    """Several graphs side by side."""

    each: tuple[Endpoint, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.each))


class _WrongValueError(ValueError):
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
            raise _WrongValueError("there is no such choice")
        return str(raw)


class StoreName(msgspec.Struct, frozen=True):
    """Where jobs are kept. A database address is recognised, in order to say that it is early."""

    accepted: str = "sqlite or memory"

    def read(self, raw: object) -> str:
        if isinstance(raw, str) and raw.startswith(("postgres://", "postgresql://")):
            raise _WrongValueError("the PostgreSQL store is not available yet")
        return Choice(get_args(Store)).read(raw)


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
            raise _WrongValueError("it is not a whole number")
        if not self.minimum <= raw <= self.maximum:
            raise _WrongValueError("it is out of range")
        return raw


class Switch(msgspec.Struct, frozen=True):
    """True or false; in variables, where it is a custom, also 1 or 0."""

    accepted: str = "true or false"

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if raw not in ("true", "false", "1", "0"):
            raise _WrongValueError("it is neither true nor false")
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
            raise _WrongValueError("it is not a path")
        return Path(raw)


class ServerName(msgspec.Struct, frozen=True):
    """The name that job handles carry."""

    accepted: str = f"1 to {_SERVER_NAME_BYTES_MAX} letters, digits, dots and hyphens"

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not _SERVER_NAME.fullmatch(raw):
            raise _WrongValueError("it cannot be part of a job handle")
        return raw


class Networks(msgspec.Struct, frozen=True):
    """Addresses or networks with commas between them, or `none`."""

    accepted: str = "addresses or networks such as 10.0.0.0/8, with commas, or none"

    def read(self, raw: object) -> str | None:
        if raw == "none":
            return None
        if not isinstance(raw, str):
            raise _WrongValueError("it is not a text")
        for text in raw.split(","):
            try:
                ipaddress.ip_network(text.strip(), strict=False)
            except ValueError:
                raise _WrongValueError(f"there is no network {text.strip()!r}") from None
        return raw


class FunctionName(msgspec.Struct, frozen=True):
    """A function that can be imported, or `none`."""

    accepted: str = "MODULE:FUNCTION, or none"

    def read(self, raw: object) -> str | None:
        if raw == "none":
            return None
        if not isinstance(raw, str) or not _FUNCTION_NAME.fullmatch(raw):
            raise _WrongValueError("it does not name a function in a module")
        return raw


class Listen(msgspec.Struct, frozen=True):
    """The address of one listener, or `off`."""

    listener: str

    @property
    def accepted(self) -> str:
        if self.listener in LISTENERS_BUILT:
            return "HOST:PORT, [IPV6]:PORT or off"
        return "off"

    def read(self, raw: object) -> Address | None:
        if raw == "off":
            return None
        if self.listener not in LISTENERS_BUILT:
            raise _WrongValueError("this version has no such listener yet")
        match = _ADDRESS.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise _WrongValueError("it is not an address with a port")
        if match["v6"] is not None:
            try:
                ipaddress.IPv6Address(match["v6"])
            except ValueError:
                raise _WrongValueError("there is no IPv6 address in the brackets") from None
        port = int(match["port"])
        if port > 65535:
            raise _WrongValueError("a port is at most 65535")
        return Address(match["v6"] or match["host"], port)


class ListenMany(Listen, frozen=True):
    """Addresses of one listener, each with the name of its queue, or `off`."""

    @property
    def accepted(self) -> str:
        if self.listener in LISTENERS_BUILT:
            return "HOST:PORT, NAME=HOST:PORT, several of them with commas, or off"
        return "off"

    def read(self, raw: object) -> Endpoints | None:  # type: ignore[override]
        if raw == "off":
            return None
        if not isinstance(raw, str):
            raise _WrongValueError("it is not an address with a port")
        endpoints: dict[str, Endpoint] = {}
        for part in raw.split(","):
            name, equals, place = part.strip().rpartition("=")
            name = name if equals else _DWORK_QUEUE
            if not _ENDPOINT_NAME.fullmatch(name):
                raise _WrongValueError("a name has letters, digits, dots, hyphens, underscores")
            address = super().read(place)
            if address is None:
                raise _WrongValueError("off stands alone")
            if name in endpoints:
                raise _WrongValueError(f"there are two addresses for {name}")
            endpoints[name] = Endpoint(name, address)
        return Endpoints(tuple(endpoints.values()))


class BrokerAddress(msgspec.Struct, frozen=True):
    """Where a broker is, and as whom. Shown without the password."""

    host: str
    port: int
    virtual_host: str
    user: str
    password: str
    secure: bool

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
            raise _WrongValueError("it is not a URL") from None
        if url.scheme not in ("amqp", "amqps") or not url.hostname or url.query or url.fragment:
            raise _WrongValueError("it is not the URL of a broker")
        secure = url.scheme == "amqps"
        return BrokerAddress(
            host=url.hostname,
            port=port or (5671 if secure else 5672),
            virtual_host=unquote(url.path[1:]) or "/",
            user=unquote(url.username or "guest"),
            password=unquote(url.password or "guest"),
            secure=secure,
        )


class About(msgspec.Struct, frozen=True):
    """What a field of `Config` says about itself besides its name, type and default."""

    kind: Kind
    help: str
    example: str


def _listen_default(listener: str, port: int) -> Address | None:
    return Address("127.0.0.1", port) if listener in LISTENERS_BUILT else None


def _server_name_default() -> str:
    name = socket.gethostname().partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9.-]", "-", name)[:_SERVER_NAME_BYTES_MAX]
    return name or "manyhands"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every option of the server. The documentation of a field is its help text."""

    data: Annotated[
        Path,
        About(FilePath(), "Directory of the store, made if it is missing.", "/var/lib/manyhands"),
    ] = Path("manyhands-data")
    store: Annotated[
        Store,
        About(
            StoreName(),
            "Where jobs are kept: on disk, or in memory until the server stops.",
            "memory",
        ),
    ] = "sqlite"
    http: Annotated[
        Address | None,
        About(Listen("http"), "Address for HTTP: API, health and metrics.", "127.0.0.1:8080"),
    ] = _listen_default("http", 7700)
    gearman: Annotated[
        Address | None,
        About(Listen("gearman"), "Address for Gearman clients and workers.", "127.0.0.1:4730"),
    ] = _listen_default("gearman", 4730)
    gearman_error_packets: Annotated[
        bool,
        About(
            Switch(),
            "Tell peers of Gearman's first draft what they did wrong; else they are closed.",
            "false",
        ),
    ] = True
    dwork: Annotated[
        Endpoints | None,
        About(
            ListenMany("dwork"),
            "Addresses for dwork over ZeroMQ; each name is a queue and a graph of its own.",
            "127.0.0.1:6125,physics=127.0.0.1:6126",
        ),
    ] = Endpoints((Endpoint(_DWORK_QUEUE, Address("127.0.0.1", 6125)),))
    dwork_exit: Annotated[
        DworkExit,
        About(
            Choice(get_args(DworkExit)),
            "When dwork workers are told to exit for want of work; auto is once there was some.",
            "never",
        ),
    ] = "auto"
    dwork_lease_seconds: Annotated[
        int,
        About(
            Whole(0, 366 * 24 * 3600),
            "Silence after which a dwork worker loses its tasks; 0 is never.",
            "3600",
        ),
    ] = 0
    dwork_steal_max: Annotated[
        int,
        About(Whole(1, limits.CLAIM_COUNT_MAX), "Most tasks handed out by one steal.", "100"),
    ] = 1_000
    dwork_unknown: Annotated[
        DworkUnknown,
        About(
            Choice(get_args(DworkUnknown)),
            "What a predecessor that nobody has created means: it is done, or waited for.",
            "wait",
        ),
    ] = "done"
    dwork_strict: Annotated[
        bool,
        About(
            Switch(),
            "Let only the worker that holds a dwork task complete it, and serve no lookup.",
            "true",
        ),
    ] = False
    wmp: Annotated[
        Address | None,
        About(Listen("wmp"), "Address for WMP over ZeroMQ.", "127.0.0.1:7714"),
    ] = _listen_default("wmp", 7714)
    wmp_lease_seconds: Annotated[
        int,
        About(
            Whole(1, 366 * 24 * 3600),
            "Silence after which a WMP worker loses its job.",
            "300",
        ),
    ] = 60
    wmp_wake: Annotated[
        WmpWake,
        About(
            Choice(get_args(WmpWake)),
            "Whom to wake for a job: as many WMP workers as are needed, or all that are ready.",
            "all",
        ),
    ] = "needed"
    wmp_choose: Annotated[
        str | None,
        About(
            FunctionName(),
            "Python function that chooses the WMP worker to wake; none is the longest ready.",
            "balancing:by_free_slots",
        ),
    ] = None
    amqp: Annotated[
        Address | None,
        About(Listen("amqp"), "Address for AMQP consumers of events.", "127.0.0.1:5673"),
    ] = _listen_default("amqp", 5673)
    amqp_relay: Annotated[
        BrokerAddress | None,
        About(
            Broker(),
            "RabbitMQ to relay all events to; it may be away.",
            "amqp://user:password@broker:5672/vhost",
        ),
    ] = None
    amqp_relay_from: Annotated[
        RelayFrom,
        About(
            Choice(get_args(RelayFrom)),
            "Where to begin with a broker that nothing was relayed to yet.",
            "earliest",
        ),
    ] = "now"
    insecure: Annotated[
        bool,
        About(Switch(), "Allow addresses that other machines can reach.", "true"),
    ] = False
    ready_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File written once every listener accepts, with their addresses.",
            "/run/manyhands/ready",
        ),
    ] = None
    server_name: Annotated[
        str,
        About(ServerName(), "Name of this server in job handles; else the host's.", "jobs-1"),
    ] = msgspec.field(default_factory=_server_name_default)
    log_format: Annotated[
        LogFormat,
        About(
            Choice(get_args(LogFormat)),
            "Form of the log; auto is console on a terminal and JSON elsewhere.",
            "json",
        ),
    ] = "auto"
    log_level: Annotated[
        LogLevel,
        About(Choice(get_args(LogLevel)), "Least important log line.", "debug"),
    ] = "info"
    loop: Annotated[
        Loop,
        About(
            Choice(get_args(Loop)),
            "Event loop; auto is uvloop where it is installed.",
            "asyncio",
        ),
    ] = "auto"
    drain_seconds: Annotated[
        int,
        About(Whole(0, 3600), "Longest time to answer what is in flight before exit.", "30"),
    ] = 10
    commit_pace_ms: Annotated[
        int,
        About(Whole(0, 1000), "Distance between commits while many clients wait.", "2"),
    ] = 1
    ride_ms: Annotated[
        int,
        About(
            Whole(0, 1000),
            "Longest wait of a change that nobody awaits for a commit to ride with.",
            "10",
        ),
    ] = 5
    disk_free_mib_min: Annotated[
        int,
        About(Whole(0, 1024 * _MIB), "Free disk space below which submits are refused.", "512"),
    ] = 64
    retention_days: Annotated[
        int,
        About(Whole(0, 36500), "How long a finished job stays visible.", "30"),
    ] = 7
    retention_count: Annotated[
        int,
        About(Whole(0, 1_000_000_000), "How many finished jobs stay visible.", "1000000"),
    ] = 50_000
    retention_events: Annotated[
        int,
        About(
            Whole(1, 1_000_000_000),
            "Most events kept; older ones give way, also for watchers that have not read them.",
            "500000",
        ),
    ] = 2_000_000
    result_retention_hours: Annotated[
        int | None,
        About(
            Whole(0, 876_000, or_none=True),
            "How long a result is kept; none keeps it as long as its job.",
            "24",
        ),
    ] = None
    trusted_proxies: Annotated[
        str | None,
        About(
            Networks(),
            "HTTP proxies whose Forwarded and X-Forwarded-For headers are believed.",
            "10.0.0.0/8",
        ),
    ] = None
    qless_take_max: Annotated[
        int,
        About(Whole(1, limits.CLAIM_COUNT_MAX), "Most jobs that one GET /get hands out.", "5000"),
    ] = 1_000
    qless_batch_max: Annotated[
        int,
        About(Whole(1, limits.BATCH_COUNT_MAX), "Most items in one body of the qless API.", "500"),
    ] = limits.BATCH_COUNT_MAX
    qless_body_bytes_max: Annotated[
        int,
        About(Whole(1, 256 * _MIB), "Largest body of the qless API.", "1048576"),
    ] = 16 * _MIB
    qless_meta_bytes_max: Annotated[
        int,
        About(Whole(1, _PAYLOAD_BYTES_CEILING), "Largest meta of a job in the qless API.", "65536"),
    ] = _MIB
    qless_load: Annotated[
        bool,
        About(Switch(), "Tell the server's load with every answer of the qless API.", "true"),
    ] = False
    qless_dedup_completed: Annotated[
        DedupCompleted,
        About(
            Choice(get_args(DedupCompleted)),
            "Whether a completed job may be added again to the queue it completed in.",
            "same_queue",
        ),
    ] = "never"
    payload_bytes_max: Annotated[
        int,
        About(Whole(1, _PAYLOAD_BYTES_CEILING), "Largest payload or result of a job.", "1048576"),
    ] = 64 * _MIB


class Option(msgspec.Struct, frozen=True):
    """One field of `Config`, under each name that users know it by."""

    name: str  # the field and the TOML key
    flag: str
    variable: str
    default: Plain
    kind: Kind
    help: str
    example: str


def _as_plain(kind: Kind, value: object) -> Plain:
    if value is None:
        return "off" if isinstance(kind, Listen) else "none"
    return value if isinstance(value, bool | int) else str(value)


def _options() -> dict[str, Option]:
    unset = Config()
    found: dict[str, Option] = {}
    for field in msgspec.structs.fields(Config):
        _, about = get_args(field.type)
        found[field.name] = Option(
            name=field.name,
            flag="--" + field.name.replace("_", "-"),
            variable=_VARIABLE_PREFIX + field.name.upper(),
            default=_as_plain(about.kind, getattr(unset, field.name)),
            kind=about.kind,
            help=about.help,
            example=about.example,
        )
    return found


# By name, in the order of definition.
OPTIONS: Final[Mapping[str, Option]] = _options()


class LoadedConfig(msgspec.Struct, frozen=True):
    """The effective configuration, and for every option where its value came from."""

    config: Config
    sources: Mapping[str, str]

    def plain(self, name: str) -> Plain:
        """The value of an option as one would write it in the file."""
        return _as_plain(OPTIONS[name].kind, getattr(self.config, name))


def load_config(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None
) -> LoadedConfig:
    """Joins flags (by option name), environment and file; raises `ConfigError` on anything wrong.

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
    return LoadedConfig(config, sources)


def as_toml(plain: object) -> str:
    """A value in the words of TOML, for lines that can be read back."""
    if isinstance(plain, str):
        # Arguments and variables need not be Unicode; what is shown has to be.
        plain = plain.encode(errors="replace").decode()
    # JSON writes text, numbers, true and false exactly as TOML does.
    if isinstance(plain, Plain):
        return msgspec.json.encode(plain).decode()
    return str(plain)


def _read_file(file: Path) -> dict[str, tuple[object, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"file {file} is not UTF-8 text, as TOML has to be.") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"file {file} is not valid TOML: {error}.") from None
    raws: dict[str, tuple[object, str]] = {}
    for key, raw in table.items():
        source = f"file {file} line {_line_of(key, text)}"
        if key not in OPTIONS:
            raise _unknown(source, key, OPTIONS)
        raws[key] = (raw, source)
    return raws


def _line_of(key: str, text: str) -> int:
    # A key opens its line, bare, quoted, dotted or as a table; valid TOML has it exactly once.
    opening = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if opening.match(line)), 1)


def _read_environ(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    names = {option.variable: option.name for option in OPTIONS.values()}
    raws: dict[str, tuple[object, str]] = {}
    for variable, raw in environ.items():
        if not variable.startswith(_VARIABLE_PREFIX) or not raw:
            continue
        if variable in names:
            raws[names[variable]] = (raw, f"environment variable {variable}")
        elif variable != FILE_VARIABLE and not _FOREIGN_VARIABLE.fullmatch(variable):
            raise _unknown("environment", variable, names)
    return raws


def _unknown(source: str, key: str, known: Iterable[str]) -> ConfigError:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else "`manyhands config` lists all options."
    return ConfigError(f"{source}: {key} is not an option; {hint}")


def _read_value(option: Option, raw: object, source: str) -> object:
    try:
        return option.kind.read(raw)
    except _WrongValueError as error:
        # An address of a database holds a password, which has no place on a screen or in a log.
        shown = "that address" if isinstance(raw, str) and "://" in raw else as_toml(raw)
        raise ConfigError(
            f"{source}: {option.name} cannot be {shown} because {error}; "
            f"accepted is {option.kind.accepted}."
        ) from None


def _check_exposure(config: Config, sources: Mapping[str, str]) -> None:
    if config.insecure:
        return
    for name in OPTIONS:
        for address in _addresses(getattr(config, name)):
            if address.is_loopback:
                continue
            raise ConfigError(
                f'{sources[name]}: {name} cannot be "{address}" because other machines could reach '
                "it and nobody would be asked who they are; accepted is a loopback address such as "
                f"127.0.0.1:{address.port}, or any address together with insecure = true."
            )


def _addresses(value: object) -> list[Address]:
    if isinstance(value, Endpoints):
        return [endpoint.address for endpoint in value.each]
    return [value] if isinstance(value, Address) else []

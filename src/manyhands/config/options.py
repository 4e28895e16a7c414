"""The only definition of every option. A field of `Config` is at once a TOML key, an environment
variable and a flag. A new option is a new field, no more.
"""

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import msgspec

from manyhands.config.kinds import (
    DWORK_QUEUE,
    SERVER_NAME_BYTES_MAX,
    Address,
    Broker,
    BrokerAddress,
    Choice,
    Duration,
    Endpoint,
    Endpoints,
    FilePath,
    FunctionName,
    Kind,
    Listen,
    ListenMany,
    Networks,
    Origins,
    Plain,
    Reachable,
    ServerName,
    Size,
    Store,
    StoreName,
    Switch,
    Whole,
    as_plain,
)
from manyhands.config.tokens import TokenList, Tokens
from manyhands.model import limits

VARIABLE_PREFIX: Final = "MANYHANDS_"
_MIB: Final = 1024 * 1024
# A payload is held in memory as a whole, more than once; beyond this, one job could kill the
# server.
_PAYLOAD_BYTES_CEILING: Final = limits.PAYLOAD_BYTES_MAX

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Loop = Literal["auto", "uvloop", "asyncio"]
RelayFrom = Literal["now", "earliest"]
CloudEvents = Literal["ce", "cloudevents", "both", "none"]
DworkExit = Literal["auto", "always", "never"]
DworkUnknown = Literal["done", "wait"]
WmpWake = Literal["needed", "all"]
DedupCompleted = Literal["never", "same_queue"]
IdPolicy = Literal["hexadecimal", "any"]
CountOne = Literal["object", "array"]
Empty = Literal["null", "object"]


class About(msgspec.Struct, frozen=True):
    """What a field of `Config` says about itself besides its name, type and default."""

    kind: Kind
    help: str
    example: str
    secret: bool = False  # no flag: other users could see it in the list of processes


def _server_name_default() -> str:
    name = socket.gethostname().partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9.-]", "-", name)[:SERVER_NAME_BYTES_MAX]
    return name or "manyhands"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every option of the server. The documentation of a field is its help text."""

    data: Annotated[
        Path,
        About(FilePath(), "Directory of the store, created if missing.", "/var/lib/manyhands"),
    ] = Path("manyhands-data")
    store: Annotated[
        Store,
        About(
            StoreName(),
            "Where jobs are kept: on disk, in memory until the server stops, or in a PostgreSQL"
            " database (what libpq takes as a URL, and ?schema=NAME).",
            "postgresql://jobs@db1,db2/jobs",
        ),
    ] = "sqlite"
    unsafe_commits: Annotated[
        bool,
        About(
            Switch(),
            "Accept a PostgreSQL database with synchronous_commit = off, which may lose the last"
            " commits that it has acknowledged.",
            "true",
        ),
    ] = False
    cluster: Annotated[
        Address | None,
        About(
            Listen(),
            "Address for the other servers on the same PostgreSQL database; they find each other"
            " there.",
            "10.0.0.5:7750",
        ),
    ] = None
    advertise: Annotated[
        Address | None,
        About(
            Reachable(),
            "Where the other servers reach the address of --cluster, if it is not the same there.",
            "jobs1.example.org:7750",
        ),
    ] = None
    cluster_secret_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File with a secret that all servers of the cluster share.",
            "/etc/manyhands/cluster.secret",
        ),
    ] = None
    cluster_tls_cert: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "Certificate of this server for the other servers, as PEM; links are encrypted then.",
            "/etc/manyhands/cluster.pem",
        ),
    ] = None
    cluster_tls_key: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "Private key of that certificate, as PEM without a password.",
            "/etc/manyhands/cluster.key",
        ),
    ] = None
    cluster_tls_ca: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "CA certificates for the cluster, as PEM: they sign those of all its servers, and of"
            " nobody else.",
            "/etc/manyhands/cluster-ca.pem",
        ),
    ] = None
    cluster_lease_seconds: Annotated[
        int,
        About(
            Duration(2, 60, unit="s"),
            "Silence after which another server takes over from this one.",
            "10",
        ),
    ] = 5
    http: Annotated[
        Address | None,
        About(Listen(), "Address for HTTP: API, health and metrics.", "127.0.0.1:8080"),
    ] = Address("127.0.0.1", 7700)
    http_tls: Annotated[
        Address | None,
        About(Listen(), "Address for HTTP over TLS: https and wss.", "0.0.0.0:7743"),
    ] = None
    gearman: Annotated[
        Address | None,
        About(Listen(), "Address for Gearman clients and workers.", "127.0.0.1:4731"),
    ] = Address("127.0.0.1", 4730)
    gearman_tls: Annotated[
        Address | None,
        About(Listen(), "Address for Gearman clients and workers over TLS.", "0.0.0.0:4733"),
    ] = None
    gearman_error_packets: Annotated[
        bool,
        About(
            Switch(),
            "Send error packets to peers of Gearman's first draft; if off, close the connection.",
            "false",
        ),
    ] = True
    job_retries: Annotated[
        int,
        About(
            Whole(-1, limits.ATTEMPTS_MAX),
            "Attempts of a Gearman job before it fails for good, unless its queue sets them;"
            " -1 is unlimited, 0 is the same as 1.",
            "-1",
        ),
    ] = 5
    exceptions: Annotated[
        bool,
        About(
            Switch(),
            "Send exceptions to all Gearman clients, not only to those that ask for them.",
            "true",
        ),
    ] = False
    dwork: Annotated[
        Endpoints | None,
        About(
            ListenMany(),
            "Addresses for dwork over ZeroMQ; each name is a separate queue and graph.",
            "127.0.0.1:6125,physics=127.0.0.1:6126",
        ),
    ] = Endpoints((Endpoint(DWORK_QUEUE, Address("127.0.0.1", 6125)),))
    dwork_curve: Annotated[
        Endpoints | None,
        About(
            ListenMany(),
            "Addresses for dwork over ZeroMQ with CURVE encryption; names as with dwork.",
            "0.0.0.0:6135,physics=0.0.0.0:6136",
        ),
    ] = None
    dwork_exit: Annotated[
        DworkExit,
        About(
            Choice(get_args(DworkExit)),
            "When idle dwork workers are sent Exit; auto waits until there was a task.",
            "never",
        ),
    ] = "auto"
    dwork_lease_seconds: Annotated[
        int,
        About(
            Duration(0, 366 * 24 * 3600, unit="s"),
            "Silence after which a dwork worker loses its tasks, in seconds or as 1h; 0 is never.",
            "1h",
        ),
    ] = 0
    dwork_steal_max: Annotated[
        int,
        About(Whole(1, limits.CLAIM_COUNT_MAX), "Maximum number of tasks per Steal.", "100"),
    ] = 1_000
    dwork_unknown: Annotated[
        DworkUnknown,
        About(
            Choice(get_args(DworkUnknown)),
            "Treat a predecessor that was never created as done, or wait for it.",
            "wait",
        ),
    ] = "done"
    dwork_strict: Annotated[
        bool,
        About(
            Switch(),
            "Let only the holder of a dwork task complete it, and refuse Lookup.",
            "true",
        ),
    ] = False
    wmp: Annotated[
        Address | None,
        About(Listen(), "Address for WMP over ZeroMQ.", "127.0.0.1:7715"),
    ] = Address("127.0.0.1", 7714)
    wmp_curve: Annotated[
        Address | None,
        About(Listen(), "Address for WMP over ZeroMQ with CURVE encryption.", "0.0.0.0:7724"),
    ] = None
    wmp_lease_seconds: Annotated[
        int,
        About(
            Duration(1, 366 * 24 * 3600, unit="s"),
            "Silence after which a WMP worker loses its job, in seconds or as 5m.",
            "5m",
        ),
    ] = 60
    wmp_wake: Annotated[
        WmpWake,
        About(
            Choice(get_args(WmpWake)),
            "Wake as many WMP workers as needed for the jobs, or all that are ready.",
            "all",
        ),
    ] = "needed"
    wmp_choose: Annotated[
        str | None,
        About(
            FunctionName(),
            "Python function that chooses the WMP worker to wake; none takes the longest ready.",
            "balancing:by_free_slots",
        ),
    ] = None
    amqp: Annotated[
        Address | None,
        About(Listen(), "Address for AMQP consumers of events.", "127.0.0.1:5672"),
    ] = Address("127.0.0.1", 5673)
    amqp_tls: Annotated[
        Address | None,
        About(Listen(), "Address for AMQP consumers of events over TLS.", "0.0.0.0:5671"),
    ] = None
    amqp_users: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File of AMQP users, one USER:PASSWORD per line; they may log in from anywhere.",
            "/etc/manyhands/amqp-users",
        ),
    ] = None
    amqp_connections_max: Annotated[
        int,
        About(Whole(1, 100_000), "Maximum number of AMQP connections.", "100"),
    ] = 1_000
    amqp_cloudevents: Annotated[
        CloudEvents,
        About(
            Choice(get_args(CloudEvents)),
            "Headers of CloudEvents in AMQP messages: ce- as on RabbitMQ, cloudEvents_ as in AMQP"
            " 1.0, both or none.",
            "both",
        ),
    ] = "ce"
    amqp_cc: Annotated[
        bool,
        About(
            Switch(),
            "Also route AMQP messages by PROVISIONER.TYPE.ROUTING, so that PROVISIONER.# matches.",
            "true",
        ),
    ] = False
    amqp_aliases: Annotated[
        bool,
        About(
            Switch(),
            "Also offer the AMQP exchanges under their later names, v1/queue:task-pending ….",
            "true",
        ),
    ] = False
    amqp_relay: Annotated[
        BrokerAddress | None,
        About(
            Broker(),
            "RabbitMQ to relay all events to; it may be down. Put a password (amqp://USER:PASSWORD@…)"
            " into the file or the environment, where other users cannot see it.",
            "amqp://broker:5672/vhost",
        ),
    ] = None
    amqp_relay_from: Annotated[
        RelayFrom,
        About(
            Choice(get_args(RelayFrom)),
            "Where to start with a new broker: at the present, or at the oldest event.",
            "earliest",
        ),
    ] = "now"
    amqp_relay_ca: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "CA certificates for an amqps:// broker; none uses those of the system.",
            "/etc/manyhands/broker-ca.pem",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "Certificate of this server with its chain, as PEM, for all addresses with TLS.",
            "/etc/manyhands/server.pem",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "Private key of the certificate, as PEM without a password.",
            "/etc/manyhands/server.key",
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "CA certificates that sign those of clients, as PEM; without access, peers need one.",
            "/etc/manyhands/clients-ca.pem",
        ),
    ] = None
    access: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File of callers with their roles, for all listeners; see manyhands access.",
            "/etc/manyhands/access.toml",
        ),
    ] = None
    curve_key: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File with the server's CURVE keys, for dwork_curve and wmp_curve.",
            "/etc/manyhands/server.key_secret",
        ),
    ] = None
    zeromq_plain: Annotated[
        bool,
        About(
            Switch(),
            "Accept unencrypted passwords over ZeroMQ (PLAIN) from other machines too.",
            "true",
        ),
    ] = False
    tokens: Annotated[
        TokenList | None,
        About(
            Tokens(),
            "Tokens for HTTP; alternative to tokens_file.",
            "operator:ada:4f2c9d1b7e3a5860,read-only:wall:9b1e7c3d5f2a4608",
            secret=True,
        ),
    ] = None
    tokens_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File of HTTP tokens, one ROLE:NAME:SECRET per line: operator or read-only.",
            "/etc/manyhands/tokens",
        ),
    ] = None
    read_only: Annotated[
        bool,
        About(Switch(), "Refuse every change, and taking work, over HTTP.", "true"),
    ] = False
    insecure: Annotated[
        bool,
        About(Switch(), "Allow addresses that other machines can reach.", "true"),
    ] = False
    ready_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File to write once every listener accepts, with their addresses.",
            "/run/manyhands/ready",
        ),
    ] = None
    pid_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File that holds the server's process id while it runs.",
            "/run/manyhands/manyhands.pid",
        ),
    ] = None
    server_name: Annotated[
        str,
        About(ServerName(), "Name of this server in job handles.", "jobs-1"),
    ] = msgspec.field(default_factory=_server_name_default)
    log_format: Annotated[
        LogFormat,
        About(
            Choice(get_args(LogFormat)),
            "Log format; auto is console on a terminal and JSON elsewhere.",
            "json",
        ),
    ] = "auto"
    log_level: Annotated[
        LogLevel,
        About(Choice(get_args(LogLevel)), "Minimum level of log lines.", "debug"),
    ] = "info"
    log_file: Annotated[
        Path | None,
        About(
            FilePath(or_none=True),
            "File to write the log to, reopened on SIGHUP; none is standard error.",
            "/var/log/manyhands/manyhands.log",
        ),
    ] = None
    loop: Annotated[
        Loop,
        About(
            Choice(get_args(Loop)),
            "Event loop; auto is uvloop if installed.",
            "asyncio",
        ),
    ] = "auto"
    drain_seconds: Annotated[
        int,
        About(
            Duration(0, 3600, unit="s"),
            "Maximum time to answer requests in flight before exit.",
            "30s",
        ),
    ] = 10
    commit_pace_ms: Annotated[
        int,
        About(
            Duration(0, 1000, unit="ms"),
            "Minimum interval between commits while many clients wait.",
            "2",
        ),
    ] = 1
    ride_ms: Annotated[
        int,
        About(
            Duration(0, 1000, unit="ms"),
            "Maximum delay of a change that no client waits for, to share the next commit.",
            "10",
        ),
    ] = 5
    check_invariants: Annotated[
        bool,
        About(
            Switch(),
            "For tests: check the invariants after every change, and stop at the first broken one.",
            "true",
        ),
    ] = False
    memory: Annotated[
        int | None,
        About(
            Size(64 * _MIB, 1024 * 1024 * _MIB, or_none=True),
            "Memory for jobs, batches, incoming messages and unread answers;"
            " none is a quarter of the machine's.",
            "2GiB",
        ),
    ] = None
    disk_free_mib_min: Annotated[
        int,
        About(
            Whole(0, 1024 * _MIB), "Free disk space (MiB) below which submits are refused.", "512"
        ),
    ] = 64
    retention_days: Annotated[
        int,
        About(Duration(0, 36500, unit="d"), "Days that a finished job stays on record.", "30"),
    ] = 7
    retention_count: Annotated[
        int,
        About(
            Whole(0, 1_000_000_000),
            "Finished jobs kept on record for each queue and outcome.",
            "1000000",
        ),
    ] = 50_000
    retention_bytes: Annotated[
        int | None,
        About(
            Size(0, 1024 * 1024 * 1024 * _MIB, or_none=True),
            "Maximum bytes of payloads and results of finished jobs; the oldest are dropped first;"
            " none is 1GiB, or a quarter of the memory budget with the memory store.",
            "20GiB",
        ),
    ] = None
    retention_events: Annotated[
        int,
        About(
            Whole(1, 1_000_000_000),
            "Maximum number of events kept; older ones are dropped, even if not read by watchers.",
            "500000",
        ),
    ] = 2_000_000
    retention_audit_days: Annotated[
        int,
        About(
            Duration(1, 36500, unit="d"),
            "Days that an entry of the audit log is kept.",
            "90",
        ),
    ] = 365
    result_retention_hours: Annotated[
        int | None,
        About(
            Duration(0, 876_000, or_none=True, unit="h"),
            "Hours that a result is kept; none keeps it as long as its job.",
            "24",
        ),
    ] = None
    trusted_proxies: Annotated[
        str | None,
        About(
            Networks(),
            "HTTP proxies whose Forwarded and X-Forwarded-For headers are trusted.",
            "10.0.0.0/8",
        ),
    ] = None
    cors_origins: Annotated[
        str | None,
        About(
            Origins(),
            "Other origins whose web pages may use the HTTP APIs; none keeps them all out.",
            "https://app.example,http://localhost:5173",
        ),
    ] = None
    qless_take_max: Annotated[
        int,
        About(Whole(1, limits.CLAIM_COUNT_MAX), "Maximum number of jobs per GET /get.", "5000"),
    ] = 1_000
    qless_batch_max: Annotated[
        int,
        About(
            Whole(1, limits.BATCH_COUNT_MAX),
            "Maximum number of items in a body of the qless API.",
            "500",
        ),
    ] = limits.BATCH_COUNT_MAX
    qless_body_bytes_max: Annotated[
        int,
        About(Whole(1, 256 * _MIB), "Maximum size of a body of the qless API.", "1048576"),
    ] = 16 * _MIB
    qless_meta_bytes_max: Annotated[
        int,
        About(
            Whole(1, _PAYLOAD_BYTES_CEILING),
            "Maximum size of a job's meta in the qless API.",
            "65536",
        ),
    ] = _MIB
    qless_load: Annotated[
        bool,
        About(Switch(), "Include the server's load in every answer of the qless API.", "true"),
    ] = False
    qless_dedup_completed: Annotated[
        DedupCompleted,
        About(
            Choice(get_args(DedupCompleted)),
            "Refuse to add a completed job again: never, or to the queue it completed in.",
            "same_queue",
        ),
    ] = "never"
    qless_id_policy: Annotated[
        IdPolicy,
        About(
            Choice(get_args(IdPolicy)),
            "Ids that jobs of the qless API may have: hexadecimal, or any printable text.",
            "any",
        ),
    ] = "hexadecimal"
    qless_count_one: Annotated[
        CountOne,
        About(
            Choice(get_args(CountOne)),
            "What GET /get/<queue>/1 returns: the item itself, or an array of one.",
            "array",
        ),
    ] = "object"
    qless_empty: Annotated[
        Empty,
        About(
            Choice(get_args(Empty)),
            "What GET /get/<queue> returns if there is no work: null, or an empty object.",
            "object",
        ),
    ] = "null"
    payload_bytes_max: Annotated[
        int,
        About(
            Whole(1, _PAYLOAD_BYTES_CEILING),
            "Maximum size of a payload or result of a job.",
            "1048576",
        ),
    ] = 64 * _MIB


class Option(msgspec.Struct, frozen=True):
    """One field of `Config`, with all the names that users know it by."""

    name: str  # the field and the TOML key
    flag: str
    variable: str
    default: Plain
    kind: Kind
    help: str
    example: str
    secret: bool


def _options() -> dict[str, Option]:
    unset = Config()
    found: dict[str, Option] = {}
    for field in msgspec.structs.fields(Config):
        _, about = get_args(field.type)
        found[field.name] = Option(
            name=field.name,
            flag="--" + field.name.replace("_", "-"),
            variable=VARIABLE_PREFIX + field.name.upper(),
            default=as_plain(about.kind, getattr(unset, field.name)),
            kind=about.kind,
            help=about.help,
            example=about.example,
            secret=about.secret,
        )
    return found


# By name, in the order of definition.
OPTIONS: Final[Mapping[str, Option]] = _options()
LISTENERS: Final = tuple(
    name for name, option in OPTIONS.items() if isinstance(option.kind, Listen)
)

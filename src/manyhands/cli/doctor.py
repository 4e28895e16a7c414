"""`manyhands doctor`: checks this machine, the configuration, and the server if it runs."""

import contextlib
import os
import shutil
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected
from manyhands.cli.output import Cell, Column, Row, print_json, print_table, span
from manyhands.cli.stores import AsJson, ConfigFile, Data
from manyhands.config import (
    FILE_VARIABLE,
    LISTENERS,
    Address,
    Config,
    ConfigError,
    DatabaseAddress,
    Endpoints,
    load_config,
    warnings_of,
)

_MIB: Final = 1024 * 1024
_SYNCS: Final = 20
_SYNC_BYTES: Final = 8192
# Above this, an acknowledgement takes longer than people expect of a local disk.
_SYNC_MS_SLOW: Final = 20.0
_FILES_FEW: Final = 4_096
_CLOCK_MS_OFF: Final = 2_000
_STYLES: Final = {"ok": "green", "warn": "yellow", "bad": "bold red"}
_MARKS: Final = {"ok": "✓", "warn": "!", "bad": "✗"}


class Finding(Struct, frozen=True):
    """One thing that was checked."""

    what: str
    level: str  # "ok", "warn" or "bad"
    sentence: str


@connected
def doctor(
    *,
    link: HttpLink,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check ports, disk, sync speed, clock, open files, versions and configuration.

    It checks this machine as `manyhands serve` would find it, and the server at --url if there is
    one. Nothing is changed; a small file is written into the data directory and removed. Exit
    codes: 0 all is well or worth a look, 1 something would keep the server from working.

    Examples:

      manyhands doctor

      manyhands doctor --data /var/lib/manyhands --json | jq -r 'select(.level != "ok")'
    """
    found = list(_findings(link, data, config))
    if as_json:
        for finding in found:
            print_json(asdict(finding))
    else:
        live = sys.stdout.isatty()
        rows: list[Row] = [
            [
                Cell(f"{mark}{finding.level}", _STYLES[finding.level]),
                finding.what,
                finding.sentence,
            ]
            for finding in found
            for mark in (f"{_MARKS[finding.level]} " if live else "",)
        ]
        print_table((Column(""), Column("CHECK"), Column("FOUND", wraps=True)), rows)
    if any(finding.level == "bad" for finding in found):
        raise SystemExit(1)


def _findings(link: HttpLink, data: Path | None, file: Path | None) -> Iterator[Finding]:
    yield _versions()
    file = file or (Path(named) if (named := os.environ.get(FILE_VARIABLE)) else None)
    flags = {"data": str(data) if data is not None else None}
    try:
        loaded = load_config(flags, os.environ, file)
    except ConfigError as error:
        yield Finding("configuration", "bad", str(error))
        return
    place = f"{file} is valid" if file is not None else "no file; defaults and environment"
    yield Finding("configuration", "ok", f"{place}.")
    for warning in warnings_of(loaded, file):
        yield Finding("configuration", "warn", f"{warning}.")
    checks: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _directory,
        _memory,
        _files,
        _clock,
    )
    for check in checks:
        yield from check(loaded.config)
    answered, found = _server(link)
    yield from found
    yield from _ports(loaded.config, answered)


def _versions() -> Finding:
    import platform

    import apsw

    from manyhands import __version__
    from manyhands.engine import decide

    compiled = "" if decide.__file__.endswith(".py") else ", compiled"
    return Finding(
        "versions",
        "ok",
        f"manyhands {__version__}{compiled}, Python {platform.python_version()}, SQLite "
        f"{apsw.sqlite_lib_version()}, {platform.system()} {platform.release()}.",
    )


def _directory(config: Config) -> Iterator[Finding]:
    if config.store == "memory":
        yield Finding("store", "warn", "jobs are kept in memory and are gone when it stops.")
        return
    if config.store != "sqlite":
        yield _database(config.store, unsafe_commits=config.unsafe_commits)
        return
    folder = config.data.absolute()
    exists = folder.is_dir()
    place = folder
    while not place.is_dir() and place != place.parent:
        place = place.parent  # where it would be created
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding("data directory", "bad", f"{place} cannot be written to.")
        return
    yield Finding(
        "data directory",
        "ok",
        f"{folder} can be written to." if exists else f"{folder} will be created.",
    )
    free_mib = shutil.disk_usage(place).free // _MIB
    least = config.disk_free_mib_min
    if free_mib < least:
        level, said = "bad", f"submits are refused below {least:,} MiB"
    elif free_mib < 4 * least:
        level, said = "warn", f"submits are refused below {least:,} MiB"
    else:
        level, said = "ok", f"{least:,} MiB are needed"
    yield Finding("disk", level, f"{free_mib:,} MiB are free; {said}.")
    yield _sync_speed(place)


def _database(address: DatabaseAddress, *, unsafe_commits: bool) -> Finding:
    try:
        import psycopg

        from manyhands.store.contract import StoreError
        from manyhands.store.postgres import schema, sessions
    except ImportError:
        return Finding("database", "bad", "psycopg is missing: pip install 'manyhands[postgres]'.")
    from manyhands.dispatch.clock import Clock

    clock = Clock()
    try:
        with sessions.connect(address) as connection:
            sessions.check_server(connection, unsafe_commits=unsafe_commits)
            version = schema.version_of(connection, address.schema)
            before = clock.monotonic_ms()
            for _ in range(_SYNCS):
                connection.execute("SELECT 1")
            took = (clock.monotonic_ms() - before) / _SYNCS
            number = connection.info.server_version // 10_000
    except psycopg.Error as error:
        return Finding("database", "bad", str(sessions.unusable(address, error)))
    except StoreError as error:
        return Finding("database", "bad", str(error))
    tables = "no tables yet" if version is None else f"tables of version {version}"
    return Finding(
        "database",
        "ok",
        f"{address} is PostgreSQL {number} with {tables}; a round trip takes {took:.2f} ms.",
    )


def _sync_speed(place: Path) -> Finding:
    from manyhands.dispatch.clock import Clock

    clock = Clock()
    took: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(_SYNCS):
                before = clock.monotonic_ms()
                file.write(b"\0" * _SYNC_BYTES)
                file.flush()
                os.fdatasync(file.fileno())
                took.append(clock.monotonic_ms() - before)
    except OSError as error:
        return Finding("sync", "bad", f"{place} cannot be synced: {error.strerror}.")
    middle, worst = statistics.median(took), max(took)
    slow = middle > _SYNC_MS_SLOW
    said = "an acknowledgement waits for one" if slow else "as fast as it should be"
    return Finding(
        "sync",
        "warn" if slow else "ok",
        f"a sync takes {middle:.2f} ms, the slowest of {_SYNCS} took {worst:.2f} ms; {said}.",
    )


def _memory(config: Config) -> Iterator[Finding]:
    from manyhands.operate.machine import memory_bytes, quarter_of_machine

    budget, whole = config.memory or quarter_of_machine(), memory_bytes()
    level = "warn" if budget > whole * 3 // 4 else "ok"
    yield Finding(
        "memory",
        level,
        f"the budget is {budget // _MIB:,} MiB of {whole // _MIB:,} MiB that this machine or "
        f"container has.",
    )


def _files(_config: Config) -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    few = soft != endless and soft < _FILES_FEW
    bound = "no limit" if hard == endless else f"{hard:,}"
    number = "unlimited" if soft == endless else f"{soft:,}"
    said = f"raise it with ulimit -n (up to {bound})" if few else "each connection needs one"
    yield Finding("open files", "warn" if few else "ok", f"{number} are allowed; {said}.")


def _clock(_config: Config) -> Iterator[Finding]:
    synchronised = _is_synchronised()
    if synchronised is None:
        yield Finding("clock", "ok", "this system does not say whether its clock is synchronised.")
    elif synchronised:
        yield Finding("clock", "ok", "the system clock is synchronised.")
    else:
        yield Finding(
            "clock", "warn", "the system clock is not synchronised; delays and schedules follow it."
        )


def _is_synchronised() -> bool | None:
    """What the kernel says (adjtimex); None if it cannot be asked."""
    import ctypes

    unsynchronised = 0x0040
    room = ctypes.create_string_buffer(512)  # larger than the structure on any system
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(room)
    except (OSError, AttributeError):
        return None
    if code < 0:
        return None
    # unsigned modes; long offset, freq, maxerror, esterror; int status
    word = ctypes.sizeof(ctypes.c_long)
    status = ctypes.c_int.from_buffer(room, 5 * word).value
    return not status & unsynchronised


def _server(link: HttpLink) -> tuple[bool, list[Finding]]:
    from manyhands import __version__
    from manyhands.dispatch.clock import Clock

    try:
        about = link.ask("GET", "/api/about", seconds=5.0)["results"]
        ready = link.ask("GET", "/readyz", seconds=5.0)["results"]
        notes = link.ask("GET", "/api/attention", seconds=5.0)["results"]
    except UnansweredError:
        return False, [Finding("server", "ok", f"none answers at {link.name}.")]
    except RefusedError as error:
        return True, [Finding("server", "warn", f"{error}.")]
    found = []
    if ready["ready"]:
        sentence = f"{link.name} is ready, up {span(about['uptime_ms'])}."
        found.append(Finding("server", "ok", sentence))
    else:
        why = ", ".join(ready["missing"])
        found.append(Finding("server", "bad", f"{link.name} is not ready: {why}."))
    if about["version"] != __version__:
        sentence = f"it is version {about['version']}, and this command is {__version__}."
        found.append(Finding("server", "warn", sentence))
    # Notes about no queue and no worker are about the server and what it needs.
    troubles = [note for note in notes if not note["about"]]
    found += [Finding(note["what"], "warn", f"{note['detail']}.") for note in troubles]
    off_ms = abs(about["started_at"] + about["uptime_ms"] - Clock().now())
    if off_ms > _CLOCK_MS_OFF:
        sentence = f"its clock and that of this machine differ by {span(off_ms)}."
        found.append(Finding("server", "warn", sentence))
    return True, found


def _ports(config: Config, answered: bool) -> Iterator[Finding]:  # noqa: FBT001 - of a call above
    taken: list[str] = []
    free: list[str] = []
    for name in LISTENERS:
        for address in _addresses(getattr(config, name)):
            reason = _cannot_listen(address)
            if reason is None:
                free.append(f"{name} {address}")
            elif answered:
                taken.append(f"{name} {address}")
            else:
                yield Finding(
                    "ports",
                    "bad",
                    f"{name} cannot listen on {address}: {reason}; --{name} HOST:PORT takes "
                    f"another one, --{name} off starts without it.",
                )
    if taken:
        yield Finding("ports", "ok", f"in use, as expected while it runs: {', '.join(taken)}.")
    if free:
        yield Finding("ports", "ok", f"free: {', '.join(free)}.")


def _addresses(value: object) -> list[Address]:
    if isinstance(value, Endpoints):
        return [endpoint.address for endpoint in value.each]
    return [value] if isinstance(value, Address) else []


def _cannot_listen(address: Address) -> str | None:
    """Why not, or None."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None

"""The server as a whole: opens the store, recovers, starts the listeners, keeps house, drains."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from manyhands import __version__
from manyhands.config import Config
from manyhands.model.commands import Recover
from manyhands.server.access import access_of
from manyhands.server.amqp import AmqpEndpoint, AmqpListener, AmqpsListener
from manyhands.server.audit import AuditLog
from manyhands.server.banner import print_banner
from manyhands.server.bulk import BulkRunner
from manyhands.server.clock import Clock
from manyhands.server.dispatcher import Dispatcher
from manyhands.server.dwork import DworkListener
from manyhands.server.gearman import GearmanListener
from manyhands.server.history import History
from manyhands.server.http import HttpListener
from manyhands.server.ids import Ids
from manyhands.server.logs import set_up_logs
from manyhands.server.loop_errors import LoopErrors
from manyhands.server.messages import MessageLog
from manyhands.server.metrics import Metrics
from manyhands.server.relay import Relay
from manyhands.server.schedules import Calendar
from manyhands.server.tallies import Tallies
from manyhands.server.traffic import Traffic
from manyhands.server.uncounted import Uncounted
from manyhands.server.wmp import WmpListener
from manyhands.server.workers import WorkerBooks
from manyhands.store.memory import MemoryStore
from manyhands.store.retention import Retention
from manyhands.store.sqlite import SqliteStore
from manyhands.store.store import Store, StoreError

_log = structlog.get_logger("manyhands.server")

LISTENERS: Final = ("http", "gearman", "dwork", "wmp", "amqp", "amqps")
_MIB: Final = 1024 * 1024
_HOUSEKEEPING_MS: Final = 1_000
_PRUNE_COUNT: Final = 2_000  # records dropped at a time, between other work
_SWEEP_MS: Final = 3_600_000
# A wall clock that is set by less than this is not worth following.
_DRIFT_MS: Final = 2_000
# Young objects before a collection, and how rarely the old ones are looked at: with a million
# jobs in memory the default settings stop the server for a third of a second.
_GC_THRESHOLDS: Final = (50_000, 20, 1_000)


class Listener(Protocol):
    """Something that accepts peers of one protocol."""

    async def start(self) -> str:
        """Bind; gives the address that was bound."""

    async def drain(self) -> None:
        """Answer what is in flight, accept nothing new, close."""


class Server:
    """Everything that runs, and what the listeners need of each other."""

    def __init__(self, config: Config, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.store = store
        self.clock = Clock()
        self.ids = Ids()
        self.failure: str | None = None
        self.stopping = asyncio.Event()
        self.is_ready = False
        self.started_at = self.clock.now()
        self.dispatcher = Dispatcher(
            store,
            self.clock,
            loop,
            pace_ms=config.commit_pace_ms,
            ride_ms=config.ride_ms,
            on_failure=self._fail,
        )
        self.uncounted = Uncounted()
        self.dispatcher.on_batch.append(self.uncounted.note)
        self.tallies = Tallies(self.uncounted)
        self.metrics = Metrics(self.dispatcher, self.tallies, self.uncounted)
        self.history = History(self, self.tallies)
        self.traffic = Traffic(self)
        self.worker_books = WorkerBooks(self.uncounted)
        self.bulk = BulkRunner(self)
        self.access = access_of(config)
        self.audit = AuditLog(self)
        self.calendar = Calendar(self.dispatcher, self.ids)
        self.addresses: dict[str, str | None] = dict.fromkeys(LISTENERS)
        self.listeners: list[Listener] = []
        self._expected_ms = 0.0
        self._sweep_ms = self.clock.monotonic_ms() + _SWEEP_MS
        self._sweeping: asyncio.Task[None] | None = None

    @cached_property
    def messages(self) -> MessageLog:
        """Events as messages, rendered once for all who read them. Needs to know its address."""
        return MessageLog(self)

    @cached_property
    def amqp_endpoint(self) -> AmqpEndpoint:
        """What the AMQP listeners share."""
        return AmqpEndpoint(self)

    def relay_facts(self) -> dict[str, Any] | None:
        """How the relay goes; None: there is none."""
        return next((kept.facts() for kept in self.listeners if isinstance(kept, Relay)), None)

    def _fail(self, text: str) -> None:
        self.failure = text
        self.stopping.set()

    async def start(self) -> None:
        """Recover, then listen."""
        now = self.clock.now()
        outage_ms = 0
        if self.store.alive_at is not None:
            # Negative if the wall clock was set back meanwhile: leases keep what was left of them.
            outage_ms = now - self.store.alive_at
        self.dispatcher.ask(Recover(self.ids.incarnation, outage_ms))
        await self.settled()
        # Every life cycle makes thousands of short-lived objects and hardly ever a cycle.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        for name, make in _LISTENER_KINDS.items():
            where = getattr(self.config, name)
            if where is None:
                continue
            listener = make(self, where)
            self.addresses[name] = await listener.start()
            self.listeners.append(listener)
        self.bulk.resume()
        self.is_ready = True

    async def settled(self) -> None:
        """Wait until everything that was decided is on disk."""
        idle = asyncio.Event()
        self.dispatcher.when_idle(idle.set)
        await idle.wait()

    async def keep_house(self) -> None:
        """Once a second: what time and disks do, whether or not anybody asks."""
        self._expected_ms = self.clock.monotonic_ms() + _HOUSEKEEPING_MS
        while not self.stopping.is_set():
            delay_ms = max(0.0, self._expected_ms - self.clock.monotonic_ms())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), delay_ms / 1000)
                return
            self._look_at_clocks()
            self._look_at_disk()
            self.calendar.look()
            self.history.look(self.clock.now())
            self._sweep_now_and_then()
            self.dispatcher.keep_house()
            # A slice now, and more at once while there is more: never long, never far behind.
            pruned = self.store.prune(self.clock.now(), _PRUNE_COUNT)
            if pruned:
                self.dispatcher.touch()  # what goes, goes with the next commit
            if pruned >= _PRUNE_COUNT:
                self._expected_ms = self.clock.monotonic_ms() + _HOUSEKEEPING_MS / 20

    async def sweep(self) -> None:
        """Now and then: drop what no job refers to any more."""
        self.store.begin_sweep()
        await self.settled()
        if self.failure is None:
            self.store.end_sweep(await asyncio.to_thread(self.store.find_unused))
            self.dispatcher.touch()

    def _sweep_now_and_then(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._sweep_ms and (self._sweeping is None or self._sweeping.done()):
            self._sweep_ms = now_ms + _SWEEP_MS
            self._sweeping = asyncio.create_task(self.sweep())

    def _look_at_clocks(self) -> None:
        self.dispatcher.notice_stall(self._expected_ms)
        self._expected_ms = self.clock.monotonic_ms() + _HOUSEKEEPING_MS
        drift_ms = self.clock.drift_ms()
        if abs(drift_ms) > _DRIFT_MS:
            _log.warning("the wall clock was set", milliseconds=drift_ms)
            self.clock.follow(drift_ms)
            self.dispatcher.prolong(drift_ms)

    def _look_at_disk(self) -> None:
        if not self.store.is_in_place():
            return  # the dispatcher hears of it
        free = self.store.free_bytes()
        full = free is not None and free < self.config.disk_free_mib_min * _MIB
        if full != self.dispatcher.store_full:
            self.dispatcher.store_full = full
            if full:
                _log.error("the disk is nearly full; submits are refused", free_bytes=free)
            else:
                _log.info("the disk has room again; submits are accepted", free_bytes=free)

    async def drain(self) -> None:
        """Stop handing out, answer what is in flight, flush."""
        self.is_ready = False
        self.dispatcher.draining = True
        for listener in self.listeners:
            await listener.drain()
        if self.failure is None:
            self.history.write(self.clock.now())
            self.dispatcher.touch()
            await self.settled()


# Each takes what its option holds.
_LISTENER_KINDS: Final[dict[str, Callable[[Server, Any], Listener]]] = {
    "http": HttpListener,
    "gearman": GearmanListener,
    "amqp": AmqpListener,
    "amqps": AmqpsListener,
    "amqp_relay": Relay,
    "dwork": DworkListener,
    "wmp": WmpListener,
}


def open_store(config: Config) -> Store:
    """The store that the configuration names."""
    day_ms = 24 * 3600 * 1000
    hours = config.result_retention_hours
    retention = Retention(
        record_ms=config.retention_days * day_ms,
        records_max=config.retention_count,
        result_ms=None if hours is None else hours * 3600 * 1000,
        event_ms=config.retention_days * day_ms,
        events_max=config.retention_events,
    )
    if config.store == "memory":
        return MemoryStore(retention)
    return SqliteStore(config.data, retention)


def run(config: Config) -> None:
    """Run until told to stop. Exits 0 after a drain, 1 if the store failed or did not open."""
    set_up_logs(config.log_format, config.log_level)
    try:
        store = open_store(config)
    except StoreError as error:
        print(f"manyhands: {error}", file=sys.stderr)  # noqa: T201 - for people, not for logs
        raise SystemExit(1) from None
    try:
        with asyncio.Runner(loop_factory=_loop_factory(config)) as runner:
            code = runner.run(_serve(config, store))
    finally:
        store.close()
    raise SystemExit(code)


def _loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop]:
    if config.loop != "asyncio":
        try:
            import uvloop  # noqa: PLC0415 - it does not install everywhere
        except ImportError:
            if config.loop == "uvloop":
                raise
        else:
            return uvloop.new_event_loop
    return asyncio.new_event_loop


async def _serve(config: Config, store: Store) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors())
    server = Server(config, store, loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, server)
    try:
        await server.start()
    except OSError as error:
        print(f"manyhands: {error}", file=sys.stderr)  # noqa: T201 - for people, not for logs
        return 1
    if config.ready_file is not None:
        write_ready_file(config.ready_file, server.addresses)
    print_banner(config, server.addresses, store.facts())
    _log.info("ready", version=__version__, pid=os.getpid(), **server.addresses)
    await server.keep_house()
    _log.info("draining")
    try:
        await asyncio.wait_for(server.drain(), config.drain_seconds)
    except TimeoutError:
        _log.warning("drain took too long; stopping", seconds=config.drain_seconds)
    if config.ready_file is not None:
        config.ready_file.unlink(missing_ok=True)
    if server.failure is not None:
        _log.critical("stopped because the store failed", reason=server.failure)
        return 1
    _log.info("stopped")
    return 0


def _stop(server: Server) -> None:
    if server.stopping.is_set():
        # Asked twice: whatever is committed stays, everything else was not acknowledged.
        os._exit(1)
    server.stopping.set()


def write_ready_file(path: Path, addresses: dict[str, str | None]) -> None:
    """Written whole or not at all: whoever waits for it may read it at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode({"pid": os.getpid(), **addresses}) + b"\n")
    temporary.replace(path)

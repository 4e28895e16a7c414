"""The server as a whole: opens the store, creates the parts, passes each what it needs, and runs
them from recovery to the drain.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - its first use may be when no file can be opened
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from manyhands import __version__
from manyhands.access.audit import AuditLog
from manyhands.access.curve_keys import CurveKeyFile
from manyhands.access.file import AccessFileError, callers_of, reload_callers
from manyhands.access.gate import Gate
from manyhands.access.logins import Logins
from manyhands.cluster.router import Router
from manyhands.config import LISTENERS, Address, BrokerAddress, Config, DatabaseAddress, Endpoints
from manyhands.dispatch.ask import settled
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.past import Past
from manyhands.loggers import get_logger
from manyhands.model.commands import Recover
from manyhands.model.job import State
from manyhands.model.servers import Drained, ServerFacts
from manyhands.net.backplane import Backplane
from manyhands.net.mutual_tls import MutualTls
from manyhands.net.tcp import TcpListener, raise_open_files_limit
from manyhands.net.tls import Tls, TlsDoor
from manyhands.observe.attention import Attention, Note
from manyhands.observe.database import database_metrics, database_notes
from manyhands.observe.facts import Facts
from manyhands.observe.history import History
from manyhands.observe.incidents import Incidents
from manyhands.observe.logs import LogFile, set_up_logs
from manyhands.observe.loop_errors import LoopErrors
from manyhands.observe.metrics import Metrics, memory_metrics
from manyhands.observe.repeats import Repeats
from manyhands.observe.tallies import Tallies, Totals
from manyhands.observe.traffic import Traffic
from manyhands.observe.workers import WorkerBooks
from manyhands.operate.banner import print_banner
from manyhands.operate.bulk import BulkRunner
from manyhands.operate.duties import Duties
from manyhands.operate.machine import quarter_of_machine
from manyhands.operate.own_files import check_own_files, remove_own_files, write_own_files
from manyhands.operate.schedules import Calendar
from manyhands.operate.signals import listen_to_signals, log_state, wait_until_running
from manyhands.operate.watched_files import WatchedFiles
from manyhands.protocols.amqp.homes import Homes
from manyhands.protocols.amqp.listener import AmqpEndpoint, AmqpListener
from manyhands.protocols.amqp.relay import Relay
from manyhands.protocols.dwork.listener import DworkListener
from manyhands.protocols.gearman.listener import GearmanListener
from manyhands.protocols.taskcluster.log import MessageLog
from manyhands.protocols.wmp.listener import WmpListener
from manyhands.site.listener import HttpListener
from manyhands.store.contract import Store, StoreError
from manyhands.store.memory import MemoryStore
from manyhands.store.retention import Retention
from manyhands.store.sqlite.store import SqliteStore
from manyhands.web.admission import Admission
from manyhands.web.sources import Sources

if TYPE_CHECKING:
    from manyhands.cluster.seat import Seat
    from manyhands.store.postgres.store import PostgresStore

_log = get_logger("manyhands.server")

FENCED_CODE: Final = 4  # of a server that another one has replaced
_EXPIRY_SECONDS: Final = 1.0  # between checks for callers whose time is over
_LOOK_SECONDS: Final = 0.05  # between checks of what a gentle stop waits for
# Thresholds of the garbage collector: with a million jobs in memory, the defaults would stop the
# server for a third of a second.
_GC_THRESHOLDS: Final = (50_000, 20, 1_000)


class Listener(Protocol):
    """Accepts peers of one protocol."""

    async def start(self) -> str | None:
        """Binds; returns the bound address, if it has one."""

    async def drain(self) -> None:
        """Answers what is in flight, accepts nothing new, and closes."""


class Server:
    """Composes the parts, starts them and stops them."""

    def __init__(
        self,
        config: Config,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock or _clock_for(config, store)
        self.ids = ids or Ids()
        self.condition = Condition(self.clock.now())
        self.condition.addresses.update(dict.fromkeys(LISTENERS))
        self.watched = WatchedFiles(loop)
        self.dispatcher, self.seat = self._dispatcher(
            loop,
            pace_ms=config.commit_pace_ms,
            ride_ms=config.ride_ms,
            on_failure=self.condition.fail,
            check_invariants=config.check_invariants,
        )
        self.budget = Budget(memory_of(config), store, loop.time)
        self.dispatcher.on_progress.append(self.budget.relieve)
        self.dispatcher.jobs_bytes_max = self.budget.jobs_max
        self.past = Past(self.dispatcher.events, store)
        facts, elsewhere = Facts(), Facts()  # of what other servers decide
        if self.seat is not None:
            self.seat.router.on_own.append(facts.note)
            self.seat.router.on_news.append(elsewhere.note)
        else:
            self.dispatcher.on_batch.append(facts.note)
        Incidents(facts)
        self.tallies = Tallies(facts)
        totals = Totals(self.tallies, Tallies(elsewhere))
        self.metrics = Metrics(self.dispatcher, self.tallies, facts)
        self.metrics.sources.append(partial(memory_metrics, self.budget))
        if self.seat is not None:
            self.metrics.sources.append(self.seat.metrics)
        if isinstance(config.store, DatabaseAddress):
            self.metrics.sources.append(partial(database_metrics, cast("PostgresStore", store)))
        self.history = History(self.dispatcher, self.tallies, totals)
        if self.seat is not None:
            self.seat.router.on_deciding.append(self.history.take_up)
        self.traffic = Traffic(totals, self.condition.addresses)
        self.worker_books = WorkerBooks(facts, elsewhere)
        self.callers = callers_of(config, self.clock.now)
        self.audit = AuditLog(self.dispatcher)
        self.logins = Logins(self.callers, self.audit, loop)
        self.gate = Gate(self.dispatcher, self.audit)
        self.metrics.sources.append(self.logins.metrics)
        self.admission = Admission(
            self.logins, self.gate, self.clock.monotonic_ms, read_only=config.read_only
        )
        self.bulk = BulkRunner(self.dispatcher, self.audit, self.ids.incarnation, self.seat)
        if self.seat is not None:
            self.seat.router.judge_of = self.gate.judge_of
            self.seat.router.on_gone.append(self.bulk.take_on)
            self.seat.member.on_stop_bulk.append(self.bulk.stop)
        self.duties = Duties(
            self.dispatcher,
            self.condition,
            self.budget,
            self.history,
            Calendar(self.dispatcher, self.ids),
            loop,
            disk_free_mib_min=config.disk_free_mib_min,
        )
        self.backplane = Backplane(
            self.dispatcher,
            self.ids,
            self.budget,
            self.audit,
            self.condition,
            self.gate,
            self.logins,
        )
        files = [file for file in (config.access, config.tokens_file) if file is not None]
        if files:
            self.watched.add(files, partial(reload_callers, self.callers, config))
        self.listeners: list[Listener] = []
        self._http_listener: HttpListener | None = None

    def _dispatcher(
        self,
        loop: asyncio.AbstractEventLoop,
        **options: Any,  # noqa: ANN401
    ) -> tuple[Dispatcher, "Seat | None"]:
        """The dispatcher; among several servers the router in its place."""
        config, store = self.config, self.store
        if config.cluster is None:
            return Dispatcher(store, self.clock, loop, **options), None
        from manyhands.cluster.seat import Seat  # noqa: PLC0415 - needs an extra
        from manyhands.store.postgres.shared import SharedStore  # noqa: PLC0415

        assert isinstance(store, SharedStore)
        # The names of its connections tell the other servers whose they are.
        self.ids = Ids(bytes.fromhex(store.incarnation))
        router = Router(store, self.clock, loop, store.incarnation, **options)
        warn = Repeats(get_logger("manyhands.links")).warn
        seat = Seat(router, store, config, loop, router.fence, warn, self._link_tls)
        self.condition.addresses["cluster"] = seat.address
        self.condition.lacks.append(lambda: None if seat.member.is_ready else "cluster")
        seat.member.on_leave.append(lambda _sentence: self.condition.stopping.set())
        return router, seat

    @cached_property
    def messages(self) -> MessageLog:
        """Events as messages, rendered once for all readers. Needs the server's address."""
        return MessageLog(self.dispatcher, self.config, self.condition.addresses)

    @cached_property
    def _amqp_endpoint(self) -> AmqpEndpoint:
        """What the AMQP listeners share."""
        endpoint = AmqpEndpoint(
            self.dispatcher, self.config, self.backplane, self.messages, self._amqp_homes()
        )
        if self.seat is not None:
            for listeners in (self.seat.router.on_own, self.seat.router.on_news):
                listeners.append(lambda batch, _: endpoint.broker.note(batch.rows_of("cursors")))
        self.traffic.sources["amqp"] = endpoint.flow
        self.metrics.sources.append(endpoint.metrics)
        return endpoint

    def _more_notes(self) -> Iterator[Note]:
        if isinstance(self.config.store, DatabaseAddress):
            yield from database_notes(cast("PostgresStore", self.store))
        for kept in self.listeners:
            if isinstance(kept, Relay):
                yield from kept.notes()

    def _amqp_homes(self) -> Homes | None:
        """Which server serves which durable queue, if there are several."""
        if self.seat is None:
            return None
        live = self.store.live
        return Homes(self.ids.incarnation, lambda: live.cursors, self.seat.member.peers)

    def sources(self) -> Sources:
        """What APIs and pages over HTTP show and act on."""
        store = self.dispatcher.store
        return Sources(
            self.dispatcher,
            self.ids,
            self.config,
            self.condition,
            self.budget,
            self.admission,
            self.audit,
            self.bulk,
            self.history,
            Attention(
                self.dispatcher, self.history, store, self.dispatcher.sleepers, self._more_notes
            ),
            self.traffic,
            self.worker_books.by_realm,
            self.past,
            self.servers,
            self.drain_server,
            self.relay_facts,
            store,
            self.dispatcher.sleepers,
        )

    @cached_property
    def _tls(self) -> Tls | None:
        """The certificate for all addresses with TLS."""
        config = self.config
        if config.tls_cert is None or config.tls_key is None:
            return None
        tls = Tls(
            self.clock,
            config.tls_cert,
            config.tls_key,
            config.tls_client_ca,
            # With an access file, peers may show who they are in other ways.
            is_certificate_needed=config.access is None,
        )
        self.watched.add(tls.files, tls.reload)
        self.metrics.sources.append(tls.metrics)
        return tls

    @cached_property
    def _link_tls(self) -> MutualTls | None:
        """The certificate for links to other servers."""
        config = self.config
        files = (config.cluster_tls_cert, config.cluster_tls_key, config.cluster_tls_ca)
        certificate, key, authority = files
        if certificate is None or key is None or authority is None:
            return None
        tls = MutualTls(self.clock, certificate, key, authority)
        self.watched.add(tls.files, tls.reload)
        return tls

    def _http(self, address: Address | None) -> HttpListener:
        listener = HttpListener(self.backplane, self.sources(), self.metrics, address, self._tls)
        self.traffic.sources["http"] = listener.flow
        self.metrics.sources.append(listener.metrics)
        self._http_listener = listener
        return listener

    async def take(self, peer: socket.socket) -> None:
        """Serves HTTP on a connected socket, as if it had been accepted. Without an address for
        HTTP there is no listener; one is made that does not listen.
        """
        if self._http_listener is None:
            listener = self._http(None)
            listener.begin()
            self.listeners.append(listener)
        assert self._http_listener is not None
        await self._http_listener.take(peer)

    def _gearman(self, address: Address | None) -> TcpListener:
        listener = GearmanListener(self.backplane, self.config, address)
        self.traffic.sources["gearman"] = listener.flow
        return listener

    def _amqp(self, address: Address | None) -> TcpListener:
        return AmqpListener(self.backplane, self._amqp_endpoint, address)

    def _relay(self, broker: BrokerAddress) -> Listener:
        relay = Relay(self.dispatcher, self.ids, self.config, self.messages, broker)
        self.metrics.sources.append(relay.metrics)
        return relay

    @cached_property
    def _curve_key(self) -> CurveKeyFile | None:
        """The keys for all addresses with CURVE."""
        if self.config.curve_key is None:
            return None
        found = CurveKeyFile(self.config.curve_key)
        self.watched.add((self.config.curve_key,), found.reload)
        return found

    def _dwork(self, endpoints: Endpoints | None) -> DworkListener:
        listener = DworkListener(self.backplane, self.config, endpoints, self._curve_key)
        self.traffic.sources["dwork"] = listener.flow
        return listener

    def _wmp(self, address: Address | None) -> WmpListener:
        listener = WmpListener(self.backplane, self.config, address, self._curve_key)
        self.traffic.sources["wmp"] = listener.flow
        self.metrics.sources.append(listener.metrics)
        return listener

    def servers(self) -> list[ServerFacts]:
        """All servers on this store."""
        if self.seat is not None:
            return self.seat.servers()
        since = self.condition.started_at
        name = self.config.server_name
        queues = self.store.live.queues.values()
        return [
            ServerFacts(
                name=name,
                address="",
                version=__version__,
                state="serving",
                since=since,
                decides=True,
                here=True,
                linked=True,
                unfinished_jobs=sum(known.unfinished_count for known in queues),
            )
        ]

    def drain_server(self, name: str, sentence: str) -> Drained:
        """Has a server stop in order, if there are others."""
        if self.seat is not None:
            return self.seat.drain(name, sentence)
        return Drained.ALONE if name == self.config.server_name else Drained.UNKNOWN

    def relay_facts(self) -> dict[str, Any] | None:
        """The state of the relay, or None if there is none."""
        return next((kept.facts() for kept in self.listeners if isinstance(kept, Relay)), None)

    async def start(self) -> None:
        """Recovers, then listens."""
        if self.seat is not None:
            await self.seat.start(self.condition.stopping)
        else:
            await self._recover()
        await self._listen()
        if self.config.access is not None:
            self._expire_callers()
        if self.seat is None:
            self.bulk.resume()
        self.condition.is_ready = True

    async def _recover(self) -> None:
        now = self.clock.now()
        # Negative if the wall clock was set back meanwhile: leases keep the time they had left.
        outage_ms = 0 if self.store.alive_at is None else now - self.store.alive_at
        self.dispatcher.ask(Recover(self.ids.incarnation, outage_ms))
        self.duties.take_up(outage_ms)
        await settled(self.dispatcher)

    async def _listen(self) -> None:
        # In this order. Each takes the value of its option.
        kinds: dict[str, Callable[[Any], Listener]] = {
            "http": self._http,
            "gearman": self._gearman,
            "amqp": self._amqp,
            "amqp_relay": self._relay,
            "dwork": self._dwork,
            "wmp": self._wmp,
        }
        for name, make in kinds.items():
            where = getattr(self.config, name)
            where_tls = getattr(self.config, f"{name}_tls", None)
            where_curve = getattr(self.config, f"{name}_curve", None)
            if where is None and where_tls is None and where_curve is None:
                continue
            listener = make(where)
            if isinstance(listener, Relay) and not self.dispatcher.decides:
                self._relay_later(listener)
                continue
            self.condition.addresses[name] = await listener.start()
            self.listeners.append(listener)
            if isinstance(listener, DworkListener | WmpListener):
                self.condition.addresses[f"{name}_curve"] = listener.curve_address
            if where_tls is not None:
                assert isinstance(listener, TcpListener)
                assert self._tls is not None
                door = TlsDoor(listener, where_tls, self._tls)
                self.condition.addresses[f"{name}_tls"] = await door.start()
                self.listeners.append(door)

    def _relay_later(self, relay: Relay) -> None:
        """Only the server that decides relays, or each message would be sent several times."""

        def start() -> None:
            self.listeners.append(relay)
            self._starting = asyncio.create_task(self._start_relay(relay))

        assert isinstance(self.dispatcher, Router)
        self.dispatcher.on_deciding.append(start)

    async def _start_relay(self, relay: Relay) -> None:
        self.condition.addresses["amqp_relay"] = await relay.start()

    def _expire_callers(self) -> None:
        self.callers.expire()
        asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire_callers)

    async def run(self) -> None:
        """Runs until the server is to stop, and then stops it in order."""
        config, condition = self.config, self.condition
        await self.duties.run()
        if self.seat is not None and condition.failure is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.seat.leave(), config.drain_seconds)
        await self.finish_foreground()
        _log.info("draining")
        try:
            await asyncio.wait_for(self.drain(), config.drain_seconds)
        except TimeoutError:
            _log.warning("drain took too long; stopping", seconds=config.drain_seconds)
            if self.dispatcher.has_commits():
                condition.failure = condition.failure or (
                    f"it did not answer for {config.drain_seconds} s; what was acknowledged is safe"
                )
                self.store.expect_no_answer()

    async def finish_foreground(self) -> None:
        """Lets leased jobs with waiters finish; nothing new begins."""
        condition = self.condition
        condition.is_ready = False
        self.dispatcher.draining = True
        deadline_ms = self.clock.monotonic_ms() + self.config.drain_seconds * 1000
        while condition.failure is None and self.clock.monotonic_ms() < deadline_ms:
            if condition.hurried.is_set() or not self._foreground_runs():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(condition.hurried.wait(), _LOOK_SECONDS)

    def _foreground_runs(self) -> bool:
        live = self.store.live
        jobs = (live.live_job(job_id) for job_id in live.waited())
        return any(job is not None and job.waiters and job.state is State.LEASED for job in jobs)

    async def drain(self) -> None:
        """Stops handing out jobs, answers what is in flight, and flushes."""
        self.condition.is_ready = False
        self.dispatcher.draining = True
        for listener in self.listeners:
            await listener.drain()
        if self.condition.failure is None:
            if self.dispatcher.decides:
                self.history.write(self.clock.now())
            self.dispatcher.touch()
            await settled(self.dispatcher)


def _clock_for(config: Config, store: Store) -> Clock:
    """Servers of a cluster live by the time of their database."""
    if config.cluster is None:
        return Clock()
    from manyhands.cluster.clock import DatabaseClock  # noqa: PLC0415 - as below
    from manyhands.store.postgres.shared import SharedStore  # noqa: PLC0415 - needs an extra

    assert isinstance(store, SharedStore)
    return DatabaseClock(store.time_offset_ms)


def memory_of(config: Config) -> int:
    """The memory budget in bytes."""
    return config.memory or quarter_of_machine()


def _retention_bytes(config: Config) -> int:
    if config.retention_bytes is not None:
        return config.retention_bytes
    return memory_of(config) // 4 if config.store == "memory" else Retention().bytes_max


def open_store(config: Config) -> Store:
    """Opens the store that the configuration names."""
    day_ms = 24 * 3600 * 1000
    hours = config.result_retention_hours
    retention = Retention(
        record_ms=config.retention_days * day_ms,
        records_max=config.retention_count,
        result_ms=None if hours is None else hours * 3600 * 1000,
        event_ms=config.retention_days * day_ms,
        events_max=config.retention_events,
        audit_ms=config.retention_audit_days * day_ms,
        bytes_max=_retention_bytes(config),
    )
    if config.store == "memory":
        return MemoryStore(retention)
    if config.store == "sqlite":
        return SqliteStore(config.data, retention)
    return _open_postgres(config, config.store, retention)


def _open_postgres(config: Config, address: DatabaseAddress, retention: Retention) -> Store:
    try:
        from manyhands.store.postgres.store import (  # noqa: PLC0415 - an extra: not everybody has it
            Joining,
            PostgresStore,
        )
    except ImportError:
        raise StoreError(
            "the PostgreSQL store needs psycopg; install it with: pip install 'manyhands[postgres]'"
        ) from None
    if config.cluster is not None:
        from manyhands.cluster.seat import open_shared  # noqa: PLC0415 - needs the same

        return open_shared(config, address, retention)
    joining = Joining(config.server_name, Ids().incarnation)
    return PostgresStore(address, retention, joining=joining, unsafe_commits=config.unsafe_commits)


def run(config: Config, warnings: Sequence[str] = ()) -> None:
    """Runs until a signal to stop. Exits 0 after a drain, 1 if the store failed or could not be
    opened. ``warnings`` go to the log.
    """
    wait_until_running()
    raise_open_files_limit()
    try:
        check_own_files(config)
        log_file = set_up_logs(config.log_format, config.log_level, config.log_file)
        with _paused_collection():
            store = open_store(config)
    except (OSError, StoreError) as error:
        print(f"manyhands: {error}", file=sys.stderr)  # noqa: T201 - for people, not for logs
        raise SystemExit(1) from None
    for warning in warnings:
        _log.warning(warning)
    try:
        with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
            code = runner.run(_serve(config, store, log_file))
    finally:
        failure = store.close()
        if failure is not None:
            _log.critical("the store was not closed in order", reason=failure)
    raise SystemExit(code if failure is None or code else 1)


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    """No garbage collection while a million objects are created."""
    gc.disable()
    try:
        yield
        gc.freeze()  # loaded objects stay; later collections need not look at them
    finally:
        gc.enable()


def loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop]:
    """The kind of event loop that the configuration names."""
    if config.loop != "asyncio":
        try:
            import uvloop  # noqa: PLC0415 - it does not install everywhere
        except ImportError:
            if config.loop == "uvloop":
                raise
        else:
            return uvloop.new_event_loop
    return asyncio.new_event_loop


def _tune_garbage_collector() -> None:
    """Every life cycle creates thousands of short-lived objects, and hardly ever a cycle. For the
    process of a server only: an embedded one leaves this to its host.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _serve(config: Config, store: Store, log_file: LogFile | None) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors())
    try:
        server = Server(config, store, loop)
    except (AccessFileError, OSError) as error:
        print(f"manyhands: {error}", file=sys.stderr)  # noqa: T201 - for people, not for logs
        return 1
    condition = server.condition
    listen_to_signals(
        condition,
        loop,
        remove_files=partial(remove_own_files, config),
        log_file=log_file,
        log_state=partial(log_state, condition, server.dispatcher, server.traffic),
        watched=server.watched,
    )
    try:
        await server.start()
        _tune_garbage_collector()
        write_own_files(config, condition.addresses)
    except OSError as error:
        print(f"manyhands: {error}", file=sys.stderr)  # noqa: T201 - for people, not for logs
        return 1
    print_banner(config, condition.addresses, store.facts())
    listening = {name: address for name, address in condition.addresses.items() if address}
    _log.info("ready", version=__version__, pid=os.getpid(), **listening)
    await server.run()
    if server.seat is not None:
        await server.seat.close()
    remove_own_files(config)
    if condition.failure is not None:
        _log.critical("stopped because the store failed", reason=condition.failure)
        return FENCED_CODE if server.dispatcher.fenced else 1
    _log.info("stopped")
    return 0

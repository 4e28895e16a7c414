"""The HTTP listener: which part of the server answers a request, and how errors are answered."""

import asyncio
import re
from collections.abc import Iterable
from email.utils import formatdate
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.access.gate import guarded_by
from manyhands.config import Address
from manyhands.loggers import get_logger
from manyhands.net.backplane import Backplane
from manyhands.net.http import SWEEP_SECONDS, HttpConnection, HttpSession, Site
from manyhands.net.http_peer import Proxies
from manyhands.net.tcp import Connection, Session, TcpListener
from manyhands.net.tls import Tls
from manyhands.observe.metrics import Metrics
from manyhands.observe.traffic import Flow
from manyhands.protocols.native.routes import NativeRoutes
from manyhands.protocols.qless.routes import QlessRoutes
from manyhands.protocols.taskcluster.routes import TaskclusterRoutes
from manyhands.site.changes import Change, kind_of, protocol_of
from manyhands.site.document import APIS, document
from manyhands.site.routes import SiteRoutes
from manyhands.store.contract import StoreFailedError
from manyhands.store.sqlite.checksums import RecordDamagedError
from manyhands.ui.site import Ui
from manyhands.web.cors import Cors
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Defences, Exchange, HungUpError
from manyhands.web.handout import HandingOut
from manyhands.web.naps import Naps
from manyhands.web.routes import Router
from manyhands.web.sources import Sources

_log = get_logger("manyhands.http")

# Paths that show jobs, which are checked when they are found, or only what a command returns.
_LIMITED: Final = re.compile(
    r"/api/jobs(/[^/]+(/.*)?)?|/job/.+|/api/stream"
    r"|/0\.2\.0/task/[^/]+(/status|/artifact-urls)?|/0\.2\.0/store/.+"
)
# How the audit log names requests that were not let in.
_WORDS: Final = {Change.NONE: "look", Change.WORK: "work", Change.OPERATION: "operate"}
_METHODS: Final = "GET, HEAD, POST, PUT, DELETE"  # of all paths together
# What a body may hold besides its payload, which may be base64.
_ENVELOPE_BYTES: Final = 1024 * 1024


class HttpListener(TcpListener):
    """Accepts HTTP peers."""

    def __init__(
        self,
        backplane: Backplane,
        sources: Sources,
        metrics: Metrics,
        address: Address | None,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(backplane, address, "http", self._make_session)
        self._tls = tls
        self._bound: Address | None = None
        config = sources.config
        self._config = config
        self._server_name = config.server_name
        self._admission = sources.admission
        self._naps = Naps()
        handing_out = HandingOut(sources.dispatcher, self._naps)
        self._native = NativeRoutes(sources, handing_out, self._naps)
        self._qless = QlessRoutes(sources, handing_out, self._naps)
        self._ui = Ui(sources, self._naps)
        self._taskcluster = TaskclusterRoutes(
            sources.dispatcher, sources.ids, config, sources.condition.addresses, handing_out
        )
        site = SiteRoutes(sources, metrics, APIS, document)
        self._router = Router((*site.routes(), *self._native.routes(), *self._taskcluster.routes()))
        cors = Cors(config.cors_origins)
        short_way = self._qless.short_way()
        short_way.foreign_origins = cors.origins
        self._site = Site(
            short_way,
            Proxies(config.trusted_proxies),
            self._handle,
            sources.clock.monotonic_ms,
            config.payload_bytes_max * 4 // 3 + _ENVELOPE_BYTES,
            cors,
        )
        backplane.logins.callers.subscribe(short_way.forget)
        self._defences: Defences | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None

    def metrics(self) -> Iterable[Metric]:
        """The metrics of this listener only."""
        denied = CounterMetricFamily(
            "manyhands_http_denied", "Requests that were not let in.", labels=["reason"]
        )
        for reason, count in self._admission.denied.items():
            denied.add_metric([reason], count)
        yield denied
        sentence = "Requests that wait for a job to end."
        count = self._native.endings.count
        yield GaugeMetricFamily("manyhands_http_job_waits", sentence, count)
        yield from self._native.stream.metrics()

    def flow(self) -> Flow:
        """Connections and errors so far."""
        return Flow(len(self.connections), self._site.errors.count)

    # Connections.

    def make_connection(self) -> HttpConnection:
        return HttpConnection(self)

    def _make_session(self, connection: Connection) -> Session:
        assert isinstance(connection, HttpConnection)
        session = HttpSession(connection, self._site)
        connection.session = session
        return session

    def begin(self) -> None:
        """Prepares to serve peers, under the names that need no bound address."""
        self._sweep()
        self._defend()
        if self._tls is not None:
            self._tls.on_change.append(self._defend)

    def _defend(self) -> None:
        """Sets the names that this server answers to; those of its certificate are among them."""
        config = self._config
        addresses = (config.http, config.http_tls, self._bound)
        names = {self._server_name, *(() if self._tls is None else self._tls.names)}
        names |= {address.host for address in addresses if address is not None}
        self._defences = Defences(names, self._site.cors.origins)
        self._qless.answering.defences = self._defences

    async def start(self) -> str | None:
        """Binds, then accepts."""
        self.begin()
        address = await super().start()
        if address is not None:
            self._bound = self.bound()
            self._defend()
            self._preparing = self.loop.create_task(self._ui.prepare())
        return address

    def fall_silent(self) -> None:
        """Does nothing: HTTP has an answer that makes clients retry, 503."""

    async def drain(self) -> None:
        """Answers what is in flight, accepts nothing new, and closes."""
        if self._preparing is not None:
            self._preparing.cancel()
        self._naps.end_all()
        self._native.stream.announce_stop()
        self.stop_listening()
        answered = asyncio.Event()
        self._site.on_answered = answered.set
        # If the store failed, nothing is acknowledged any more, so there is nothing to wait for.
        while self.backplane.condition.failure is None and any(map(_is_busy, self.connections)):
            answered.clear()
            await answered.wait()
        await super().drain()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _sweep(self) -> None:
        """Once a second: updates the date of answers, and closes connections of slow peers."""
        date = formatdate(self.backplane.dispatcher.clock.now() / 1000, usegmt=True).encode()
        self._site.date = date
        self._site.short_way.set_date(date)
        now = self.loop.time()
        for connection in tuple(self.connections):
            assert isinstance(connection, HttpConnection)
            if connection.session is not None:
                connection.session.lose_patience(now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    # Requests.

    def _handle(self, exchange: Exchange) -> None:
        task = self.loop.create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            assert self._defences is not None
            ours = Ui.owns(exchange.path)
            linked = exchange.method == "GET" and (ours or exchange.path == "/")
            self._defences.check(
                exchange.headers, host_needed=not exchange.is_old, linked=linked, is_api=not ours
            )
            if ours:  # pages check access and write the audit log themselves
                await self._ui.answer(exchange)
                return
            preflight = self._site.cors.preflight(exchange.method, exchange.headers)
            if preflight is not None:  # browsers send it without a token
                await exchange.answer_options(_METHODS, preflight)
                return
            change = kind_of(exchange.method, exchange.raw_path, exchange.path)
            try:
                await self._admit(exchange, change)
            except Problem as found:
                self._record(exchange, change, found)
                raise
            if change is Change.WORK and exchange.method == "GET":
                self._defences.check_taking(exchange.headers)
            protocol = protocol_of(exchange.path)
            guard = self._admission.guard(exchange.caller, exchange.address, protocol)
            with guarded_by(guard):
                await self._serve(exchange, change)
        except Problem as found:
            if found.status >= 500:
                self._note(exchange, found)
            await exchange.fail(found)
        except HungUpError:
            return
        except StoreFailedError as error:
            behind = Problem(503, "unavailable", str(error))
            self._note(exchange, behind)
            await exchange.fail(behind)
        except RecordDamagedError as error:
            damage = Problem(500, "damaged", str(error))
            self._note(exchange, damage)
            await exchange.fail(damage)
        except Exception:  # noqa: BLE001 - a bug is answered with 500
            defect = Problem(500, "internal", "an internal error; see the server's log")
            self._note(exchange, defect, exc_info=True)
            await exchange.fail(defect)

    async def _admit(self, exchange: Exchange, change: Change) -> None:
        admission = self._admission
        near = exchange.connection.credentials(exchange.headers)
        caller = await admission.identified(exchange.headers, near, exchange.path)
        exchange.caller = caller
        if admission.asks:
            exchange.connection.connection.caller = caller
        if change is Change.NONE:
            limited = _LIMITED.fullmatch(exchange.path) is not None
            admission.check_reading(caller, exchange.path, limited=limited)
            return
        admission.check_changing(caller)
        if exchange.path.startswith(("/api/bulk", "/api/servers")):
            admission.check_operating(caller)

    def _record(self, exchange: Exchange, change: Change, found: Problem) -> None:
        """Records a request that was not let in, except a look without credentials: browsers have
        one before they log in.
        """
        if found.status != 401 or change is not Change.NONE:
            self._admission.record(
                found,
                exchange.caller,
                exchange.address,
                protocol_of(exchange.path),
                _WORDS[change],
                f"{exchange.method} {exchange.path}",
            )

    async def _serve(self, exchange: Exchange, change: Change) -> None:
        if change is Change.OPERATION:
            request = f"{exchange.method} {exchange.path}"
            protocol = protocol_of(exchange.path)
            caller, address = exchange.caller, exchange.address
            with self.backplane.audit.action(caller, address, protocol, request):
                await self._dispatch(exchange)
        else:
            await self._dispatch(exchange)

    async def _dispatch(self, exchange: Exchange) -> None:
        if exchange.method == "OPTIONS" and exchange.raw_path == b"*":
            await exchange.answer_options(_METHODS)
        elif self._router.knows(exchange.path) or not await self._qless.answer(exchange):
            await self._router.answer(exchange)

    def _note(self, exchange: Exchange, found: Problem, *, exc_info: bool = False) -> None:
        request_id = self.backplane.ids.token()[:16]
        found.detail = {**(found.detail or {}), "request_id": request_id}
        _log.log(
            40 if found.status == 500 else 30,
            "request failed",
            request_id=request_id,
            status=found.status,
            code=found.code,
            method=exchange.method,
            path=exchange.path,
            exc_info=exc_info,
        )


def _is_busy(connection: Connection) -> bool:
    assert isinstance(connection, HttpConnection)
    return connection.session is not None and connection.session.is_busy

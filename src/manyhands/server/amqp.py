"""The AMQP endpoint: watchers of events need no broker. Over TCP, and over TLS."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands import __version__
from manyhands.config import Address
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.session import AmqpSession
from manyhands.protocols.taskcluster.messages import ALIASES, EXCHANGES
from manyhands.server.accounts import Accounts
from manyhands.server.pacing import Pacer
from manyhands.server.tcp import Connection, Session, TcpListener
from manyhands.server.traffic import Flow
from manyhands.wire.amqp import AmqpError, Code

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.amqp")

_TICK_SECONDS: Final = 1.0
_SHARE: Final = 0.15  # of the time, for all watchers together, while there is other work
# Pieces that wait for the end of the turn; more are made when these are on their way.
_UNSENT_COUNT_MAX: Final = 500
# What of a peer's bytes is looked at before others get their turn: some hundreds of requests.
TURN_BYTES: Final = 8 * 1024


class AmqpEndpoint:
    """What all AMQP connections share, whichever listener they came in by: the broker, who may
    come, and the time that they take.
    """

    product = "Manyhands"
    version = __version__

    def __init__(self, server: "Server") -> None:
        config = server.config
        self.server_name = config.server_name
        self.connections_max = config.amqp_connections_max
        self._server = server
        self._accounts = Accounts(
            config.amqp_users, server.access, guest_from_anywhere=config.insecure
        )
        self._loop = asyncio.get_running_loop()
        self._events = server.dispatcher.events
        self._sessions: dict[AmqpSession, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pacer = Pacer(server.dispatcher, self._loop, _SHARE)
        self._feeding = self._feeds_again = False
        self._refused_count = self._faults_count = 0
        self.broker = Broker(
            EXCHANGES,
            server.messages,
            server.dispatcher.ask,
            self._feed_soon,
            ALIASES if config.amqp_aliases else {},
        )
        self.broker.restore(tuple(server.store.index.cursors.values()), server.clock.now())
        server.metrics.sources.append(self._metrics)
        server.traffic.sources["amqp"] = self._flow

    def _flow(self) -> Flow:
        return Flow(len(self._sessions), self.broker.faults_count, self.broker.delivered_count)

    def start(self) -> None:
        """Begin, if another listener has not begun already."""
        if self._timer is None:
            self._events.watch(self.broker.news)
            self.broker.news()  # what is left from before
            self._tick()

    def stop(self) -> None:
        """Say goodbye to everybody, and write down where their queues are."""
        self._events.unwatch(self.broker.news)
        if self._timer is not None:
            self._timer.cancel()
        for session in tuple(self._sessions):
            session.shut_down()
        self.broker.save_all()

    def make_session(self, connection: Connection) -> Session:
        """Somebody came."""
        assert isinstance(connection, _WatcherConnection)
        session = AmqpSession(connection, self.broker, self)
        connection.watcher = session
        self._sessions[session] = None
        return session

    def leave(self, session: AmqpSession) -> None:
        """A connection is gone."""
        self._sessions.pop(session, None)

    def refusal_of(self, user: str, password: str, address: str) -> str | None:
        """Why somebody is not let in; None: welcome."""
        refusal = self._accounts.refusal_of(user, password, address)
        if refusal is not None:
            self._refused_count += 1
            _log.warning("a login was refused", peer=address, why=refusal)
        return refusal

    def report_fault(self, address: str, error: AmqpError) -> None:
        """A connection is closed for an error of its peer's."""
        if error.code == Code.ACCESS_REFUSED:
            return  # that was told with its reason
        count = self._faults_count = self._faults_count + 1
        # The first one, the second, the fourth, …: a peer cannot fill the disk with this.
        if count & (count - 1) == 0:
            _log.warning(
                "a connection was closed for an error",
                peer=address,
                code=error.code,
                why=error.text,
                count=count,
            )

    def is_full(self) -> bool:
        """Whether nobody else may come; whoever asks counts already."""
        return len(self._sessions) > self.connections_max

    def _metrics(self) -> Iterator[Metric]:
        broker = self.broker
        yield GaugeMetricFamily("manyhands_amqp_connections", "Watchers.", len(self._sessions))
        yield GaugeMetricFamily("manyhands_amqp_queues", "Queues of watchers.", len(broker.queues))
        yield CounterMetricFamily(
            "manyhands_amqp_deliveries", "Messages delivered.", broker.delivered_count
        )
        yield CounterMetricFamily(
            "manyhands_amqp_skipped_events",
            "Events gone before a queue read them.",
            broker.dropped_count,
        )
        yield CounterMetricFamily(
            "manyhands_amqp_overflowed_messages",
            "Messages that bounded queues let go of.",
            broker.overflow_count,
        )
        yield CounterMetricFamily(
            "manyhands_amqp_refused_logins", "Peers that were not let in.", self._refused_count
        )

    def _feed_soon(self) -> None:
        if self._feeding:
            self._feeds_again = True  # how long to rest is not known before this time is over
        else:
            self._loop.call_later(self._pacer.delay(), self._feed)

    def _feed(self) -> None:
        self._feeding, self._feeds_again = True, False
        try:
            self._pacer.run(self.broker.feed)
        finally:
            self._feeding = False
        if self._feeds_again:
            self._feed_soon()

    def _tick(self) -> None:
        now = self._server.clock.now()
        self.broker.tick(now)
        for session in tuple(self._sessions):
            session.tick(now)
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)


class AmqpListener(TcpListener):
    """Watchers over TCP."""

    def __init__(self, server: "Server", address: Address, name: str = "amqp") -> None:
        self.endpoint = server.amqp_endpoint
        super().__init__(server, address, name, self.endpoint.make_session)

    async def start(self) -> str:
        address = await super().start()
        self.endpoint.start()
        return address

    async def drain(self) -> None:
        self.endpoint.stop()
        await super().drain()

    def make_connection(self) -> Connection:
        return _WatcherConnection(self)


class AmqpsListener(AmqpListener):
    """Watchers over TLS."""

    def __init__(self, server: "Server", address: Address) -> None:
        super().__init__(server, address, "amqps")
        config = server.config
        assert config.tls_certificate is not None
        assert config.tls_key is not None
        self.tls = server_context(config.tls_certificate, config.tls_key)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a listener over TLS shows to its peers. Raises OSError with a sentence."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password would ask for it on the terminal, and wait for ever.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except FileNotFoundError:
        missing = certificate if not certificate.exists() else key
        raise OSError(f"the TLS file {missing} does not exist") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise OSError(f"{certificate} and {key} cannot be used for TLS: {reason}") from None
    return context


class _WatcherConnection(Connection):
    """A connection that says when its peer is behind: events wait in the log, not in memory."""

    turn_bytes = TURN_BYTES

    def __init__(self, listener: AmqpListener) -> None:
        super().__init__(listener)
        self.watcher: AmqpSession | None = None
        self._endpoint = listener.endpoint
        self._held_back = False

    def is_congested(self) -> bool:
        """Whether to wait before more is sent."""
        if self.writing_paused or len(self.output) >= _UNSENT_COUNT_MAX:
            self._held_back = True
            return True
        return False

    def flush(self) -> None:
        super().flush()
        self._go_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def _go_on(self) -> None:
        if self._held_back and not self.writing_paused and self.watcher is not None:
            self._held_back = False
            self.watcher.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        watcher, self.watcher = self.watcher, None
        super().connection_lost(exc)
        if watcher is not None:
            self._endpoint.leave(watcher)

"""The AMQP endpoint: watchers of events need no broker."""

import asyncio
import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands import __version__
from manyhands.config import Address
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.session import AmqpSession
from manyhands.protocols.taskcluster.messages import EXCHANGES
from manyhands.server.pacing import Pacer
from manyhands.server.tcp import Connection, Session, TcpListener
from manyhands.server.traffic import Flow

if TYPE_CHECKING:
    from manyhands.server.app import Server

# The account that every client tries by itself. It is good on this machine, as with RabbitMQ.
_ACCOUNT: Final = ("guest", "guest")
_TICK_SECONDS: Final = 1.0
_SHARE: Final = 0.15  # of the time, for all watchers together, while there is other work
# Pieces that wait for the end of the turn; more are made when these are on their way.
_UNSENT_COUNT_MAX: Final = 500


class AmqpListener(TcpListener):
    """What all AMQP connections share is the broker."""

    product = "Manyhands"
    version = __version__

    def __init__(self, server: "Server", address: Address) -> None:
        super().__init__(server, address, "amqp", self._make)
        self.server_name = server.config.server_name
        self._insecure = server.config.insecure
        self._events = server.dispatcher.events
        self._sessions: dict[AmqpSession, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pacer = Pacer(server.dispatcher, self.loop, _SHARE)
        self._feeding = self._feeds_again = False
        self.broker = Broker(EXCHANGES, server.messages, server.dispatcher.ask, self._feed_soon)
        self.broker.restore(tuple(server.store.index.cursors.values()), server.clock.now())
        self._events.watch(self.broker.news)
        server.metrics.sources.append(self._metrics)
        server.traffic.sources["amqp"] = self._flow

    def _flow(self) -> Flow:
        return Flow(len(self.connections), self.broker.faults_count, self.broker.delivered_count)

    async def start(self) -> str:
        address = await super().start()
        self._tick()
        return address

    async def drain(self) -> None:
        self._events.unwatch(self.broker.news)
        if self._timer is not None:
            self._timer.cancel()
        for session in tuple(self._sessions):
            session.shut_down()
        self.broker.save_all()
        await super().drain()

    def make_connection(self) -> Connection:
        return _WatcherConnection(self)

    def _make(self, connection: Connection) -> Session:
        assert isinstance(connection, _WatcherConnection)
        session = AmqpSession(connection, self.broker, self)
        connection.watcher = session
        self._sessions[session] = None
        return session

    def leave(self, session: AmqpSession) -> None:
        """A connection is gone."""
        self._sessions.pop(session, None)

    def admits(self, user: str, password: str, address: str) -> bool:
        """The one account there is, from this machine, or from anywhere if the operator said so."""
        if (user, password) != _ACCOUNT:
            return False
        return self._insecure or ipaddress.ip_address(address).is_loopback

    def _metrics(self) -> Iterator[Metric]:
        queues = self.broker.queues.values()
        dropped = sum(queue.dropped_count for queue in queues)
        yield GaugeMetricFamily("manyhands_amqp_connections", "Watchers.", len(self._sessions))
        yield GaugeMetricFamily("manyhands_amqp_queues", "Queues of watchers.", len(queues))
        yield CounterMetricFamily(
            "manyhands_amqp_deliveries", "Messages delivered.", self.broker.delivered_count
        )
        yield GaugeMetricFamily(
            "manyhands_amqp_skipped_events", "Events gone before a queue read them.", dropped
        )

    def _feed_soon(self) -> None:
        if self._feeding:
            self._feeds_again = True  # how long to rest is not known before this time is over
        else:
            self.loop.call_later(self._pacer.delay(), self._feed)

    def _feed(self) -> None:
        self._feeding, self._feeds_again = True, False
        try:
            self._pacer.run(self.broker.feed)
        finally:
            self._feeding = False
        if self._feeds_again:
            self._feed_soon()

    def _tick(self) -> None:
        now = self.server.clock.now()
        self.broker.tick(now)
        for session in tuple(self._sessions):
            session.tick(now)
        self._timer = self.loop.call_later(_TICK_SECONDS, self._tick)


class _WatcherConnection(Connection):
    """A connection that says when its peer is behind: events wait in the log, not in memory."""

    def __init__(self, listener: AmqpListener) -> None:
        super().__init__(listener)
        self.watcher: AmqpSession | None = None
        self._amqp = listener
        self._held_back = False

    def is_congested(self) -> bool:
        """Whether to wait before more is sent."""
        if self._writing_paused or len(self._output) >= _UNSENT_COUNT_MAX:
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
        if self._held_back and not self._writing_paused and self.watcher is not None:
            self._held_back = False
            self.watcher.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        watcher, self.watcher = self.watcher, None
        super().connection_lost(exc)
        if watcher is not None:
            self._amqp.leave(watcher)

"""The AMQP endpoint: watchers of events need no broker. Over TCP and TLS."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands import __version__
from manyhands.access.accounts import Accounts
from manyhands.access.credentials import Credentials
from manyhands.access.logins import Failure
from manyhands.config import Address, Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.pacer import Pacer
from manyhands.loggers import get_logger
from manyhands.model.roles import Caller, Right
from manyhands.net.amqp import AmqpError, Code
from manyhands.net.backplane import Backplane
from manyhands.net.tcp import Connection, Session, TcpListener
from manyhands.observe.repeats import Repeats
from manyhands.observe.traffic import Flow
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.homes import Homes
from manyhands.protocols.amqp.log import MessageLog
from manyhands.protocols.amqp.session import AmqpSession, Peer

_log = get_logger("manyhands.amqp")

_UNKNOWN: Final = "nobody has these credentials"
_TICK_SECONDS: Final = 1.0
_SHARE: Final = 0.15  # of the time, for all watchers together, while there is other work
# Pieces waiting for the end of the turn; more are made once these are sent.
_UNSENT_COUNT_MAX: Final = 500
# Bytes of a peer handled before others get their turn: some hundreds of requests.
TURN_BYTES: Final = 8 * 1024


class AmqpEndpoint:
    """What all AMQP connections share, over TCP or TLS: the broker, access, and the time
    they take.
    """

    product = "Manyhands"
    version = __version__

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: Config,
        backplane: Backplane,
        messages: MessageLog,
        homes: Homes | None = None,
    ) -> None:
        logins = backplane.logins
        self._audit = backplane.audit
        self.server_name = config.server_name
        self.connections_max = config.amqp_connections_max
        self._clock = dispatcher.clock
        self._logins = logins
        self._accounts = Accounts(
            config.amqp_users, logins.callers, guest_from_anywhere=config.insecure
        )
        self._loop = asyncio.get_running_loop()
        self._events = dispatcher.events
        self._sessions: dict[AmqpSession, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pacer = Pacer(dispatcher, self._loop, _SHARE)
        self._feeding = self._feeds_again = False
        self._refused_count = self._refused_headers_count = self._faults_count = 0
        self._repeats = Repeats(_log)
        self.broker = Broker(
            messages.exchanges,
            messages,
            dispatcher.ask,
            self._feed_soon,
            messages.aliases,
            homes,
        )
        if homes is None:  # otherwise when somebody asks for them
            cursors = tuple(dispatcher.store.live.cursors.values())
            self.broker.restore(cursors, dispatcher.clock.now())

    def flow(self) -> Flow:
        """Connections, errors and deliveries so far."""
        return Flow(len(self._sessions), self.broker.faults_count, self.broker.delivered_count)

    def start(self) -> None:
        """Starts, unless another listener has already started it."""
        if self._timer is None:
            self._events.watch(self.broker.news)
            self.broker.news()  # left over from before the restart
            self._tick()

    def stop(self) -> None:
        """Says goodbye to all peers and saves the positions of their queues."""
        self._events.unwatch(self.broker.news)
        if self._timer is not None:
            self._timer.cancel()
        for session in tuple(self._sessions):
            session.shut_down()
        self.broker.save_all()

    def make_session(self, connection: Connection) -> Session:
        """The session of a new connection."""
        assert isinstance(connection, _WatcherConnection)
        session = AmqpSession(connection, self.broker, self)
        connection.watcher = session
        self._sessions[session] = None
        return session

    def leave(self, session: AmqpSession) -> None:
        """A connection is gone."""
        self._sessions.pop(session, None)

    def let_in(
        self, user: str | None, password: str, peer: Peer, then: Callable[[bool | None], None]
    ) -> None:
        """Calls back with whether a peer may watch; None if that cannot be decided now. The reason
        of a refusal is logged, and nothing else of it.
        """
        assert isinstance(peer, Connection)
        logins = self._logins
        why = ""
        if user is None:
            shown = peer.credentials()
            if peer.certificate is None:
                why = "the connection has shown no certificate"
        else:
            shown = Credentials(address=peer.address, user=user, password=password)
            if not logins.callers.asks_everyone:
                why = self._accounts.refusal_of(user, password, peer.address) or ""
                if not why:
                    then(True)  # noqa: FBT003 - a callback
                    return
        identify = partial(logins.fail if why else logins.identify, shown)

        def settle(found: Caller | Failure) -> None:
            if found is Failure.BUSY:
                then(None)
                return
            reason = self._refusal_of(found) if isinstance(found, Caller) else why or _UNKNOWN
            if reason is None:
                assert isinstance(found, Caller)
                peer.take_caller(found)
            else:
                self._refused_count += 1
                self._repeats.warn("a login was refused", peer.address, why=reason)
                if isinstance(found, Caller):
                    self._audit.refused(found, peer.address, "amqp", "watch", "")
            then(reason is None)

        peer.await_login(identify, settle)

    @staticmethod
    def _refusal_of(caller: Caller) -> str | None:
        """Why a caller may not watch, or None."""
        if not caller.has(Right.LOOK):
            return f"{caller.name} has the role {caller.role}; watching needs read or operate"
        return None

    def report_header(self, address: str, header: bytes) -> None:
        """Logs a connection that began with another protocol."""
        self._refused_headers_count += 1
        shown = header.decode("ascii", errors="backslashreplace")
        self._repeats.warn("a peer does not speak AMQP 0-9-1; closed", address, header=shown)

    def report_fault(self, address: str, error: AmqpError) -> None:
        """Logs a connection that is closed because of its peer's error."""
        if error.code == Code.ACCESS_REFUSED:
            return  # already logged with its reason
        count = self._faults_count = self._faults_count + 1
        # Logs the first, second, fourth, … one, so that a peer cannot fill the disk.
        if count & (count - 1) == 0:
            _log.warning(
                "a connection was closed for an error",
                peer=address,
                code=error.code,
                why=error.text,
                count=count,
            )

    def is_full(self) -> bool:
        """Whether no more connections are accepted; the one that asks is already counted."""
        return len(self._sessions) > self.connections_max

    def metrics(self) -> Iterator[Metric]:
        """The metrics of watchers."""
        broker = self.broker
        yield GaugeMetricFamily("manyhands_amqp_connections", "Watchers.", len(self._sessions))
        yield GaugeMetricFamily("manyhands_amqp_queues", "Queues of watchers.", len(broker.queues))
        yield CounterMetricFamily(
            "manyhands_amqp_deliveries", "Messages delivered.", broker.delivered_count
        )
        yield CounterMetricFamily(
            "manyhands_amqp_skipped_events",
            "Events that left the log before a queue read them.",
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
        yield CounterMetricFamily(
            "manyhands_amqp_refused_headers",
            "Peers that spoke another protocol or version.",
            self._refused_headers_count,
        )

    def _feed_soon(self) -> None:
        if self._feeding:
            self._feeds_again = True  # the length of the pause is only known once this turn is over
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
        now = self._clock.now()
        self.broker.tick(now)
        for session in tuple(self._sessions):
            session.tick(now)
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)


class AmqpListener(TcpListener):
    """Accepts watchers."""

    def __init__(
        self, backplane: Backplane, endpoint: AmqpEndpoint, address: Address | None
    ) -> None:
        self.endpoint = endpoint
        super().__init__(backplane, address, "amqp", endpoint.make_session)

    async def start(self) -> str | None:
        address = await super().start()
        self.endpoint.start()
        return address

    async def drain(self) -> None:
        self.endpoint.stop()
        await super().drain()

    def make_connection(self) -> Connection:
        return _WatcherConnection(self)


class _WatcherConnection(Connection):
    """A connection that reports a slow reader: events wait in the log, not in memory."""

    turn_bytes = TURN_BYTES

    def __init__(self, listener: AmqpListener) -> None:
        super().__init__(listener)
        self.watcher: AmqpSession | None = None
        self._endpoint = listener.endpoint
        self._held_back = False

    @property
    def seen(self) -> tuple[str, ...]:
        """Patterns of the jobs' queues that the caller may see."""
        return () if self.caller is None else self.caller.queues

    def is_congested(self) -> bool:
        """Whether to wait before sending more."""
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

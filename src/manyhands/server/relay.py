"""The relay: every message goes on to a broker, in order, at least once, whenever there is one.

Jobs never wait for it. Events lie in the log until the broker has confirmed them, and where that is
is a cursor in the store: after any failure, on either side, it goes on from there.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.config import BrokerAddress
from manyhands.model.commands import SetCursor
from manyhands.model.events import Cursor
from manyhands.protocols.amqp.publisher import BrokerError, Publisher
from manyhands.protocols.taskcluster.messages import ALIASES, EXCHANGES
from manyhands.server.pacing import Pacer

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.relay")

_WINDOW_COUNT: Final = 2_000  # messages under way without a confirm; as many may come twice
_CHUNK_COUNT: Final = 200  # in one write
# News is gathered for that long: a write for each event would cost ten times as much.
_GATHER_SECONDS: Final = 0.005
_TICK_SECONDS: Final = 0.25
# Share of the time while there is other work: what piles up goes when there is less.
_SHARE: Final = 0.08
_CONNECT_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (0.1, 30.0)  # doubling from one to the other
# How long a drain waits for the broker to confirm the last messages.
_DRAIN_SECONDS: Final = 1.0


class Relay:
    """One broker."""

    def __init__(self, server: "Server", broker: BrokerAddress) -> None:
        self._server = server
        self._broker = broker
        self._messages = server.messages
        self._loop = asyncio.get_running_loop()
        self._events = server.dispatcher.events
        self._tls = _trust(server.config.amqp_relay_ca) if broker.secure else None
        self._name = f"amqp.relay:{broker.host}:{broker.port}/{broker.virtual_host}"
        self._confirmed = self._stored = self._first_position()
        self._position = self._confirmed  # everything up to here was sent
        self._link: _Link | None = None
        self._pumping: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._pacer = Pacer(server.dispatcher, self._loop, _SHARE)
        self._has_more = False  # and may be sent
        self._dropped_count = 0
        self._failure: str | None = None  # why there is no connection
        server.metrics.sources.append(self._metrics)

    @property
    def is_connected(self) -> bool:
        """Whether the broker takes messages, or would if it were not blocked."""
        return self._link is not None and self._link.publisher.is_ready

    @property
    def backlog_count(self) -> int:
        """Events that the broker has not confirmed."""
        return self._messages.last_seq - self._confirmed

    def facts(self) -> dict[str, Any]:
        """How it goes, for people."""
        link = self._link
        return {
            "broker": str(self._broker),
            "connected": self.is_connected,
            "blocked_for": link.publisher.blocked_for if link is not None else None,
            "failure": self._failure,
            "backlog": self.backlog_count,
            "oldest_age_ms": self._oldest_age_ms(),
            "dropped": self._dropped_count,
        }

    def _oldest_age_ms(self) -> int:
        """Of what the broker has not confirmed; 0: it has everything."""
        oldest = self._events.after(self._confirmed, 1)
        return self._server.clock.now() - oldest[0].event.at if oldest else 0

    def _metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "manyhands_relay_connected", "Whether the broker is there.", int(self.is_connected)
        )
        yield GaugeMetricFamily(
            "manyhands_relay_backlog", "Events not confirmed yet.", self.backlog_count
        )
        yield GaugeMetricFamily(
            "manyhands_relay_oldest_age_seconds",
            "Age of the oldest of them.",
            self._oldest_age_ms() / 1000,
        )
        yield CounterMetricFamily(
            "manyhands_relay_dropped_events", "Events gone before relayed.", self._dropped_count
        )

    def _first_position(self) -> int:
        known = self._server.store.index.cursors.get(self._name)
        if known is not None:
            return known.seq
        if self._server.config.amqp_relay_from == "earliest":
            return self._messages.first_seq - 1
        return self._messages.last_seq

    async def start(self) -> str:
        """Begin trying. Whether there is a broker does not matter."""
        # What happens before the first confirm is relayed too, whatever happens to us.
        self._server.dispatcher.ask(SetCursor(Cursor(self._name, self._confirmed)))
        self._events.watch(self.pump_soon)
        self._running = asyncio.create_task(self._run())
        return str(self._broker)

    async def drain(self) -> None:
        """Send what there is, if the broker is there."""
        if self.is_connected and self.backlog_count:
            self._caught_up.clear()
            self.pump_soon()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._caught_up.wait(), _DRAIN_SECONDS)
        self._events.unwatch(self.pump_soon)
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        if self._pumping is not None:
            self._pumping.cancel()
        self._save()

    # Connecting.

    async def _run(self) -> None:
        shortest, longest = _BACKOFF_SECONDS
        rest = shortest
        while True:
            try:
                await self._relay()
            except BrokerError as error:
                lasting = error.lasting
                text = str(error)
            except (OSError, TimeoutError) as error:
                lasting = False
                text = str(error) or type(error).__name__
            else:
                lasting, text = False, "the connection was lost"
            if self._failure is None:
                rest = shortest  # it had worked
            self._note_failure(text)
            rest = longest if lasting else rest
            jitter = int(self._server.ids.token()[:4], 16) / 0xFFFF
            await asyncio.sleep(rest * (0.5 + jitter / 2))
            rest = min(rest * 2, longest)

    def _note_failure(self, text: str) -> None:
        if text != self._failure:  # once, not every few seconds
            _log.warning("no broker to relay to; events wait", broker=str(self._broker), why=text)
        self._failure = text

    async def _relay(self) -> None:
        """One connection, until it ends."""
        _, link = await asyncio.wait_for(
            self._loop.create_connection(
                lambda: _Link(self), self._broker.host, self._broker.port, ssl=self._tls
            ),
            _CONNECT_SECONDS,
        )
        self._link = link
        self._position = self._confirmed
        try:
            while not link.ended.done():
                await asyncio.wait((link.ended,), timeout=_TICK_SECONDS)
                if not link.ended.done():
                    link.publisher.tick(self._server.clock.now())
                    self.pump_soon()  # a net below the wake-ups
                self._save()
            link.ended.result()
        finally:
            self._link = None
            link.close()

    def open_publisher(self, link: "_Link") -> Publisher:
        """The protocol on a fresh connection."""
        broker = self._broker
        account = (broker.user, broker.password)
        now = self._server.clock.now()
        aliases = ALIASES if self._server.config.amqp_aliases else {}
        return Publisher(link.write, EXCHANGES, account, broker.virtual_host, now, aliases)

    # Publishing.

    def heard(self, link: "_Link", data: bytes) -> None:
        """Bytes from the broker."""
        publisher = link.publisher
        was_ready, was_blocked = publisher.is_ready, publisher.blocked_for
        publisher.receive(data, self._server.clock.now())
        if publisher.is_ready and not was_ready:
            self._failure = None
            _log.info("relaying", broker=str(self._broker), backlog=self.backlog_count)
        if publisher.blocked_for != was_blocked:
            _log.warning("the broker's wish", broker=str(self._broker), stop=publisher.blocked_for)
        self._note_confirmed(publisher)
        if self._position < self._messages.last_seq:
            self.pump_soon()

    def _note_confirmed(self, publisher: Publisher) -> None:
        self._confirmed = max(self._confirmed, publisher.confirmed_to)
        if self._confirmed >= self._messages.last_seq:
            self._caught_up.set()

    def pump_soon(self) -> None:
        """There is something to send, or it may be sent again."""
        if self._pumping is None and self._link is not None:
            delay = max(_GATHER_SECONDS, self._pacer.delay())
            self._pumping = self._loop.call_later(delay, self._pump)

    def _pump(self) -> None:
        self._pumping = None
        self._pacer.run(self._send_chunk)
        if self._has_more:
            self._pumping = self._loop.call_later(self._pacer.delay(), self._pump)

    def _send_chunk(self) -> None:
        """Send the next chunk, if there is one and it may be sent."""
        self._has_more = False
        link = self._link
        if link is None or not link.publisher.is_ready:
            return
        publisher = link.publisher
        room = _WINDOW_COUNT - publisher.unconfirmed_count
        if link.paused or publisher.blocked_for is not None or room <= 0:
            return  # whatever ends that pumps again
        first = self._messages.first_seq
        if self._position < first - 1:
            self._drop(first - 1)
        if self._position >= self._messages.last_seq:
            return
        count = min(room, _CHUNK_COUNT)
        messages, self._position = self._messages.read(self._position, count, None)
        publisher.publish(messages, self._position)
        self._note_confirmed(publisher)
        self._has_more = self._position < self._messages.last_seq

    def _drop(self, position: int) -> None:
        """The log is bounded: what was away for too long cannot be told any more."""
        count = position - self._position
        self._dropped_count += count
        self._position = position
        _log.error("events were gone before the broker took them", count=count)

    def _save(self) -> None:
        if self._confirmed != self._stored:
            self._stored = self._confirmed
            self._server.dispatcher.ask(SetCursor(Cursor(self._name, self._confirmed)))


def _trust(file: Path | None) -> ssl.SSLContext:
    """Whom to believe that it is the broker. Raises OSError with a sentence."""
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise OSError(f"the certificates in {file} cannot be used: {reason}") from None


class _Link(asyncio.Protocol):
    """One connection to the broker."""

    publisher: Publisher

    def __init__(self, relay: Relay) -> None:
        self.paused = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relay = relay
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.publisher = self._relay.open_publisher(self)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            self._relay.heard(self, data)
        except BrokerError as error:
            self.ended.set_exception(error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._relay.pump_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ended.done():
            if exc is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(exc)

    def write(self, data: bytes) -> None:
        """To the broker."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """After what was said."""
        if self._transport is not None:
            if not self.ended.done():
                self.publisher.close()
            self._transport.close()
        if self.ended.done():
            self.ended.exception()  # it was told already, or nobody is left to tell
        else:
            self.ended.set_result(None)

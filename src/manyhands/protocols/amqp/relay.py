"""The relay: every message goes to a broker, in order, at least once, whenever it is available.

Jobs never wait for it. Events stay in the log until the broker has confirmed them, and that
position is a cursor in the store: after any failure, on either side, the relay continues from
there.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final, cast

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.config import BrokerAddress, Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.pacer import Pacer
from manyhands.loggers import get_logger
from manyhands.model.commands import SetCursor
from manyhands.model.events import Cursor
from manyhands.net.tls import client_context
from manyhands.observe.attention import Note
from manyhands.observe.repeats import Repeats
from manyhands.protocols.amqp.log import MessageLog
from manyhands.protocols.amqp.publisher import BrokerError, Publisher
from manyhands.protocols.amqp.rejections import Rejections

_log = get_logger("manyhands.relay")

_WINDOW_COUNT: Final = 2_000  # unconfirmed messages in flight; as many may be sent twice
_CHUNK_COUNT: Final = 200  # per write
# Events are gathered this long: a write for each would cost ten times as much.
_GATHER_SECONDS: Final = 0.005
_TICK_SECONDS: Final = 0.25
# The share of the time while there is other work: a backlog is sent when there is less.
_SHARE: Final = 0.08
_CONNECT_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (0.1, 30.0)  # doubling from the first to the second
# How long a drain waits for the broker to confirm the last messages.
_DRAIN_SECONDS: Final = 1.0
_RETRYING: Final = "the broker refused messages; they are sent again"
_REFUSED: Final = "the broker refused messages for good; one of its queues may be full"


class Relay:
    """One broker."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        config: Config,
        messages: MessageLog,
        broker: BrokerAddress,
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._ids = ids
        self._begins_early = config.amqp_relay_from == "earliest"
        self._broker = broker
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        self._events = dispatcher.events
        self._tls = client_context(config.amqp_relay_ca) if broker.secure else None
        self._name = f"amqp.relay:{broker.host}:{broker.port}/{broker.virtual_host}"
        self._confirmed = self._stored = self._first_position()
        self._position = self._confirmed  # everything up to here was sent
        self._link: _Link | None = None
        self._pumping: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._pacer = Pacer(dispatcher, self._loop, _SHARE)
        self._has_more = False  # and may be sent
        self._dropped_count = 0
        self._rejections = Rejections()
        self._repeats = Repeats(_log)
        self._refusals_logged: str | None = None  # the last log line about them, while they go on
        self._refused_logged_count = 0
        self._failure: str | None = None  # why there is no connection

    @property
    def is_connected(self) -> bool:
        """Whether the broker accepts messages, or would if it were not blocked."""
        return self._link is not None and self._link.publisher.is_ready

    @property
    def backlog_count(self) -> int:
        """Events that the broker has not confirmed."""
        return self._messages.last_seq - self._confirmed

    def facts(self) -> dict[str, Any]:
        """The state of the relay, for people."""
        link = self._link
        return {
            "broker": str(self._broker),
            "connected": self.is_connected,
            "blocked_for": link.publisher.blocked_for if link is not None else None,
            "failure": self._failure,
            "backlog": self.backlog_count,
            "oldest_age_ms": self._oldest_age_ms(),
            "dropped": self._dropped_count,
            "retrying": self._rejections.held_count,
            "refused": self._rejections.given_up_count,
        }

    def notes(self) -> Iterator[Note]:
        """What needs attention."""
        link = self._link
        if self._failure is not None:
            trouble = f"cannot be reached: {self._failure}"
        elif link is not None and link.publisher.blocked_for is not None:
            trouble = f"accepts nothing: {link.publisher.blocked_for}"
        elif self._rejections.held_count:
            trouble = "refuses messages, which are sent again"
        else:
            return
        count, age_ms = self.backlog_count, self._oldest_age_ms()
        waiting = "no event waits"
        if count:
            waiting = "1 event waits" if count == 1 else f"{count:,} events wait"
            waiting += ", the oldest for {span}" if age_ms else ""
        yield Note(
            level="bad",
            what="relay",
            sentence=f"{self._broker} {trouble}; {waiting}",
            span_ms=age_ms,
            count=count,
        )

    def _oldest_age_ms(self) -> int:
        """The age of the oldest unconfirmed event; 0 if all are confirmed."""
        oldest = self._events.after(self._confirmed, 1)
        return self._clock.now() - oldest[0].event.at if oldest else 0

    def metrics(self) -> Iterator[Metric]:
        """The metrics of the relay."""
        yield GaugeMetricFamily(
            "manyhands_relay_connected", "Whether the broker is connected.", int(self.is_connected)
        )
        yield GaugeMetricFamily(
            "manyhands_relay_backlog", "Events not confirmed yet.", self.backlog_count
        )
        yield GaugeMetricFamily(
            "manyhands_relay_oldest_age_seconds",
            "Age of the oldest unconfirmed event.",
            self._oldest_age_ms() / 1000,
        )
        yield CounterMetricFamily(
            "manyhands_relay_dropped_events", "Events dropped unrelayed.", self._dropped_count
        )
        yield GaugeMetricFamily(
            "manyhands_relay_retrying_events",
            "Events that the broker refused and that are sent again.",
            self._rejections.held_count,
        )
        yield CounterMetricFamily(
            "manyhands_relay_refused_events",
            "Events that the broker refused for good.",
            self._rejections.given_up_count,
        )

    def _first_position(self) -> int:
        known = self._dispatcher.store.live.cursors.get(self._name)
        if known is not None:
            return known.seq
        if self._begins_early:
            return self._messages.first_seq - 1
        return self._messages.last_seq

    async def start(self) -> str:
        """Starts connecting, whether or not there is a broker."""
        # So that events before the first confirm are relayed too, even after a crash.
        self._dispatcher.ask(SetCursor(Cursor(self._name, self._confirmed)))
        self._events.watch(self.pump_soon)
        self._running = asyncio.create_task(self._run())
        return str(self._broker)

    async def drain(self) -> None:
        """Sends what is left, if the broker is connected."""
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
                text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            else:
                lasting, text = False, "the connection was lost"
            if self._failure is None:
                rest = shortest  # it had worked
            self._note_failure(text)
            rest = longest if lasting else rest
            jitter = int(self._ids.token()[:4], 16) / 0xFFFF
            await asyncio.sleep(rest * (0.5 + jitter / 2))
            rest = min(rest * 2, longest)

    def _note_failure(self, text: str) -> None:
        if text != self._failure:  # once, not every few seconds
            _log.warning("no broker to relay to; events wait", broker=str(self._broker), why=text)
        self._failure = text

    async def _relay(self) -> None:
        """Runs one connection until it ends."""
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
                    link.publisher.tick(self._clock.now())
                    self.pump_soon()  # a safety net below the wake-ups
                    self._send_again(link)
                self._save()
            link.ended.result()
        finally:
            self._link = None
            link.close()

    def open_publisher(self, link: "_Link") -> Publisher:
        """The protocol on a new connection."""
        broker = self._broker
        account = (broker.user, broker.password)
        now = self._clock.now()
        log = self._messages
        return Publisher(
            link.write,
            log.exchanges,
            account,
            broker.virtual_host,
            now,
            log.aliases,
            self._rejections,
        )

    # Publishing.

    def received(self, link: "_Link", data: bytes) -> None:
        """Bytes from the broker."""
        publisher = link.publisher
        was_ready, was_blocked = publisher.is_ready, publisher.blocked_for
        publisher.receive(data, self._clock.now())
        if self._rejections.held_count:
            self._send_again(link)
        self._report_rejections()
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
        """There is something to send, or sending is possible again."""
        if self._pumping is None and self._link is not None:
            delay = max(_GATHER_SECONDS, self._pacer.delay())
            self._pumping = self._loop.call_later(delay, self._pump)

    def _pump(self) -> None:
        self._pumping = None
        self._pacer.run(self._send_chunk)
        if self._has_more:
            self._pumping = self._loop.call_later(self._pacer.delay(), self._pump)

    def _send_chunk(self) -> None:
        """Sends the next chunk, if there is one and it may be sent."""
        self._has_more = False
        link = self._link
        if link is None or not link.publisher.is_ready:
            return
        publisher = link.publisher
        room = _WINDOW_COUNT - publisher.unconfirmed_count
        if not link.may_send() or room <= 0:
            return  # pumped again once that changes
        first = self._messages.first_seq
        if self._position < first - 1:
            self._drop(first - 1)
        if self._position >= self._messages.last_seq:
            return
        count = min(room, _CHUNK_COUNT)
        messages, self._position = self._messages.read(self._position, count, None)
        publisher.publish(messages, self._position)
        # One watcher without room must not hold up the others, nor cause more than a window of
        # messages to be sent twice.
        self._rejections.give_up_to(self._position - _WINDOW_COUNT)
        self._note_confirmed(publisher)
        self._has_more = self._position < self._messages.last_seq

    def _send_again(self, link: "_Link") -> None:
        """Sends rejected messages again, when it is time."""
        if not link.may_send():
            return
        found, now = [], self._clock.now()
        for seq in self._rejections.due(now):
            messages, _ = self._messages.read(seq - 1, 1, None)
            if messages and messages[0].seq == seq:
                found += messages
            else:
                self._rejections.lose(seq, now)  # no longer in the log
        link.publisher.publish_again(found)

    def _report_rejections(self) -> None:
        """Logs when rejections begin, and when the first are given up; not each of them."""
        rejections, before = self._rejections, self._refusals_logged
        given_up_count = rejections.given_up_count
        if given_up_count > self._refused_logged_count:
            self._refused_logged_count = given_up_count
            self._refusals_logged = _REFUSED
        elif not rejections.held_count and not rejections.is_hopeless:
            self._refusals_logged = None
        elif before is None:
            self._refusals_logged = _RETRYING
        if self._refusals_logged not in (None, before):
            self._repeats.warn(
                self._refusals_logged,
                str(self._broker),
                retrying=rejections.held_count,
                refused=given_up_count,
            )

    def _drop(self, position: int) -> None:
        """The log is bounded: after too long an outage, the oldest messages are lost."""
        count = position - self._position
        self._dropped_count += count
        self._position = position
        _log.error("events were gone before the broker took them", count=count)

    def _save(self) -> None:
        if self._confirmed != self._stored:
            self._stored = self._confirmed
            self._dispatcher.ask(SetCursor(Cursor(self._name, self._confirmed)))


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
            self._relay.received(self, data)
        except BrokerError as error:
            self.ended.set_exception(error)

    def may_send(self) -> bool:
        """Whether neither the broker nor the socket blocks sending."""
        publisher = self.publisher
        return publisher.is_ready and not self.paused and publisher.blocked_for is None

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
        """Writes to the broker."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes after what was written."""
        if self._transport is not None:
            if not self.ended.done():
                self.publisher.close()
            self._transport.close()
        if self.ended.done():
            self.ended.exception()  # already reported, or there is no one left to report to
        else:
            self.ended.set_result(None)

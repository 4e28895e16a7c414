"""The client side of AMQP: publishes to a broker on one channel, and knows what it accepted.

One channel for all exchanges keeps their messages in order. The broker confirms in any order; what
counts is the point up to which everything is confirmed. Rejected messages are sent again later
(`rejections.py`), while everything else goes on.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, NoReturn

from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange
from pamqp.heartbeat import Heartbeat

from manyhands.net.amqp import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    AmqpError,
    Code,
    Frame,
    FrameReader,
    Message,
    pack_method,
    pack_open,
    pack_publish,
)
from manyhands.protocols.amqp.rejections import Rejections

_FRAME_BYTES_MAX: Final = 128 * 1024
_HEARTBEAT_SECONDS: Final = 30
_HANDSHAKE_MS: Final = 20_000
# A broker that accepts messages confirms some of them within this time, however busy it is.
_CONFIRM_MS: Final = 60_000
_CHANNEL: Final = 1


class BrokerError(Exception):
    """The broker refused or did not answer. ``lasting``: retrying at once would change nothing."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Publisher:
    """One connection to a broker. Raises BrokerError once it is unusable."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        exchanges: Iterable[str],
        account: tuple[str, str],
        virtual_host: str,
        now: int,
        aliases: Mapping[str, str] = MappingProxyType({}),
        rejections: Rejections | None = None,
    ) -> None:
        self.is_ready = False
        self.blocked_for: str | None = None  # why the broker accepts nothing at the moment
        self._send = send
        # Sent before the first message, one after the other. An alias is an exchange bound to
        # another with all its messages.
        self._preparations: list[base.Frame] = [
            Exchange.Declare(0, name, "topic", durable=True) for name in (*exchanges, *aliases)
        ]
        self._preparations += [
            Exchange.Bind(0, alias, name, "#") for alias, name in aliases.items()
        ]
        self._account = account
        self._virtual_host = virtual_host
        self._reader = FrameReader(_FRAME_BYTES_MAX)
        self._frame_bytes_max = _FRAME_BYTES_MAX
        self._heartbeat_ms = 0
        self._received_at = self._began_at = now
        self._moved_at = now  # when a message was last confirmed, or none was pending
        self._beat_at = 0
        self._tag = 0
        self._unconfirmed: dict[int, int] = {}  # tag -> sequence number, in order
        self._sent_to = 0
        self._rejections = Rejections() if rejections is None else rejections
        self._rejections.reconnect()
        send(PROTOCOL_HEADER)

    @property
    def unconfirmed_count(self) -> int:
        """Messages that were sent and are not confirmed."""
        return len(self._unconfirmed)

    @property
    def confirmed_to(self) -> int:
        """The number up to which everything was accepted or given up; 0: nothing was sent yet."""
        rejected = self._rejections.oldest
        for seq in self._unconfirmed.values():
            return (seq if rejected is None else min(seq, rejected)) - 1
        return self._sent_to if rejected is None else rejected - 1

    def publish(self, messages: Iterable[Message], sent_to: int) -> None:
        """Sends these in one go; everything up to ``sent_to`` is then handled."""
        self.publish_again(messages)
        self._sent_to = sent_to

    def publish_again(self, messages: Iterable[Message]) -> None:
        """Sends messages again that the broker rejected."""
        assert self.is_ready
        packed = []
        for message in messages:
            self._tag += 1
            self._unconfirmed[self._tag] = message.seq
            packed.append(pack_publish(_CHANNEL, message, self._frame_bytes_max))
        if packed:
            self._send(b"".join(packed))

    def receive(self, data: bytes, now: int) -> None:
        """Bytes arrived."""
        self._received_at = now
        if not self._heartbeat_ms and data.startswith(b"AMQP"):
            raise BrokerError("the broker speaks another version of AMQP", lasting=True)
        try:
            for _, frame in self._reader.feed(data):
                self._take(frame)
        except AmqpError as error:
            raise BrokerError(f"the broker sent invalid data: {error.text}") from None

    def tick(self, now: int) -> None:
        """Called periodically: heartbeats, both ways."""
        if not self.is_ready:
            if now - self._began_at > _HANDSHAKE_MS:
                raise BrokerError("the broker did not finish the hand-shake")
        elif self._heartbeat_ms:
            if now - self._received_at > 2 * self._heartbeat_ms:
                raise BrokerError("the broker is silent")
            if now - self._beat_at >= self._heartbeat_ms / 2:
                self._beat_at = now
                self._send(HEARTBEAT)
        if not self._unconfirmed or self.blocked_for is not None:
            self._moved_at = now
        elif now - self._moved_at > _CONFIRM_MS:
            raise BrokerError("the broker does not confirm messages")

    def close(self) -> None:
        """Closes politely, without waiting for the answer."""
        self._say(0, Connection.Close(Code.SUCCESS, "goodbye", 0, 0))

    def _say(self, channel: int, method: base.Frame) -> None:
        self._send(pack_method(channel, method))

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Basic.Ack):
            self._confirm(self._settle(frame))
            return
        if isinstance(frame, Heartbeat):
            return
        action = _ACTIONS.get(type(frame))
        if action is None:
            name = frame.name if isinstance(frame, base.Frame) else "content"
            raise BrokerError(f"the broker sent {name}, which was not expected")
        action(self, frame)

    def _settle(self, frame: Basic.Ack | Basic.Nack) -> list[int]:
        """The sequence numbers of the messages that a confirm covers."""
        self._moved_at = self._received_at
        tag, unconfirmed = frame.delivery_tag or 0, self._unconfirmed
        if frame.multiple:
            # In order, so the first higher tag ends it.
            return [unconfirmed.pop(known) for known in list(takewhile(tag.__ge__, unconfirmed))]
        seq = unconfirmed.pop(tag, None)
        return [] if seq is None else [seq]

    def _confirm(self, taken: list[int]) -> None:
        rejections = self._rejections
        if rejections.is_waiting:
            for seq in taken:
                rejections.take(seq, self._received_at)

    def _start(self, frame: Connection.Start) -> None:
        user, password = self._account
        capabilities = {
            "connection.blocked": True,
            "authentication_failure_close": True,
            "publisher_confirms": True,
            "basic.nack": True,
        }
        properties: dict[str, Any] = {"product": "Manyhands", "capabilities": capabilities}
        self._say(0, Connection.StartOk(properties, "PLAIN", f"\0{user}\0{password}", "en_US"))

    def _tune(self, frame: Connection.Tune) -> None:
        if frame.frame_max:
            self._frame_bytes_max = min(frame.frame_max, _FRAME_BYTES_MAX)
        seconds = min(frame.heartbeat or _HEARTBEAT_SECONDS, _HEARTBEAT_SECONDS)
        self._heartbeat_ms = seconds * 1000
        self._say(0, Connection.TuneOk(frame.channel_max, self._frame_bytes_max, seconds))
        self._send(pack_open(self._virtual_host))

    def _opened(self, frame: Connection.OpenOk) -> None:
        self._say(_CHANNEL, Channel.Open())

    def _channel_opened(self, frame: Channel.OpenOk) -> None:
        self._say(_CHANNEL, Confirm.Select())

    def _prepare(self, frame: base.Frame) -> None:
        if not self._preparations:
            self.is_ready = True
            return
        self._say(_CHANNEL, self._preparations.pop(0))

    def _nacked(self, frame: Basic.Nack) -> None:
        for seq in self._settle(frame):
            self._rejections.reject(seq, self._received_at)

    def _blocked(self, frame: Connection.Blocked) -> None:
        self.blocked_for = frame.reason or "no reason given"

    def _unblocked(self, frame: Connection.Unblocked) -> None:
        self.blocked_for = None

    def _closed(self, frame: Connection.Close | Channel.Close) -> NoReturn:
        if isinstance(frame, Connection.Close):
            self._say(0, Connection.CloseOk())
        # Wrong credentials, no permission, or an exchange of that name with other properties.
        lasting = frame.reply_code in (
            Code.ACCESS_REFUSED,
            Code.PRECONDITION_FAILED,
            Code.NOT_ALLOWED,
        )
        raise BrokerError(f"{frame.reply_code} {frame.reply_text}", lasting=lasting)


_ACTIONS: Final[dict[type, Callable[[Publisher, Any], None]]] = {
    Connection.Start: Publisher._start,  # noqa: SLF001 - this table is part of the class
    Connection.Tune: Publisher._tune,  # noqa: SLF001
    Connection.OpenOk: Publisher._opened,  # noqa: SLF001
    Channel.OpenOk: Publisher._channel_opened,  # noqa: SLF001
    Confirm.SelectOk: Publisher._prepare,  # noqa: SLF001
    Exchange.DeclareOk: Publisher._prepare,  # noqa: SLF001
    Exchange.BindOk: Publisher._prepare,  # noqa: SLF001
    Basic.Nack: Publisher._nacked,  # noqa: SLF001
    Connection.Blocked: Publisher._blocked,  # noqa: SLF001
    Connection.Unblocked: Publisher._unblocked,  # noqa: SLF001
    Connection.Close: Publisher._closed,  # noqa: SLF001
    Channel.Close: Publisher._closed,  # noqa: SLF001
}

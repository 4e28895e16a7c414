"""The other side of AMQP: publish to a broker on one channel, and know what it has taken.

One channel for all exchanges keeps their messages in order. The broker confirms in any order; what
counts is up to where everything is confirmed.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange
from pamqp.heartbeat import Heartbeat

from manyhands.wire.amqp import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    AmqpError,
    Code,
    Frame,
    FrameReader,
    Message,
    pack_method,
    pack_publish,
)

_FRAME_BYTES_MAX: Final = 128 * 1024
_HEARTBEAT_SECONDS: Final = 30
_HANDSHAKE_MS: Final = 20_000
# A broker that takes messages confirms some of them within that, however busy it is.
_CONFIRM_MS: Final = 60_000
_CHANNEL: Final = 1


class BrokerError(Exception):
    """The broker said no, or nothing. ``lasting``: asking again at once would change nothing."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Publisher:
    """One connection to a broker. Raises BrokerError when it is of no more use."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        exchanges: Iterable[str],
        account: tuple[str, str],
        virtual_host: str,
        now: int,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.is_ready = False
        self.blocked_for: str | None = None  # why the broker takes nothing at the moment
        self._send = send
        # What is to be said before the first message, one after the other. An alias is an exchange
        # that hears all of another one.
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
        self._heard_at = self._began_at = now
        self._moved_at = now  # when something was confirmed, or nothing was to be
        self._beat_at = 0
        self._tag = 0
        self._unconfirmed: dict[int, int] = {}  # tag -> sequence number, in order
        self._sent_to = 0
        send(PROTOCOL_HEADER)

    @property
    def unconfirmed_count(self) -> int:
        """Messages that were sent and are not known to have arrived."""
        return len(self._unconfirmed)

    @property
    def confirmed_to(self) -> int:
        """Everything up to here was taken; 0: nothing was sent yet."""
        for seq in self._unconfirmed.values():
            return seq - 1
        return self._sent_to

    def publish(self, messages: Iterable[Message], sent_to: int) -> None:
        """Send these, in one go; with them everything up to ``sent_to`` is dealt with."""
        assert self.is_ready
        packed = []
        for message in messages:
            self._tag += 1
            self._unconfirmed[self._tag] = message.seq
            packed.append(pack_publish(_CHANNEL, message, self._frame_bytes_max))
        self._sent_to = sent_to
        if packed:
            self._send(b"".join(packed))

    def receive(self, data: bytes, now: int) -> None:
        """Bytes arrived."""
        self._heard_at = now
        if not self._heartbeat_ms and data.startswith(b"AMQP"):
            raise BrokerError("the broker speaks another version of AMQP", lasting=True)
        try:
            for _, frame in self._reader.feed(data):
                self._take(frame)
        except AmqpError as error:
            raise BrokerError(f"the broker sent nonsense: {error.text}") from None

    def tick(self, now: int) -> None:
        """Once in a while: heartbeats, both ways."""
        if not self.is_ready:
            if now - self._began_at > _HANDSHAKE_MS:
                raise BrokerError("the broker did not finish the hand-shake")
        elif self._heartbeat_ms:
            if now - self._heard_at > 2 * self._heartbeat_ms:
                raise BrokerError("the broker is silent")
            if now - self._beat_at >= self._heartbeat_ms / 2:
                self._beat_at = now
                self._send(HEARTBEAT)
        if not self._unconfirmed or self.blocked_for is not None:
            self._moved_at = now
        elif now - self._moved_at > _CONFIRM_MS:
            raise BrokerError("the broker does not confirm what it was sent")

    def close(self) -> None:
        """A polite end; nobody waits for the answer."""
        self._say(0, Connection.Close(Code.SUCCESS, "goodbye", 0, 0))

    def _say(self, channel: int, method: base.Frame) -> None:
        self._send(pack_method(channel, method))

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Basic.Ack):
            self._confirm(frame.delivery_tag or 0, multiple=bool(frame.multiple))
            return
        if isinstance(frame, Heartbeat):
            return
        action = _ACTIONS.get(type(frame))
        if action is None:
            name = frame.name if isinstance(frame, base.Frame) else "content"
            raise BrokerError(f"the broker sent {name}, which was not expected")
        action(self, frame)

    def _confirm(self, tag: int, *, multiple: bool) -> None:
        self._moved_at = self._heard_at
        if not multiple:
            self._unconfirmed.pop(tag, None)
            return
        # In order, so the first one above ends it.
        for known in list(self._unconfirmed):
            if known > tag:
                break
            del self._unconfirmed[known]

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
        self._say(0, Connection.Open(self._virtual_host))

    def _opened(self, frame: Connection.OpenOk) -> None:
        self._say(_CHANNEL, Channel.Open())

    def _channel_opened(self, frame: Channel.OpenOk) -> None:
        self._say(_CHANNEL, Confirm.Select())

    def _prepare(self, frame: base.Frame) -> None:
        if not self._preparations:
            self.is_ready = True
            return
        self._say(_CHANNEL, self._preparations.pop(0))

    def _nacked(self, frame: Basic.Nack) -> NoReturn:
        raise BrokerError("the broker could not take a message")

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

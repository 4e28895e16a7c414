"""One AMQP connection: handshake, credentials, heartbeats, channels."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from pamqp import base, decode
from pamqp.commands import Channel, Connection
from pamqp.common import FieldTable
from pamqp.heartbeat import Heartbeat

from manyhands.access.credentials import Certificate
from manyhands.loggers import get_logger
from manyhands.model.events import Signal
from manyhands.net.amqp import (
    FRAME_BYTES_MIN,
    HEARTBEAT,
    OLDER_PROTOCOL_HEADER,
    PROTOCOL_HEADER,
    AmqpError,
    Code,
    Frame,
    FrameReader,
    pack_channel_open_ok,
    pack_method,
)
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.channel import AmqpChannel
from manyhands.protocols.replies import Replies

_log = get_logger("manyhands.amqp")

CHANNELS_COUNT_MAX: Final = 255
FRAME_BYTES_MAX: Final = 128 * 1024
HEARTBEAT_SECONDS: Final = 60
# No peer needs more before it has authenticated.
_FIRST_FRAME_BYTES_MAX: Final = 8 * 1024
_HANDSHAKE_MS: Final = 10_000
_CLOSE_MS: Final = 5_000  # how long a peer may take to answer the server's close
_AWAITED_MAX: Final = 1_000
_HEADER_SHOWN_BYTES: Final = 16  # enough to recognise a TLS or HTTP client
_DEFECT: Final = "internal error: the server could not answer; its log says why"
_SOFT: Final = frozenset(
    {
        Code.CONTENT_TOO_LARGE,
        Code.ACCESS_REFUSED,
        Code.NOT_FOUND,
        Code.RESOURCE_LOCKED,
        Code.PRECONDITION_FAILED,
    }
)
_CAPABILITIES: Final = {
    "publisher_confirms": True,  # nothing can be published, but clients ask on every channel
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
}


class Peer(Protocol):
    """The other end of the connection. A listener provides it."""

    connection: str
    address: str
    certificate: Certificate | None

    def send(self, data: bytes) -> None:
        """Sends to the peer, together with everything else sent in this turn."""

    def close(self) -> None:
        """Closes after what was sent."""

    def is_congested(self) -> bool:
        """Whether the peer is slow to read."""

    def now(self) -> int:
        """Server time."""

    @property
    def seen(self) -> tuple[str, ...]:
        """Patterns of the jobs' queues that its caller may see; empty: all."""

    @property
    def token(self) -> Callable[[], str]:
        """Makes random texts."""


class Welcome(Protocol):
    """How a server introduces itself, and which peers it accepts."""

    product: str
    version: str
    server_name: str

    connections_max: int

    def let_in(
        self, user: str | None, password: str, peer: Peer, then: Callable[[bool | None], None]
    ) -> None:
        """Calls back with whether a peer may watch; without a user, by its certificate. Nothing is
        read meanwhile. None: it cannot be decided now.
        """

    def is_full(self) -> bool:
        """Whether the maximum number of connections is reached."""

    def report_fault(self, address: str, error: AmqpError) -> None:
        """Reports a connection that is closed because of an error."""

    def report_header(self, address: str, header: bytes) -> None:
        """Reports a connection that did not begin with a header of this protocol."""


class AmqpSession:
    """A connection's state: the ``Line`` of its channels."""

    def __init__(self, peer: Peer, broker: Broker, welcome: Welcome) -> None:
        self.connection = peer.connection
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.is_congested = peer.is_congested
        self.token = peer.token
        self.now = peer.now
        self._peer = peer
        self._broker = broker
        self._welcome = welcome
        self._replies = Replies(peer.send)
        self._reader = FrameReader(_FIRST_FRAME_BYTES_MAX)
        self._head = b""
        self._expected: type[base.Frame] | None = None  # during the handshake
        self._is_let_in = True  # False while a login is under way
        self._opened = False
        self._channels: dict[int, AmqpChannel] = {}
        self._heartbeat_ms = 0
        self._received_at = self._began_at = peer.now()
        self._beat_at = 0
        self._closing_since: int | None = None

    # The listener's side.

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        self._received_at = self.now()
        if self._expected is None and not self._opened:
            self._head += data
            if len(self._head) < len(PROTOCOL_HEADER):
                return
            data = self._head[len(PROTOCOL_HEADER) :]
            if not self._head.startswith((PROTOCOL_HEADER, OLDER_PROTOCOL_HEADER)):
                # A peer with another protocol or version is sent the one spoken here.
                self._broker.faults_count += 1
                self._welcome.report_header(self._peer.address, self._head[:_HEADER_SHOWN_BYTES])
                self._peer.send(PROTOCOL_HEADER)
                self._peer.close()
                return
            self._start()
        try:
            for number, frame in self._reader.feed(data):
                self._take(number, frame)
        except AmqpError as error:
            self.fail(error)
            if error.code == Code.FRAME_ERROR:
                self._peer.close()  # the start of the next frame is unknown
        except Exception:
            self.fail(AmqpError(Code.INTERNAL_ERROR, _DEFECT))
            raise  # to the log, with its traceback

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone."""
        self._end()

    def notify(self, signal: Signal) -> None:
        """Watchers wait for no job."""

    def ended(self) -> None:
        """The peer closed its side. It cannot acknowledge any more."""
        self._end()
        self._peer.close()

    def is_overwhelmed(self) -> bool:
        """Whether too many answers are pending."""
        return self._replies.awaited_count > _AWAITED_MAX

    def held_bytes(self) -> int:
        """Negligible: frames are small, and no peer publishes here."""
        return 0

    def resume(self) -> None:
        """The peer reads again."""
        for channel in self._channels.values():
            channel.resume()

    def tick(self, now: int) -> None:
        """Once a second: sends heartbeats and closes silent connections."""
        if self._closing_since is not None:
            if now - self._closing_since > _CLOSE_MS:
                self._peer.close()
        elif not self._opened:
            if now - self._began_at > _HANDSHAKE_MS:
                self._peer.close()
        elif self._heartbeat_ms:
            if now - self._received_at > 2 * self._heartbeat_ms:
                # Closing may take long. What a dead peer held need not wait for it.
                self._closing_since = now
                self._end()
                self._peer.close()
            elif now - self._beat_at >= self._heartbeat_ms / 2:
                self._beat_at = now
                self._replies.say(HEARTBEAT)

    def shut_down(self) -> None:
        """The server is stopping."""
        self.fail(AmqpError(Code.CONNECTION_FORCED, "the server is shutting down"))

    # The channels' side.

    @property
    def seen(self) -> tuple[str, ...]:
        """Patterns of the jobs' queues that the peer may see."""
        return self._peer.seen

    def say(self, data: bytes) -> None:
        """Sends to the peer, in order."""
        if data:
            self._replies.say(data)

    def hold(self) -> Callable[[Callable[[], bytes]], None]:
        """Reserves a place for an answer that is not known yet. If it cannot be made, the peer gets
        an error instead of waiting for ever.
        """
        slot = self._replies.reserve()

        def fill(make: Callable[[], bytes]) -> None:
            error, data = None, b""
            try:
                data = make()
            except Exception as problem:  # noqa: BLE001 - a defect of ours, others are unharmed
                error = problem
                _log.exception("an answer could not be made", peer=self._peer.address)
            self._replies.fill(slot, data)
            if error is not None:
                self.fail(AmqpError(Code.INTERNAL_ERROR, _DEFECT))

        return fill

    def fail(self, error: AmqpError) -> None:
        """Sends the peer the error, then closes the connection."""
        if self._closing_since is not None:
            return
        self._closing_since = self.now()
        if error.code != Code.CONNECTION_FORCED:
            self._broker.faults_count += 1
            self._welcome.report_fault(self._peer.address, error)
        class_id, method_id = _ids_of(error.method)
        close = Connection.Close(error.code, _reply_text(error.text), class_id, method_id)
        self._replies.say(pack_method(0, close))
        self._end()

    # Frames.

    def _take(self, number: int, frame: Frame) -> None:
        if self._closing_since is not None:
            if isinstance(frame, Connection.CloseOk):
                self._peer.close()
            return
        if isinstance(frame, Heartbeat):
            return
        if number == 0:
            if not isinstance(frame, base.Frame):
                raise AmqpError(Code.UNEXPECTED_FRAME, "channel 0 carries no content")
            self._take_own(frame)
            return
        if not self._opened:
            raise AmqpError(Code.COMMAND_INVALID, "the connection is not open yet")
        channel = self._channels.get(number)
        if channel is None:
            self._open_channel(number, frame)
        elif channel.closing:
            if isinstance(frame, Channel.CloseOk):
                del self._channels[number]
            elif isinstance(frame, Channel.Close):
                self._say(number, Channel.CloseOk())
                del self._channels[number]
        elif isinstance(frame, Channel.Close):
            channel.close()
            del self._channels[number]
            self._say(number, Channel.CloseOk())
        else:
            self._handle(channel, frame)

    def _handle(self, channel: AmqpChannel, frame: Any) -> None:  # noqa: ANN401 - no heartbeat
        if isinstance(frame, Channel.Open):
            raise AmqpError(Code.CHANNEL_ERROR, f"channel {channel.number} is open already", frame)
        try:
            channel.handle(frame)
        except AmqpError as error:
            if error.method is None and isinstance(frame, base.Frame):
                error.method = frame
            if error.code not in _SOFT:
                raise
            self._broker.faults_count += 1
            channel.close()
            ids = _ids_of(error.method)
            self._say(channel.number, Channel.Close(error.code, _reply_text(error.text), *ids))

    def _open_channel(self, number: int, frame: Frame) -> None:
        if not isinstance(frame, Channel.Open):
            name = frame.name if isinstance(frame, base.Frame) else "content"
            raise AmqpError(Code.CHANNEL_ERROR, f"{name} on channel {number}, which is not open")
        if number > CHANNELS_COUNT_MAX:
            raise AmqpError(Code.NOT_ALLOWED, f"channels go up to {CHANNELS_COUNT_MAX}", frame)
        self._channels[number] = AmqpChannel(number, self, self._broker)
        self._replies.say(pack_channel_open_ok(number))

    def _say(self, number: int, method: base.Frame) -> None:
        self._replies.say(pack_method(number, method))

    # Channel 0.

    def _start(self) -> None:
        welcome = self._welcome
        self._expected = Connection.StartOk
        properties: FieldTable = {
            "product": welcome.product,
            "version": welcome.version,
            "cluster_name": welcome.server_name,
            "capabilities": dict(_CAPABILITIES),
        }
        mechanisms = "PLAIN AMQPLAIN" + (" EXTERNAL" if self._peer.certificate else "")
        self._say(0, Connection.Start(0, 9, properties, mechanisms, "en_US"))

    def _take_own(self, frame: base.Frame) -> None:
        if isinstance(frame, Connection.Close):
            self._say(0, Connection.CloseOk())
            self._end()
            self._peer.close()
        elif self._expected is not None:
            if not self._is_let_in:
                raise AmqpError(Code.COMMAND_INVALID, f"{frame.name} before the login", frame)
            if not isinstance(frame, self._expected):
                sentence = f"{frame.name} where {self._expected.name} was expected"
                raise AmqpError(Code.COMMAND_INVALID, sentence, frame)
            _STEPS[self._expected](self, frame)
        else:
            sentence = f"{frame.name} is not allowed on channel 0 of an open connection"
            raise AmqpError(Code.COMMAND_INVALID, sentence, frame)

    def _authenticate(self, frame: Connection.StartOk) -> None:
        user, password = _credentials(frame)
        self._expected = Connection.TuneOk
        self._is_let_in = False
        self._welcome.let_in(user, password, self._peer, partial(self._settle_login, frame))

    def _settle_login(self, frame: Connection.StartOk, found: bool | None) -> None:  # noqa: FBT001
        if self._closing_since is not None:
            return
        if found:
            self._is_let_in = True
            self._say(0, Connection.Tune(CHANNELS_COUNT_MAX, FRAME_BYTES_MAX, HEARTBEAT_SECONDS))
        elif found is None:  # without an answer, clients try again
            self._closing_since = self.now()
            self._peer.close()
        else:
            self._refuse_login(frame)

    def _refuse_login(self, frame: Connection.StartOk) -> None:
        """As RabbitMQ words it: the reason is in the log only."""
        if _understands_refusal(frame):
            sentence = (
                f"Login was refused using authentication mechanism {frame.mechanism}."
                " For details see the broker logfile."
            )
            self.fail(AmqpError(Code.ACCESS_REFUSED, sentence, frame))
        else:
            self._closing_since = self.now()
            self._peer.close()

    def _tune(self, frame: Connection.TuneOk) -> None:
        frame_max = frame.frame_max or FRAME_BYTES_MAX
        if not FRAME_BYTES_MIN <= frame_max <= FRAME_BYTES_MAX:
            sentence = f"frames have {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} bytes"
            raise AmqpError(Code.NOT_ALLOWED, sentence, frame)
        if frame.channel_max > CHANNELS_COUNT_MAX:
            raise AmqpError(Code.NOT_ALLOWED, f"channels go up to {CHANNELS_COUNT_MAX}", frame)
        self.frame_bytes_max = self._reader.frame_bytes_max = frame_max
        self._heartbeat_ms = frame.heartbeat * 1000
        self._expected = Connection.Open

    def _open(self, frame: Connection.Open) -> None:
        if frame.virtual_host not in ("/", ""):
            sentence = f"there is no virtual host '{frame.virtual_host}'; '/' is the only one"
            raise AmqpError(Code.NOT_ALLOWED, sentence, frame)
        if self._welcome.is_full():
            sentence = f"there are {self._welcome.connections_max} connections already"
            raise AmqpError(Code.NOT_ALLOWED, sentence, frame)
        self._expected = None
        self._opened = True
        self._say(0, Connection.OpenOk())

    def _end(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._broker.disconnect(self.connection)


_STEPS: Final[dict[type[base.Frame], Callable[[AmqpSession, Any], None]]] = {
    Connection.StartOk: AmqpSession._authenticate,  # noqa: SLF001 - this table is part of the class
    Connection.TuneOk: AmqpSession._tune,  # noqa: SLF001
    Connection.Open: AmqpSession._open,  # noqa: SLF001
}


def _credentials(frame: Connection.StartOk) -> tuple[str | None, str]:
    """User and password; no user if the certificate of the connection says who it is."""
    response = _as_bytes(frame.response)
    if frame.mechanism == "EXTERNAL":
        return None, ""
    try:
        if frame.mechanism == "PLAIN":
            _, user, password = response.split(b"\0")
            return user.decode(), password.decode()
        if frame.mechanism == "AMQPLAIN":
            # A table without its length.
            _, table = decode.field_table(len(response).to_bytes(4, "big") + response)
            return str(table["LOGIN"]), str(table["PASSWORD"])
    except Exception as error:  # noqa: BLE001 - a foreign parser on foreign bytes
        raise AmqpError(Code.SYNTAX_ERROR, f"credentials cannot be read: {error}", frame) from None
    sentence = f"there is no mechanism '{frame.mechanism}'; there are PLAIN, AMQPLAIN and EXTERNAL"
    raise AmqpError(Code.NOT_ALLOWED, sentence, frame)


def _as_bytes(text: str | bytes) -> bytes:
    """The codec returns text that is not UTF-8 as bytes."""
    return text.encode() if isinstance(text, str) else text


def _understands_refusal(frame: Connection.StartOk) -> bool:
    capabilities = (frame.client_properties or {}).get("capabilities")
    return isinstance(capabilities, dict) and bool(capabilities.get("authentication_failure_close"))


def _ids_of(method: base.Frame | None) -> tuple[int, int]:
    return (0, 0) if method is None else (method.index >> 16, method.index & 0xFFFF)


def _reply_text(text: str) -> str:
    return text.encode()[:255].decode(errors="ignore")

"""One WebSocket connection: complete messages to a conversation and back. Pings, the closing
handshake and silent peers are handled here.
"""

from collections.abc import Callable
from typing import Final, Protocol

from manyhands.model.events import Signal
from manyhands.net import websocket as wire
from manyhands.net.http import HttpConnection
from manyhands.net.uptake import Uptake

# Frames may be a few bytes each, so other peers get their turn before more are handled. Of a large
# frame more is taken at a time.
_TURN_BYTES: Final = 32 * 1024
_LARGE_TURN_BYTES: Final = 256 * 1024
# A message of this size is not copied more often than necessary.
_LARGE_BYTES: Final = 1024 * 1024
_PING_SECONDS: Final = 10.0  # of silence, before a peer is sent a ping
_SILENCE_SECONDS: Final = 30.0  # before it is disconnected


class Conversation(Protocol):
    """What uses the connection. It has the methods of a session, but takes complete messages."""

    def receive(self, messages: list[bytes]) -> None:
        """Takes binary messages; an empty list in a later turn, if it asked for one."""

    def ended(self) -> None:
        """The peer sends nothing more: closes the connection once everything is answered."""

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone."""

    def notify(self, signal: Signal) -> None:
        """Takes a signal about a job that this connection waits for."""

    def is_overwhelmed(self) -> bool:
        """Whether too many answers are outstanding to read further messages."""

    def held_bytes(self) -> int:
        """Bytes of messages that have to wait."""

    def go_on(self) -> None:
        """Called when the peer reads again, after too much was left unread."""


class WebSocketSession:
    """The ``Speaker`` of a connection that was HTTP."""

    conversation: Conversation

    def __init__(self, connection: HttpConnection, message_bytes_max: int) -> None:
        self._connection = connection
        self._loop = connection.listener.loop
        self._decoder = wire.Decoder(message_bytes_max)
        self._uptake = Uptake(connection)
        self._has_closed = False  # the close frame was sent
        self._peer_code = wire.NORMAL  # the code of the peer's close frame, if any
        self._has_received = True  # since the last check
        self._received_at = self._loop.time()
        self._has_asked = False  # a ping was sent
        connection.turn_bytes = _TURN_BYTES
        connection.farewell = wire.close_frame(wire.GOING_AWAY, "the server stops")

    def begin(self, conversation: Conversation) -> None:
        """Sets the conversation, before anything is received."""
        self.conversation = conversation
        self._connection.on_writable = conversation.go_on

    # What the connection reports.

    def receive(self, data: bytes) -> None:
        """Takes the bytes of frames."""
        self._has_received = True
        messages: list[bytes] = []
        ping: wire.Ping | None = None
        last: wire.Close | wire.Fault | None = None
        for event in self._decoder.feed(data):
            match event:
                case wire.Message(is_text=True):
                    last = wire.Fault(wire.PROTOCOL_ERROR, "messages here are binary")
                    break
                case wire.Message():
                    messages.append(event.data)
                case wire.Ping():
                    ping = event  # RFC 6455, 5.5.3: the latest of several may be answered alone
                case wire.Pong():
                    pass
                case wire.Close() | wire.Fault():
                    last = event
        missing = self._decoder.missing_bytes
        self._connection.turn_bytes = _LARGE_TURN_BYTES if missing > _TURN_BYTES else _TURN_BYTES
        if ping is not None and not self._has_closed:
            self._connection.send(wire.pong_frame(ping.data))
        self.conversation.receive(messages)
        if isinstance(last, wire.Fault):
            self.close(last.code, last.sentence)
        elif last is not None:
            self._peer_code = last.code
            self.conversation.ended()

    def ended(self) -> None:
        """The peer closed its half without a close frame."""
        self.conversation.ended()

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone."""
        self._has_closed = True
        self._connection.on_writable = None
        self.conversation.lost(blameless=blameless)

    def notify(self, signal: Signal) -> None:
        """Takes a signal about a job."""
        self.conversation.notify(signal)

    def is_overwhelmed(self) -> bool:
        """Whether to stop reading."""
        return self.conversation.is_overwhelmed()

    def held_bytes(self) -> int:
        """Bytes of messages that are incomplete or have to wait."""
        return self._decoder.held_bytes() + self.conversation.held_bytes()

    # Called by the listener.

    @property
    def is_busy(self) -> bool:
        """Always False: a stopping server does not wait for it, because the peer reconnects."""
        return False

    def lose_patience(self, now: float) -> None:
        """Sends a ping to a silent peer, and disconnects one that does not answer."""
        if self._uptake.leaves_unread(now):
            return
        if self._has_received or not self._connection.is_read_from():
            self._has_received = self._has_asked = False
            self._received_at = now
        elif now - self._received_at > _SILENCE_SECONDS:
            self._connection.give_up("it is silent")
        elif (
            now - self._received_at > _PING_SECONDS and not self._has_asked and not self._has_closed
        ):
            self._has_asked = True
            self._connection.send(wire.ping_frame())

    # Called by the conversation.

    @property
    def is_behind(self) -> bool:
        """Whether the peer has left too much unread."""
        return self._connection.writing_paused

    def soon(self, call: Callable[[], None]) -> None:
        """Calls back at the end of this turn, when everything in it was received."""
        self._loop.call_soon(call)

    def send(self, message: bytes) -> None:
        """Sends a binary message."""
        if self._has_closed:
            return
        connection = self._connection
        connection.send(wire.frame_head(len(message)))
        if len(message) < _LARGE_BYTES:
            connection.send(message)
            connection.flush()
        else:
            connection.send_large(message)

    def close(self, code: int | None = None, sentence: str = "") -> None:
        """Sends the close frame; without a code, it echoes the peer's."""
        if self._has_closed:
            return
        self._has_closed = True
        self._connection.farewell = b""
        self._connection.send(wire.close_frame(self._peer_code if code is None else code, sentence))
        self._connection.close()

"""A ROUTER socket on the event loop: messages in, replies out, grouped, bounded.

The socket's descriptor tells only that something changed, once, so three rules keep it from going
deaf: read until there is nothing more (in slices, going on in the next turn); look for news after
every send, since sending may swallow the sign of an arrival; let no exception end the reading.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import zmq
from zmq.backend import Socket as BareSocket

from manyhands.config import Address
from manyhands.server.tcp import raise_open_files_limit

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.zeromq")

# Messages read before others get their turn.
_SLICE_COUNT: Final = 200
# Messages that wait for one peer, each way; above, the peer is not read or counts as out of reach.
_QUEUE_COUNT_MAX: Final = 1_000
# Frames of one message, and how many of those above that are thrown away before others get their
# turn: a message has to be read to its end before the next one can be.
_FRAMES_MAX: Final = 64
_THROWN_AWAY_COUNT: Final = 20_000
# Room in a message for what is not its payload.
_ENVELOPE_BYTES: Final = 1024 * 1024
_SOCKETS_MAX: Final = 65_000
_HEARTBEAT_MS: Final = 10_000
_SILENCE_MS: Final = 30_000
_HANDSHAKE_MS: Final = 10_000
# How long what was said last may take to leave.
_LINGER_MS: Final = 500
# How long peers hear that the server is about to stop, before it does.
_FAREWELL_SECONDS: Final = 0.2

# A frame at a time, without pyzmq's conveniences: three frames leave in 1 µs instead of 5.
_receive_frame: Final = BareSocket.recv
_send_frame: Final = BareSocket.send
_get: Final = BareSocket.get
_EVENTS, _MORE_FOLLOWS, _READABLE = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_NOW: Final = int(zmq.DONTWAIT)
_NOW_WITH_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)


class Session(Protocol):
    """What a socket needs of a protocol's session."""

    def receive(self, frames: list[bytes]) -> None:
        """A message: the peer's identity and all its frames."""

    def overflowed(self, peer: bytes) -> None:
        """A message of more frames than any can have; what else it has is thrown away."""

    def is_overwhelmed(self) -> bool:
        """Too many replies are outstanding to read further requests."""

    def drain(self) -> None:
        """The server is about to stop: answer what is held back."""


Outgoing = tuple[tuple[bytes, ...], bytes, Callable[[], None] | None]


class RouterSocket:
    """One bound ROUTER socket, whose peers all speak to one session."""

    def __init__(self, server: "Server", address: Address, name: str) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self._address = address
        self._name = name
        self._session: Session | None = None
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        self._socket = self._make_socket(server.config.payload_bytes_max)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._output: list[Outgoing] = []
        self._reading = False  # a slice is being read: it ends with a flush
        self._reading_soon = False
        self._flushing_soon = False
        self._deaf = False  # not read, until some of what was asked is answered
        self._overflowing = False  # in the middle of a message that is thrown away

    def _make_socket(self, payload_bytes_max: int) -> "zmq.Socket[bytes]":
        router = self._context.socket(zmq.ROUTER)
        # A reply that cannot be delivered is an error here, not a silence.
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A peer that comes back under its old identity is heard.
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.SNDHWM, _QUEUE_COUNT_MAX)
        router.setsockopt(zmq.RCVHWM, _QUEUE_COUNT_MAX)
        router.setsockopt(zmq.MAXMSGSIZE, payload_bytes_max + _ENVELOPE_BYTES)
        router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        router.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.BACKLOG, 4096)
        if ":" in self._address.host:
            router.setsockopt(zmq.IPV6, 1)
        return router

    def start(self, session: Session) -> Address:
        """Bind and listen; gives the address that was bound."""
        raise_open_files_limit()
        self._session = session
        try:
            self._socket.bind(f"tcp://{self._address}")
        except zmq.ZMQError as error:
            raise OSError(
                f"{self._name} cannot listen on {self._address}: {error.strerror}"
            ) from None
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.loop.add_reader(self._descriptor, self._on_readable)
        self._read_soon()
        return Address(self._address.host, int(bound.rpartition(":")[2]))

    # Reading.

    def _read_soon(self) -> None:
        if not self._reading_soon:
            self._reading_soon = True
            self.loop.call_soon(self._on_soon)

    def _on_soon(self) -> None:
        self._reading_soon = False
        self._on_readable()

    def _on_readable(self) -> None:
        """Read a slice. The descriptor does not tell again of what is left, so that is gone on
        with in the next turn.
        """
        if self._socket.closed or self._reading_soon:
            return
        session = self._session
        assert session is not None
        router = self._socket
        self._reading = True
        drained = False
        for _ in range(_SLICE_COUNT):
            if self._overflowing and not self._throw_away():
                self._read_soon()
                break
            if session.is_overwhelmed():
                self._deaf = True
                break
            try:
                frames = [_receive_frame(router, _NOW)]
            except zmq.Again:
                drained = True
                break
            # An identity is never alone. A frame itself knows whether another one follows, which
            # is four times cheaper than asking the socket.
            more = True
            while more and len(frames) <= _FRAMES_MAX:
                frame = _receive_frame(router, _NOW, False)  # noqa: FBT003 - not copied
                frames.append(frame.bytes)
                more = frame.more
            try:
                if len(frames) > _FRAMES_MAX:
                    self._overflowing = True
                    session.overflowed(frames[0])
                else:
                    session.receive(frames)
            except Exception:  # noqa: BLE001 - a defect of ours: that peer waits, others go on
                _log.exception("internal error", listener=self._name)
        self._reading = False
        if self._output:
            self._flush()
        elif not drained:
            # Where nothing was left and nothing was sent, the descriptor tells of what comes next.
            self._look_for_news()

    def _throw_away(self) -> bool:
        """Read on in a message that is too long; False: there is still more of it."""
        router = self._socket
        for _ in range(_THROWN_AWAY_COUNT):
            if not _get(router, _MORE_FOLLOWS):
                self._overflowing = False
                return True
            _receive_frame(router, _NOW)
        return False

    def _look_for_news(self) -> None:
        if not self._deaf and int(_get(self._socket, _EVENTS)) & _READABLE:
            self._read_soon()

    # Writing.

    def send(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> None:
        """Send with everything else that is said in this turn."""
        self._output.append((route, body, undelivered))
        if not self._reading and not self._flushing_soon:
            self._flushing_soon = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing_soon = False
        if self._socket.closed:
            return
        output, self._output = self._output, []
        router = self._socket
        for route, body, undelivered in output:
            try:
                for frame in route:
                    _send_frame(router, frame, _NOW_WITH_MORE)
                _send_frame(router, body, _NOW)
            except zmq.ZMQError as error:
                # Gone, or it does not read what it was sent.
                _log.debug("a reply could not be delivered", listener=self._name, reason=str(error))
                if undelivered is not None:
                    undelivered()
        if self._deaf and self._session is not None and not self._session.is_overwhelmed():
            self._deaf = False
        self._look_for_news()

    # The end.

    async def drain(self) -> None:
        """Peers hear for a moment that the server is about to stop; then the socket is closed."""
        session = self._session
        assert session is not None
        session.drain()
        if self.server.failure is None:
            idle = asyncio.Event()
            self.server.dispatcher.when_idle(idle.set)
            await idle.wait()
            await asyncio.sleep(_FAREWELL_SECONDS)
        self.close()

    def close(self) -> None:
        """Whatever was said is still sent, if that does not take long."""
        if self._socket.closed:
            return
        self._flush()
        self.loop.remove_reader(self._descriptor)
        self._socket.close(linger=_LINGER_MS)
        self._context.term()

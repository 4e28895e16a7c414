"""A ROUTER socket of our own: each peer is a TCP connection that speaks ZMTP, and all of them talk
to one session. Nothing is gathered for a peer that the limits do not allow.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from manyhands.config import Address
from manyhands.model.events import Signal
from manyhands.server.tcp import OUTPUT_BYTES_MAX, Connection, TcpListener
from manyhands.store.batch import Batch
from manyhands.wire.zmtp import (
    GREETING,
    HEAD_BYTES,
    HEADS,
    PING,
    Decoder,
    Handshake,
    RefusedError,
    encode,
)

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.zeromq")

# Room in a message for what is not its payload.
_ENVELOPE_BYTES: Final = 1024 * 1024
# What may wait for one peer, before what is said to it counts as undelivered: so much that one
# message more does not end the connection.
_UNREAD_BYTES_MAX: Final = OUTPUT_BYTES_MAX // 2
# Time is counted in looks at everybody: nobody reads a clock for each message.
_LOOK_SECONDS: Final = 5.0
_LOOKS_BETWEEN_PINGS: Final = 2
_LOOKS_OF_SILENCE_MAX: Final = 7  # the first of them may come at once: 30 seconds at least
_LOOKS_OF_HANDSHAKE_MAX: Final = 3
# How long a peer that is cut off may take to read what it was told before.
_LINGER_SECONDS: Final = 10.0
# How long peers hear that the server is about to stop, before it does.
_FAREWELL_SECONDS: Final = 0.2


ReceiveShort = Callable[[tuple[bytes, ...], bytes], None]


class Session(Protocol):
    """What a socket needs of a protocol's session."""

    def receive(self, frames: list[bytes]) -> None:
        """A message: the peer's identity and all its frames."""

    @property
    def receive_short(self) -> ReceiveShort | None:
        """Takes a message of an empty delimiter and a short body, with the route back: where nearly
        all are like that.
        """

    def overflowed(self, peer: bytes) -> None:
        """A message of more frames than any can have; what else it has is thrown away."""

    def is_overwhelmed(self) -> bool:
        """Too many replies are outstanding to read further requests."""

    def drain(self) -> None:
        """The server is about to stop: answer what is held back."""


class RouterSocket:
    """One bound ROUTER socket, whose peers all speak to one session."""

    def __init__(self, server: "Server", address: Address, name: str) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.name = name
        self.message_bytes_max = server.config.payload_bytes_max + _ENVELOPE_BYTES
        self.everybody: dict[Peer, None] = {}
        self._address = address
        self._listener = TcpListener(server, address, name, self._make_peer)
        self.session: Session
        self._peers: dict[bytes, Peer] = {}
        # Who is not read, until some of what was asked is answered.
        self.waiting: dict[Peer, None] = {}
        self._going_on_soon = False
        self._refused_count = 0
        self._looking: asyncio.TimerHandle | None = None

    async def start(self, session: Session) -> Address:
        """Bind and listen; gives the address that was bound."""
        self.session = session
        try:
            bound = await self._listener.start()
        except OSError as error:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror
            raise OSError(f"{self.name} cannot listen on {self._address}: {reason}") from None
        self.server.dispatcher.on_batch.append(self._on_batch)
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)
        return Address(self._address.host, int(bound.rpartition(":")[2]))

    @property
    def connections_count(self) -> int:
        """Peers, also those that have not said yet who they are."""
        return len(self.everybody)

    # Peers come and go.

    def _make_peer(self, connection: Connection) -> "Peer":
        peer = Peer(self, connection)
        self.everybody[peer] = None
        return peer

    def admit(self, peer: "Peer", wish: bytes) -> bytes:
        """It may talk; gives its identity. One that comes back takes the place of its former
        self. What begins with a zero is ours to give, so that nobody can take that away.
        """
        identity = wish
        if not wish or wish[0] == 0:
            identity = b""
            while not identity or identity in self._peers:
                identity = b"\0" + bytes.fromhex(self.server.ids.token()[:8])
        former = self._peers.get(identity)
        if former is not None:
            former.leave()
        self._peers[identity] = peer
        return identity

    def forget(self, peer: "Peer") -> None:
        """Nothing can be said to it any more."""
        self.everybody.pop(peer, None)
        self.waiting.pop(peer, None)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]

    def report_refused(self, peer: "Peer", sentence: str) -> None:
        """The first one, the second, the fourth, …: peers that try again must not fill the log."""
        self._refused_count += 1
        if self._refused_count & (self._refused_count - 1) == 0:
            _log.warning(
                "a peer was refused",
                listener=self.name,
                peer=peer.connection.address,
                reason=sentence,
                count=self._refused_count,
            )

    def _look(self) -> None:
        """Every few seconds: who is silent is asked for a sign of life, and then let go."""
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)
        for peer in list(self.everybody):
            peer.look()

    # Back-pressure.

    def _on_batch(self, _batch: Batch, _elapsed_ms: float) -> None:
        if self.waiting:
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on_soon:
            self._going_on_soon = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on_soon = False
        if self.session.is_overwhelmed():
            return
        waiting, self.waiting = self.waiting, {}
        for peer in waiting:
            peer.go_on()

    # Writing.

    def send(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> None:
        """Send with everything else that is said to that peer in this turn."""
        peer = self._peers.get(route[0])
        if peer is None or not peer.send(route, body, undelivered):
            # Gone, or it does not read what it was sent.
            _log.debug("a reply could not be delivered", listener=self.name)
            if undelivered is not None:
                self.loop.call_soon(undelivered)
        if self.waiting:
            self._go_on_soon()

    def send_alone(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> None:
        """Send at once: nothing else is owed to that peer, and it can go on while others are still
        being answered.
        """
        peer = self._peers.get(route[0])
        if peer is None or not peer.write(route, body):
            self.send(route, body, undelivered)
        elif self.waiting:
            self._go_on_soon()

    # The end.

    async def drain(self) -> None:
        """Peers hear for a moment that the server is about to stop; then the socket is closed."""
        self.session.drain()
        if self.server.failure is None:
            idle = asyncio.Event()
            self.server.dispatcher.when_idle(idle.set)
            await idle.wait()
            await asyncio.sleep(_FAREWELL_SECONDS)
        if self._looking is not None:
            self._looking.cancel()
        await self._listener.drain()


def _take_nothing(_route: tuple[bytes, ...], _body: bytes) -> None:
    """Hands are not shaken yet."""


class Peer:
    """One connection, as the session of its TCP connection. Once hands are shaken it hears asyncio
    before that one does: what nearly everybody sends takes a short way.
    """

    __slots__ = (
        "_at_rest",
        "_decoder",
        "_handshake",
        "_handshake_looks",
        "_has_pings",
        "_kept",
        "_receive_short",
        "_route",
        "_router",
        "_session",
        "_silent_looks",
        "_transport",
        "_unsent",
        "_unsent_bytes",
        "connection",
        "identity",
    )

    def __init__(self, router: RouterSocket, connection: Connection) -> None:
        self.connection = connection
        self.identity = b""
        self._route: tuple[bytes, ...] = ()  # back to it, if nobody stands between
        self._router = router
        self._session = router.session
        self._receive_short: ReceiveShort = _take_nothing
        self._transport: asyncio.Transport | None = None  # once we may write at once
        self._at_rest = False  # the next bytes begin a message, and nothing waits before it
        self._handshake: Handshake | None = Handshake()
        self._decoder: Decoder | None = None
        self._kept: list[list[bytes]] = []  # messages that came when too much was asked already
        self._has_pings = False
        self._silent_looks = 0
        self._handshake_looks = 0
        # Since the last write: how much, and whom to tell if it never leaves.
        self._unsent_bytes = 0
        self._unsent: list[Callable[[], None]] = []
        connection.send(GREETING)

    # asyncio's side.

    def data_received(self, data: bytes) -> None:
        """Nearly always this is one message: an empty delimiter and a short body."""
        session = self._session
        size = len(data) - HEAD_BYTES
        if (
            self._at_rest
            and size < 256
            and data.startswith(HEADS[size])
            and not session.is_overwhelmed()
        ):
            self._silent_looks = 0
            try:
                self._receive_short(self._route, data[HEAD_BYTES:])
            except Exception:  # noqa: BLE001 - as in `_deliver`
                _log.exception("internal error", listener=self._router.name)
            if session.is_overwhelmed():
                self._router.waiting[self] = None
                self.connection.pause_reading()
            return
        connection = self.connection
        connection.data_received(data)
        decoder = self._decoder
        self._at_rest = (
            decoder is not None
            and decoder.is_at_rest()
            and connection.is_at_rest()
            and not self._kept
        )

    def eof_received(self) -> bool:
        """No more will come."""
        return self.connection.eof_received()

    def pause_writing(self) -> None:
        """The peer does not read."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """This is the end."""
        self.connection.connection_lost(exc)

    # The connection's side.

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        self._silent_looks = 0
        decoder = self._decoder
        if decoder is None:
            rest = self._shake_hands(data)
            decoder = self._decoder
            if not rest or decoder is None:
                return
            data = rest
        messages = decoder.feed(data)
        if messages:
            if self._kept:
                self._kept += messages
            else:
                self._deliver(messages)
        if decoder.replies:
            for reply in decoder.replies:
                self.connection.send(reply)
            decoder.replies.clear()
        if decoder.fault is not None and not self._kept:
            self._cut_off(decoder.fault)

    def _shake_hands(self, data: bytes) -> bytes | None:
        handshake, router = self._handshake, self._router
        if handshake is None:
            return None  # it was refused
        try:
            rest = handshake.feed(data)
        except RefusedError as error:
            for reply in (*handshake.replies, error.answer):
                self.connection.send(reply)
            self._refuse(str(error))
            return None
        for reply in handshake.replies:
            self.connection.send(reply)
        handshake.replies.clear()
        if rest is None:
            return None
        self.identity = router.admit(self, handshake.identity)
        self._route = (self.identity, b"")
        self._has_pings = handshake.has_pings
        self._decoder = Decoder(
            self.identity, router.message_bytes_max, has_commands=handshake.has_commands
        )
        if self._session.receive_short is not None:
            self._receive_short = self._session.receive_short
            self._transport = self.connection.hear_first(self)
        return rest

    def _deliver(self, messages: list[list[bytes]]) -> None:
        session = self._session
        for number, message in enumerate(messages):
            if session.is_overwhelmed():
                self._kept = messages[number:]
                return
            try:
                if len(message) > 1:
                    session.receive(message)
                else:
                    session.overflowed(message[0])
            except Exception:  # noqa: BLE001 - a defect of ours: that peer waits, others go on
                _log.exception("internal error", listener=self._router.name)

    def go_on(self) -> None:
        """There is room for more requests."""
        kept, self._kept = self._kept, []
        self._deliver(kept)
        decoder = self._decoder
        if decoder is not None and decoder.fault is not None and not self._kept:
            self._cut_off(decoder.fault)
        self.connection.resume_reading()

    def is_overwhelmed(self) -> bool:
        """Nothing more is read, from anybody, while too much is asked."""
        if self._kept or self._session.is_overwhelmed():
            self._router.waiting[self] = None
            return True
        return False

    def ended(self) -> None:
        """The peer hung up. Nobody speaks half of ZMTP."""
        self._router.forget(self)
        self.connection.close()

    def lost(self, *, blameless: bool = False) -> None:  # noqa: ARG002 - of no account here
        """The connection is gone."""
        self._router.forget(self)
        if self.connection.output:
            for undelivered in self._unsent:
                self._router.loop.call_soon(undelivered)

    def hear(self, signal: Signal) -> None:
        """News of a job: sessions of sockets hear what is committed instead."""

    # The socket's side.

    def write(self, route: tuple[bytes, ...], body: bytes) -> bool:
        """Write a short message at once; False: it has to take the long way."""
        transport, connection = self._transport, self.connection
        size = len(body)
        if (
            transport is None
            or size > 255
            or connection.output
            or connection.writing_paused
            or route != self._route
        ):
            return False
        transport.write(HEADS[size] + body)
        return not transport.is_closing()

    def send(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> bool:
        """False: it has not taken what was said before."""
        connection = self.connection
        if not connection.output:
            self._unsent_bytes = 0
            if self._unsent:
                self._unsent.clear()
        if self._unsent_bytes > _UNREAD_BYTES_MAX or (
            connection.writing_paused
            and connection.unread_bytes() + self._unsent_bytes > _UNREAD_BYTES_MAX
        ):
            return False
        data = encode(route, body)
        self._unsent_bytes += len(data)
        if undelivered is not None:
            self._unsent.append(undelivered)
        connection.send(data)
        return True

    def look(self) -> None:
        """A few seconds have passed."""
        decoder = self._decoder
        if decoder is None:
            self._handshake_looks += 1
            if self._handshake_looks >= _LOOKS_OF_HANDSHAKE_MAX:
                self._refuse("the handshake took too long")
            return
        if self in self._router.waiting:
            return  # it is not its fault that nothing is heard
        self._silent_looks += 1
        if self._silent_looks >= _LOOKS_OF_SILENCE_MAX and (
            self._has_pings or decoder.pongs_count or self.connection.writing_paused
        ):
            _log.info("a peer is silent; closed", listener=self._router.name)
            self.leave()
        elif (
            self._silent_looks % _LOOKS_BETWEEN_PINGS == 0
            and decoder.has_commands
            and not self.connection.writing_paused
        ):
            self.connection.send(PING)

    def leave(self) -> None:
        """It is let go, without a word."""
        self._router.forget(self)
        self._handshake = self._decoder = None
        self._at_rest = False
        self.connection.abort()

    def _refuse(self, sentence: str) -> None:
        """It was told why, and may read that."""
        self._let_go(sentence)
        self.connection.close()

    def _cut_off(self, sentence: str) -> None:
        """Nothing more is read from it; what it was told before may still leave."""
        self._let_go(sentence)
        self.connection.hang_up()
        self._router.loop.call_later(_LINGER_SECONDS, self.connection.abort)

    def _let_go(self, sentence: str) -> None:
        self._router.report_refused(self, sentence)
        self._router.forget(self)
        self._handshake = self._decoder = None
        self._at_rest = False

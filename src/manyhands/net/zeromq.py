"""A ROUTER socket: each peer is a TCP connection that speaks ZMTP, and all of them share one
session. What waits for a peer is bounded.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from manyhands.access.accounts import is_this_machine
from manyhands.access.credentials import Credentials
from manyhands.access.curve_keys import CurveKeyFile
from manyhands.access.gate import Askers, Guard
from manyhands.access.logins import Failure
from manyhands.config import Address
from manyhands.loggers import get_logger
from manyhands.model.events import Signal
from manyhands.model.identity import own_routing_id
from manyhands.model.limits import TURN_BYTES_OWED_MAX, TURN_REQUESTS_MAX
from manyhands.model.roles import Caller
from manyhands.net.backplane import Backplane
from manyhands.net.curve import CurveBox, CurveDecoder, CurveHandshake
from manyhands.net.plain import PlainHandshake
from manyhands.net.tcp import OUTPUT_BYTES_MAX, Connection, TcpListener
from manyhands.net.zmtp import (
    GREETING,
    HEAD_BYTES,
    HEADS,
    NULL_ONLY,
    PING,
    Decoder,
    Handshake,
    Mechanism,
    Mechanisms,
    RefusedError,
    encode,
)
from manyhands.store.batch import Batch

_log = get_logger("manyhands.zeromq")

# Room in a message for everything but the payload.
_ENVELOPE_BYTES: Final = 1024 * 1024
# How much may wait for one peer before further messages count as undelivered: little enough that
# one more message does not end the connection.
_UNREAD_BYTES_MAX: Final = OUTPUT_BYTES_MAX // 2
# Time is counted in sweeps over all peers, so that no clock is read per message.
_LOOK_SECONDS: Final = 5.0
_LOOKS_BETWEEN_PINGS: Final = 2
_LOOKS_OF_SILENCE_MAX: Final = 7  # the first may come at once, so at least 30 seconds
_LOOKS_OF_HALF_MAX: Final = 13  # at least a minute within a message
_LOOKS_OF_HANDSHAKE_MAX: Final = 3
# How long a peer that is cut off may take to read earlier messages.
_LINGER_SECONDS: Final = 10.0
# How long peers get the answer that the server is stopping, before it does.
_FAREWELL_SECONDS: Final = 0.2


ReceiveShort = Callable[[tuple[bytes, ...], bytes], None]


class Session(Protocol):
    """What a socket needs from a protocol's session."""

    def receive(self, frames: list[bytes]) -> None:
        """Takes a message: the peer's identity and all its frames."""

    @property
    def receive_short(self) -> ReceiveShort | None:
        """A handler of messages with an empty delimiter and a short body, called with the route
        back; None if the protocol has few of these.
        """

    def overflowed(self, peer: bytes) -> None:
        """Called for a message with too many frames; the rest of it is dropped."""

    def is_overwhelmed(self) -> bool:
        """Whether too many replies are outstanding to read further requests."""

    def drain(self) -> None:
        """The server is stopping: answers what is held back."""


class Introduced:
    """A session whose commands are those of the peer that sent the message at hand."""

    def __init__(self, session: Session, askers: Askers, router: "RouterSocket") -> None:
        self._session = session
        self._askers = askers
        self._router = router
        self.overflowed = session.overflowed
        self.is_overwhelmed = session.is_overwhelmed
        self.drain = session.drain
        self.receive_short = session.receive_short

    def receive(self, frames: list[bytes]) -> None:
        """Takes a message."""
        askers = self._askers
        askers.enter(self._router.guard_of(frames[0]))
        try:
            self._session.receive(frames)
        finally:
            askers.enter(None)

    def short_of(self, guard: Guard | None) -> ReceiveShort | None:
        """What takes short messages of a peer with this guard."""
        short = self.receive_short
        return None if short is None else self._askers.introduce(guard, short)


class Places(NamedTuple):
    """Where a socket listens: without encryption, and with CURVE, for which it has keys."""

    plain: Address | None
    curve: Address | None = None
    key: CurveKeyFile | None = None
    is_plain_anywhere: bool = False  # passwords are accepted from other machines, unencrypted


def _bound(wanted: Address | None, listener: TcpListener | None) -> Address | None:
    if wanted is None or listener is None:
        return None
    return Address(wanted.host, listener.bound().port)


_NULL_OR_PLAIN: Final[Mechanisms] = {b"NULL": None, b"PLAIN": PlainHandshake}
# libzmq reports an error of this text as a failed authentication, and any other as a fault.
NOT_ACCEPTED: Final = "400"
_NOT_ACCEPTED: Final = "the peer is not accepted"


class RouterSocket:
    """One bound ROUTER socket, whose peers share one session."""

    def __init__(
        self,
        backplane: Backplane,
        name: str,
        payload_bytes_max: int,
        places: Places,
    ) -> None:
        self.backplane = backplane
        self.loop = asyncio.get_running_loop()
        self.name = name
        self.message_bytes_max = payload_bytes_max + _ENVELOPE_BYTES
        self.everybody: dict[Peer, None] = {}
        self._places = places
        self._plain = self._curve = None
        if places.plain is not None:
            self._plain = TcpListener(backplane, places.plain, name, self._make_peer)
        if places.curve is not None:
            protocol, _, rest = name.partition(" ")
            name = f"{protocol}-curve {rest}".rstrip()
            self._curve = TcpListener(backplane, places.curve, name, self._make_curve_peer)
        self._callers = backplane.callers
        self.session: Session
        self._peers: dict[bytes, Peer] = {}
        # Peers that are not read until some of the outstanding requests are answered.
        self.waiting: dict[Peer, None] = {}
        self._going_on_soon = False
        self._refused_count = 0
        self._looking: asyncio.TimerHandle | None = None

    async def start(self, session: Session, askers: Askers | None = None) -> Places:
        """Binds and listens; returns the bound addresses. With ``askers``, commands are those of
        the peer that sent the message.
        """
        self.session = session if askers is None else Introduced(session, askers, self)
        for listener in filter(None, (self._plain, self._curve)):
            await listener.start()
        self._callers.subscribe(self._look_at_callers)
        self.backplane.dispatcher.on_batch.append(self._on_batch)
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)
        places = self._places
        return Places(
            _bound(places.plain, self._plain), _bound(places.curve, self._curve), places.key
        )

    @property
    def connections_count(self) -> int:
        """The number of peers, including those without an identity so far."""
        return len(self.everybody)

    # Peers.

    def _make_peer(self, connection: Connection) -> "Peer":
        mechanisms = NULL_ONLY
        if self._places.is_plain_anywhere or is_this_machine(connection.address):
            mechanisms = _NULL_OR_PLAIN
        return self._keep(Peer(self, connection, mechanisms))

    def _make_curve_peer(self, connection: Connection) -> "Peer":
        key = self._places.key
        assert key is not None
        return self._keep(Peer(self, connection, {b"CURVE": lambda: CurveHandshake(key.keys)}))

    def _keep(self, peer: "Peer") -> "Peer":
        self.everybody[peer] = None
        return peer

    def shown_by(self, peer: "Peer", mechanism: Mechanism | None) -> Credentials:
        """What a peer shows in its handshake."""
        address = peer.connection.address
        if isinstance(mechanism, CurveHandshake):
            # Without an access file no key is known, and CURVE only encrypts.
            known = self._callers.asks_everyone
            return Credentials(address=address, curve=mechanism.peer_key if known else None)
        if isinstance(mechanism, PlainHandshake):
            return Credentials(address=address, user=mechanism.user, password=mechanism.password)
        return Credentials(address=address)

    def caller_of(self, identity: bytes) -> Caller | None:
        """Who a peer is, while it is connected."""
        peer = self._peers.get(identity)
        return None if peer is None else peer.caller

    def _look_at_callers(self) -> None:
        """The callers have changed: disconnects those that are not accepted any more."""
        for peer in list(self.everybody):
            if peer.caller is not None and not self._callers.knows(peer.caller):
                peer.leave()

    def admit(self, peer: "Peer", wish: bytes) -> bytes:
        """Admits a peer and returns its identity. A peer that reconnects replaces its former
        connection. Identities that begin with a zero are assigned here, so that no peer can take
        another's; and those of a caller are its own, since held answers wait for an identity, not
        for a connection.
        """
        identity = own_routing_id("" if peer.caller is None else peer.caller.name, wish)
        if not wish or wish[0] == 0:
            identity = b""
            while not identity or identity in self._peers:
                identity = b"\0" + bytes.fromhex(self.backplane.ids.token()[:8])
        former = self._peers.get(identity)
        if former is not None:
            former.leave()
        self._peers[identity] = peer
        return identity

    def short_of(self, peer: "Peer") -> ReceiveShort | None:
        """What takes the short messages of a peer, whose guard stays what it is."""
        session = self.session
        if isinstance(session, Introduced):
            return session.short_of(peer.connection.guard)
        return session.receive_short

    def forget(self, peer: "Peer") -> None:
        """Removes a peer; nothing can be sent to it any more."""
        self.everybody.pop(peer, None)
        self.waiting.pop(peer, None)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]

    def address_of(self, identity: bytes) -> str:
        """The address of a peer, while it is connected."""
        peer = self._peers.get(identity)
        return "" if peer is None else peer.connection.address

    def guard_of(self, identity: bytes) -> Guard | None:
        """What the commands of a peer have to pass."""
        peer = self._peers.get(identity)
        return None if peer is None else peer.connection.guard

    def report_refused(self, peer: "Peer", sentence: str) -> None:
        """Logs the first refusal, the second, the fourth, …: peers that try again must not fill the
        log.
        """
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
        """Every few seconds: sends pings to silent peers, and disconnects those that stay
        silent.
        """
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
        """Sends together with everything else for that peer in this turn."""
        peer = self._peers.get(route[0])
        if peer is None or not peer.send(route, body, undelivered):
            # The peer is gone, or does not read.
            _log.debug("a reply could not be delivered", listener=self.name)
            if undelivered is not None:
                self.loop.call_soon(undelivered)
        if self.waiting:
            self._go_on_soon()

    def send_alone(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> None:
        """Sends at once: nothing else is outstanding for that peer, and it can continue while
        others are still being answered.
        """
        peer = self._peers.get(route[0])
        if peer is None or not peer.write(route, body):
            self.send(route, body, undelivered)
        elif self.waiting:
            self._go_on_soon()

    # The end.

    async def drain(self) -> None:
        """Lets peers learn for a moment that the server is stopping, then closes the socket."""
        self.session.drain()
        if self.backplane.condition.failure is None:
            idle = asyncio.Event()
            self.backplane.dispatcher.when_idle(idle.set)
            await idle.wait()
            await asyncio.sleep(_FAREWELL_SECONDS)
        if self._looking is not None:
            self._looking.cancel()
        for listener in filter(None, (self._plain, self._curve)):
            await listener.drain()


def _take_nothing(_route: tuple[bytes, ...], _body: bytes) -> None:
    """Does nothing: the handshake is not complete."""


class Peer:
    """One connection, as the session of its TCP connection. After the handshake asyncio calls it
    before the TCP connection, so that the usual message takes a short way.
    """

    __slots__ = (
        "_at_rest",
        "_box",
        "_debtor",
        "_decoder",
        "_encode",
        "_handshake",
        "_handshake_looks",
        "_kept",
        "_receive_short",
        "_receiving",
        "_route",
        "_router",
        "_session",
        "_silent_looks",
        "_transport",
        "_undone",
        "_unsent",
        "_unsent_bytes",
        "caller",
        "connection",
        "identity",
    )

    def __init__(
        self, router: RouterSocket, connection: Connection, mechanisms: Mechanisms
    ) -> None:
        self.connection = connection
        self.caller: Caller | None = None  # known once it has shown who it is
        self._box: CurveBox | None = None
        self._encode = encode
        self.identity = b""
        self._route: tuple[bytes, ...] = ()  # back to it, if there is no proxy in between
        self._router = router
        self._session = router.session
        self._debtor = connection.debtor
        self._receive_short: ReceiveShort = _take_nothing
        self._transport: asyncio.Transport | None = None  # set once it may be written to directly
        self._at_rest = False  # the next bytes begin a message, and nothing waits before it
        self._receiving = False  # the handshake is taking bytes
        self._handshake: Handshake | None = Handshake(mechanisms, self._identify)
        self._decoder: Decoder | None = None
        self._kept: list[list[bytes]] = []  # arrived while the session was overwhelmed
        self._undone: list[list[bytes]] = []  # messages that wait for the next turn
        self._silent_looks = 0
        self._handshake_looks = 0
        # Since the last write: the bytes, and the callbacks to call if they are never sent.
        self._unsent_bytes = 0
        self._unsent: list[Callable[[], None]] = []
        connection.send(GREETING)

    # Called by asyncio.

    def data_received(self, data: bytes) -> None:
        """Takes bytes, nearly always one message: an empty delimiter and a short body."""
        session = self._session
        size = len(data) - HEAD_BYTES
        if (
            self._at_rest
            and size < 256
            and data.startswith(HEADS[size])
            and not session.is_overwhelmed()
        ):
            self._silent_looks = 0
            owed_before = self._debtor.owed_bytes
            try:
                self._receive_short(self._route, data[HEAD_BYTES:])
            except Exception:  # noqa: BLE001 - as in `_deliver`
                _log.exception("internal error", listener=self._router.name)
            if self._debtor.owed_bytes - owed_before > TURN_BYTES_OWED_MAX:
                self.connection.await_answers()
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
        """Passes it on."""
        return self.connection.eof_received()

    def pause_writing(self) -> None:
        """Passes it on."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Passes it on."""
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes it on."""
        self.connection.connection_lost(exc)

    # Called by the connection.

    def receive(self, data: bytes) -> None:
        """Takes bytes that arrived."""
        self._silent_looks = 0
        decoder = self._decoder
        if decoder is None:
            rest = self._shake_hands(data)
            decoder = self._decoder
            if not rest or decoder is None:
                return
            data = rest
        messages = decoder.feed(data)
        if self._undone:
            messages = self._undone + messages
            self._undone = []
        if messages:
            if self._kept:
                self._kept += messages
            else:
                self._deliver(messages)
        if decoder.replies:
            for reply in decoder.replies:
                self._send_command(reply)
            decoder.replies.clear()
        if decoder.fault is not None and not (self._kept or self._undone):
            self._cut_off(decoder.fault)

    def _shake_hands(self, data: bytes) -> bytes | None:
        handshake, router = self._handshake, self._router
        if handshake is None:
            return None  # it was refused
        try:
            self._receiving = True
            rest = handshake.feed(data)
        except RefusedError as error:
            for reply in (*handshake.replies, error.answer):
                self.connection.send(reply)
            self._refuse(str(error))
            return None
        finally:
            self._receiving = False
        self._send_replies(handshake)
        if rest is None:
            return None
        self.identity = router.admit(self, handshake.identity)
        self._route = (self.identity, b"")
        bytes_max = router.message_bytes_max
        box = getattr(handshake.mechanism, "box", None)
        if box is not None:
            self._box = box
            self._encode = box.encode
            self._decoder = CurveDecoder(box, self.identity, bytes_max)
            return rest
        self._decoder = Decoder(self.identity, bytes_max, has_commands=handshake.has_commands)
        short = router.short_of(self)
        if short is not None:
            self._receive_short = short
            self._transport = self.connection.receive_first(self)
        return rest

    def _identify(self, mechanism: Mechanism | None) -> bool:
        """Whether the peer has to wait. Raises `RefusedError` if it is not accepted."""
        router, connection = self._router, self.connection
        logins = router.backplane.logins
        shown = router.shown_by(self, mechanism)
        if mechanism is None:
            caller = logins.callers.identify(shown)
            if caller is None:
                logins.failed(shown, connection.listener.name)
                raise RefusedError(_NOT_ACCEPTED, reply=True, code=NOT_ACCEPTED)
            self._take_caller(caller)
        else:
            connection.await_login(partial(logins.identify, shown), self._settle_login)
        return self.caller is None

    def _send_replies(self, handshake: Handshake) -> None:
        for reply in handshake.replies:
            self.connection.send(reply)
        handshake.replies.clear()

    def _take_caller(self, caller: Caller) -> None:
        self.caller = caller
        self.connection.take_caller(caller)

    def _settle_login(self, found: Caller | Failure) -> None:
        handshake = self._handshake
        if handshake is None:
            return  # it took too long
        if type(found) is Caller:
            self._take_caller(found)
            if not self._receiving:  # else the handshake goes on by itself
                handshake.admitted()
                self.receive(b"")
        elif found is Failure.WRONG:
            self._send_replies(handshake)
            refused = RefusedError(_NOT_ACCEPTED, reply=True, code=NOT_ACCEPTED)
            self.connection.send(refused.answer)
            self._refuse(_NOT_ACCEPTED)
        else:  # without an answer, it tries again
            self._refuse("too many passwords wait to be checked")

    def _send_command(self, frame: bytes) -> None:
        self.connection.send(frame if self._box is None else self._box.encode_command(frame))

    def _deliver(self, messages: list[list[bytes]]) -> None:
        session, debtor = self._session, self._debtor
        owed_max = debtor.owed_bytes + TURN_BYTES_OWED_MAX
        for number, message in enumerate(messages):
            if session.is_overwhelmed():
                self._kept = messages[number:]
                return
            if number == TURN_REQUESTS_MAX or debtor.owed_bytes > owed_max:
                self._undone = messages[number:]
                self.connection.come_back()
                return
            try:
                if len(message) > 1:
                    session.receive(message)
                else:
                    session.overflowed(message[0])
            except Exception:  # noqa: BLE001 - a bug must not affect other peers
                _log.exception("internal error", listener=self._router.name)

    def go_on(self) -> None:
        """There is room for more requests."""
        kept, self._kept = self._kept, []
        self._deliver(kept)
        decoder = self._decoder
        if decoder is not None and decoder.fault is not None and not (self._kept or self._undone):
            self._cut_off(decoder.fault)
        self.connection.resume_reading()

    def is_overwhelmed(self) -> bool:
        """Whether to stop reading: no peer is read while too many requests are outstanding."""
        if self._kept or self._session.is_overwhelmed():
            self._router.waiting[self] = None
            return True
        return False

    def held_bytes(self) -> int:
        """Bytes of an incomplete message, and of messages that wait."""
        decoder = self._decoder
        count = 0 if decoder is None else decoder.held_bytes()
        for messages in (self._kept, self._undone):
            for message in messages:
                count += sum(map(len, message))
        return count

    def ended(self) -> None:
        """The peer hung up. ZMTP knows no half-closed connection."""
        self._router.forget(self)
        self.connection.close()

    def lost(self, *, blameless: bool = False) -> None:  # noqa: ARG002 - not needed here
        """The connection is gone."""
        self._router.forget(self)
        if self.connection.output:
            for undelivered in self._unsent:
                self._router.loop.call_soon(undelivered)

    def notify(self, signal: Signal) -> None:
        """Does nothing: sessions of sockets listen to commits instead."""

    # Called by the socket.

    def write(self, route: tuple[bytes, ...], body: bytes) -> bool:
        """Writes a short message at once. Returns False if it has to take the usual way."""
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
        """Sends a message. Returns False if the peer has too much unread."""
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
        data = self._encode(route, body)
        self._unsent_bytes += len(data)
        if undelivered is not None:
            self._unsent.append(undelivered)
        connection.send(data)
        return True

    def look(self) -> None:
        """Called every few seconds."""
        decoder = self._decoder
        if decoder is None:
            self._handshake_looks += 1
            if self._handshake_looks >= _LOOKS_OF_HANDSHAKE_MAX:
                self._refuse("the handshake took too long")
            return
        if self in self._router.waiting or self.connection.waits_for_room:
            return  # the silence is not its fault
        self._silent_looks += 1
        # Old libraries pass an unexpected PING to the application as a message, or hang on it, so
        # only peers that use heartbeats themselves get one. TCP's own keepalive covers the others.
        has_heartbeats = decoder.pings_count > 0
        writing_paused = self.connection.writing_paused
        if self._silent_looks >= _LOOKS_OF_HALF_MAX and not decoder.is_at_rest():
            self._router.forget(self)
            self.connection.give_up("it does not send the rest of a message")
        elif self._silent_looks >= _LOOKS_OF_SILENCE_MAX and (has_heartbeats or writing_paused):
            _log.info("a peer is silent; closed", listener=self._router.name)
            self.leave()
        elif (
            has_heartbeats and self._silent_looks % _LOOKS_BETWEEN_PINGS == 0 and not writing_paused
        ):
            self._send_command(PING)

    def leave(self) -> None:
        """Disconnects without a message."""
        self._router.forget(self)
        self._handshake = self._decoder = None
        self._at_rest = False
        self.connection.abort()

    def _refuse(self, sentence: str) -> None:
        """Closes the connection after an error that the peer may still read."""
        self._let_go(sentence)
        self.connection.close()

    def _cut_off(self, sentence: str) -> None:
        """Reads no more from the peer; earlier messages may still be delivered."""
        self._let_go(sentence)
        self.connection.hang_up()
        self._router.loop.call_later(_LINGER_SECONDS, self.connection.abort)

    def _let_go(self, sentence: str) -> None:
        self._router.report_refused(self, sentence)
        self._router.forget(self)
        self._handshake = self._decoder = None
        self._at_rest = False

"""The Gearman listener: both dialects and admin text on one port, detected by first bytes."""

import asyncio
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from manyhands import __version__
from manyhands.config import Address, Config
from manyhands.dispatch.session import Peer
from manyhands.loggers import get_logger
from manyhands.model.events import Signal
from manyhands.net.backplane import Backplane
from manyhands.net.tcp import Connection, Session, TcpListener
from manyhands.observe.incidents import is_debugging
from manyhands.observe.repeats import Repeats
from manyhands.observe.traffic import Flow
from manyhands.protocols.gearman.admin import Hall
from manyhands.protocols.gearman.dialect import Dialect, sniff
from manyhands.protocols.gearman.draft import DraftSession
from manyhands.protocols.gearman.shipped import GearmanSession

_log = get_logger("manyhands.gearman")
# A peer that stops in the middle of a packet for this many checks is disconnected. So is one that
# shows no credentials for as long, where they are asked for: it could keep others out.
_LOOK_SECONDS: Final = 5.0
_LOOKS_MAX: Final = 12
_SENTENCE: Final = b"This address speaks Gearman, not HTTP.\n"
_NOT_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)


class GearmanListener(TcpListener):
    """Accepts Gearman connections, which share one hall."""

    def __init__(self, backplane: Backplane, config: Config, address: Address | None) -> None:
        self.hall = Hall(
            config.server_name,
            __version__,
            os.getpid(),
            config.log_level,
            attempts_max=config.job_retries or 1,
            exceptions=config.exceptions,
        )
        self._bytes_max = config.payload_bytes_max
        self._error_packets = config.gearman_error_packets
        if is_debugging():
            self.hall.on_error = _log_error
        self._repeats = Repeats(_log)
        super().__init__(backplane, address, "gearman", self._make)
        self._looking: asyncio.TimerHandle | None = None
        # Peers with an incomplete packet: its state at the last check, and the number of checks
        # without progress.
        self._sitting: dict[Connection, tuple[object, int]] = {}
        self._strangers: dict[Connection, int] = {}  # and the number of checks so far

    def flow(self) -> Flow:
        """Connections and errors so far."""
        return Flow(len(self.connections), self.hall.faults_count)

    async def start(self) -> str | None:
        address = await super().start()
        self._look()
        return address

    async def drain(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await super().drain()

    def _look(self) -> None:
        """Disconnects peers that do not continue a packet they began, or that nobody knows; called
        every few seconds.
        """
        self._looking = self.loop.call_later(_LOOK_SECONDS, self._look)
        strangers = [connection for connection in self.connections if connection.caller is None]
        self._strangers = {each: self._strangers.get(each, 0) + 1 for each in strangers}
        for connection, looks in self._strangers.items():
            if looks > _LOOKS_MAX:
                connection.give_up("it has shown no credentials")
        sitting: dict[Connection, tuple[object, int]] = {}
        for connection in self.connections:
            session = connection.current_session()
            if (
                isinstance(session, _Undecided | GearmanSession | DraftSession)
                and session.is_amid_packet()
                and connection.is_read_from()
            ):
                mark = connection.received_mark()
                before, looks = self._sitting.get(connection, (None, 0))
                sitting[connection] = (mark, looks + 1 if before == mark else 0)
        self._sitting = sitting
        for connection, (_, looks) in sitting.items():
            if looks >= _LOOKS_MAX:
                connection.give_up("it does not send the rest of a packet")

    def _make(self, connection: Connection) -> Session:
        return _Undecided(connection, self)

    def turn_away(self, connection: Connection) -> None:
        """The peer speaks HTTP: nothing of what it sends is read as Gearman."""
        self.hall.faults_count += 1
        self._repeats.warn("a peer speaks HTTP on the address for Gearman", connection.address)
        connection.send(_NOT_HTTP)
        connection.close()

    def decide(self, connection: Connection, dialect: Dialect) -> Session:
        """The session of a connection whose dialect is known."""
        if dialect is Dialect.DRAFT:
            return DraftSession(
                connection,
                self.hall,
                packet_bytes_max=self._bytes_max,
                error_packets=self._error_packets,
            )
        return GearmanSession(connection, self.hall, payload_bytes_max=self._bytes_max)


def _log_error(peer: Peer, code: bytes, sentence: bytes) -> None:
    _log.debug(
        "a peer was given an error",
        peer=peer.address,
        connection=peer.number,
        code=code.decode("utf-8", "replace"),
        sentence=sentence.decode("utf-8", "replace"),
    )


class _Undecided:
    """A connection whose dialect is not known yet; its session replaces this one."""

    client_id: Final = b""
    abilities: Final[Mapping[str, int | None]] = MappingProxyType({})

    def __init__(self, connection: Connection, listener: GearmanListener) -> None:
        self.peer = connection
        self._listener = listener
        self._first = b""
        listener.hall.enter(self)

    def receive(self, data: bytes) -> None:
        """Decides as soon as the first bytes allow it."""
        self._first += data
        dialect = sniff(self._first)
        if dialect is None:
            return
        self._listener.hall.leave(self)
        if dialect is Dialect.HTTP:
            self._listener.turn_away(self.peer)
            return
        session = self._listener.decide(self.peer, dialect)
        self.peer.take_session(session)
        session.receive(self._first)

    def ended(self) -> None:
        """The peer closed its side before its dialect was known."""
        self.peer.close()

    def lost(self, *, blameless: bool = False) -> None:
        """The peer left before its dialect was known."""
        self._listener.hall.leave(self)

    def notify(self, signal: Signal) -> None:
        """There are no waiters here yet."""

    def is_overwhelmed(self) -> bool:
        """No answer is pending."""
        return False

    def held_bytes(self) -> int:
        """The first bytes."""
        return len(self._first)

    def is_amid_packet(self) -> bool:
        """Packets begin with a zero; typed text does not."""
        return self._first.startswith(b"\0")

"""The Gearman listener: both dialects and admin text on one port, told apart by first bytes."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from manyhands import __version__
from manyhands.config import Address
from manyhands.model.events import Signal
from manyhands.protocols.gearman.admin import Hall
from manyhands.protocols.gearman.draft import DraftSession
from manyhands.protocols.gearman.shipped import GearmanSession
from manyhands.server.tcp import Connection, Session, TcpListener
from manyhands.server.traffic import Flow
from manyhands.wire.gearman_sniff import Dialect, sniff

if TYPE_CHECKING:
    from manyhands.server.app import Server


class GearmanListener(TcpListener):
    """What all Gearman connections share is the hall."""

    def __init__(self, server: "Server", address: Address) -> None:
        config = server.config
        self.hall = Hall(config.server_name, __version__, os.getpid(), config.log_level)
        self._bytes_max = config.payload_bytes_max
        self._error_packets = config.gearman_error_packets
        super().__init__(server, address, "gearman", self._make)
        server.traffic.sources["gearman"] = self._flow

    def _flow(self) -> Flow:
        return Flow(len(self.connections), self.hall.faults_count)

    def _make(self, connection: Connection) -> Session:
        return _Undecided(connection, self)

    def decide(self, connection: Connection, dialect: Dialect) -> Session:
        """The session of a connection whose dialect is known."""
        if dialect is Dialect.DRAFT:
            return DraftSession(
                connection,
                self.hall,
                packet_bytes_max=self._bytes_max,
                error_packets=self._error_packets,
            )
        return GearmanSession(connection, self.hall, packet_bytes_max=self._bytes_max)


class _Undecided:
    """A connection that has not said enough to tell its dialect. Then it is that dialect's."""

    client_id: Final = b""
    abilities: Final[Mapping[str, int | None]] = MappingProxyType({})

    def __init__(self, connection: Connection, listener: GearmanListener) -> None:
        self.peer = connection
        self._listener = listener
        self._first = b""
        listener.hall.enter(self)

    def receive(self, data: bytes) -> None:
        """Decide as soon as the first bytes allow it."""
        self._first += data
        dialect = sniff(self._first)
        if dialect is None:
            return
        self._listener.hall.leave(self)
        session = self._listener.decide(self.peer, dialect)
        self.peer.take_session(session)
        session.receive(self._first)

    def ended(self) -> None:
        """It has not said what it wants, and never will."""
        self.peer.close()

    def lost(self, *, blameless: bool = False) -> None:  # noqa: ARG002 - nothing was ever asked
        """It left without a word."""
        self._listener.hall.leave(self)

    def hear(self, signal: Signal) -> None:
        """Nobody waits here yet."""

    def is_overwhelmed(self) -> bool:
        """Nothing is outstanding."""
        return False

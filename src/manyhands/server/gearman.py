"""The Gearman listener: both dialects and admin text on one port, told apart by first bytes."""

import os
from typing import TYPE_CHECKING

from manyhands import __version__
from manyhands.config import Address
from manyhands.model.events import Signal
from manyhands.protocols.gearman import GearmanSession
from manyhands.protocols.gearman_admin import Hall
from manyhands.protocols.gearman_draft import DraftSession
from manyhands.server.tcp import Connection, Session, TcpListener
from manyhands.wire.gearman_sniff import Dialect, sniff

if TYPE_CHECKING:
    from manyhands.server.app import Server


class GearmanListener(TcpListener):
    """What all Gearman connections share is the hall."""

    def __init__(self, server: "Server", address: Address) -> None:
        config = server.config
        self.hall = Hall(config.server_name, __version__, os.getpid(), config.log_level)
        self._bytes_max = config.payload_bytes_max
        super().__init__(server, address, "gearman", self._make)

    def _make(self, connection: Connection) -> Session:
        return _Undecided(connection, self.hall, self._bytes_max)


class _Undecided:
    """A connection that has not said enough to tell its dialect. Then it is that dialect's."""

    def __init__(self, connection: Connection, hall: Hall, bytes_max: int) -> None:
        self._connection = connection
        self._hall = hall
        self._bytes_max = bytes_max
        self._first = b""

    def receive(self, data: bytes) -> None:
        """Decide as soon as the first bytes allow it."""
        self._first += data
        dialect = sniff(self._first)
        if dialect is None:
            return
        session: Session
        if dialect is Dialect.DRAFT:
            session = DraftSession(self._connection, self._hall, packet_bytes_max=self._bytes_max)
        else:
            session = GearmanSession(self._connection, self._hall, packet_bytes_max=self._bytes_max)
        self._connection.take_session(session)
        session.receive(self._first)

    def lost(self) -> None:
        """Nothing was ever asked."""

    def hear(self, signal: Signal) -> None:
        """Nobody waits here yet."""

    def is_overwhelmed(self) -> bool:
        """Nothing is outstanding."""
        return False

"""Whether a peer reads what it is sent."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from manyhands.net.tcp import Connection

_STALL_SECONDS: Final = 60.0  # without the peer reading anything


class Uptake:
    """Checks one connection once a second."""

    __slots__ = ("_connection", "_took_at", "_unread_bytes")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._unread_bytes = 0  # at the last check
        self._took_at = 0.0  # when the peer was last seen to read

    def leaves_unread(self, now: float) -> bool:
        """Whether the peer has unread answers. Disconnects one that reads nothing for too long."""
        connection = self._connection
        unread, before = connection.unread_bytes(), self._unread_bytes
        self._unread_bytes = unread
        if not unread:
            return False
        is_fed = unread > before and not connection.writing_paused
        if not before or unread < before or is_fed:
            self._took_at = now
        elif now - self._took_at > _STALL_SECONDS:
            connection.give_up("it takes nothing of its answer")
        return True

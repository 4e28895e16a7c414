"""What a WMP session needs of the world. A listener provides it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from manyhands.protocols.session import Backing
from manyhands.wire.wmp import Path

Nothing = Callable[[], None]


class Hub(Backing, Protocol):
    """The peers behind one socket, and the engine behind the session."""

    def send(self, route: tuple[bytes, ...], last: bytes, undelivered: Nothing | None) -> None:
        """All frames of a message, the last one by itself, with everything else that is sent in
        this turn; ``undelivered`` is called if the peer cannot be reached.
        """

    def report_dropped(self, kind: str, peer: bytes, sentence: str) -> None:
        """A message that nobody can be answered for."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""

    def ready_count(self, queue: str) -> int:
        """How many jobs of a queue wait to be handed out."""

    def has_work(self, queue: str) -> bool:
        """Whether a claim on this queue would be given something."""

    def queues_with_work(self) -> Sequence[str]:
        """Queues in which jobs wait, for those who do any work."""

    def sleep(self, queues: tuple[str, ...], wake: Callable[[str], None]) -> Callable[[], None]:
        """Be woken once, with the name of a queue, when there is work in one of these queues;
        without any: in whatever queue. Gives how to be left alone.
        """

    def later(self, seconds: float, call: Nothing) -> Nothing:
        """Be called after a while; gives how to call that off."""


def way_back(path: Path) -> tuple[bytes, ...]:
    """The frames that lead to a peer, with an empty trail behind them."""
    return (*path, b"", b"")

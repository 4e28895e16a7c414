"""What the cluster needs of the database and of the network; a simulation brings its own. Calls
return at once, and call back in the event loop.
"""

from collections.abc import Callable
from typing import Final, Protocol

from manyhands.cluster.link import Hello, Message, Sent
from manyhands.cluster.membership import Beat, Tenure

REFUSED: Final = "refused"
ANOTHER: Final = "another server has its address"


class FencedError(Exception):
    """Another server has taken over from this one: it must end at once (exit code 4)."""


class Shared(Protocol):
    """The tables of the database that say who lives and who decides."""

    tenure: int  # of this server
    cluster: str  # a random id, made with the database

    def beat(self, load: str, done: Callable[[Beat | Exception], None]) -> None:
        """Says that this server lives, and reads who else does."""

    def take_over(self, dead: Tenure, done: Callable[[bool | Exception], None]) -> None:
        """Closes the journal of a dead server, applies it, and makes this server the owner if that
        one was. False: another server does it, or it was not dead.
        """

    def claim(self, done: Callable[[bool | Exception], None]) -> None:
        """Becomes the owner, if nobody is."""

    def load(self, done: Callable[[int | Exception], None]) -> None:
        """Fills the live jobs of the store from the tables; calls back with the milliseconds since
        the last sign of life of the owner before.
        """

    def hand_over(
        self, to: int | None, done: Callable[[bool | Exception], None], *, leaves: bool
    ) -> None:
        """Applies what this server decided, and makes another one the owner, or nobody. ``leaves``:
        it is about to stop.
        """


class Peer(Protocol):
    """An open link to another server."""

    @property
    def hello(self) -> Hello:
        """Who it is."""

    def send(self, message: Sent) -> None:
        """Sends a message, with whatever else is sent in this turn."""

    def close(self, sentence: str) -> None:
        """Says goodbye and closes."""


class Caller(Protocol):
    """Makes links to other servers."""

    def call(
        self,
        address: str,
        incarnation: str,
        on_open: Callable[[Peer], None],
        on_message: Callable[[Peer, Message], None],
        on_lost: Callable[[Peer | None, str], None],
    ) -> None:
        """Calls a server. ``on_lost`` gets None instead of the peer if there was no link; the
        reason is ``REFUSED`` if nobody listens at that address, and ``ANOTHER`` if another server
        of the cluster does.
        """

"""Long polls: requests that wait until there is news, the time is up, the peer hangs up, or the
server stops.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from manyhands.net.http import HttpSession


class Nap:
    """One wait. It may be ended before it begins."""

    __slots__ = ("_future", "queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[bool] = loop.create_future()
        self.queue: str | None = None  # the queue that has work

    def wake(self, queue: str) -> None:
        """Ends the nap because a queue has work."""
        self.queue = queue
        self.end()

    def end(self) -> None:
        """Ends the nap."""
        if not self._future.done():
            self._future.set_result(True)

    async def sleep(self, seconds: float) -> bool:
        """Waits; returns False if nothing happened in that time."""
        done, _ = await asyncio.wait({self._future}, timeout=seconds)
        return bool(done)


class Naps:
    """All current naps, so that a stopping server can end them."""

    def __init__(self) -> None:
        self._naps: dict[Nap, None] = {}
        self.over = False

    @contextlib.contextmanager
    def nap(self, connection: HttpSession) -> Iterator[Nap]:
        """A nap that ends when its peer hangs up."""
        nap = Nap(asyncio.get_running_loop())
        self._naps[nap] = None
        connection.on_lost = nap.end
        if connection.is_gone:
            nap.end()
        try:
            yield nap
        finally:
            connection.on_lost = None
            del self._naps[nap]

    def end_all(self) -> None:
        """Ends all naps; ``over`` makes their requests return."""
        self.over = True
        for nap in tuple(self._naps):
            nap.end()

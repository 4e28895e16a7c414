"""Requests that wait: until there is news, until their time is up, until the peer hangs up, or
until the server wants to stop.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from manyhands.server.http_connection import Connection


class Nap:
    """One wait. It may be ended before it begins."""

    __slots__ = ("_future", "queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[bool] = loop.create_future()
        self.queue: str | None = None  # the queue that called

    def wake(self, queue: str) -> None:
        """There is work."""
        self.queue = queue
        self.end()

    def end(self) -> None:
        """Whoever sleeps looks around again."""
        if not self._future.done():
            self._future.set_result(True)

    async def sleep(self, seconds: float) -> bool:
        """False: nothing happened in that time."""
        done, _ = await asyncio.wait({self._future}, timeout=seconds)
        return bool(done)


class Naps:
    """All that sleep now, so that a server that stops can wake them."""

    def __init__(self) -> None:
        self._naps: dict[Nap, None] = {}
        self.over = False

    @contextlib.contextmanager
    def nap(self, connection: Connection) -> Iterator[Nap]:
        """A wait that ends when its peer hangs up."""
        nap = Nap(asyncio.get_running_loop())
        self._naps[nap] = None
        connection.on_lost = nap.end
        try:
            yield nap
        finally:
            connection.on_lost = None
            del self._naps[nap]

    def end_all(self) -> None:
        """Nobody sleeps any more."""
        self.over = True
        for nap in tuple(self._naps):
            nap.end()

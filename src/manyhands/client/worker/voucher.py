"""Renewal of what living workers hold, apart from their own loops (P48)."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from manyhands.client.address import Place
from manyhands.client.errors import Refused
from manyhands.client.loops import new_loop
from manyhands.client.notes import Job
from manyhands.client.worker_stream import WorkerStream

_log: Final = logging.getLogger("manyhands.worker")
_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 0.2  # how often to look at the shortest term


def interval(shortest_term_ms: int) -> float:
    """How often to vouch: every 10 s, or every third of the shortest term if that is less."""
    if not shortest_term_ms:
        return _SECONDS_MAX
    return min(_SECONDS_MAX, shortest_term_ms / 3000)


class Overseer:
    """Listens on a stream that takes no work."""

    def take(self, jobs: list[Job]) -> None:
        """None is wanted."""

    def notified(self, job_id: str, lease_number: int, why: str) -> None:
        """It holds none."""

    def resumed(self) -> None:
        """A connection."""

    def lost(self, why: str) -> None:
        """The workers say so themselves."""

    def closing(self, seconds: float) -> None:
        """The workers say so themselves."""

    def refused(self, error: Refused) -> None:
        """The workers say so themselves."""


class VouchingThread:
    """Vouches for one worker of this process, from a thread and over a connection of its own, so
    that a coroutine that blocks the worker's loop costs no lease.
    """

    def __init__(
        self,
        places: Sequence[Place],
        token: str | None,
        name: str,
        shortest_term_ms: Callable[[], int],
    ) -> None:
        self._places = places
        self._token = token
        self._name = name
        self._shortest_term_ms = shortest_term_ms
        self._loop = new_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="manyhands-vouch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._vouch())

    async def _vouch(self) -> None:
        stream = WorkerStream(self._places, Overseer(), name=None, token=self._token)
        stream.open()
        loop = asyncio.get_running_loop()
        vouched_at = loop.time()
        while not self._end.is_set():
            due = interval(self._shortest_term_ms())
            if loop.time() - vouched_at >= due:
                stream.vouch([self._name])
                vouched_at = loop.time()
            # The next job may have a shorter term.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_SECONDS, due / 2)):
                    await self._end.wait()
        await stream.close()

    def close(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

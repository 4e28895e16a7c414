"""Children whose loop stands still, because code of a job holds the interpreter (P60).

Such code may take as long as it likes while its job is wanted: the supervisor vouches for it. When
the lease is lost, the child cannot hear of it, so the supervisor asks, and ends the child.
"""

import asyncio
import logging
from typing import Final

from manyhands.client.errors import PASSING
from manyhands.client.notes import Refused
from manyhands.client.options import CANCEL_GRACE_SECONDS
from manyhands.client.worker.child_process import ChildProcess
from manyhands.client.worker_stream import WorkerStream

_ASK_SECONDS: Final = 2.0  # how long a loop stands still before the server is asked, and how often
_log: Final = logging.getLogger("manyhands.worker")


class Standstill:
    """What the supervisor knows of one child."""

    def __init__(self, child: ChildProcess, now: float) -> None:
        self._child = child
        self._ticks = 0
        self._moved_at = now
        self._asked_at = now
        self._lost_at: float | None = None  # since when a job that it runs is known to be lost

    def look(self, stream: WorkerStream, now: float) -> None:
        """Kills the child if it should have stopped long ago."""
        ticks = self._child.page.read()["ticks"]
        if ticks != self._ticks:
            self._ticks, self._moved_at, self._lost_at = ticks, now, None
            return
        if not self._child.is_ready or now - max(self._moved_at, self._asked_at) < _ASK_SECONDS:
            return
        if self._lost_at is not None and now - self._lost_at >= CANCEL_GRACE_SECONDS:
            _log.error(
                "%s, pid %d: code holds the interpreter %g s after its job was lost; it is killed, "
                "and its other jobs go back uncharged",
                self._child.name,
                self._child.pid,
                CANCEL_GRACE_SECONDS,
            )
            self._child.kill()
            return
        self._asked_at = now
        running = self._child.page.running()
        if running and self._lost_at is None and stream.is_open:
            # A renewal is refused for a lease that is lost.
            stream.report(renewed=running).add_done_callback(lambda done: self._heard(done, now))

    def _heard(self, answered: "asyncio.Future[list[Refused]]", asked_at: float) -> None:
        if answered.cancelled() or answered.exception() is not None:
            return
        is_lost = any(each.code not in PASSING for each in answered.result())
        if is_lost and self._moved_at < asked_at:
            self._lost_at = asked_at

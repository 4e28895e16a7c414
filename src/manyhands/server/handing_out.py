"""Handing work to HTTP peers: those who wait for it are woken, and what cannot be delivered goes
back uncharged.
"""

import asyncio
import functools
from typing import Final

from manyhands.model.commands import ByToken, Claim, Release
from manyhands.model.job import Job
from manyhands.model.outcome import Claimed, Reply
from manyhands.server.asking import ask
from manyhands.server.dispatcher import Dispatcher
from manyhands.server.http_connection import Connection
from manyhands.server.http_exchange import HungUpError
from manyhands.server.naps import Nap, Naps
from manyhands.server.waiters import Sleeper

_UNSENT_LOOK_SECONDS: Final = 0.05
# Payloads in one answer, which is put together in memory.
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


class HandingOut:
    """Claims of peers that may hang up at any time."""

    def __init__(self, dispatcher: Dispatcher, naps: Naps) -> None:
        self._dispatcher = dispatcher
        self._naps = naps

    async def claim_patiently(self, connection: Connection, command: Claim, wait: float) -> Reply:
        """Sleep and ask in one step: whatever becomes ready after the claim's decision wakes."""
        dispatcher = self._dispatcher
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            with self._naps.nap(connection) as nap:
                sleeper = Sleeper(command.queues, nap.wake)
                dispatcher.waiters.sleep(sleeper)
                try:
                    reply = await ask(dispatcher, command)
                    if not isinstance(reply, Claimed) or reply.jobs:
                        self._pass_on(nap)
                        return reply
                    left = ends_at - loop.time()
                    gone = connection.is_gone  # of this moment only, as mypy has to know
                    if gone:
                        raise HungUpError
                    if left <= 0.0 or not await nap.sleep(left) or self._naps.over:
                        return reply
                finally:
                    dispatcher.waiters.leave(sleeper)
            if connection.is_gone:
                self._pass_on(nap)
                raise HungUpError

    def _pass_on(self, nap: Nap) -> None:
        """A call that this claim did not need is somebody else's."""
        if nap.queue is not None and self._dispatcher.ready_count(nap.queue):
            self._dispatcher.waiters.wake(nap.queue, 1)

    async def watch_delivery(self, connection: Connection, jobs: tuple[Job, ...]) -> None:
        """The answer was written: if it does not reach the peer, the jobs go back. It has not if
        the connection breaks while part of it is still here, or in the moment after: a peer that
        closes without having read everything resets the connection.
        """
        if not jobs:
            return
        connection.expect_receipt(functools.partial(self.take_back, jobs))
        while not connection.lost and connection.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(_UNSENT_LOOK_SECONDS)
        if connection.lost_by_error:
            self.take_back(jobs)

    def fit(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """As many as one answer should carry, and at least one: fewer than asked for is always
        right. The others go back to where they were.
        """
        if len(jobs) < 2:
            return jobs
        size = 0
        for index, job in enumerate(jobs):
            size += len(job.payload)
            if size > _ANSWER_BYTES_MAX and index:
                self.take_back(jobs[index:])
                return jobs[:index]
        return jobs

    def take_back(self, jobs: tuple[Job, ...]) -> None:
        """Rule 8: what could not be delivered was never handed out."""
        for job in jobs:
            assert job.lease is not None
            self._dispatcher.ask(Release(job_id=job.job_id, proof=ByToken(job.lease.token)))

"""Handing out jobs to HTTP peers: sleepers are woken, and jobs that cannot be delivered go back
without being charged.
"""

import asyncio
import functools
from typing import Final

from manyhands.dispatch.ask import ask
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleeper
from manyhands.model.commands import ByToken, Claim, Release
from manyhands.model.job import Job
from manyhands.model.replies import Claimed, Reply
from manyhands.net.http import HttpSession
from manyhands.web.exchange import HungUpError
from manyhands.web.naps import Nap, Naps

_UNSENT_LOOK_SECONDS: Final = 0.05
# Payloads in one answer, which is composed in memory.
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


class HandingOut:
    """Claims of peers that may hang up at any time."""

    def __init__(self, dispatcher: Dispatcher, naps: Naps) -> None:
        self._dispatcher = dispatcher
        self._naps = naps

    async def claim_patiently(self, connection: HttpSession, command: Claim, wait: float) -> Reply:
        """Sleeps before it claims, so that a job that becomes ready after the decision wakes it."""
        dispatcher = self._dispatcher
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            with self._naps.nap(connection) as nap:
                sleeper = Sleeper(command.queues, nap.wake, command.holder)
                dispatcher.sleepers.sleep(sleeper)
                try:
                    reply = await ask(dispatcher, command)
                    if not isinstance(reply, Claimed) or reply.jobs:
                        self._pass_on(nap)
                        return reply
                    left = ends_at - loop.time()
                    gone = connection.is_gone  # a local, or mypy would narrow the property
                    if gone:
                        raise HungUpError
                    if left <= 0.0 or not await nap.sleep(left) or self._naps.over:
                        return reply
                finally:
                    dispatcher.sleepers.leave(sleeper)
            if connection.is_gone:
                self._pass_on(nap)
                raise HungUpError

    def _pass_on(self, nap: Nap) -> None:
        """Wakes another sleeper, if this claim did not use its wake-up."""
        if nap.queue is not None and self._dispatcher.ready_count(nap.queue):
            self._dispatcher.sleepers.wake(nap.queue, 1)

    async def watch_delivery(self, connection: HttpSession, jobs: tuple[Job, ...]) -> None:
        """Puts the jobs back if the answer that was just written does not reach the peer. That is
        so if the connection breaks while part of it is unsent, or shortly after: a peer that closes
        without reading everything resets the connection.
        """
        if not jobs:
            return
        connection.expect_receipt(functools.partial(self.take_back, jobs))
        while not connection.is_lost and connection.unsent_bytes():  # noqa: ASYNC110
            await asyncio.sleep(_UNSENT_LOOK_SECONDS)
        if connection.lost_by_error:
            self.take_back(jobs)

    def fit(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """As many jobs as one answer should carry, and at least one; a claim may always return
        fewer than asked for. The others go back to where they were.
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
        """Rule 8: a job that could not be delivered was never handed out."""
        for job in jobs:
            assert job.lease is not None
            self._dispatcher.ask(Release(job_id=job.job_id, proof=ByToken(job.lease.token)))

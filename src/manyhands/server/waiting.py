"""Why a job waits, with what only the server knows: who sleeps for work, and who goes first."""

from typing import TYPE_CHECKING

from manyhands.engine.waiting import why_it_waits
from manyhands.model.job import Job, State
from manyhands.model.waiting import Reason

if TYPE_CHECKING:
    from manyhands.server.app import Server


def why_waiting(server: "Server", job: Job) -> tuple[Reason, ...]:
    """What a job waits for as things are now."""
    index = server.store.index
    known = index.queues.get(job.queue)
    if known is None:
        return ()  # finished, and its queue was forgotten since
    return why_it_waits(
        job,
        index,
        server.clock.now(),
        awaited=server.dispatcher.waiters.is_wanted(job.queue),
        ahead=known.ready.ahead_of(job) if job.state is State.READY else 0,
    )

"""One job by any name that a peer may know it by."""

import asyncio

from manyhands.access.gate import current_guard
from manyhands.dispatch.ask import ask
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model import limits
from manyhands.model.commands import Look
from manyhands.model.job import Job
from manyhands.model.replies import Found, Refusal


async def find_job(dispatcher: Dispatcher, name: str) -> Job | Refusal | None:
    """Finds a job by its id, its uid, its UUID, or a handle that ends in its uid. A live job is
    read in order with all earlier commands; a finished one from the record.
    """
    job_id = name.rpartition(":")[2].replace("-", "").lower()
    live = dispatcher.store.live
    job = live.live_job(job_id) or live.job_by_uid(job_id)
    if job is not None:
        reply = await ask(dispatcher, Look(job.job_id))
        if isinstance(reply, Refusal):
            return reply
        assert isinstance(reply, Found)
        return reply.job
    if 0 < len(job_id) <= limits.JOB_ID_DIGITS_MAX and job_id.isascii():
        found = await asyncio.to_thread(dispatcher.store.find, job_id)
        guard = current_guard()
        if found is not None and guard is not None and not guard.sees(found):
            return guard.unseen()
        return found
    return None

"""One job by any name that a peer may know it by."""

import asyncio
from typing import TYPE_CHECKING

from manyhands.model import limits
from manyhands.model.commands import Look
from manyhands.model.job import Job
from manyhands.model.outcome import Found, Refusal
from manyhands.server.asking import ask

if TYPE_CHECKING:
    from manyhands.server.app import Server


async def find_job(server: "Server", name: str) -> Job | Refusal | None:
    """By its id, its uid, its UUID, or a handle that ends in its uid. A live job in order with
    everything that was asked before; a finished one on record.
    """
    job_id = name.rpartition(":")[2].replace("-", "").lower()
    index = server.store.index
    live = index.jobs.get(job_id) or index.job_by_uid(job_id)
    if live is not None:
        reply = await ask(server.dispatcher, Look(live.job_id))
        if isinstance(reply, Refusal):
            return reply
        assert isinstance(reply, Found)
        return reply.job
    if 0 < len(job_id) <= limits.JOB_ID_DIGITS_MAX and job_id.isascii():
        return await asyncio.to_thread(server.store.find, job_id)
    return None

"""Jobs as they are encoded: as they are. Where the server is compiled a job is no struct, and this
module is another one, with a struct that has the same fields.
"""

from typing import TypeAlias

from manyhands.model.job import Job

StoredJob: TypeAlias = Job


def stored(job: Job) -> StoredJob:
    """A job that can be encoded."""
    return job


def restored(job: StoredJob) -> Job:
    """A job that was decoded."""
    return job

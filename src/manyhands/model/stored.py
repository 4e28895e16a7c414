"""Jobs as they are encoded: unchanged here. In the compiled server a job is not a struct, and
another version of this module converts it to a struct with the same fields.
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

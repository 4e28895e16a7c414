"""Which jobs a listing shows: the one reading of a filter, whatever the store."""

from manyhands.model.failures import group_of_job
from manyhands.model.job import Job, State
from manyhands.store.store import Filter


def matches(job: Job, wanted: Filter) -> bool:
    """Whether every condition holds."""
    holders = [attempt.holder.name for attempt in job.attempts]
    if job.lease is not None:
        holders.append(job.lease.holder.name)
    return (
        (not wanted.states or job.state in wanted.states)
        and wanted.queue in (None, job.queue)
        and (wanted.tag is None or wanted.tag in job.tags)
        and (wanted.worker is None or wanted.worker in holders)
        and wanted.realm in (None, job.origin.realm)
        and wanted.unique_key in (None, job.unique_key)
        and wanted.name in (None, job.name)
        and (wanted.submitted_before is None or job.submitted_at < wanted.submitted_before)
        and (wanted.submitted_after is None or job.submitted_at > wanted.submitted_after)
        and (wanted.failure is None or _failed_alike(job, wanted.failure))
        and (wanted.failure_code is None or _code_of(job) == wanted.failure_code)
        and (wanted.text is None or _has_text(job, wanted))
    )


def _has_text(job: Job, wanted: Filter) -> bool:
    # A store that cut the payload has looked into the whole before it did.
    return wanted.payload_bytes is not None or (wanted.text or "").encode() in job.payload


def _failed_alike(job: Job, group_id: str) -> bool:
    group = group_of_job(job)
    return group is not None and group.group_id == group_id


def _code_of(job: Job) -> str | None:
    if job.state is not State.FAILED or job.failure is None:
        return None
    return job.failure.code

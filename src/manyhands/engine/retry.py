"""How often a job is tried, and how long it waits in between (rule 9)."""

import hashlib

from manyhands.model.job import Job
from manyhands.model.policy import Backoff, OnExpiry, QueuePolicy, Reentry


def attempts_max(job: Job, policy: QueuePolicy) -> int:
    """The budget: of the job, else of its queue, else of its front. -1 is unlimited."""
    terms = job.terms
    if terms.attempts_max is not None:
        return terms.attempts_max
    if policy.attempts_max is not None:
        return policy.attempts_max
    return terms.defaults.attempts_max


def budget_is_spent(job: Job, policy: QueuePolicy, attempts_used: int) -> bool:
    """Whether no further attempt is allowed after this many."""
    allowed = attempts_max(job, policy)
    return allowed != -1 and attempts_used >= allowed


def backoff_of(job: Job, policy: QueuePolicy) -> Backoff:
    """The job's own, else its queue's, else its front's."""
    return job.terms.backoff or policy.backoff or job.terms.defaults.backoff


def on_expiry_of(job: Job, policy: QueuePolicy) -> OnExpiry:
    """The job's own, else its queue's, else its front's."""
    return job.terms.on_expiry or policy.on_expiry or job.terms.defaults.on_expiry


def reentry_of(job: Job) -> Reentry:
    """The job's own, else its front's."""
    return job.terms.reentry or job.terms.defaults.reentry


def backoff_ms(job: Job, backoff: Backoff, attempts_used: int) -> int:
    """The delay before the next attempt.

    The jitter keeps a thousand jobs that failed together from returning together. It is derived
    from the job's id and the attempt, because the engine is pure: the same decision gives the same
    delay.
    """
    exponent = min(max(attempts_used - 1, 0), 64)
    delay = min(backoff.first_ms * backoff.factor**exponent, float(backoff.ms_max))
    seed = hashlib.blake2b(f"{job.job_id}/{attempts_used}".encode(), digest_size=4).digest()
    share = int.from_bytes(seed, "big") / 2**32
    return int(delay * (1.0 - backoff.jitter * share))

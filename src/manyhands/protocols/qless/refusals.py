"""The qless API's word for every refusal, inside a batch and for a request as a whole."""

from typing import Any, Final

from manyhands.model.commands import ByHolder, ByToken, Proof
from manyhands.model.job import EndReason, Job, State
from manyhands.model.outcome import Refusal, Why
from manyhands.protocols.http_envelope import Problem

# Every refusal has a code for the item it is about. A test finds a missing one.
CODES: Final[dict[Why, str]] = {
    Why.BAD_QUEUE_NAME: "invalid_queue",
    Why.BAD_JOB_ID: "invalid_id",
    Why.BAD_NAME: "invalid_option",
    Why.BAD_UNIQUE_KEY: "invalid_option",
    Why.BAD_TAG: "invalid_option",
    Why.BAD_LIMIT: "invalid_option",
    Why.BAD_PRIORITY: "invalid_option",
    Why.BAD_TIME: "invalid_option",
    Why.BAD_POLICY: "invalid_option",
    Why.BAD_SCHEDULE: "invalid_option",
    Why.BAD_COUNT: "invalid_option",
    Why.PAYLOAD_TOO_LARGE: "too_large",
    Why.METADATA_TOO_LARGE: "too_large",
    Why.EMPTY_BATCH: "invalid_body",
    Why.BATCH_TOO_LARGE: "too_large",
    Why.OTHER_ITEM_REFUSED: "not_tried",
    Why.UNKNOWN_JOB: "not_found",
    Why.UNKNOWN_QUEUE: "not_found",
    Why.UNKNOWN_SCHEDULE: "not_found",
    Why.UNKNOWN_WORKER: "not_found",
    Why.UNKNOWN_DEPENDENCY: "unknown_dependency",
    Why.DUPLICATE_JOB: "duplicate",
    Why.IN_OTHER_QUEUE: "in_other_queue",
    Why.DUPLICATE_KEY: "duplicate_key",
    Why.DUPLICATE_NAME: "duplicate_name",
    Why.NOT_YOUR_LEASE: "lock_lost",
    Why.NOT_LEASED: "not_running",
    Why.NOT_CLAIMABLE: "not_waiting",
    Why.WRONG_QUEUE: "wrong_queue",
    Why.ALREADY_COMPLETED: "complete",
    Why.ALREADY_FAILED: "failed",
    Why.ALREADY_CANCELLED: "cancelled",
    Why.NOT_FINISHED: "not_finished",
    Why.CYCLE: "cycle",
    Why.TOO_MANY_DEPENDENCIES: "too_large",
    Why.HAS_DEPENDANTS: "has_dependents",
    Why.QUEUE_IN_USE: "queue_in_use",
    Why.QUEUE_FULL: "queue_full",
    Why.TOO_MANY_QUEUES: "too_large",
    Why.TOO_MANY_SCHEDULES: "too_large",
    Why.STORE_FULL: "unavailable",
    Why.SHUTTING_DOWN: "unavailable",
    Why.INTERNAL: "internal",
}
# What a refusal means where it answers a request as a whole; else it is a conflict.
_STATUSES: Final = {
    "not_found": 404,
    "too_large": 413,
    "queue_full": 429,
    "unavailable": 503,
    "internal": 500,
}
_CONFLICTS: Final = frozenset({"queue_in_use", "duplicate_key", "duplicate_name", "not_finished"})
_REVOKED: Final = frozenset(
    {EndReason.CUTOFF, EndReason.MOVED, EndReason.CANCELLED, EndReason.EXPIRED}
)

STATES: Final[dict[State, str]] = {
    State.BLOCKED: "waiting",
    State.DELAYED: "waiting",
    State.READY: "waiting",
    State.LEASED: "pending",
    State.COMPLETED: "complete",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def problem(refusal: Refusal) -> Problem:
    """A refusal as the answer to a whole request."""
    code = CODES[refusal.why]
    status = _STATUSES.get(code, 409 if code in _CONFLICTS else 400)
    if code == "queue_full":
        code = "rate_limited"
    return Problem(status, code, refusal.sentence)


def item_error(index: int, job_id: str | None, refusal: Refusal) -> dict[str, Any]:
    """A refusal as an entry of ``errors``."""
    found = entry(index, job_id, CODES[refusal.why], refusal.sentence)
    if refusal.job is not None:
        found["state"] = STATES[refusal.job.state]
        found["queue"] = refusal.job.queue
    return found


def entry(index: int, job_id: str | None, code: str, message: str) -> dict[str, Any]:
    """An entry of ``errors``."""
    return {"index": index, "id": job_id, "code": code, "message": message}


def was_revoked(job: Job, proof: Proof) -> bool:
    """Whether the last lease that ended was the sender's, and somebody else ended it."""
    if not job.attempts:
        return False
    last = job.attempts[-1]
    if last.reason not in _REVOKED:
        return False
    if isinstance(proof, ByToken):
        return last.token == proof.token
    if not isinstance(proof, ByHolder) or last.holder.realm != proof.realm:
        return False
    holder = last.holder
    if holder.name is None:
        return holder.address == proof.address
    return holder.name == (proof.name or proof.address)

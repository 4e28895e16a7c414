"""The qless API's codes for refusals, of an item in a batch and of a whole request."""

from typing import Final

from manyhands.model.commands import ByHolder, ByToken, Proof
from manyhands.model.job import EndReason, Job, State
from manyhands.model.refusals import Category, words_for
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.qless.answers import ItemError, JobState
from manyhands.web.envelope import Problem

# Every refusal has a code for its item. A test finds missing ones.
CODES: Final[dict[Why, str]] = words_for(
    {
        Category.MALFORMED: "invalid_option",
        Category.TOO_LARGE: "too_large",
        Category.UNKNOWN: "not_found",
        Category.FULL: "too_large",
        Category.UNAVAILABLE: "unavailable",
        Category.FORBIDDEN: "forbidden",
        Category.DEFECT: "internal",
    },
    {
        Why.BAD_QUEUE_NAME: "invalid_queue",
        Why.BAD_JOB_ID: "invalid_id",
        Why.EMPTY_BATCH: "invalid_body",
        Why.TOO_MANY_DEPENDENCIES: "too_large",
        Why.QUEUE_FULL: "queue_full",
        # Each of these means something else to clients.
        Why.DUPLICATE_JOB: "duplicate",
        Why.IN_OTHER_QUEUE: "in_other_queue",
        Why.DUPLICATE_KEY: "duplicate_key",
        Why.DUPLICATE_NAME: "duplicate_name",
        Why.KEY_REUSED: "key_reused",
        Why.NOT_YOUR_LEASE: "lock_lost",
        Why.NOT_LEASED: "not_running",
        Why.NOT_CLAIMABLE: "not_waiting",
        Why.WRONG_QUEUE: "wrong_queue",
        Why.ALREADY_COMPLETED: "complete",
        Why.ALREADY_FAILED: "failed",
        Why.ALREADY_CANCELLED: "cancelled",
        Why.OTHER_ITEM_REFUSED: "not_tried",
        Why.UNKNOWN_DEPENDENCY: "unknown_dependency",
        Why.NOT_FINISHED: "not_finished",
        Why.NOT_IDLE: "not_waiting",
        Why.NO_LONGER_FITS: "no_longer_fits",
        Why.CYCLE: "cycle",
        Why.HAS_DEPENDANTS: "has_dependents",
        Why.QUEUE_IN_USE: "queue_in_use",
    },
)
# The status of a refusal that answers a whole request; else 409 for conflicts, or 400.
_STATUSES: Final = {
    "not_found": 404,
    "too_large": 413,
    "forbidden": 403,
    "key_reused": 422,
    "queue_full": 429,
    "unavailable": 503,
    "internal": 500,
}
_CONFLICTS: Final = frozenset({"queue_in_use", "duplicate_key", "duplicate_name", "not_finished"})
_REVOKED: Final = frozenset(
    {EndReason.CUTOFF, EndReason.MOVED, EndReason.CANCELLED, EndReason.EXPIRED}
)

STATES: Final[dict[State, JobState]] = {
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


def item_error(index: int, job_id: str | None, refusal: Refusal) -> ItemError:
    """A refusal as an entry of ``errors``."""
    found = entry(index, job_id, CODES[refusal.why], refusal.sentence)
    if refusal.job is not None:
        found["state"] = STATES[refusal.job.state]
        found["queue"] = refusal.job.queue
    return found


def entry(index: int, job_id: str | None, code: str, message: str) -> ItemError:
    """An entry of ``errors``."""
    return {"index": index, "id": job_id, "code": code, "message": message}


def was_revoked(job: Job, proof: Proof) -> bool:
    """Whether the last ended lease was the sender's and was ended by another party."""
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

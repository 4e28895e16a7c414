"""The native API's word for every refusal."""

from typing import Any, Final

from manyhands.model.outcome import Refusal, Why
from manyhands.protocols.http_envelope import Problem

# Every refusal has a status; its code is the refusal's own name. A test finds a missing one.
STATUSES: Final[dict[Why, int]] = {
    Why.BAD_QUEUE_NAME: 400,
    Why.BAD_JOB_ID: 400,
    Why.BAD_NAME: 400,
    Why.BAD_UNIQUE_KEY: 400,
    Why.BAD_TAG: 400,
    Why.BAD_LIMIT: 400,
    Why.BAD_PRIORITY: 400,
    Why.BAD_TIME: 400,
    Why.BAD_POLICY: 400,
    Why.BAD_SCHEDULE: 400,
    Why.BAD_COUNT: 400,
    Why.PAYLOAD_TOO_LARGE: 413,
    Why.METADATA_TOO_LARGE: 413,
    Why.EMPTY_BATCH: 400,
    Why.BATCH_TOO_LARGE: 413,
    Why.OTHER_ITEM_REFUSED: 409,
    Why.UNKNOWN_JOB: 404,
    Why.UNKNOWN_QUEUE: 404,
    Why.UNKNOWN_SCHEDULE: 404,
    Why.UNKNOWN_WORKER: 404,
    Why.UNKNOWN_DEPENDENCY: 409,
    Why.DUPLICATE_JOB: 409,
    Why.IN_OTHER_QUEUE: 409,
    Why.DUPLICATE_KEY: 409,
    Why.DUPLICATE_NAME: 409,
    Why.NOT_YOUR_LEASE: 409,
    Why.NOT_LEASED: 409,
    Why.NOT_CLAIMABLE: 409,
    Why.WRONG_QUEUE: 409,
    Why.ALREADY_COMPLETED: 409,
    Why.ALREADY_FAILED: 409,
    Why.ALREADY_CANCELLED: 409,
    Why.NOT_FINISHED: 409,
    Why.CYCLE: 409,
    Why.TOO_MANY_DEPENDENCIES: 400,
    Why.HAS_DEPENDANTS: 409,
    Why.QUEUE_IN_USE: 409,
    Why.QUEUE_FULL: 429,
    Why.TOO_MANY_QUEUES: 409,
    Why.TOO_MANY_SCHEDULES: 409,
    Why.STORE_FULL: 503,
    Why.SHUTTING_DOWN: 503,
    Why.INTERNAL: 500,
}


def status_and_code(why: Why) -> tuple[int, str]:
    """The HTTP status of a refusal, and the code in its envelope."""
    return STATUSES[why], why.value


def problem(refusal: Refusal) -> Problem:
    """A refusal as the answer to a whole request."""
    status, code = status_and_code(refusal.why)
    detail = None
    if refusal.job is not None:
        job = refusal.job
        detail = {"id": job.job_id, "queue": job.queue, "state": job.state.value}
    return Problem(status, code, refusal.sentence, detail)


def item_error(index: int, job_id: str | None, refusal: Refusal) -> dict[str, Any]:
    """A refusal as an entry of ``errors``, beside the results of the items that went well."""
    found: dict[str, Any] = {
        "index": index,
        "id": job_id,
        "code": refusal.why.value,
        "message": refusal.sentence,
    }
    if refusal.job is not None:
        found["state"] = refusal.job.state.value
        found["queue"] = refusal.job.queue
    return found

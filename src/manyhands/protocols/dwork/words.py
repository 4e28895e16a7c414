"""Every refusal in dwork's words: not found, an error, or that the server is about to stop."""

from typing import Final

from manyhands.model.outcome import Why
from manyhands.wire.dwork import Kind

_NOT_FOUND, _ERROR = Kind.NOT_FOUND, Kind.ERROR

ANSWERS: Final[dict[Why, Kind]] = {
    Why.BAD_QUEUE_NAME: _ERROR,
    Why.BAD_JOB_ID: _ERROR,
    Why.BAD_NAME: _ERROR,
    Why.BAD_UNIQUE_KEY: _ERROR,
    Why.BAD_TAG: _ERROR,
    Why.BAD_LIMIT: _ERROR,
    Why.BAD_PRIORITY: _ERROR,
    Why.BAD_TIME: _ERROR,
    Why.BAD_POLICY: _ERROR,
    Why.BAD_SCHEDULE: _ERROR,
    Why.BAD_COUNT: _ERROR,
    Why.PAYLOAD_TOO_LARGE: _ERROR,
    Why.METADATA_TOO_LARGE: _ERROR,
    Why.EMPTY_BATCH: _ERROR,
    Why.BATCH_TOO_LARGE: _ERROR,
    Why.OTHER_ITEM_REFUSED: _ERROR,
    Why.UNKNOWN_JOB: _NOT_FOUND,
    Why.UNKNOWN_QUEUE: _NOT_FOUND,
    Why.UNKNOWN_SCHEDULE: _ERROR,
    Why.UNKNOWN_WORKER: _NOT_FOUND,
    Why.UNKNOWN_DEPENDENCY: _ERROR,
    Why.DUPLICATE_JOB: _ERROR,
    Why.IN_OTHER_QUEUE: _ERROR,
    Why.DUPLICATE_KEY: _ERROR,
    Why.DUPLICATE_NAME: _ERROR,
    Why.NOT_YOUR_LEASE: _NOT_FOUND,
    Why.NOT_LEASED: _NOT_FOUND,
    Why.NOT_CLAIMABLE: _NOT_FOUND,
    Why.WRONG_QUEUE: _NOT_FOUND,
    Why.ALREADY_COMPLETED: _NOT_FOUND,
    Why.ALREADY_FAILED: _NOT_FOUND,
    Why.ALREADY_CANCELLED: _NOT_FOUND,
    Why.NOT_FINISHED: _ERROR,
    Why.CYCLE: _ERROR,
    Why.TOO_MANY_DEPENDENCIES: _ERROR,
    Why.HAS_DEPENDANTS: _ERROR,
    Why.QUEUE_IN_USE: _ERROR,
    Why.QUEUE_FULL: _ERROR,
    Why.TOO_MANY_QUEUES: _ERROR,
    Why.TOO_MANY_SCHEDULES: _ERROR,
    Why.STORE_FULL: _ERROR,
    Why.SHUTTING_DOWN: Kind.EXIT,
    Why.INTERNAL: _ERROR,
}

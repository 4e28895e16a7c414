"""What the engine answers: replies, and refusals with a name and a sentence.

Checklist for a new refusal: here - the mapping of each session (a test finds a missing one).
"""

import enum

from msgspec import Struct

from manyhands.model.job import Job, State
from manyhands.model.policy import Queue
from manyhands.model.receipts import Receipt


class Why(enum.StrEnum):
    """Why something was refused."""

    BAD_QUEUE_NAME = "bad_queue_name"
    BAD_JOB_ID = "bad_job_id"
    BAD_NAME = "bad_name"
    BAD_UNIQUE_KEY = "bad_unique_key"
    BAD_TAG = "bad_tag"
    BAD_LIMIT = "bad_limit"
    BAD_HEADER = "bad_header"
    BAD_PRIORITY = "bad_priority"
    BAD_TIME = "bad_time"
    BAD_POLICY = "bad_policy"
    BAD_SCHEDULE = "bad_schedule"
    BAD_COUNT = "bad_count"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    METADATA_TOO_LARGE = "metadata_too_large"
    EMPTY_BATCH = "empty_batch"
    BATCH_TOO_LARGE = "batch_too_large"
    OTHER_ITEM_REFUSED = "other_item_refused"  # all or nothing, and another item was refused

    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_QUEUE = "unknown_queue"
    UNKNOWN_SCHEDULE = "unknown_schedule"
    UNKNOWN_LIMIT = "unknown_limit"
    UNKNOWN_WORKER = "unknown_worker"
    UNKNOWN_DEPENDENCY = "unknown_dependency"

    DUPLICATE_JOB = "duplicate_job"  # a live job of that id is in this queue
    IN_OTHER_QUEUE = "in_other_queue"  # a live job of that id is in another queue
    DUPLICATE_KEY = "duplicate_key"  # another live job holds the unique key
    DUPLICATE_NAME = "duplicate_name"
    KEY_REUSED = "key_reused"  # the key of a repetition, with another content

    NOT_YOUR_LEASE = "not_your_lease"  # held by another, or lost
    NOT_LEASED = "not_leased"  # it waits
    NOT_CLAIMABLE = "not_claimable"
    WRONG_QUEUE = "wrong_queue"
    ALREADY_COMPLETED = "already_completed"
    ALREADY_FAILED = "already_failed"
    ALREADY_CANCELLED = "already_cancelled"
    NOT_FINISHED = "not_finished"
    NOT_IDLE = "not_idle"  # it is delayed, or a worker has it or was the last to have it
    NO_LONGER_FITS = "no_longer_fits"  # the job is not what the command was meant for

    NOT_ALLOWED = "not_allowed"  # the caller's role or queues do not include it

    CYCLE = "cycle"
    TOO_MANY_DEPENDENCIES = "too_many_dependencies"
    HAS_DEPENDANTS = "has_dependants"
    QUEUE_IN_USE = "queue_in_use"

    QUEUE_FULL = "queue_full"
    TOO_MANY_QUEUES = "too_many_queues"
    TOO_MANY_SCHEDULES = "too_many_schedules"
    STORE_FULL = "store_full"  # the disk is nearly full
    STORE_FAILED = "store_failed"  # nothing is acknowledged any more; the server is about to end
    SHUTTING_DOWN = "shutting_down"
    UNAVAILABLE = "unavailable"  # no server decides about it at present
    INTERNAL = "internal"  # our fault; the command was undone


class Refusal(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An expected "no". Nothing was changed."""

    why: Why
    sentence: str
    job: Job | None = None  # the job concerned, where there is one


class Submitted(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The job that now stands for what was submitted."""

    job: Job
    created: bool = True  # False: attached to an existing job, or dependencies added


class Claimed(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The jobs handed out; ``retry_at`` says when a rate limit may allow more. ``drained``: there
    is nothing left to wait for (rule 27).
    """

    jobs: tuple[Job, ...]
    retry_at: int | None = None
    drained: bool = False


class Changed(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The job as it is now. ``repeated``: the same report had been made before."""

    job: Job
    repeated: bool = False


class ChangedMany(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The jobs as they are now."""

    jobs: tuple[Job, ...]


class Reported(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What a report of several came to. No more of the job: workers know what they worked on."""

    job_id: str
    state: State
    incarnation: int = 0


class Concluded(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """One reply for each item of a ``Conclude``, in order."""

    items: tuple[Reported | Refusal, ...]


class Found(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The answer to a query."""

    job: Job | None


class Accepted(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Done; there is no job to show."""

    count: int = 0


class QueueSet(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The queue as it is now."""

    queue: Queue
    applied: bool = True  # False: it has settings, which stay as they are


class Ticked(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """How many jobs a tick changed; ``more``: further ones are due now."""

    count: int
    more: bool


class SubmittedMany(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """One reply for each item of a submit, in order."""

    items: tuple[Submitted | Refusal, ...]


class Resumed(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What became of the items of a resumed graph."""

    added: int
    unfinished: int  # they exist already
    completed: int  # left alone
    again: int  # of those added: failed or cancelled before


class Repeated(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The earlier answer to the same submit."""

    receipt: Receipt


Reply = (
    SubmittedMany
    | Resumed
    | Repeated
    | Claimed
    | Changed
    | ChangedMany
    | Concluded
    | Found
    | Accepted
    | QueueSet
    | Ticked
    | Refusal
)

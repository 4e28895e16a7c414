"""Operations on many jobs at once, as they are kept: what is to be done, and how far it is."""

import enum

from msgspec import Struct

from manyhands.store.store import Filter


class BulkAction(enum.StrEnum):
    """What is done to each job."""

    RETRY = "retry"  # put to work again
    CANCEL = "cancel"
    MOVE = "move"
    PRIORITY = "priority"
    EXPIRE = "expire"  # its lease


class BulkState(enum.StrEnum):
    """How an operation stands."""

    ACTIVE = "active"  # or waits for its turn; goes on after a restart
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Bulk(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One operation. Its jobs are named, or all that a filter finds among those that were there
    when it began.
    """

    bulk_id: str
    action: BulkAction
    created_at: int
    who: str = ""
    filter: Filter | None = None
    job_ids: tuple[str, ...] = ()  # let go of at the end
    to_queue: str | None = None
    delay_ms: int = 0
    priority: float = 0.0
    with_dependants: bool = True
    reason: str = ""
    expected: int = 0  # jobs that were found beforehand
    expected_all: bool = True  # False: there were more than could be counted in time

    state: BulkState = BulkState.ACTIVE
    until: int = 0  # serial of the last job that was there when it began
    after: int = 0  # serial of the last job, or the number of named jobs, dealt with
    changed: int = 0
    passed: int = 0  # did not fit any more when their turn came
    refused: dict[str, int] = {}  # by reason
    finished_at: int | None = None

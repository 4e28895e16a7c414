"""Bulk operations as they are stored: what to do to many jobs, and the progress so far."""

import enum

from msgspec import Struct

from manyhands.model.filter import Filter


class BulkAction(enum.StrEnum):
    """What is done to each job."""

    RETRY = "retry"  # make it ready again
    CANCEL = "cancel"
    MOVE = "move"
    PRIORITY = "priority"
    EXPIRE = "expire"  # its lease


class BulkState(enum.StrEnum):
    """The state of an operation."""

    ACTIVE = "active"  # or waiting for its turn; resumes after a restart
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Bulk(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One operation, on named jobs or on all jobs that matched a filter when it began."""

    bulk_id: str
    action: BulkAction
    created_at: int
    who: str = ""
    filter: Filter | None = None
    job_ids: tuple[str, ...] = ()  # dropped at the end
    to_queue: str | None = None
    delay_ms: int = 0
    priority: float = 0.0
    with_dependants: bool = True
    reason: str = ""
    expected: int = 0  # jobs found beforehand
    expected_all: bool = True  # False: there were too many to count in time

    state: BulkState = BulkState.ACTIVE
    until: int = 0  # serial of the last job that existed when it began
    after: int = 0  # serial of the last job processed, or the number of named jobs processed
    changed: int = 0
    passed: int = 0  # no longer matched when their turn came
    refused: dict[str, int] = {}  # by reason
    finished_at: int | None = None
    server: str = ""  # the incarnation of the one that runs it, among several

    def is_further(self, other: "Bulk") -> bool:
        """Whether this is a later state of the same operation."""
        if other.finished_at is not None:
            return False
        return self.finished_at is not None or self.progress() > other.progress()

    def progress(self) -> tuple[int, int]:
        """Grows with each step."""
        return self.after, self.changed + self.passed + sum(self.refused.values())

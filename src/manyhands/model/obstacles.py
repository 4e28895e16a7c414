"""What a job may wait for, and how it is reported."""

import enum

from msgspec import Struct


class Obstacle(enum.StrEnum):
    """What a job waits for."""

    BLOCKED = "blocked"  # other jobs
    LOST_DEPENDENCY = "lost_dependency"  # a job that failed or was cancelled
    DELAYED = "delayed"
    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    RATE = "rate"
    LIMIT = "limit"  # a named one
    SPENT = "spent"  # it lapsed without budget: it will fail unless its last holder speaks up
    OVERDUE = "overdue"  # past its deadline: about to fail
    NO_WORKERS = "no_workers"
    IN_LINE = "in_line"  # others go first
    NEXT = "next"  # nothing is in the way
    LEASED = "leased"
    IN_GRACE = "in_grace"  # the lease expired and is kept from others for a while


class Wait(Struct, frozen=True):
    """One thing that a job waits for."""

    what: Obstacle
    sentence: str
    until_at: int | None = None  # when it ends by itself, if it does
    job_ids: tuple[str, ...] = ()  # jobs that it is about, some of them
    name: str = ""  # the queue, limit or worker that it is about
    count: int = 0  # how many: jobs waited for, jobs that go first, leases held

"""What is published: one event for each change of a job's state, as a frozen snapshot."""

from typing import Final, NamedTuple

from msgspec import Struct

from manyhands.model.job import Holder, Job, Lease, Origin, State
from manyhands.model.reasons import Reason


class Event(Struct, frozen=True, gc=False, array_like=True):
    """A change of state. Fields are appended, never removed: old logs stay readable."""

    at: int
    state: State  # the state that was entered
    job_id: str
    queue: str
    reason: Reason
    incarnation: int
    lease_number: int
    attempts_used: int
    attempts_max: int
    holder: Holder | None  # of the lease that began or ended
    expires_at: int | None  # of the lease that began
    priority: float
    submitted_at: int
    deadline_at: int | None
    origin: Origin
    lasted_ms: int  # how long the state that was left had lasted
    left_queue: str = ""  # where it came from, if it changed queues
    detail: str = ""  # the reason in the words of the caller who cancelled the job


class Kind(NamedTuple):
    """The events of one state."""

    when: str
    holder: str  # who the event's ``holder`` is
    reasons: tuple[Reason, ...]


# Why a job goes back when its lease ends; if it got new dependencies, it is then blocked.
_GOES_BACK: Final = (
    Reason.RELEASED,
    Reason.GOODBYE,
    Reason.LOST,
    Reason.EXPIRED,
    Reason.CUTOFF,
    Reason.RETRY,
)
_ENDED: Final = "of the lease that ended, if one did"

# One kind of event for each state, and no others. The table in docs/design.md is made from this.
KINDS: Final[dict[State, Kind]] = {
    State.BLOCKED: Kind(
        "it was submitted, or goes back, and other jobs have to complete first",
        _ENDED,
        (Reason.NONE, *_GOES_BACK, Reason.MOVED, Reason.ADVANCED),
    ),
    State.DELAYED: Kind(
        "it was submitted, unblocked or put back, and its time has not come",
        _ENDED,
        (Reason.NONE, Reason.RETRY, Reason.MOVED, Reason.ADVANCED, Reason.REQUEUED),
    ),
    State.READY: Kind(
        "it was submitted, unblocked or put back, or its time came, and it can be claimed",
        f"{_ENDED}; with `lapsed`, of the one that may still be renewed",
        (
            Reason.NONE,
            *_GOES_BACK,
            Reason.LAPSED,
            Reason.MOVED,
            Reason.ADVANCED,
            Reason.REQUEUED,
        ),
    ),
    State.LEASED: Kind(
        "a worker claimed it, or renewed a lapsed lease",
        "of the lease that began; `expires_at` is its end",
        (Reason.NONE, Reason.RENEWED),
    ),
    State.COMPLETED: Kind("a worker completed it", "the worker that did", (Reason.NONE,)),
    State.FAILED: Kind(
        "it failed for good",
        _ENDED,
        (Reason.FAILED, Reason.OUT_OF_ATTEMPTS, Reason.DEADLINE, Reason.DEPENDENCY_FAILED),
    ),
    State.CANCELLED: Kind(
        "it was cancelled",
        _ENDED,
        (Reason.CANCELLED, Reason.ABANDONED, Reason.REPLACED, Reason.DEPENDENCY_FAILED),
    ),
}


class Cursor(Struct, frozen=True, omit_defaults=True):
    """The position of a reader in the log, under a name that outlives the reader."""

    name: str
    seq: int  # everything up to here was handled
    notes: str = ""  # whatever else the reader needs to continue


class Signal(Struct, frozen=True, gc=False):
    """A message to connections that wait for a job, or hold it. Not stored: it concerns no job
    state.
    """

    job: Job  # as it is after the change
    what: str  # "progress", "partial", "warning", "ended", "notice" (the holder lost its lease)
    payload: bytes = b""
    waiters: tuple[str, ...] = ()  # connections that get it
    lease: Lease | None = None  # the lease that was taken away, with "notice"

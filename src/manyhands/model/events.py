"""What is published: one event for each change of a job's state, as a frozen snapshot."""

from msgspec import Struct

from manyhands.model.job import Holder, Job, Lease, Origin, State


class Event(Struct, frozen=True, gc=False, array_like=True):
    """A change of state. Fields are appended, never removed: old logs stay readable."""

    at: int
    state: State  # the state that was entered
    job_id: str
    queue: str
    reason: str
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


class Cursor(Struct, frozen=True, omit_defaults=True):
    """How far a reader of the log has come, under a name that outlives the reader."""

    name: str
    seq: int  # everything up to here is dealt with
    notes: str = ""  # whatever else the reader needs to go on where it was


class Signal(Struct, frozen=True, gc=False):
    """News for those who wait for a job now. Not stored: it concerns connections, not jobs."""

    job: Job  # as it is after the news
    what: str  # "progress", "partial", "warning", "ended", "told" (the holder lost its lease)
    payload: bytes = b""
    waiters: tuple[str, ...] = ()  # connections that are to hear it
    lease: Lease | None = None  # the lease that was taken away, with "told"

"""A job and what belongs to it. These values are exactly what is stored.

Checklist for a new field: default here (old rows lack it) - who sets it in the engine -
``JobView`` in the HTTP API - the round-trip test of the stores.
"""

import enum
from typing import Final

from msgspec import Struct

from manyhands.model.payload import Encoding
from manyhands.model.policy import TERMS, Terms


class State(enum.StrEnum):
    """Where a job stands. The moves between them are in ``engine/transitions.py``."""

    BLOCKED = "blocked"  # on other jobs
    DELAYED = "delayed"  # on time
    READY = "ready"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class EndReason(enum.StrEnum):
    """Why a lease ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    GOODBYE = "goodbye"  # the worker said it leaves
    LOST = "lost"  # the worker's connection ended without a word
    EXPIRED = "expired"
    CUTOFF = "cutoff"  # the attempt took longer than allowed
    CANCELLED = "cancelled"
    MOVED = "moved"


# Rule 5: these cost an attempt (a failure only if it is retried: a final one ends the job anyway).
CHARGED: Final = frozenset({EndReason.FAILED, EndReason.LOST, EndReason.EXPIRED, EndReason.CUTOFF})


class Holder(Struct, frozen=True, gc=False):
    """A worker. The realm keeps equal names of different protocols apart."""

    realm: str
    name: str | None  # None: it gave no name; the first named request adopts the lease
    address: str = ""


class Lease(Struct, frozen=True, gc=False, omit_defaults=True):
    """The right to work on a job."""

    token: str  # unguessable
    number: int  # the fence: the job's lease_number at the claim
    holder: Holder
    claimed_at: int
    term_ms: int | None = None  # None: no expiry by silence
    expires_at: int | None = None
    cutoff_at: int | None = None
    connection: str | None = None  # bound: ends with this connection of this server incarnation
    in_grace: bool = False  # expired, but still kept from others
    lapsed: bool = False  # expired under `lapse`, not yet claimed by somebody else
    spent: bool = False  # lapsed, and no further attempt is allowed


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """A lease that ended."""

    number: int
    holder: Holder
    claimed_at: int
    ended_at: int
    reason: EndReason
    token: str = ""  # lets a repeated report of the same lease be recognised
    failure: str = ""  # first line of what went wrong


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """What went wrong: a group to sort by, a message, and whatever the worker sent along."""

    code: str
    message: str = ""
    payload: bytes = b""


class Progress(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a worker says it is."""

    numerator: int
    denominator: int  # 0: total unknown
    seconds_left: int | None = None
    reported_at: int = 0


class Origin(Struct, frozen=True, gc=False, omit_defaults=True):
    """Who submitted a job, and over what."""

    realm: str
    name: str = ""
    address: str = ""


class HistoryEntry(Struct, frozen=True, gc=False, omit_defaults=True):
    """Something done to a job that is neither a lease nor a change of state."""

    at: int
    what: str
    detail: str = ""


# A job that was submitted once has it in `submitted_at`. One that was submitted again under its id
# has the latest time there, and all of them in its history, the first as the first entry.
SUBMITTED: Final = "submitted"
SUBMITTED_AGAIN: Final = "submitted again"
# An entry of the history that a worker wrote itself, with the end of an attempt.
NOTED: Final = "noted"
UNKNOWN_ORIGIN: Final = Origin("native")


class Job(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One job. Frozen: every change is a new value, so a refusal leaves nothing half done."""

    job_id: str  # lower-case hexadecimal, never reused
    serial: int = 0  # order of arrival in this store, given by it; 0: not stored yet
    queue: str
    state: State
    payload: bytes = b""  # stored in a column of its own
    encoding: Encoding = Encoding.BINARY
    terms: Terms = TERMS["native"]  # stored once for all jobs that share them
    origin: Origin = UNKNOWN_ORIGIN

    # Order: higher priority first, then lower position.
    priority: float = 0.0
    position: int = 0  # given at each entry into `ready`

    submitted_at: int = 0
    entered_at: int = 0  # when the present state was entered
    run_at: int | None = None  # delayed until then; kept while blocked
    deadline_at: int | None = None
    finished_at: int | None = None

    incarnation: int = 0  # raised each time a finished job is put to work again
    attempts_used: int = 0  # the budget spent in this incarnation
    lease_number: int = 0  # every claim counts, never reset
    lease: Lease | None = None  # held now, or lapsed
    attempts: tuple[Attempt, ...] = ()  # ended leases, oldest first, capped
    history: tuple[HistoryEntry, ...] = ()

    unique_key: bytes | None = None  # scope: queue; held while unfinished
    namespace: str | None = None
    name: str | None = None  # unique within its namespace
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()  # named concurrency limits, sorted

    depends_on: tuple[str, ...] = ()  # all dependencies, by job id (or by name while unknown)
    waits_for: tuple[str, ...] = ()  # those not satisfied yet

    durable_interest: bool = True  # somebody wants it who need not stay connected
    waiters: tuple[str, ...] = ()  # connections that wait for its end

    progress: Progress | None = None
    partials_count: int = 0  # partial results sent in this incarnation
    result: bytes | None = None  # stored in a column of its own
    result_encoding: Encoding = Encoding.BINARY
    failure: Failure | None = None
    reason: str = ""  # why it is in its present state, where the state alone does not tell
    schedule: str | None = None  # the schedule that made it
    metadata: bytes = b""  # whatever the front needs to show the job as its submitter knows it


class Untold(Struct, frozen=True, gc=False):
    """What dependants of a job that ended have not heard of yet: its end, or, up to a serial, that
    they were cancelled together with it.
    """

    doomed_max: int = 0  # the last serial of those; 0: each goes by its own policy
    reason: str = ""  # for which they are cancelled
    # Up to this one all have heard, and most are held. Not stored: a restart begins anew.
    after: str = ""


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A template that submits a job again and again."""

    schedule_id: str
    queue: str
    interval_ms: int | None = None  # exactly one of interval_ms and cron is given
    cron: str | None = None
    time_zone: str = "UTC"
    next_at: int
    backlog_max: int = 1  # missed firings that are made up for; 1: one for all of them
    paused: bool = False
    fired_count: int = 0
    last_job_id: str | None = None
    payload: bytes = b""
    encoding: Encoding = Encoding.BINARY
    priority: float = 0.0
    terms: Terms = TERMS["native"]
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    unique: bool = False  # skip a firing while the last job of this schedule is unfinished

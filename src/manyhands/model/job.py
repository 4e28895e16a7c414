"""A job and what belongs to it. These values are exactly what is stored.

Checklist for a new field: default here (old rows lack it) - who sets it in the engine -
``JobView`` in the HTTP API - the round-trip test of the stores.
"""

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.payload import Encoding
from manyhands.model.policy import TERMS, Terms
from manyhands.model.reasons import Reason


class State(enum.StrEnum):
    """The states of a job. The moves between them are in ``engine/transitions.py``."""

    BLOCKED = "blocked"  # on other jobs
    DELAYED = "delayed"  # on time
    READY = "ready"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class EndReason(enum.StrEnum):
    """Why a lease ended. Why a job is in its state: ``Reason``."""

    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    GOODBYE = "goodbye"  # the worker said it leaves
    LOST = "lost"  # the worker's connection ended without a report
    EXPIRED = "expired"
    CUTOFF = "cutoff"  # the attempt took longer than allowed
    CANCELLED = "cancelled"
    MOVED = "moved"


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
    failure: str = ""  # what went wrong, in one line


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """What went wrong: a code, a message, and the bytes that the worker sent."""

    code: str
    message: str = ""
    payload: bytes = b""
    encoding: Encoding = Encoding.BINARY  # of the payload, if the worker declared one

    def as_bytes(self) -> bytes:
        """The message or the bytes, for a peer that has room for only one: the bytes if the message
        was read from them. Empty if the worker gave no reason.
        """
        data = self.payload
        if data and _is_read_from(self.message, data):
            return data
        return self.message.encode("utf-8", "replace")


# A truncated message is longer than this, whatever truncated it.
_MESSAGE_CUT_MIN: Final = 1_000


def _is_read_from(message: str, data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    if len(message) < _MESSAGE_CUT_MIN:
        return message in ("", text)
    return text.startswith(message.rstrip("\ufffd"))  # half a character may be at the cut


def failure_from_bytes(code: str, data: bytes) -> Failure:
    """A failure that was reported as bytes: they are kept, and shown as text."""
    message = data[: limits.FAILURE_MESSAGE_BYTES_MAX].decode("utf-8", "replace")
    return Failure(code, message, data)


class Progress(Struct, frozen=True, gc=False, omit_defaults=True):
    """The progress that a worker reported."""

    numerator: int
    denominator: int  # 0: total unknown
    seconds_left: int | None = None
    reported_at: int = 0


class Origin(Struct, frozen=True, gc=False, omit_defaults=True):
    """The submitter of a job, and its protocol."""

    realm: str
    name: str = ""
    address: str = ""


# With the id of a dependency after it: the header of a job that names the job which that dependency
# joined instead of becoming one of its own.
JOINED_HEADER: Final = "joined."


class HistoryEntry(Struct, frozen=True, gc=False, omit_defaults=True):
    """Something done to a job that is neither a lease nor a change of state."""

    at: int
    what: str
    detail: str = ""


# A job that was submitted once has its time in `submitted_at`. One that was submitted again under
# its id has the latest time there, and all of them in its history, beginning with the first.
SUBMITTED: Final = "submitted"
SUBMITTED_AGAIN: Final = "submitted again"
# An entry of the history that a worker wrote itself, at the end of an attempt.
NOTED: Final = "noted"
UNKNOWN_ORIGIN: Final = Origin("native")


class Job(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One job. Frozen: every change is a new value, so a refusal leaves nothing half done."""

    job_id: str  # lower-case hexadecimal, never reused
    serial: int = 0  # order of arrival in this store, given by it; 0: not stored yet
    queue: str
    state: State
    payload: bytes = b""  # stored in a column of its own
    # Bytes of a payload that is only on disk; the store reads it when it is needed. Code that
    # replaces the payload sets this to 0.
    stored_bytes: int = 0
    encoding: Encoding = Encoding.BINARY
    terms: Terms = TERMS["native"]  # stored once for all jobs that share them
    origin: Origin = UNKNOWN_ORIGIN

    # Order: higher priority first, then lower position.
    priority: float = 0.0
    position: int = 0  # given at each entry into `ready`

    submitted_at: int = 0
    entered_at: int = 0  # when the present state was entered
    run_at: int | None = None  # delayed until then; kept while blocked
    wanted_at: int | None = None  # the instant for that, if the submitter named one
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

    durable_interest: bool = True  # a submitter that need not stay connected wants it
    waiters: tuple[str, ...] = ()  # connections that wait for its end

    progress: Progress | None = None
    partials_count: int = 0  # partial results sent in this incarnation
    result: bytes | None = None  # stored in a column of its own
    result_encoding: Encoding = Encoding.BINARY
    failure: Failure | None = None
    reason: Reason = Reason.NONE  # why it is in its present state
    detail: str = ""  # why, in the words of the caller who cancelled it, if given
    schedule: str | None = None  # the schedule that made it
    headers: Mapping[str, str] | None = None  # of its submitter, for its worker
    metadata: bytes = b""  # whatever the protocol needs to show the job as its submitter knows it


class Unnotified(Struct, frozen=True, gc=False):
    """The pending notification of a finished job's dependants: of its end, or, up to a serial, that
    they are cancelled together with it.
    """

    doomed_max: int = 0  # the last serial of those; 0: each goes by its own policy
    detail: str = ""  # of their cancellation
    # All up to this one are notified, and most are held. Not stored: a restart begins again.
    after: str = ""


class Schedule(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A template that submits jobs repeatedly."""

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
    headers: Mapping[str, str] | None = None
    unique: bool = False  # skip a firing while the last job of this schedule is unfinished

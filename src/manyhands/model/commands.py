"""What can be asked of the engine. Ids, tokens and waiters come in with the command.

Checklist for a new command: here - ``decide_…`` and, if it moves jobs, the transition table -
the sessions that speak it - the crash test and the simulation - the glossary.
"""

import enum

from msgspec import Struct

from manyhands.model.events import Cursor
from manyhands.model.job import UNKNOWN_ORIGIN, EndReason, Failure, Holder, Origin, Schedule
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    TERMS,
    OnDuplicate,
    OnUnknownDependency,
    QueuePolicy,
    Reentry,
    Terms,
)


class ByToken(Struct, frozen=True, gc=False):
    """Whoever knows the lease's token holds it."""

    token: str


class ByHolder(Struct, frozen=True, gc=False):
    """The worker of that name; the first named request adopts a lease taken without a name."""

    realm: str
    name: str | None
    address: str = ""


class ByConnection(Struct, frozen=True, gc=False):
    """The connection that claimed it."""

    connection: str


class ByAnyone(Struct, frozen=True, gc=False):
    """No proof: enough for jobs whose completion is open, and for operators' commands."""

    name: str | None = None


Proof = ByToken | ByHolder | ByConnection | ByAnyone


class OnExisting(enum.StrEnum):
    """What a submit under a chosen id (or name) does when that job exists."""

    REFUSE = "refuse"  # a live one; a finished one is put to work again
    MOVE = "move"  # a live one is taken from its queue and holder
    ADD_DEPENDENCIES = "add_dependencies"  # a live one gets further dependencies


class NewJob(Struct, frozen=True, gc=False, kw_only=True):
    """One job to submit."""

    job_id: str
    queue: str
    payload: bytes = b""
    encoding: Encoding = Encoding.BINARY
    id_chosen: bool = False  # by the submitter: it may exist already
    on_existing: OnExisting = OnExisting.REFUSE
    terms: Terms = TERMS["native"]
    origin: Origin = UNKNOWN_ORIGIN
    priority: float = 0.0
    submitted_at: int | None = None  # when it ought to have been, if that is not now
    run_at: int | None = None
    delay_ms: int = 0
    deadline_at: int | None = None
    unique_key: bytes | None = None
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    namespace: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()  # job ids, or names where a namespace is given
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE
    durable_interest: bool = True
    waiter: str | None = None
    metadata: bytes = b""
    schedule: str | None = None


class Submit(Struct, frozen=True, gc=False):
    """Each item by itself, in order; or all or nothing."""

    items: tuple[NewJob, ...]
    all_or_nothing: bool = False
    early: bool = False  # rule 22: nobody is promised a job that is only waited for


class ClaimOrder(enum.StrEnum):
    """How a claim over several queues looks at them."""

    LISTED = "listed"  # the first queue until it is empty, then the next
    PRIORITY_IN_TURNS = "priority_in_turns"  # highest priority anywhere; equals take turns


class Claim(Struct, frozen=True, gc=False, kw_only=True):
    """Work, please."""

    queues: tuple[str, ...] = ()
    holder: Holder
    tokens: tuple[str, ...]  # one for each job that may be handed out
    order: ClaimOrder = ClaimOrder.LISTED
    turn: int = 0  # where to begin among equals
    term_ms: int | None = None  # None: no expiry
    terms_ms: tuple[int | None, ...] = ()  # one for each queue, instead of term_ms
    term_of_job: bool = False  # the job's or the queue's term first
    connection: str | None = None  # binds the leases to this connection
    job_id: str | None = None  # this one and no other
    early: bool = False  # rule 23: the answer may leave before the claim's own commit


class Renew(Struct, frozen=True, gc=False, kw_only=True):
    """Still at it."""

    job_id: str
    proof: Proof
    queue: str | None = None  # refused if the job is leased in another one
    term_ms: int | None = None  # asked for; None: the lease's own term
    payload: bytes | None = None
    encoding: Encoding = Encoding.JSON


class Report(Struct, frozen=True, gc=False, kw_only=True):
    """Progress."""

    job_id: str
    proof: Proof
    numerator: int
    denominator: int
    seconds_left: int | None = None
    renew: bool = True
    payload: bytes = b""  # passed on to those who wait, as it came


class SendPartial(Struct, frozen=True, gc=False, kw_only=True):
    """A piece of the result, or a warning, for those who wait."""

    job_id: str
    proof: Proof
    payload: bytes
    warning: bool = False


class Complete(Struct, frozen=True, gc=False, kw_only=True):
    """The work is finished."""

    job_id: str
    proof: Proof
    result: bytes | None = None
    encoding: Encoding = Encoding.BINARY
    replaces_payload: bool = False  # the result becomes the payload too
    queue: str | None = None  # refused if the job is leased in another one
    next_queue: str | None = None  # go on there instead of ending
    delay_ms: int = 0
    depends_on: tuple[str, ...] = ()
    note: str = ""  # of the worker's own, for the job's history


class Fail(Struct, frozen=True, gc=False, kw_only=True):
    """The attempt failed."""

    job_id: str
    proof: Proof
    failure: Failure
    retry: bool = False  # by policy; else for good
    delay_ms: int | None = None  # before the retry; None: the backoff
    queue: str | None = None
    payload: bytes | None = None
    encoding: Encoding = Encoding.JSON
    note: str = ""


class Conclude(Struct, frozen=True, gc=False):
    """Several completions and failures, each by itself."""

    items: tuple[Complete | Fail, ...]


class Release(Struct, frozen=True, gc=False, kw_only=True):
    """Given back untouched: no attempt is charged."""

    job_id: str
    proof: Proof
    reason: EndReason = EndReason.RELEASED
    reentry: Reentry | None = None  # None: by the job's terms
    depends_on: tuple[str, ...] = ()  # names or ids to wait for first
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.SATISFIED


class ReleaseAll(Struct, frozen=True, gc=False):
    """Several releases, all or nothing."""

    items: tuple[Release, ...]


class Cancel(Struct, frozen=True, gc=False, kw_only=True):
    """Not wanted any more. Several ids at once may depend on each other."""

    job_ids: tuple[str, ...]
    with_dependants: bool = True  # else refused while a live job depends on one of them
    only_unfinished: bool = False  # else failed ones are cancelled too
    reason: str = "cancelled"


class Requeue(Struct, frozen=True, gc=False, kw_only=True):
    """Put a finished job to work again, under the same id."""

    job_id: str
    queue: str | None = None  # None: where it was
    delay_ms: int = 0


class Move(Struct, frozen=True, gc=False, kw_only=True):
    """Into another queue. A lease ends."""

    job_id: str
    queue: str
    delay_ms: int = 0


class SetPriority(Struct, frozen=True, gc=False):
    """Its new position is behind its new equals."""

    job_id: str
    priority: float


class SetTags(Struct, frozen=True, gc=False):
    """Add and remove tags."""

    job_id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class SetDependencies(Struct, frozen=True, gc=False, kw_only=True):
    """Add and remove dependencies of a job that has not finished."""

    job_id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE


class ExpireLease(Struct, frozen=True, gc=False):
    """An operator ends a lease as if its time were up."""

    job_id: str


class Attach(Struct, frozen=True, gc=False, kw_only=True):
    """Wait for a job, or want it durably."""

    job_id: str
    waiter: str | None = None
    durable: bool = False


class Detach(Struct, frozen=True, gc=False):
    """A waiter leaves everything it waits for."""

    waiter: str


class Depart(Struct, frozen=True, gc=False, kw_only=True):
    """A worker leaves: by connection, or all leases of a named holder."""

    connection: str | None = None
    holder: Holder | None = None
    reason: EndReason = EndReason.LOST  # or GOODBYE
    count_max: int | None = None  # leases that end by this command; whoever had more asks again


class SetQueue(Struct, frozen=True, gc=False, kw_only=True):
    """Create a queue, pause or resume it, or set its policy."""

    queue: str
    paused: bool | None = None
    policy: QueuePolicy | None = None
    # Only the bounds on unfinished jobs: normal, high and low priority.
    jobs_max: tuple[int | None, int | None, int | None] | None = None


class ForgetQueue(Struct, frozen=True, gc=False):
    """Drop a queue that has no unfinished job."""

    queue: str


class SetLimit(Struct, frozen=True, gc=False):
    """Set a named concurrency limit; None removes it."""

    name: str
    concurrency_max: int | None


class PutSchedule(Struct, frozen=True, gc=False):
    """Create or replace a schedule."""

    schedule: Schedule


class RemoveSchedule(Struct, frozen=True, gc=False):
    """No further jobs from it."""

    schedule_id: str


class Fire(Struct, frozen=True, gc=False, kw_only=True):
    """A schedule is due. The calendar is kept outside: the next instant comes in."""

    schedule_id: str
    due_at: int  # must equal the schedule's own, or another server was faster
    next_at: int
    job_id: str


class SetCursor(Struct, frozen=True, gc=False):
    """A reader of the event log came that far."""

    cursor: Cursor


class RemoveCursor(Struct, frozen=True, gc=False):
    """That reader will not come back."""

    name: str


class Recover(Struct, frozen=True, gc=False):
    """At start: leases and waiters of dead server incarnations end; live leases are prolonged."""

    incarnation: str  # of this server; connections of others are dead
    outage_ms: int


class Prolong(Struct, frozen=True, gc=False):
    """The server itself stood still: nobody loses a lease by that."""

    outage_ms: int


class Tick(Struct, frozen=True, gc=False):
    """Time went on: expire, wake, enforce deadlines. Bounded."""

    count_max: int


class TellDependants(Struct, frozen=True, gc=False):
    """So many wait for a job that ended that not all have heard of it, or are cancelled with it:
    the next of them do, or are.
    """

    job_id: str


class Look(Struct, frozen=True, gc=False):
    """A job as it is, by its id or uid, in order with everything else that was asked."""

    job_id: str


class LookByKey(Struct, frozen=True, gc=False):
    """The live job that holds a unique key; without a queue, the first of any."""

    unique_key: bytes
    queue: str | None = None


class LookByName(Struct, frozen=True, gc=False):
    """The job that a name points to."""

    namespace: str
    name: str


Command = (
    Submit
    | Claim
    | Renew
    | Report
    | SendPartial
    | Complete
    | Fail
    | Conclude
    | Release
    | ReleaseAll
    | Cancel
    | Requeue
    | Move
    | SetPriority
    | SetTags
    | SetDependencies
    | ExpireLease
    | Attach
    | Detach
    | Depart
    | SetQueue
    | ForgetQueue
    | SetLimit
    | PutSchedule
    | RemoveSchedule
    | Fire
    | SetCursor
    | RemoveCursor
    | Recover
    | Prolong
    | Tick
    | TellDependants
    | Look
    | LookByKey
    | LookByName
)

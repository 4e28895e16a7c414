"""What can be asked of the engine. Ids, tokens and waiters come in with the command.

Checklist for a new command: here - ``decide_…`` and, if it moves jobs, the transition table -
the sessions that speak it - the crash test and the simulation - the glossary.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct

from manyhands.model.events import Cursor
from manyhands.model.job import (
    UNKNOWN_ORIGIN,
    EndReason,
    Failure,
    Holder,
    Origin,
    Schedule,
    State,
)
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    TERMS,
    OnDuplicate,
    OnUnknownDependency,
    QueuePolicy,
    Reentry,
    Terms,
)
from manyhands.model.receipts import Once


class ByToken(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The sender knows the lease's token."""

    token: str


class ByHolder(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The sender is the worker of that name; the first named request adopts a lease without a
    name.
    """

    realm: str
    name: str | None
    address: str = ""


class ByConnection(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The sender is the connection that claimed the job."""

    connection: str


class ByAnyone(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """No proof: enough for jobs whose completion is open, and for operators' commands."""

    name: str | None = None


Proof = ByToken | ByHolder | ByConnection | ByAnyone


class OnExisting(enum.StrEnum):
    """What a submit under a chosen id (or name) does when that job exists."""

    REFUSE = "refuse"  # a live one; a finished one is requeued
    KEEP = "keep"  # it is the answer, finished or not
    MOVE = "move"  # a live one is taken from its queue and holder
    ADD_DEPENDENCIES = "add_dependencies"  # a live one gets further dependencies


class NewJob(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """One job to submit."""

    job_id: str
    queue: str
    payload: bytes = b""
    encoding: Encoding = Encoding.BINARY
    id_chosen: bool = False  # by the submitter: it may exist already
    on_existing: OnExisting = OnExisting.REFUSE
    once_per_queue: bool = False  # refused if the job of its id was completed in its queue
    unless_scheduled: bool = False  # refused if a schedule has its id (or name)
    terms: Terms = TERMS["native"]
    origin: Origin = UNKNOWN_ORIGIN
    priority: float = 0.0
    submitted_at: int | None = None  # when it was due, if that is not now
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
    headers: Mapping[str, str] | None = None
    metadata: bytes = b""
    schedule: str | None = None
    # The answer was lost: a finished job of its id that was submitted a moment ago was made by it.
    asked_again: bool = False


class Submit(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Submits jobs: each item by itself, in order; or all or nothing."""

    items: tuple[NewJob, ...]
    all_or_nothing: bool = False
    early: bool = False  # rule 22: no promise for a job that only waiters want
    once: Once | None = None  # recognises a repetition
    requests_count: int = 1  # requests of one peer that were put together
    lone: bool = False  # its peer waits for no other answer, so a refusal may overtake others


class Resume(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Submits jobs of one namespace, all or nothing, but for those whose name is completed. Names
    of earlier graphs are only on record: what was found there comes with the command, and is
    refused if further names have ceased to be valid since.
    """

    namespace: str
    items: tuple[NewJob, ...]
    recorded: tuple[tuple[str, State], ...] = ()  # names, and how the latest job of each ended
    as_of: int | None = None  # names forgotten when that was looked up; None: it was not


class ClaimOrder(enum.StrEnum):
    """Rule 19: the order of a claim over several queues."""

    LISTED = "listed"  # the first queue until it is empty, then the next
    PRIORITY_IN_TURNS = "priority_in_turns"  # highest priority anywhere; equals take turns


class ReportDrained(enum.StrEnum):
    """When the answer to a claim that gets nothing says that nothing is left to wait for."""

    NEVER = "never"
    KNOWN = "known"  # once there was work in its queues
    ALWAYS = "always"  # also if its queues are unknown


class Claim(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Asks for work."""

    queues: tuple[str, ...] = ()
    holder: Holder
    tokens: tuple[str, ...]  # one for each job that may be handed out
    order: ClaimOrder = ClaimOrder.LISTED
    turn: int = 0  # where to begin among equals
    term_ms: int | None = None  # None: no expiry
    terms_ms: tuple[int | None, ...] = ()  # one for each queue, instead of term_ms
    term_of_job: bool = False  # the job's or the queue's term first
    connection: str | None = None  # binds the leases to this connection
    job_id: str | None = None  # only this job
    early: bool = False  # rule 23: the answer may leave before the claim's own commit
    report_drained: ReportDrained = ReportDrained.NEVER


class Renew(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Extends a lease."""

    job_id: str
    proof: Proof
    queue: str | None = None  # refused if the job is leased in another one
    term_ms: int | None = None  # asked for; None: the lease's own term
    payload: bytes | None = None
    encoding: Encoding = Encoding.JSON


class RenewHeld(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """These workers are alive: extends their leases that are past a third of their term."""

    holders: tuple[Holder, ...]
    count_max: int | None = None  # leases renewed by this command; the sender repeats it for more
    queues: tuple[str, ...] = ()  # patterns: leases of other queues stay as they are


class LiftTerms(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The leases of a connection last as long as the connection, except where a queue forces a
    term.
    """

    connection: str


class Report(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Reports progress."""

    job_id: str
    proof: Proof
    numerator: int
    denominator: int
    seconds_left: int | None = None
    renew: bool = True
    payload: bytes = b""  # passed on to waiters unchanged


class SendPartial(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Sends a piece of the result, or a warning, to the waiters; or writes a line into the job's
    log, which is not sent to anybody.
    """

    job_id: str
    proof: Proof
    payload: bytes
    warning: bool = False
    is_log: bool = False


class Complete(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """The work is finished."""

    job_id: str
    proof: Proof
    result: bytes | None = None
    encoding: Encoding = Encoding.BINARY
    replaces_payload: bool = False  # the result becomes the payload too
    queue: str | None = None  # refused if the job is leased in another one
    next_queue: str | None = None  # move there instead of ending
    delay_ms: int = 0
    depends_on: tuple[str, ...] = ()
    note: str = ""  # of the worker's own, for the job's history
    repeated_exactly: bool = False  # a repetition needs the same queue and the same result


class Fail(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
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


class Conclude(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Several completions and failures, each decided by itself."""

    items: tuple[Complete | Fail, ...]


class Release(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Gives a job back untouched: no attempt is charged."""

    job_id: str
    proof: Proof
    reason: EndReason = EndReason.RELEASED
    reentry: Reentry | None = None  # None: by the job's terms
    depends_on: tuple[str, ...] = ()  # names or ids to wait for first
    namespace: str | None = None  # of these names; None: the job's own
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.SATISFIED


class ReleaseAll(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Several releases, all or nothing."""

    items: tuple[Release, ...]


class Only(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The condition for a command to apply: a job found by a search may have changed since."""

    states: tuple[State, ...]
    queue: str | None = None  # None: any


class Cancel(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Cancels jobs. Several ids at once may depend on each other."""

    job_ids: tuple[str, ...]
    with_dependants: bool = True  # else refused while a live job depends on one of them
    only_unfinished: bool = False  # else failed ones are cancelled too
    detail: str = ""  # why, in the words of the caller
    only: Only | None = None  # for the named jobs, not for their dependants


class Requeue(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Runs a finished job again, under the same id."""

    job_id: str
    queue: str | None = None  # None: where it was
    delay_ms: int = 0
    cancelled_too: bool = True  # else a cancelled job is refused
    only: Only | None = None


class Move(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Moves a job to another queue. A lease ends."""

    job_id: str
    queue: str
    delay_ms: int = 0
    only: Only | None = None


class SetPriority(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Sets a priority; the job goes behind the others of that priority."""

    job_id: str
    priority: float
    only: Only | None = None


class SetTags(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Adds and removes tags."""

    job_id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class SetDependencies(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Adds and removes dependencies of an unfinished job."""

    job_id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE
    only_idle: bool = False  # refused unless the job is blocked, or ready without a holder


class ExpireLease(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Expires a lease at once, for an operator."""

    job_id: str
    only: Only | None = None


class Attach(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Adds an interest in a job: a waiter, or a durable one."""

    job_id: str
    waiter: str | None = None
    durable: bool = False


class Detach(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Removes a waiter from all jobs it waits for."""

    waiter: str


class Depart(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """A worker leaves: by connection, or all leases of a named holder."""

    connection: str | None = None
    holder: Holder | None = None
    reason: EndReason = EndReason.LOST  # or GOODBYE
    count_max: int | None = None  # leases that end by this command; the sender repeats it for more
    failed: tuple[Fail, ...] = ()  # attempts that it did not survive; the others are given back


class SetQueue(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """Creates a queue, pauses or resumes it, or sets its policy."""

    queue: str
    paused: bool | None = None
    policy: QueuePolicy | None = None
    fields: tuple[str, ...] | None = None  # of the policy; the others stay. None: all are set
    only_known: bool = False  # refused if there is no such queue
    if_absent: bool = False  # only the policy of a queue that has none, and the rest of a new queue


class ForgetQueue(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Drops a queue that has no unfinished job."""

    queue: str
    offered: bool = False  # workers offer to work on it, as the sender knows: refused


class ForgetIdle(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Drops those of these queues that are unused: without settings, unfinished jobs and (unless
    there are very many queues) records.
    """

    queues: tuple[str, ...]


class SetLimit(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Sets a named concurrency limit."""

    name: str
    concurrency_max: int
    if_absent: bool = False  # an existing one stays as it is


class RemoveLimit(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Removes a named limit. It no longer holds back the jobs that name it."""

    name: str


class PutSchedule(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Creates or replaces a schedule."""

    schedule: Schedule
    unless_job: str | None = None  # a new one is refused if a job has this id
    in_step: bool = False  # if it exists with an interval, its next time follows from that one's
    fields: tuple[str, ...] | None = None  # only these are set, and only if it exists; None: all
    if_absent: bool = False  # an existing one stays as it is


class RemoveSchedule(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Removes a schedule."""

    schedule_id: str


class Fire(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """A schedule is due. The calendar is outside the engine: the next instant is passed in."""

    schedule_id: str
    due_at: int  # must equal the schedule's own, or another server was faster
    next_at: int
    job_id: str


class SetCursor(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Stores how far a reader of the event log has come."""

    cursor: Cursor


class RemoveCursor(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Removes the cursor of a reader."""

    name: str


class Recover(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """At the start: ends leases and waiters of earlier incarnations, and extends live leases."""

    incarnation: str  # of this server; connections of others are dead
    outage_ms: int
    alive: tuple[str, ...] = ()  # incarnations of other servers, whose connections are not


class Prolong(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The server itself stalled: extends all leases (rule 7)."""

    outage_ms: int


class FollowClock(Struct, frozen=True, gc=False, kw_only=True, tag=True, array_like=True):
    """The wall clock was set, by ``step_ms``: delays keep their length (rule 7). Each job and
    schedule comes with the instant it had then; one that has another by now is left alone.
    """

    step_ms: int
    jobs: tuple[tuple[str, int], ...] = ()  # ids, and when they were to run
    schedules: tuple[tuple[str, int, int], ...] = ()  # ids, when they were due, and are now


class Tick(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Time passed: expires leases, wakes delayed jobs, enforces deadlines. Bounded."""

    count_max: int


class NotifyDependants(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Notifies the next slice of a finished job's dependants, or cancels them with it."""

    job_id: str


class Look(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Reads a job by its id or uid, in order with all other commands."""

    job_id: str
    brief: bool = False  # its payload is not needed, and may be missing


class LookByKey(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Reads the live job that holds a unique key; without a queue, the first of any."""

    unique_key: bytes
    queue: str | None = None
    queues: tuple[str, ...] = ()  # patterns: of any queue that fits one; empty: all


class LookByName(Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Reads the job that a name points to."""

    namespace: str
    name: str


Command = (
    Submit
    | Resume
    | Claim
    | Renew
    | RenewHeld
    | LiftTerms
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
    | ForgetIdle
    | SetLimit
    | RemoveLimit
    | PutSchedule
    | RemoveSchedule
    | Fire
    | SetCursor
    | RemoveCursor
    | Recover
    | Prolong
    | FollowClock
    | Tick
    | NotifyDependants
    | Look
    | LookByKey
    | LookByName
)

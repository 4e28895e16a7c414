"""Types of the native API's answers: clients decode with them, and the OpenAPI document is made
from them. They depend on nothing of the server.

An unset field is left out of the JSON. Instants are milliseconds since 1970.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from manyhands.model.job import EndReason, State
from manyhands.model.obstacles import Obstacle
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    Backoff,
    OnDependencyFailure,
    OnExpiry,
    QueuePolicy,
    Reentry,
)
from manyhands.web.envelope import Answer, T

Instant = Annotated[int, Meta(description="milliseconds since 1970")]
Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]
Uid = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="the full id")]
Value = Annotated[Any, Meta(description='any JSON value; binary data is {"base64": "…"}')]
Action = Literal["retry", "cancel", "move", "priority", "expire"]


# Answers with more than results.


class Batched(Answer[T], frozen=True, kw_only=True):
    """One result per item, null for refused items, which are listed in errors."""

    errors: "list[ItemError] | UnsetType" = UNSET


class Named(Answer[T], frozen=True, kw_only=True):
    """A page of a list ordered by name; the next page starts after ``next``."""

    next: str | None


class Numbered(Answer[T], frozen=True, kw_only=True):
    """A page of a list ordered by number."""

    next: int | None


class Found(Numbered[T], frozen=True, kw_only=True):
    """A page of search results."""

    complete: Annotated[bool, Meta(description="false: the search ran out of time")]


class Logged(Answer[T], frozen=True, kw_only=True):
    """A part of the event log."""

    next: Annotated[int, Meta(description="pass it as `after` to continue")]
    first_seq: int
    last_seq: int


class Stepped(Answer[T], frozen=True, kw_only=True):
    """A history in steps."""

    range: Literal["1h", "24h", "7d"]
    queue: str | None
    step_ms: Some
    rate: Annotated[
        float | None,
        Meta(description="jobs that ended a second, in the last seconds; of all queues only"),
    ]
    total: "Sample"


class Grouped(Answer[T], frozen=True, kw_only=True):
    """Groups of failures."""

    groups: Annotated[int, Meta(ge=0, description="how many groups there are in all")]
    failed: Count
    retrying: Annotated[int, Meta(ge=0, description="unfinished jobs that failed")]


class ItemError(Struct, frozen=True):
    """A refused item, listed beside the results of the others."""

    index: Count
    id: str | None
    code: str
    message: str
    state: State | UnsetType = UNSET
    queue: str | UnsetType = UNSET


# Work.


class Submitted(Struct, frozen=True, gc=False):
    """A submitted job."""

    id: str
    uid: Uid
    queue: str
    state: State
    created: Annotated[bool, Meta(description="false: it existed already")]


class Changed(Struct, frozen=True, gc=False):
    """A job after a change."""

    id: str
    uid: Uid
    queue: str
    state: State
    lease_number: Count | UnsetType = UNSET
    expires_at: Instant | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET
    repeated: Annotated[bool, Meta(description="the same was reported before")] | UnsetType = UNSET


class Claimed(Struct, frozen=True, kw_only=True):
    """A job as handed to its worker."""

    id: str
    uid: Uid
    queue: str
    token: Annotated[str, Meta(description="proves the lease")]
    lease_number: Some
    attempts_used: Count
    priority: float
    encoding: Encoding
    payload: Value
    expires_at: Instant | UnsetType = UNSET
    term_ms: int | UnsetType | None = UNSET
    cutoff_at: Instant | UnsetType = UNSET
    deadline_at: Instant | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


class Departed(Struct, frozen=True):
    """A worker that left."""

    worker: str
    given_back: Annotated[int, Meta(ge=0, description="jobs that went back uncharged")]


# Jobs.


class Holder(Struct, frozen=True, gc=False):
    """A worker. The realm is the protocol it speaks."""

    realm: str
    name: str | None
    address: str


class Lease(Struct, frozen=True, gc=False):
    """The right to work on a job."""

    number: Some
    holder: Holder
    claimed_at: Instant
    expires_at: Instant | None
    cutoff_at: Instant | None
    lapsed: bool


class Failure(Struct, frozen=True, gc=False):
    """What went wrong."""

    code: str
    message: str
    payload: Value | UnsetType = UNSET
    encoding: Encoding | UnsetType = UNSET


class Origin(Struct, frozen=True, gc=False):
    """The submitter of a job, and the protocol it used."""

    realm: str
    name: str
    address: str | UnsetType = UNSET


class Progress(Struct, frozen=True, gc=False):
    """The progress reported by a worker."""

    numerator: int
    denominator: Annotated[int, Meta(description="0: unknown")]
    seconds_left: int | None
    reported_at: Instant


class ListedJob(Struct, frozen=True, kw_only=True):
    """A job in a list: all its short fields."""

    id: str
    queue: str
    state: State
    priority: float
    submitted_at: Instant
    entered_at: Annotated[int, Meta(description="when it entered its current state")]
    finished_at: Instant | None
    run_at: Instant | None
    deadline_at: Instant | None
    attempts_used: Annotated[int, Meta(ge=0, description="attempts that were charged")]
    lease_number: Annotated[int, Meta(ge=0, description="how often it was handed out")]
    incarnation: Count
    tags: tuple[str, ...]
    payload_bytes: Count
    origin: Origin
    lease: Lease | None
    failure: Failure | None
    reason: str | None
    name: str | UnsetType | None = UNSET
    progress: Progress | UnsetType = UNSET


class Wait(Struct, frozen=True, gc=False):
    """One thing that a job waits for."""

    what: Obstacle
    sentence: str
    until_at: Instant | None
    name: str | None
    ids: tuple[str, ...]
    count: Count


class Attempt(Struct, frozen=True, gc=False):
    """A lease that has ended."""

    number: Some
    holder: Holder
    claimed_at: Instant
    ended_at: Instant
    reason: EndReason
    failure: str | None


class HistoryEntry(Struct, frozen=True, gc=False):
    """One change made to a job."""

    at: Instant
    what: str
    detail: str


class Terms(Struct, frozen=True, omit_defaults=True):
    """How a job wants to be treated."""

    attempts_max: int | None = None
    backoff: Backoff | None = None
    lease_ms: int | None = None
    attempt_ms_max: int | None = None
    on_expiry: OnExpiry | None = None
    reentry: Reentry | None = None
    on_dependency_failure: OnDependencyFailure | None = None
    result_ms: int | None = None


class Job(ListedJob, frozen=True, kw_only=True):
    """Everything about a job except tokens."""

    waits: list[Wait]
    uid: Uid
    namespace: str | None
    unique_key: Value
    limits: tuple[str, ...]
    depends_on: tuple[str, ...]
    waits_for: tuple[str, ...]
    attempts: list[Attempt]
    history: list[HistoryEntry]
    terms: Terms
    partials_count: Count
    schedule: str | None
    headers: dict[str, str]
    encoding: Encoding
    payload: Value
    result_encoding: Encoding
    result: Value


class Partial(Struct, frozen=True):
    """A partial result or a warning."""

    number: Some
    at: Instant
    warning: bool
    payload: Value


class LogEntry(Struct, frozen=True):
    """Something that a worker reported about a job while it worked on it."""

    number: Some
    at: Instant
    kind: Literal["log", "warning", "data"]
    payload: Value


# Queues, workers, events, settings.


class Counts(Struct, frozen=True, gc=False):
    """Jobs of a queue, by state."""

    blocked: Count
    delayed: Count
    ready: Count
    leased: Count
    completed: Count
    failed: Count
    cancelled: Count


class Queue(Struct, frozen=True):
    """A queue: its job counts and settings."""

    name: str
    paused: bool
    counts: Counts
    oldest_ready_age_ms: Count | None
    policy: QueuePolicy
    awaited: Annotated[bool, Meta(description="whether a worker is waiting for its jobs")]
    retrying: Annotated[int, Meta(ge=0, description="unfinished jobs that failed")]
    polled: Annotated[bool, Meta(description="whether workers took jobs in the last minute")]
    waits: Annotated[
        list[Wait], Meta(description="what holds its next ready job back, workers aside")
    ]


class HeldLease(Struct, frozen=True, gc=False):
    """A lease in the list of its worker."""

    id: str
    queue: str
    claimed_at: Instant
    expires_at: Instant | None
    lapsed: bool


class Worker(Struct, frozen=True):
    """A worker, with some of the leases that it holds."""

    realm: str
    name: str | None
    address: str
    leases_count: Count
    leases: list[HeldLease]
    awaits: Annotated[
        list[str] | None,
        Meta(description="the queues it waits for, if it is idle; none: any; null: not waiting"),
    ] = None
    seen_at: Annotated[
        Instant | None, Meta(description="its last request, if it is idle and that is known")
    ] = None
    last_queue: Annotated[
        str | None, Meta(description="of its last job, if it is idle and that is known")
    ] = None


class Event(Struct, frozen=True, gc=False):
    """A change of a job's state."""

    seq: Some
    at: Instant
    state: State
    id: str
    queue: str
    reason: str | None
    incarnation: Count
    lease_number: Count
    attempts_used: Count
    attempts_max: Annotated[int, Meta(ge=-1, description="-1: unlimited")]
    holder: Holder | None
    expires_at: Instant | None
    priority: float
    submitted_at: Instant
    deadline_at: Instant | None
    realm: str
    lasted_ms: Annotated[int, Meta(description="how long the previous state lasted")]


class Limit(Struct, frozen=True):
    """A named limit and how much of it is in use."""

    name: str
    concurrency_max: Count
    used: Count


class ServerLink(Struct, frozen=True):
    """The link from one server to another."""

    to: str
    linked: bool
    round_trip_ms: float | None


class Server(Struct, frozen=True):
    """A server on the store of the one that answers, and what it last said of itself."""

    name: str
    address: str
    version: str
    state: str
    since: Instant
    decides: bool
    here: bool
    linked: bool
    round_trip_ms: float | None
    unfinished_jobs: int | None
    decided_per_second: float | None
    forwarded_per_second: float | None
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    apply_lag_ms: int | None
    clock_offset_ms: int | None
    links: tuple[ServerLink, ...]


class Draining(Struct, frozen=True):
    """A server that hands over and then stops."""

    name: str


class Schedule(Struct, frozen=True):
    """A schedule, including its template."""

    id: str
    queue: str
    interval_ms: int | None
    cron: str | None
    time_zone: str
    next_at: Instant
    backlog_max: Count
    paused: bool
    unique: bool
    fired_count: Count
    last_job_id: str | None
    priority: float
    tags: tuple[str, ...]
    limits: tuple[str, ...]
    headers: dict[str, str]
    terms: Terms
    encoding: Encoding
    payload: Value


Applied = Annotated[bool, Meta(description="false: there was one, and it stays as it is")]


class Set(Struct, frozen=True):
    """A queue or limit that was set."""

    name: str
    applied: Applied


class Removed(Struct, frozen=True):
    """A queue or limit that was removed."""

    name: str


class ScheduleSet(Struct, frozen=True):
    """A schedule that was set."""

    id: str
    applied: Applied
    next_at: Instant | UnsetType = UNSET


class ScheduleRemoved(Struct, frozen=True):
    """A schedule that was removed."""

    id: str


# The server, and reports for operators.


class Memory(Struct, frozen=True):
    """The memory budget."""

    limit_bytes: Count
    held_bytes: Annotated[dict[str, int], Meta(description="by kind")]
    peers_waiting: Count


class About(Struct, frozen=True):
    """About this server."""

    version: str
    server_name: str
    started_at: Instant
    uptime_ms: int
    addresses: dict[str, str | None]
    store: dict[str, str | int]
    memory: Memory
    relay: dict[str, Any] | None
    config: dict[str, bool | int | str | None]


class Durations(Struct, frozen=True, gc=False):
    """Durations in milliseconds."""

    count: Some
    mean: float
    p50: float
    p95: float


class Depth(Struct, frozen=True, gc=False):
    """Unfinished jobs at the end of a step, by state."""

    blocked: Count
    delayed: Count
    ready: Count
    leased: Count


class Sample(Struct, frozen=True):
    """One step of a history."""

    at: Instant
    submitted: Count
    started: Count
    completed: Count
    failed: Count
    failed_attempts: Count
    lost: Count
    cancelled: Count
    wait_ms: Durations | None
    run_ms: Durations | None
    depth: Depth | None
    queues_left_out: Count


class FailureGroup(Struct, frozen=True):
    """Jobs with similar failures: failed for good, or being retried."""

    group: str
    code: str
    message: str
    count: Annotated[int, Meta(ge=0, description="failed for good")]
    retrying: Annotated[int, Meta(ge=0, description="unfinished, to be tried again or trying")]
    first_at: Instant
    last_at: Instant
    trend: Annotated[
        tuple[int, ...],
        Meta(min_length=24, max_length=24, description="in each of the last 24 hours"),
    ]
    queues: Annotated[dict[str, int], Meta(description="the queues with most of them")]
    jobs: Annotated[tuple[str, ...], Meta(description="the newest ones")]


class Note(Struct, frozen=True):
    """Something that needs a person."""

    level: Literal["bad", "warn"]
    what: Annotated[str, Meta(description="the kind, such as `no workers`")]
    about: Annotated[str, Meta(description="a queue, a worker or an error; empty: the server")]
    detail: Annotated[str, Meta(description="a sentence")]
    count: Annotated[int, Meta(ge=0, description="jobs, attempts or leases that are concerned")]
    retrying: Annotated[int, Meta(ge=0, description="jobs that are being retried")]
    group: Annotated[str | None, Meta(description="the group of `/api/failures`")]
    job: Annotated[str | None, Meta(description="the job to look at")]


class Me(Struct, frozen=True):
    """Who sent the request, and what it may do."""

    name: str  # empty if the server asks nobody
    role: str
    queues: list[str]  # patterns; empty: all
    now: Instant  # the server's time


class AuditEntry(Struct, frozen=True):
    """One action of an operator."""

    seq: Some
    at: Instant
    who: str
    role: str
    address: str
    protocol: Annotated[str, Meta(description="empty: the server itself")]
    request: str
    what: str
    target: str
    asked: Count
    changed: Count
    refused: str
    known: Annotated[bool, Meta(description="false: the server stopped before the outcome")]


class Conditions(Struct, frozen=True, kw_only=True):
    """The conditions that select the jobs of a bulk change."""

    state: list[State]
    queue: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    realm: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    header: Annotated[tuple[str, ...], Meta(description="a name and a value")] | UnsetType = UNSET
    submitted_before: Instant | UnsetType = UNSET
    submitted_after: Instant | UnsetType = UNSET
    failure: str | UnsetType = UNSET
    failure_code: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    retrying: bool | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET


class Bulk(Struct, frozen=True):
    """A bulk change of jobs."""

    id: str
    action: Action
    state: Literal["active", "completed", "cancelled"]
    who: str
    filter: Conditions | None
    queue: str | None
    expected: Count
    expected_all: Annotated[bool, Meta(description="false: there were more than counted")]
    done: Count
    changed: Count
    passed: Annotated[int, Meta(ge=0, description="no longer matched in their turn")]
    refused: Annotated[dict[str, int], Meta(description="how many, by reason")]
    created_at: Instant
    finished_at: Instant | None


class BulkCount(Struct, frozen=True):
    """How many jobs a bulk change would affect."""

    action: Action
    expected: Count
    expected_all: bool


class Flow(Struct, frozen=True):
    """Jobs submitted and jobs handed out."""

    jobs_in: Count
    jobs_out: Count


class Listener(Struct, frozen=True, kw_only=True):
    """The traffic of one listener."""

    protocol: Literal["http", "gearman", "dwork", "wmp", "amqp"]
    address: str | None
    connections: Count
    jobs_in: Count
    jobs_out: Count
    errors: Count
    deliveries: Count | None
    realms: dict[str, Flow]

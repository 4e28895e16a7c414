"""Types of the qless API's answers. Instants are seconds since 1970, durations are seconds."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import UNSET, Meta, Struct, UnsetType

from manyhands.protocols.qless.kinds import Uid
from manyhands.web.envelope import Answer, T

Count = Annotated[int, Meta(ge=0)]
JobState = Literal["waiting", "pending", "complete", "failed", "cancelled"]
# In place of a result: this item was refused, see errors.
Refused = Annotated[bool, Meta(extra_json_schema={"const": False})]
Ids = list[str]


class Load(TypedDict):
    """How busy the server is."""

    cpu: Annotated[float, Meta(ge=0, description="share of one core")]
    memory: Annotated[float, Meta(ge=0, description="MiB")]


class ItemError(TypedDict):
    """A refused item, listed beside the results of the others."""

    index: Count
    id: str | None
    code: str
    message: str
    state: NotRequired[JobState]
    queue: NotRequired[str]


class Success(Answer[T], frozen=True, kw_only=True):
    """A success, with the server's load if requested."""

    load: Load | UnsetType = UNSET


class Batched(Success[T], frozen=True, kw_only=True):
    """One result per item; refused items are listed in errors."""

    errors: Annotated[list[ItemError], Meta(min_length=1)] | UnsetType = UNSET


class Named(Success[T], frozen=True, kw_only=True):
    """A page of a list ordered by name; the next page starts after ``next``."""

    next: str | None


class Found(Success[T], frozen=True, kw_only=True):
    """A page of search results."""

    next: int | None
    complete: Annotated[bool, Meta(description="false: the search ran out of time")]


class Nothing(Struct, frozen=True):
    """No work, on servers configured to report that as an object."""


class Item(TypedDict):
    """An item of work, as handed to its worker."""

    id: str
    uid: Uid
    queue: str
    meta: Any
    lease: Annotated[str, Meta(description="proves the lock")]
    attempt: Annotated[int, Meta(ge=1)]
    priority: float
    heartbeat: NotRequired[Count | None]
    expires: NotRequired[float | None]
    cutoff: NotRequired[Count]
    tags: NotRequired[tuple[str, ...]]
    retries_left: NotRequired[Count]


class Failure(TypedDict):
    """What went wrong."""

    group: str
    message: str
    when: float | None
    host: str | None
    data: NotRequired[Any]


class HistoryEntry(TypedDict):
    """One thing that happened to a job."""

    what: str
    when: float
    host: NotRequired[str | None]
    detail: NotRequired[str]


class Progress(TypedDict):
    """The progress reported by a worker."""

    numerator: int
    denominator: int
    seconds_left: int | None


class ListedJob(TypedDict):
    """A job in a list."""

    id: str
    state: JobState
    detail: str | None
    queue: str | None
    host: str | None
    priority: float
    tags: tuple[str, ...]
    failure: Failure | None
    created: float
    updated: float
    protocol: str


class Job(ListedJob):
    """Everything about a job except its lease."""

    uid: Uid
    meta: Any
    heartbeat: Count | None
    retries: Annotated[int, Meta(ge=-1)]
    retries_left: Annotated[int, Meta(ge=-1)]
    attempt: Count
    depends: Ids
    dependents: Ids
    dependents_count: Count
    limits: tuple[str, ...]
    progress: Progress | None
    result: Any
    due: float | None
    deadline: float | None
    recurring: str | None
    history: list[HistoryEntry]


class Partial(TypedDict):
    """A partial result."""

    number: Count
    when: float
    warning: bool
    data: Any


class Queue(TypedDict):
    """A queue and its job counts."""

    name: str
    waiting: Count
    pending: Count
    scheduled: Count
    blocked: Count
    stalled: Count
    failed: Count
    recurring: Count
    paused: bool
    workers: Count
    oldest_waiting: Annotated[float, Meta(ge=0)] | None


class Backoff(TypedDict):
    """Pauses between retries."""

    first: float
    factor: float
    max: float
    jitter: float


class Rate(TypedDict):
    """At most this many jobs handed out per this many seconds."""

    count: Annotated[int, Meta(ge=1)]
    per: float


class QueuePolicy(TypedDict):
    """The settings of a queue; null stands for the default."""

    heartbeat: float | None
    grace: float
    cutoff: float | None
    retries: Annotated[int, Meta(ge=-1)] | None
    backoff: Backoff | None
    max_concurrency: Count | None
    rate: Rate | None
    max_jobs: Count | None
    keep: float | None
    keep_count: Count | None


class QueueWithSettings(Queue):
    """A queue with its settings."""

    settings: QueuePolicy


class Worker(TypedDict):
    """A worker and its totals."""

    name: str
    address: str
    seen: float
    pending: Count
    stalled: Count
    taken: Count
    completed: Count
    failed: Count
    lost: Count


class WorkerWithJobs(TypedDict):
    """A worker and its jobs, some of which may be stalled. For a worker not seen since the server
    started, nothing else is known.
    """

    name: str
    jobs: Ids
    stalled: Ids
    address: NotRequired[str]
    seen: NotRequired[float]
    pending: NotRequired[Count]
    taken: NotRequired[Count]
    completed: NotRequired[Count]
    failed: NotRequired[Count]
    lost: NotRequired[Count]


class Limit(TypedDict):
    """A named limit and how much of it is in use."""

    name: str
    max: int
    used: int


class LimitSet(TypedDict):
    """A named limit after the change; null if there is none."""

    name: str
    max: int | None


class Recurring(TypedDict):
    """A recurring job."""

    id: str
    queue: str
    meta: Any
    interval: float | None
    cron: str | None
    time_zone: str
    next: float
    backlog: Count
    priority: float
    retries: Annotated[int, Meta(ge=-1)] | None
    tags: tuple[str, ...]
    limits: tuple[str, ...]
    paused: bool
    count: Count
    last: str | None


class Series(TypedDict):
    """Durations of one kind, in seconds."""

    count: Count
    mean: float
    std: float
    histogram: Annotated[
        list[int],
        Meta(
            min_length=148,
            max_length=148,
            description="per second to a minute, per minute to an hour, per hour to a day, daily",
        ),
    ]


class Statistics(TypedDict):
    """How long the jobs of a queue waited and ran on one day."""

    queue: str
    date: Annotated[str, Meta(extra_json_schema={"format": "date"})]
    wait: Series
    run: Series
    retries: Count
    failures: Count
    failed: int

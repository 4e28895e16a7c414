"""How jobs and queues are treated: terms of a job, policy of a queue, defaults of each realm.

A value is looked up in three places: the job's own terms, its queue's policy, the defaults of the
realm that submitted it. ``None`` means "not said here".
"""

import enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


class OnExpiry(enum.StrEnum):
    """Rule 6: what happens when a lease expires."""

    REVOKE = "revoke"  # charged at once; the old token is dead
    LAPSE = "lapse"  # ready again, but its last holder may go on until somebody else claims it


class Reentry(enum.StrEnum):
    """Rule 18: the place of a job that returns, among jobs of its priority."""

    AHEAD = "ahead"  # before all others, first come first served
    FRONT = "front"  # before all but those ahead, last come first served
    TAIL = "tail"


class Completion(enum.StrEnum):
    """Rule 4: who may complete a job."""

    HOLDER = "holder"
    OPEN = "open"  # anybody, also while it is ready; the first one wins


class OnDependencyFailure(enum.StrEnum):
    """Rule 10: what happens to a job when a dependency fails for good or is cancelled."""

    HOLD = "hold"
    CANCEL = "cancel"
    FAIL = "fail"
    RUN = "run"


class OnUnknownDependency(enum.StrEnum):
    """Rule 11: what a dependency that names no job means at submit."""

    SATISFIED = "satisfied"
    REFUSE = "refuse"
    WAIT = "wait"  # until a job of that id or name appears and completes


class OnDuplicate(enum.StrEnum):
    """Rule 16: what a submit does when a live job holds its unique key."""

    ATTACH = "attach"
    REPLACE = "replace"  # never a leased one
    REFUSE = "refuse"


class Backoff(Struct, frozen=True):
    """Delay before attempt n+1: ``first_ms * factor**(n-1)``, at most ``ms_max``, with jitter."""

    first_ms: int = 1_000
    factor: float = 2.0
    ms_max: int = 3_600_000
    jitter: float = 0.2  # share of the delay that the job's id may take away, 0 to 1


class Rate(Struct, frozen=True):
    """At most ``count`` claims in ``per_ms`` milliseconds."""

    count: int
    per_ms: int


class Defaults(Struct, frozen=True):
    """The defaults of a realm, where neither job nor queue says otherwise."""

    attempts_max: int = 5  # -1: unlimited
    backoff: Backoff = Backoff()
    on_expiry: OnExpiry = OnExpiry.REVOKE
    reentry: Reentry = Reentry.TAIL
    completion: Completion = Completion.HOLDER
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    result_ms: int | None = None  # how long a result is kept; None: as long as the record


class KnownBy(enum.Enum):
    """How the server knows the workers of a realm."""

    CONNECTION = enum.auto()  # while it lasts; they have no other name
    REQUEST = enum.auto()  # each names its worker
    LEASE = enum.auto()  # of the jobs that they take


class Realm(Struct, frozen=True, kw_only=True):
    """A protocol or dialect that submits jobs and has workers."""

    label: str  # as its users call it
    listener: str  # the option with its address
    workers: KnownBy = KnownBy.LEASE
    defaults: Defaults = Defaults()  # rules 6, 9, 10, 18 and 21


# Every list of protocols is derived from this one.
REALMS: Final[dict[str, Realm]] = {
    "native": Realm(label="API", listener="http"),
    "qless": Realm(
        label="qless",
        listener="http",
        workers=KnownBy.REQUEST,
        defaults=Defaults(
            attempts_max=6,
            on_expiry=OnExpiry.LAPSE,
            reentry=Reentry.AHEAD,
            on_dependency_failure=OnDependencyFailure.HOLD,
        ),
    ),
    "gearman": Realm(label="Gearman", listener="gearman", workers=KnownBy.CONNECTION),
    "draft": Realm(
        label="Gearman draft",
        listener="gearman",
        workers=KnownBy.CONNECTION,
        defaults=Defaults(result_ms=3_600_000),
    ),
    "wmp": Realm(label="WMP", listener="wmp"),
    "taskcluster": Realm(
        label="Taskcluster",
        listener="http",
        defaults=Defaults(attempts_max=6, on_dependency_failure=OnDependencyFailure.FAIL),
    ),
    "dwork": Realm(
        label="dwork",
        listener="dwork",
        defaults=Defaults(
            attempts_max=-1,
            reentry=Reentry.FRONT,
            completion=Completion.OPEN,
            on_dependency_failure=OnDependencyFailure.HOLD,
        ),
    ),
}
DEFAULTS: Final = {name: realm.defaults for name, realm in REALMS.items()}


class Terms(Struct, frozen=True, omit_defaults=True):
    """A job's own settings. Jobs with equal settings share them, so keep them few and plain."""

    defaults: Defaults = DEFAULTS["native"]
    attempts_max: int | None = None  # -1: unlimited
    backoff: Backoff | None = None
    lease_ms: int | None = None  # 0: no expiry; honoured by claims that ask for the job's term
    attempt_ms_max: int | None = None  # longest attempt, from claim to end
    on_expiry: OnExpiry | None = None
    reentry: Reentry | None = None
    on_dependency_failure: OnDependencyFailure | None = None
    result_ms: int | None = None  # how long the result is kept; 0: thrown away at once


TERMS: Final = {name: Terms(defaults) for name, defaults in DEFAULTS.items()}


def terms_of(realm: str, attempts_max: int) -> Terms:
    """The terms of a realm with another number of attempts, set by the operator."""
    return Terms(replace(DEFAULTS[realm], attempts_max=attempts_max))


class QueuePolicy(Struct, frozen=True, omit_defaults=True):
    """An operator's settings for a queue."""

    attempts_max: int | None = None
    backoff: Backoff | None = None
    lease_ms: int | None = None
    lease_forced: bool = False  # lease_ms binds every claim, whatever its protocol
    attempt_ms_max: int | None = None
    on_expiry: OnExpiry | None = None
    grace_ms: int = 0  # a lapsed lease is kept from others for that long
    concurrency_max: int | None = None  # live leases at once
    rate: Rate | None = None
    jobs_max: int | None = None  # unfinished jobs; a submit above is refused
    jobs_max_high: int | None = None  # the same for submits of a priority above 0
    jobs_max_low: int | None = None  # and below 0
    record_ms: int | None = None  # retention of finished records, by age
    records_max: int | None = None  # retention of finished records, by number and outcome


NO_POLICY: Final = QueuePolicy()


class Queue(Struct, frozen=True, omit_defaults=True):
    """A queue as it is stored: its policy and its state."""

    name: str
    policy: QueuePolicy = NO_POLICY
    paused: bool = False
    rate_started_at: int = 0  # start of the current rate window
    rate_used: int = 0
    declared: bool = False  # by an operator, not just by its first job: it stays until dropped


class NamedLimit(Struct, frozen=True):
    """A named concurrency limit: live leases at once of all jobs that carry the name."""

    name: str
    concurrency_max: int

"""Bodies that set queues, named limits and schedules."""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from manyhands.model.commands import SetLimit, SetQueue
from manyhands.model.job import Schedule
from manyhands.model.payload import Encoding
from manyhands.model.policy import OnExpiry, QueuePolicy, Rate
from manyhands.protocols.native.bodies import Attempts, BackoffBody, Instant, Wishes, said
from manyhands.protocols.native.decoder import bad_body, read_payload
from manyhands.web.envelope import Whole


class RateBody(Rate, frozen=True, forbid_unknown_fields=True):
    """At most this many jobs handed out in this time; unknown keys are refused."""

    count: Whole
    per_ms: Whole


class PolicyBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue's policy; omitted settings are unset."""

    attempts_max: Attempts | None = None
    backoff: BackoffBody | None = None
    lease_ms: Whole | None = None
    lease_forced: Annotated[bool, said("lease_ms overrides every claim")] = False
    attempt_ms_max: Whole | None = None
    on_expiry: OnExpiry | None = None
    grace_ms: Annotated[Whole, said("how long a lapsed lease is withheld from others")] = 0
    concurrency_max: Annotated[Whole, said("leases at once")] | None = None
    rate: RateBody | None = None
    jobs_max: Annotated[Whole, said("unfinished jobs")] | None = None
    record_ms: Annotated[Whole, said("how long finished jobs are kept")] | None = None
    records_max: Annotated[Whole, said("how many finished jobs are kept")] | None = None


class QueueBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to set; a policy replaces the previous one as a whole."""

    paused: bool | None = None
    policy: PolicyBody | UnsetType = UNSET

    def command(self, queue: str, *, if_absent: bool) -> SetQueue:
        """The command for the queue named in the path."""
        given = self.policy
        if given is UNSET:
            return SetQueue(queue=queue, paused=self.paused, if_absent=if_absent)
        said = msgspec.structs.asdict(given)
        said["backoff"] = given.backoff.plain() if given.backoff is not None else None
        rate = given.rate
        said["rate"] = Rate(rate.count, rate.per_ms) if rate is not None else None
        policy = QueuePolicy(**said)
        return SetQueue(queue=queue, paused=self.paused, policy=policy, if_absent=if_absent)


class LimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many jobs with this limit's name may be leased at once."""

    concurrency_max: Whole

    def command(self, name: str, *, if_absent: bool) -> SetLimit:
        """The command for the limit named in the path."""
        return SetLimit(name, self.concurrency_max, if_absent)


class ScheduleBody(Wishes, kw_only=True):
    """A template, and when it submits a job; or only whether an existing schedule is paused."""

    queue: Annotated[str | None, said("needed, unless only `paused` is set")] = None
    interval_ms: Whole | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    first_at: Instant | None = None
    backlog_max: Annotated[Whole, said("missed firings to make up for")] = 1
    paused: bool = False
    unique: Annotated[bool, said("skip while its last job is unfinished")] = False
    payload: Raw = field(default_factory=Raw)
    encoding: Encoding = Encoding.JSON
    priority: float = 0.0
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    headers: dict[str, str] | None = None

    def check(self) -> None:
        """Checks what the first firing is computed from."""
        if self.queue is None:
            raise bad_body("a schedule has a queue; without it, only paused can be set")
        if (self.interval_ms is None) == (self.cron is None):
            raise bad_body("a schedule has interval_ms or cron, and not both")
        if self.cron is not None and self.first_at is not None:
            raise bad_body("first_at is for intervals; a cron line sets its own first instant")

    @property
    def pauses_only(self) -> bool:
        """Whether nothing but ``paused`` is given."""
        return self == ScheduleBody(paused=self.paused)

    def schedule(self, schedule_id: str, next_at: int) -> Schedule:
        """The schedule under the id in the path."""
        assert self.queue is not None, "checked before"
        payload, encoding = read_payload(self.payload, self.encoding)
        return Schedule(
            schedule_id=schedule_id,
            queue=self.queue,
            interval_ms=self.interval_ms,
            cron=self.cron,
            time_zone=self.time_zone,
            next_at=next_at,
            backlog_max=self.backlog_max,
            paused=self.paused,
            payload=payload,
            encoding=encoding,
            priority=self.priority,
            terms=self.terms(),
            tags=self.tags,
            limits=tuple(sorted(set(self.limits))),
            headers=self.headers or None,
            unique=self.unique,
        )


QUEUE: Final = msgspec.json.Decoder(QueueBody).decode
LIMIT: Final = msgspec.json.Decoder(LimitBody).decode
SCHEDULE: Final = msgspec.json.Decoder(ScheduleBody).decode

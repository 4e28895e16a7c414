"""Bodies that set queues, named limits and schedules."""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from manyhands.model.commands import SetLimit, SetQueue
from manyhands.model.job import Schedule
from manyhands.model.payload import Encoding
from manyhands.model.policy import OnExpiry, QueuePolicy, Rate
from manyhands.protocols.native.bodies import BackoffBody, Wishes
from manyhands.protocols.native.reading import ABSENT, bad_body, read_payload


class _Rate(Rate, frozen=True, forbid_unknown_fields=True):
    """As it is stored; a misspelt key is refused."""


class _Policy(Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue's policy; what is not given is not said."""

    attempts_max: int | None = None
    backoff: BackoffBody | None = None
    lease_ms: int | None = None
    lease_forced: bool = False
    attempt_ms_max: int | None = None
    on_expiry: OnExpiry | None = None
    grace_ms: int = 0
    concurrency_max: int | None = None
    rate: _Rate | None = None
    jobs_max: int | None = None
    record_ms: int | None = None
    records_max: int | None = None


class QueueBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to be set; a policy replaces the one before as a whole."""

    paused: bool | None = None
    policy: _Policy | UnsetType = UNSET

    def command(self, queue: str) -> SetQueue:
        """For the queue that the path names."""
        given = self.policy
        if given is UNSET:
            return SetQueue(queue=queue, paused=self.paused)
        said = msgspec.structs.asdict(given)
        said["backoff"] = given.backoff.plain() if given.backoff is not None else None
        rate = given.rate
        said["rate"] = Rate(rate.count, rate.per_ms) if rate is not None else None
        return SetQueue(queue=queue, paused=self.paused, policy=QueuePolicy(**said))


class LimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Leases at once of all jobs that carry the limit's name."""

    concurrency_max: int

    def command(self, name: str) -> SetLimit:
        """For the limit that the path names."""
        return SetLimit(name, self.concurrency_max)


class ScheduleBody(Wishes, kw_only=True):
    """A template, and when it submits a job."""

    queue: str
    interval_ms: int | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    first_at: int | None = None
    backlog_max: int = 1
    paused: bool = False
    unique: bool = False
    payload: Raw = ABSENT
    encoding: Encoding = Encoding.JSON
    priority: float = 0.0
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def check(self) -> None:
        """What must be known before the first instant can be worked out."""
        if (self.interval_ms is None) == (self.cron is None):
            raise bad_body("a schedule has interval_ms or cron, and not both")
        if self.cron is not None and self.first_at is not None:
            raise bad_body("a cron line knows its first instant; first_at is for intervals")

    def schedule(self, schedule_id: str, next_at: int) -> Schedule:
        """Under the id that the path names."""
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
            unique=self.unique,
        )


QUEUE: Final = msgspec.json.Decoder(QueueBody).decode
LIMIT: Final = msgspec.json.Decoder(LimitBody).decode
SCHEDULE: Final = msgspec.json.Decoder(ScheduleBody).decode

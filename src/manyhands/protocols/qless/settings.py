"""Bodies that set queues, named limits and recurring jobs. Durations are in seconds."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from manyhands.model import limits
from manyhands.model.commands import RemoveLimit, SetLimit, SetQueue
from manyhands.model.job import Schedule
from manyhands.model.payload import Encoding, as_json_value
from manyhands.model.policy import Backoff, QueuePolicy, Rate
from manyhands.protocols.qless import answers
from manyhands.protocols.qless.decoder import Items
from manyhands.protocols.qless.identifiers import WrongItemError
from manyhands.protocols.qless.items import (
    attempts_of,
    check_size,
    milliseconds,
    terms_of,
)
from manyhands.protocols.qless.kinds import Limits, Priority, Retries, Seconds, Tags, Word
from manyhands.web.envelope import Problem, Whole, plain


class BackoffData(Struct):
    """Pauses between retries: ``first`` seconds, times ``factor`` each time, at most ``max``."""

    first: Seconds = 1.0
    factor: float = 2.0
    max: Seconds = 3600.0
    jitter: float = 0.2


class RateData(Struct):
    """At most ``count`` jobs handed out per ``per`` seconds."""

    count: Whole
    per: float


class QueueData(Struct):
    """Settings of a queue; omitted ones stay, ``null`` restores the default."""

    heartbeat: Seconds | UnsetType | None = UNSET
    grace: Seconds | UnsetType | None = UNSET
    cutoff: Seconds | UnsetType | None = UNSET
    retries: Retries | UnsetType | None = UNSET
    backoff: BackoffData | UnsetType | None = UNSET
    max_concurrency: Whole | UnsetType | None = UNSET
    rate: RateData | UnsetType | None = UNSET
    max_jobs: Whole | UnsetType | None = UNSET
    keep: Seconds | UnsetType | None = UNSET
    keep_count: Whole | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET

    def command(self, name: str) -> SetQueue:
        """Sets what is given; everything else stays."""
        try:
            changes = self._changes()
        except WrongItemError as error:
            raise Problem(400, "invalid_body", str(error)) from None
        return SetQueue(
            queue=name,
            paused=None if self.paused is UNSET else self.paused,
            policy=QueuePolicy(**changes),
            fields=tuple(changes),
        )

    def _changes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, field in (
            ("heartbeat", "lease_ms"),
            ("cutoff", "attempt_ms_max"),
            ("grace", "grace_ms"),
            ("keep", "record_ms"),
        ):
            seconds = getattr(self, key)
            if seconds is not UNSET:
                unset = 0 if key == "grace" else None
                found[field] = unset if seconds is None else milliseconds(seconds, key)
        for key, field in (
            ("max_concurrency", "concurrency_max"),
            ("max_jobs", "jobs_max"),
            ("keep_count", "records_max"),
        ):
            if getattr(self, key) is not UNSET:
                found[field] = getattr(self, key)
        if self.retries is not UNSET:
            found["attempts_max"] = attempts_of(self.retries)
        if self.backoff is not UNSET:
            found["backoff"] = None if self.backoff is None else _backoff(self.backoff)
        if self.rate is not UNSET:
            given = self.rate
            per_ms = 0 if given is None else milliseconds(given.per, "per")
            found["rate"] = None if given is None else Rate(given.count, per_ms)
        return found


def _backoff(given: BackoffData) -> Backoff:
    return Backoff(
        milliseconds(given.first, "first"),
        given.factor,
        milliseconds(given.max, "max"),
        given.jitter,
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def shown_policy(policy: QueuePolicy) -> answers.QueuePolicy:
    """A queue's settings, in the form in which they are set."""
    backoff, rate = policy.backoff, policy.rate
    retries = policy.attempts_max
    return {
        "heartbeat": _seconds(policy.lease_ms),
        "grace": policy.grace_ms / 1000,
        "cutoff": _seconds(policy.attempt_ms_max),
        "retries": retries if retries is None or retries == -1 else retries - 1,
        "backoff": None
        if backoff is None
        else {
            "first": backoff.first_ms / 1000,
            "factor": backoff.factor,
            "max": backoff.ms_max / 1000,
            "jitter": backoff.jitter,
        },
        "max_concurrency": policy.concurrency_max,
        "rate": None if rate is None else {"count": rate.count, "per": rate.per_ms / 1000},
        "max_jobs": policy.jobs_max,
        "keep": _seconds(policy.record_ms),
        "keep_count": policy.records_max,
    }


class LimitData(Struct):
    """How many jobs of a named limit may be leased at once; ``null`` removes the limit."""

    max: Whole | None

    def command(self, name: str) -> SetLimit | RemoveLimit:
        """The command for the limit named in the path."""
        return RemoveLimit(name) if self.max is None else SetLimit(name, self.max)


class RecurItem(Struct):
    """A job that is added repeatedly."""

    id: Word
    meta: Raw
    interval: Seconds | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    offset: Seconds | None = None
    backlog: Whole = 0
    priority: Priority = 0.0
    retries: Retries | None = None
    heartbeat: Seconds | None = None
    cutoff: Seconds | None = None
    tags: Tags = ()
    limits: Limits = ()
    paused: bool = False

    def next_at(self, now: int) -> int:
        """The first firing of an interval: after the offset, or now."""
        milliseconds(self.interval or 0.0, "interval")  # its error goes before that of the offset
        return now + milliseconds(self.offset or 0.0, "offset")

    def schedule(self, queue: str, next_at: int, meta_bytes_max: int) -> Schedule:
        """The schedule with its template."""
        interval = self.interval
        return Schedule(
            schedule_id=self.id,
            queue=queue,
            interval_ms=None if interval is None else milliseconds(interval, "interval"),
            cron=self.cron,
            time_zone=self.time_zone,
            next_at=next_at,
            backlog_max=self.backlog or limits.BATCH_COUNT_MAX,
            paused=self.paused,
            payload=check_size(self.meta, meta_bytes_max),
            encoding=Encoding.JSON,
            priority=self.priority,
            terms=terms_of(self.retries, self.heartbeat, self.cutoff),
            tags=tuple(dict.fromkeys(self.tags)),
            limits=tuple(sorted(set(self.limits))),
        )


def shown_schedule(row: Schedule) -> answers.Recurring:
    """A recurring job."""
    endless = row.backlog_max == limits.BATCH_COUNT_MAX
    retries = row.terms.attempts_max
    return {
        "id": row.schedule_id,
        "queue": row.queue,
        "meta": as_json_value(row.payload, row.encoding),
        "interval": _seconds(row.interval_ms),
        "cron": row.cron,
        "time_zone": row.time_zone,
        "next": row.next_at / 1000,
        "backlog": 0 if endless else row.backlog_max,
        "priority": plain(row.priority),
        "retries": retries if retries is None or retries == -1 else retries - 1,
        "tags": row.tags,
        "limits": row.limits,
        "paused": row.paused,
        "count": row.fired_count,
        "last": row.last_job_id,
    }


class UnfailData(Struct):
    """Which failed jobs to try again."""

    group: str
    count: Whole = 25


QUEUE: Final = msgspec.json.Decoder(QueueData).decode
LIMIT: Final = msgspec.json.Decoder(LimitData).decode
UNFAIL: Final = msgspec.json.Decoder(UnfailData).decode
RECUR: Final[Items[RecurItem]] = Items(RecurItem, ("id", "meta"))
NAMES: Final[Items[str]] = Items(str)

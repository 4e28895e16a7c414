"""Batches as they travel over a link."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec.structs import replace

from manyhands.cluster.link import (
    GATHERED_BYTES_MAX,
    CompletedStep,
    LeasedStep,
    News,
    PieceNews,
    ReadyStep,
    Step,
)
from manyhands.model import limits
from manyhands.model.events import Event
from manyhands.model.job import Job, Lease, Origin
from manyhands.model.plain import Plain, PlainLeased, PlainReady, job_of
from manyhands.model.policy import Terms
from manyhands.store.batch import Batch
from manyhands.store.mirror import Mirror

if TYPE_CHECKING:
    from manyhands.cluster.router import Router

Value = TypeVar("Value")


class _Places(Generic[Value]):
    """A table of what many jobs have in common. Most share a few objects, which are recognised by
    identity.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._places: dict[int, int] = {}

    def place(self, value: Value) -> int:
        found = self._places.get(id(value))
        if found is None:
            found = self._places[id(value)] = len(self.values)
            self.values.append(value)
        return found


def steps_of(batch: Batch, router: "Router") -> News | None:
    """What fronts have to know of a batch if nothing happened in it but to plain jobs. It is what
    happened, and not what came of it, so it is only for those that know all jobs.
    """
    if not batch.is_plain or batch.rows or batch.weight > GATHERED_BYTES_MAX:
        return None
    steps: list[Step] = []
    terms, origins, holders = _Places(), _Places(), _Places()  # type: ignore[var-annotated]
    for entry in batch.entries:
        kind = type(entry)
        if kind is PlainLeased:
            assert isinstance(entry, PlainLeased)
            lease = entry.lease
            steps.append(
                LeasedStep(
                    entry.ready.job_id,
                    lease.token,
                    holders.place(lease.holder),
                    entry.at,
                    entry.lasted_ms,
                    lease.term_ms,
                    lease.expires_at,
                    lease.cutoff_at,
                    lease.connection,
                )
            )
        elif kind is PlainReady:
            assert isinstance(entry, PlainReady)
            steps.append(
                ReadyStep(
                    entry.job_id,
                    entry.serial,
                    entry.queue,
                    entry.payload,
                    entry.encoding,
                    terms.place(entry.terms),
                    origins.place(entry.origin),
                    entry.priority,
                    entry.position,
                    entry.submitted_at,
                    entry.at,
                    entry.unique_key,
                    entry.durable_interest,
                    entry.waiters,
                )
            )
        elif kind is Event:
            return None
        else:
            assert not isinstance(entry, Event | PlainReady | PlainLeased)
            steps.append(
                CompletedStep(
                    entry.leased.ready.job_id,
                    entry.at,
                    entry.lasted_ms,
                    entry.result,
                    entry.result_encoding,
                    entry.payload,
                )
            )
    return News(
        number=batch.number,
        applied=router.applied_number(),
        applied_seq=router.applied_seq(),
        serial=router.store.live.last_serial(),
        position=router.store.live.position,
        events_after=batch.events_after,
        steps=tuple(steps),
        terms=tuple(terms.values),
        origins=tuple(origins.values),
        holders=tuple(holders.values),
    )


def take_steps(news: News, mirror: Mirror) -> Batch | None:
    """Takes in what happened; None if that does not follow from what is known here."""
    batch = Batch(news.number)
    batch.events_after = news.events_after
    batch.is_durable = True
    entries, values = batch.entries, batch.values
    for step in news.steps:
        value: Plain | None
        if type(step) is LeasedStep:
            lease = Lease(
                step.token,
                1,
                news.holders[step.holder],
                step.at,
                step.term_ms,
                step.expires_at,
                step.cutoff_at,
                step.connection,
            )
            value = mirror.lease(step.job_id, lease, step.lasted_ms)
        elif type(step) is CompletedStep:
            value = mirror.complete(
                step.job_id,
                step.at,
                step.lasted_ms,
                step.result,
                step.result_encoding,
                step.payload,
            )
        else:
            assert isinstance(step, ReadyStep)
            value = mirror.add(_ready(step, news.terms, news.origins))
        if value is None:
            return None
        values[step.job_id] = value
        entries.append(value)
    mirror.follow(batch, news.serial, news.position)
    return batch


def _ready(step: ReadyStep, terms: Sequence[Terms], origins: Sequence[Origin]) -> PlainReady:
    return PlainReady(
        step.job_id,
        step.queue,
        step.payload,
        step.encoding,
        terms[step.terms],
        origins[step.origin],
        step.priority,
        step.position,
        step.submitted_at,
        step.at,
        step.unique_key,
        step.durable_interest,
        step.waiters,
        step.serial,
    )


def news_of(batch: Batch, router: "Router") -> Iterator[News]:
    """What fronts have to know of a batch; its first jobs apart if they are large. Fronts show jobs
    and never hand them out, so large payloads stay here: whoever looks at one asks for it.
    """
    jobs: list[Job] = []
    weight = 0
    for job in map(job_of, batch.values.values()):
        if weight > GATHERED_BYTES_MAX:
            yield _some_of(tuple(jobs), router)
            jobs, weight = [], 0
        if len(job.payload) > limits.PAYLOAD_BYTES_IN_MEMORY:
            job = replace(job, payload=b"", stored_bytes=len(job.payload))  # noqa: PLW2901
        jobs.append(job)
        weight += len(job.payload) + len(job.result or b"")
    yield _rest_of(batch, tuple(jobs), router)


def _some_of(jobs: tuple[Job, ...], router: "Router") -> News:
    return News(
        number=0,  # that of the batch comes with its last jobs
        applied=router.applied_number(),
        applied_seq=router.applied_seq(),
        serial=router.store.live.last_serial(),
        position=router.store.live.position,
        jobs=jobs,
    )


def _rest_of(batch: Batch, jobs: tuple[Job, ...], router: "Router") -> News:
    pieces = tuple(
        PieceNews(row.job_id, row.number, row.at, row.payload, row.warning, row.is_log)
        for row in batch.rows_of("partials").values()
    )
    return News(
        number=batch.number,
        applied=router.applied_number(),
        applied_seq=router.applied_seq(),
        serial=router.store.live.last_serial(),
        position=router.store.live.position,
        jobs=jobs,
        events=tuple(batch.events),
        events_after=batch.events_after,
        queues=batch.rows_of("queues"),
        limits=batch.rows_of("limits"),
        schedules=batch.rows_of("schedules"),
        cursors=batch.rows_of("cursors"),
        pieces=pieces,
    )


def batch_of(news: News) -> Batch:
    """The batch, as listeners of a front see it."""
    batch = Batch(news.number)
    batch.values = {job.job_id: job for job in news.jobs}
    batch.entries = list(news.events)
    batch.is_plain = False
    batch.events_after = news.events_after
    for table, rows in (
        ("queues", news.queues),
        ("limits", news.limits),
        ("schedules", news.schedules),
        ("cursors", news.cursors),
    ):
        for name, value in rows.items():
            batch.put(table, name, value)
    for number, piece in enumerate(news.pieces):
        batch.put("partials", (piece.job_id, number), piece)
    batch.is_durable = True
    return batch

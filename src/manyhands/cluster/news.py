"""Batches as they travel over a link."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from manyhands.cluster.link import GATHERED_BYTES_MAX, News, PieceNews
from manyhands.model import limits
from manyhands.model.job import Job
from manyhands.model.plain import job_of
from manyhands.store.batch import Batch

if TYPE_CHECKING:
    from manyhands.cluster.router import Router


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

"""Batches as they travel over a link."""

from typing import TYPE_CHECKING

from manyhands.cluster.link import News, PieceNews
from manyhands.store.batch import Batch

if TYPE_CHECKING:
    from manyhands.cluster.router import Router


def news_of(batch: Batch, router: "Router") -> News:
    """What fronts have to know of a batch."""
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
        jobs=tuple(batch.jobs.values()),
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
    batch.jobs = {job.job_id: job for job in news.jobs}
    batch.events = list(news.events)
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

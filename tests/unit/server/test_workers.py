"""Records of workers, with a clock of their own."""

from manyhands.model.commands import ByToken, Complete, Fail
from manyhands.model.job import Failure, Holder
from manyhands.server.workers import (
    WORKER_MS_MAX,
    WORKERS_COUNT_MAX,
    WorkerBook,
    WorkerBooks,
)
from tests.unit.server.desk import COMMIT_MS, Desk


def test_qb52_silent_workers_vanish_and_those_that_are_heard_of_stay():
    book = WorkerBook("http")
    book.see("silent", "10.0.0.1", 0)
    book.see("alive", "10.0.0.2", 0)
    book.see(None, "10.0.0.3", 0)
    book.see("alive", "10.0.0.2", WORKER_MS_MAX - 1)

    assert [record.name for record in book.records(1)] == ["10.0.0.3", "alive", "silent"]
    assert [record.name for record in book.records(WORKER_MS_MAX)] == ["alive"]
    assert book.record("silent") is None


def test_names_without_end_cost_no_memory_without_end():
    book = WorkerBook("http")
    for number in range(WORKERS_COUNT_MAX + 10):
        book.see(f"w{number}", "10.0.0.1", number)

    assert len(book.records(number)) == WORKERS_COUNT_MAX
    assert book.record("w0") is None


def test_workers_of_every_protocol_with_names_are_known_by_their_leases():
    desk = Desk()
    books = WorkerBooks()
    desk.dispatcher.on_batch.append(books.take)
    desk.submit()
    desk.submit()

    for answer in (
        lambda job: Complete(job_id=job.job_id, proof=ByToken(job.lease.token)),
        lambda job: Fail(
            job_id=job.job_id, proof=ByToken(job.lease.token), failure=Failure("x"), retry=False
        ),
    ):
        job = desk.claim(holder=Holder("wmp", "press-1", "10.0.0.4"))
        desk.tell(answer(job))
        desk.run(2 * COMMIT_MS)

    record = books.by_realm["wmp"].record("press-1")
    assert (record.taken, record.completed, record.failed, record.lost) == (2, 1, 1, 0)
    assert (record.address, record.seen_at > 0) == ("10.0.0.4", True)
    assert books.http.records(desk.clock.now()) == []

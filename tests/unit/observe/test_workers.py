"""Records of workers, with a clock of their own."""

import pytest

from manyhands.model.commands import ByToken, Complete, Fail
from manyhands.model.job import Failure, Holder
from manyhands.model.policy import TERMS, OnExpiry, Terms
from manyhands.model.reasons import Reason
from manyhands.observe.facts import Facts
from manyhands.observe.workers import (
    WORKER_MS_MAX,
    WORKERS_COUNT_MAX,
    WorkerBook,
    WorkerBooks,
)
from tests.unit.dispatch.desk import COMMIT_MS, Desk


def test_qb52_silent_workers_vanish_and_those_that_are_heard_of_stay():
    book = WorkerBook("qless", Facts().count)
    book.see("silent", "10.0.0.1", 0)
    book.see("alive", "10.0.0.2", 0)
    book.see(None, "10.0.0.3", 0)
    book.see("alive", "10.0.0.2", WORKER_MS_MAX - 1)

    assert [record.name for record in book.records(1)] == ["10.0.0.3", "alive", "silent"]
    assert [record.name for record in book.records(WORKER_MS_MAX)] == ["alive"]
    assert book.record("silent") is None


def test_names_without_end_cost_no_memory_without_end():
    book = WorkerBook("qless", Facts().count)
    for number in range(WORKERS_COUNT_MAX + 10):
        book.see(f"w{number}", "10.0.0.1", number)

    assert len(book.records(number)) == WORKERS_COUNT_MAX
    assert book.record("w0") is None


@pytest.fixture
def desk():
    desk = Desk()
    facts = Facts()
    desk.books = WorkerBooks(facts)
    desk.dispatcher.on_batch.append(facts.note)
    return desk


def test_workers_of_every_protocol_with_names_are_known_by_their_leases(desk):
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

    record = desk.books.by_realm["wmp"].record("press-1")
    assert (record.taken, record.completed, record.failed, record.lost) == (2, 1, 1, 0)
    assert (record.address, record.seen_at > 0) == ("10.0.0.4", True)
    assert desk.books.by_realm["qless"].records(desk.clock.now()) == []


def test_a_worker_was_heard_of_when_it_took_a_job_however_late_that_is_counted(desk):
    desk.submit(2)
    began_at = desk.clock.now()
    desk.claim(holder=Holder("dwork", "w"))
    desk.claim(holder=Holder("dwork", "w"))  # within the time that is not worth a note
    desk.run(60_000)

    assert desk.books.by_realm["dwork"].record("w").seen_at == began_at


def test_by_their_leases_too_the_longest_silent_are_forgotten_first(desk):
    desk.submit(3)
    for name in ("alive", "silent"):
        desk.claim(holder=Holder("dwork", name, "10.0.0.1"))
    desk.run(1_000)
    desk.claim(holder=Holder("dwork", "alive", "10.0.0.1"))

    book = desk.books.by_realm["dwork"]
    assert [record.name for record in book.records(desk.clock.now())] == ["alive", "silent"]
    assert list(book.by_key) == ["silent", "alive"]
    past = book.record("silent").seen_at + WORKER_MS_MAX
    assert [record.name for record in book.records(past)] == ["alive"]


def test_a_worker_that_speaks_from_elsewhere_is_known_by_its_new_address_at_once(desk):
    desk.submit(2)
    for address in ("10.0.0.1", "10.0.0.2"):
        desk.ask(desk.a_claim(holder=Holder("dwork", "w", address)))
    desk.run(2 * COMMIT_MS)

    record = desk.books.by_realm["dwork"].record("w")
    assert (record.taken, record.address) == (2, "10.0.0.2")


def test_what_happened_before_a_worker_was_heard_of_is_not_in_its_record(desk):
    desk.submit()
    desk.claim(holder=Holder("qless", "w"), term_ms=1_000)
    desk.run(1_100)
    desk.books.by_realm["qless"].see("w", "", desk.clock.now())

    record = desk.books.by_realm["qless"].record("w")
    assert (record.taken, record.lost) == (0, 0)


@pytest.mark.parametrize("on_expiry", OnExpiry)
def test_the_last_allowed_lease_of_a_job_is_lost_once_and_no_failure_of_its_worker(desk, on_expiry):
    desk.submit(terms=Terms(TERMS["native"].defaults, attempts_max=1, on_expiry=on_expiry))
    job = desk.claim(holder=Holder("dwork", "w"), term_ms=1_000)
    desk.run(20_000)

    assert desk.job(job.job_id).reason is Reason.OUT_OF_ATTEMPTS
    record = desk.books.by_realm["dwork"].record("w")
    assert (record.taken, record.failed, record.lost) == (1, 0, 1)

"""Commits that are counted later, and nobody can tell."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.model.commands import ByToken, Cancel, Fail, Move, Requeue
from manyhands.model.job import Failure, Holder
from manyhands.model.policy import TERMS, OnExpiry, Terms
from manyhands.server.metrics import Metrics
from manyhands.server.tallies import Tallies
from manyhands.server.uncounted import COMMITS_MAX, EVENTS_MAX, Noted, Uncounted
from manyhands.server.workers import WorkerBooks
from tests.unit.server.desk import Desk


class Office:
    """All who count what one dispatcher commits."""

    def __init__(self, desk: Desk) -> None:
        self.uncounted = Uncounted()
        self.tallies = Tallies(self.uncounted)
        self.books = WorkerBooks(self.uncounted)
        self.metrics = Metrics(desk.dispatcher, self.tallies, self.uncounted)
        self.counted: list[Noted] = []
        self.uncounted.counters.append(self.counted.append)
        desk.dispatcher.on_batch.append(self.uncounted.note)

    def scraped(self, name: str) -> float:
        """One number out of a scrape."""
        _, text = self.metrics.render()
        (line,) = [line for line in text.decode().splitlines() if line.startswith(f"{name} ")]
        return float(line.rpartition(" ")[2])

    def figures(self) -> list[Any]:
        """All that can be known, and in which order workers would be forgotten."""
        books = self.books.by_realm.values()
        return [
            self.tallies.entered,
            self.tallies.taken,
            self.tallies.jobs_in,
            self.tallies.jobs_out,
            self.tallies.current,
            [
                [(one.name, one.address, one.seen_at, one.taken) for one in book.by_key.values()]
                for book in books
            ],
            [
                [(one.completed, one.failed, one.lost) for one in book.by_key.values()]
                for book in books
            ],
            self.scraped("manyhands_commit_jobs_sum"),
            self.scraped("manyhands_commit_jobs_count"),
        ]


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def office(desk):
    return Office(desk)


READERS: dict[str, Callable[[Office], object]] = {
    "entered": lambda office: office.tallies.entered["completed"],
    "jobs in": lambda office: office.tallies.jobs_in["native"],
    "jobs out": lambda office: office.tallies.jobs_out["dwork"],
    "current": lambda office: office.tallies.current["q"].completed,
    "cut": lambda office: office.tallies.cut()["q"].completed,
    "total": lambda office: office.tallies.total().completed,
    "one worker": lambda office: office.books.by_realm["dwork"].record("w").completed,
    "all workers": lambda office: office.books.by_realm["dwork"].records(0)[0].completed,
    "states in the metrics": lambda office: office.scraped(
        'manyhands_jobs_entered_total{state="completed"}'
    ),
    "commits in the metrics": lambda office: office.scraped("manyhands_commit_jobs_count") - 2,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_a_figure_sees_all_that_was_committed_before(desk, office, read):
    desk.submit()
    job = desk.claim(holder=Holder("dwork", "w"))
    desk.tell(desk.a_complete(job))
    desk.run(50)

    assert office.counted == []
    assert read(office) == 1
    assert len(office.counted) == 1


def test_leases_that_were_taken_away_are_seen_at_once(desk, office):
    desk.submit()
    desk.claim(term_ms=1_000)
    desk.run(1_100)

    assert office.tallies.taken["expired"] == 1


def test_nothing_is_counted_twice(desk, office):
    desk.submit(3)

    assert [office.tallies.total().submitted for _ in range(3)] == [3, 3, 3]


def test_events_are_counted_when_enough_of_them_have_come_together(desk, office):
    desk.submit(EVENTS_MAX - 1)
    assert office.counted == []

    desk.submit()
    (noted,) = office.counted
    assert len(noted.events) == EVENTS_MAX
    assert len(noted.commits) == 2


def test_commits_without_events_are_counted_when_enough_of_them_have_come_together(desk, office):
    for _ in range(COMMITS_MAX):
        assert office.counted == []
        desk.dispatcher.touch()
        desk.run(50)

    (noted,) = office.counted
    assert len(noted.commits) == COMMITS_MAX


def test_only_a_commit_that_cannot_be_counted_without_its_jobs_has_them_and_is_counted_at_once(
    desk, office
):
    desk.submit(2, terms=Terms(TERMS["native"].defaults, attempts_max=1))
    lost, failed = desk.claim(term_ms=1_000), desk.claim()
    desk.tell(a_fail(failed))
    desk.run(50)
    (noted,) = office.counted
    assert list(noted.jobs) == [failed.job_id]

    desk.run(1_100)
    assert list(office.counted[1].jobs) == [lost.job_id]
    sample = office.tallies.total()
    assert (sample.failed, sample.failed_attempts, sample.lost) == (2, 1, 1)

    desk.submit()
    office.uncounted.count()
    assert not office.counted[2].jobs


def a_fail(job, *, retry: bool = True) -> Fail:
    failure = Failure("boom", "it broke")
    return Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure, retry=retry)


def test_one_who_cannot_count_keeps_neither_others_nor_readers_from_it(desk):
    uncounted = Uncounted()
    uncounted.counters.append(lambda noted: noted.nothing)
    tallies = Tallies(uncounted)
    desk.dispatcher.on_batch.append(uncounted.note)
    desk.submit()

    assert tallies.total().submitted == 1


@pytest.mark.parametrize("seed", range(5))
def test_counting_later_comes_to_the_same_as_counting_every_commit_by_itself(desk, seed):
    at_once, later = Office(desk), Office(desk)
    desk.dispatcher.on_batch.append(lambda *_: at_once.uncounted.count())
    chance = random.Random(seed)
    kinds = [
        Terms(TERMS["native"].defaults, attempts_max=attempts_max, on_expiry=on_expiry)
        for attempts_max in (-1, 1, 2)
        for on_expiry in OnExpiry
    ]
    held: list[Any] = []
    known: list[str] = []
    for _ in range(150):
        what = chance.randrange(8)
        if what <= 1:
            queue, delay_ms = chance.choice("qr"), chance.choice((0, 300))
            jobs = desk.submit(2, queue=queue, terms=chance.choice(kinds), delay_ms=delay_ms)
            known += [job.job_id for job in jobs]
        elif what <= 3:
            name = chance.choice(("a", "b", "c", None))
            address = chance.choice(("10.0.0.1", "10.0.0.2"))
            for office in (at_once, later):
                office.books.http.see(name, address, desk.clock.now())
            holder = Holder(chance.choice(("dwork", "wmp", "http", "gearman")), name, address)
            told = desk.ask(desk.a_claim("q", "r", holder=holder, term_ms=1_000))
            desk.run(50)
            held += told.reply.jobs
        elif what <= 5 and held:
            job = held.pop(chance.randrange(len(held)))
            retry = chance.random() < 0.5
            ends = (desk.a_complete(job), desk.a_complete(job), a_fail(job, retry=retry))
            desk.tell(chance.choice(ends))
        elif what == 6 and known:
            job_id = chance.choice(known)
            ends = (
                Cancel(job_ids=(job_id,)),
                Requeue(job_id=job_id),
                Move(job_id=job_id, queue="r"),
            )
            desk.tell(chance.choice(ends))
        else:
            desk.run(chance.choice((20, 100, 500, 2_000)))
    desk.run(50)

    assert len(later.counted) < len(at_once.counted)
    assert later.figures() == at_once.figures()

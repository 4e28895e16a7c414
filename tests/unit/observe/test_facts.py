"""What events stand for; and commits that are counted later, and nobody can tell."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.model.commands import ByToken, Cancel, Fail, Move, Requeue
from manyhands.model.events import KINDS, Event
from manyhands.model.job import Failure, Holder, Origin, State
from manyhands.model.policy import TERMS, OnExpiry, Terms
from manyhands.model.reasons import Reason
from manyhands.observe.facts import COMMITS_MAX, EVENTS_MAX, Commits, Facts
from manyhands.observe.fold import Fold
from manyhands.observe.incidents import Incidents
from manyhands.observe.metrics import Metrics
from manyhands.observe.tallies import Tallies
from manyhands.observe.workers import WorkerBooks
from tests.unit.dispatch.desk import Desk


class Office:
    """All who count what one dispatcher commits."""

    def __init__(self, desk: Desk) -> None:
        self.facts = Facts()
        self.tallies = Tallies(self.facts)
        self.books = WorkerBooks(self.facts)
        self.metrics = Metrics(desk.dispatcher, self.tallies, self.facts)
        self.counted: list[Commits] = []
        self.facts.on_commits.append(self.counted.append)
        desk.dispatcher.on_batch.append(self.facts.note)

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
    (commits,) = office.counted
    assert [jobs_count for _, jobs_count in commits] == [EVENTS_MAX - 1, 1]


def test_commits_without_events_are_counted_when_enough_of_them_have_come_together(desk, office):
    for _ in range(COMMITS_MAX):
        assert office.counted == []
        desk.dispatcher.touch()
        desk.run(50)

    (commits,) = office.counted
    assert len(commits) == COMMITS_MAX


def test_a_commit_that_cannot_be_counted_without_its_jobs_is_counted_at_once(desk, office):
    desk.submit(2, terms=Terms(TERMS["native"].defaults, attempts_max=1))
    lost, failed = desk.claim(term_ms=1_000), desk.claim()
    desk.tell(a_fail(failed))
    desk.run(50)
    assert len(office.counted) == 1

    desk.run(1_100)
    assert desk.job(lost.job_id).state is State.FAILED
    assert len(office.counted) == 2
    sample = office.tallies.total()
    assert (sample.failed, sample.failed_attempts, sample.lost) == (2, 1, 1)

    desk.submit()
    assert len(office.counted) == 2


def a_fail(job, *, retry: bool = True) -> Fail:
    failure = Failure("boom", "it broke")
    return Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure, retry=retry)


def test_one_who_cannot_count_keeps_neither_others_nor_readers_from_it(desk):
    facts = Facts()
    facts.on_submitted.append(lambda event: event.nothing)
    facts.on_commits.append(lambda commits: commits.nothing)
    tallies = Tallies(facts)
    metrics = Metrics(desk.dispatcher, tallies, facts)
    desk.dispatcher.on_batch.append(facts.note)
    desk.submit()

    assert tallies.total().submitted == 1
    assert b"manyhands_commit_jobs_sum 1.0" in metrics.render()[1]


@pytest.mark.parametrize("seed", range(5))
def test_counting_later_comes_to_the_same_as_counting_every_commit_by_itself(desk, seed):
    at_once, later = Office(desk), Office(desk)
    desk.dispatcher.on_batch.append(lambda *_: at_once.facts.count())
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
                office.books.by_realm["qless"].see(name, address, desk.clock.now())
            holder = Holder(chance.choice(("dwork", "wmp", "qless", "gearman")), name, address)
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


# What an event stands for: by its state and reason, with the holder of a lease that ended or none.
NEW = {"submitted"}
FACTS: dict[tuple[State, Reason, bool], set[str]] = {
    (State.BLOCKED, Reason.NONE, False): NEW,
    (State.DELAYED, Reason.NONE, False): NEW,
    (State.READY, Reason.NONE, False): NEW,
    (State.LEASED, Reason.NONE, True): {"started"},
    (State.LEASED, Reason.RENEWED, True): {"resumed"},
    (State.COMPLETED, Reason.NONE, True): {"completed"},
    (State.FAILED, Reason.FAILED, True): {"ended", "attempt_failed", "failed"},
    (State.FAILED, Reason.OUT_OF_ATTEMPTS, True): {"ended", "attempt_failed", "failed"},
    (State.FAILED, Reason.DEADLINE, True): {"ended", "failed"},
    (State.FAILED, Reason.DEADLINE, False): {"failed"},
    (State.FAILED, Reason.DEPENDENCY_FAILED, False): {"failed"},
    (State.CANCELLED, Reason.CANCELLED, True): {"ended", "cancelled"},
    (State.CANCELLED, Reason.CANCELLED, False): {"cancelled"},
    (State.CANCELLED, Reason.ABANDONED, True): {"ended", "cancelled"},
    (State.CANCELLED, Reason.REPLACED, False): {"cancelled"},
    (State.CANCELLED, Reason.DEPENDENCY_FAILED, False): {"cancelled"},
    (State.READY, Reason.LAPSED, True): {"ended", "attempt_lost", "placed", "retried"},
}
for waiting in (State.BLOCKED, State.READY):
    for lost in (Reason.LOST, Reason.EXPIRED, Reason.CUTOFF):
        FACTS[waiting, lost, True] = {"ended", "attempt_lost", "placed", "retried"}
    for returned in (Reason.RELEASED, Reason.GOODBYE):
        FACTS[waiting, returned, True] = {"ended", "placed"}
for waiting in (State.BLOCKED, State.DELAYED, State.READY):
    FACTS |= {
        (waiting, Reason.RETRY, True): {"ended", "attempt_failed", "placed", "retried"},
        (waiting, Reason.ADVANCED, True): {"ended", "advanced", "placed"},
        (waiting, Reason.MOVED, True): {"ended", "placed"},
        (waiting, Reason.MOVED, False): {"placed"},
    }
for waiting in (State.DELAYED, State.READY):
    FACTS[waiting, Reason.REQUEUED, False] = {"placed"}


def an_event(state: State, reason: Reason, holder: Holder | None, **changes: Any) -> Event:
    fields = {"attempts_max": -1, "lasted_ms": 0} | changes
    values = dict.fromkeys(Event.__struct_fields__[:16], 0)
    named = {"state": state, "reason": reason, "holder": holder, "job_id": "a", "queue": "q"}
    return Event(**values | named | {"origin": Origin("native")} | fields)


class Listener:
    """Subscribed to all facts there are."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.heard: list[str] = []
        names = [name for name in vars(self.fold) if name.startswith("on_")]
        for name in names:
            getattr(self.fold, name).append(lambda _, name=name: self.heard.append(name[3:]))

    def facts_of(self, event: Event) -> set[str]:
        self.heard.clear()
        self.fold.fold([event])
        first, *others = self.heard
        assert first == "event"
        assert len(others) == len(set(others)), f"told twice: {others}"
        return set(others)


@pytest.mark.parametrize("key", FACTS, ids=str)
def test_each_event_stands_for_its_facts(key):
    state, reason, held = key

    event = an_event(state, reason, Holder("native", "w") if held else None)

    assert Listener().facts_of(event) == FACTS[key]


def test_every_event_that_there_can_be_is_known_to_the_fold():
    published = {(state, reason) for state, kind in KINDS.items() for reason in kind.reasons}

    assert {(state, reason) for state, reason, _ in FACTS} == published


def test_a_job_that_waited_before_is_not_submitted_when_it_is_ready():
    event = an_event(State.READY, Reason.NONE, None, lasted_ms=5)

    assert Listener().facts_of(event) == {"placed"}


def test_events_worth_a_line_are_seen_with_their_commit(desk):
    facts = Facts()
    seen: list[list[Reason]] = []
    facts.watch([Reason.EXPIRED], lambda events, _: seen.append([one.reason for one in events]))
    Incidents(facts)
    desk.dispatcher.on_batch.append(facts.note)
    desk.submit(2)
    desk.claim(term_ms=1_000)
    desk.tell(a_fail(desk.claim()))
    desk.run(1_100)

    assert seen == [[Reason.EXPIRED]]

"""What no job refers to any more is dropped; what is used meanwhile stays."""

import apsw
import pytest

from manyhands.model.commands import ByToken, Complete, Fail
from manyhands.model.filter import Filter
from manyhands.model.job import Failure
from manyhands.model.policy import TERMS, Terms
from manyhands.store.retention import Retention
from manyhands.store.sqlite import schema

# Nothing is worth a walk while it is this little.
SPARED = "manyhands.store.sqlite.store._TERMS_KEPT"
DEFAULTS = TERMS["native"].defaults


@pytest.fixture(autouse=True)
def nothing_is_spared(monkeypatch):
    monkeypatch.setattr(SPARED, 0)


def rows(opened, table: str) -> int:
    """How many rows a table of the file has."""
    connection = apsw.Connection(str(opened.directory / schema.FILE_NAME))
    found = connection.execute(f"SELECT count(*) FROM {table}").get
    connection.close()
    return found


def a_finished_job(opened, attempts_max: int) -> None:
    opened.submit(terms=Terms(DEFAULTS, attempts_max=attempts_max))
    (job,) = opened.claim()
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(job.lease.token)))


def sweep(opened, meanwhile=lambda: None) -> int:
    opened.store.begin_sweep()
    opened.settle()
    unused = opened.store.find_unused()
    meanwhile()
    dropped = opened.store.end_sweep(unused)
    opened.settle()
    return dropped


def test_terms_go_with_the_last_job_that_had_them(opening):
    opened = opening(Retention(record_ms=1_000))
    a_finished_job(opened, 7)
    opened.now += 2_000
    a_finished_job(opened, 8)
    waiting = opened.submit(terms=Terms(DEFAULTS, attempts_max=9))
    opened.settle()
    opened.store.prune(opened.now, 100)
    opened.store.touch()
    opened.settle()

    dropped = sweep(opened)

    assert opened.job(waiting.job_id).terms.attempts_max == 9
    if opened.kind == "sqlite":
        assert dropped == 1
        assert rows(opened, "terms") == 2
    opened.reopen()
    assert opened.job(waiting.job_id).terms.attempts_max == 9
    found = opened.store.search(Filter()).jobs
    assert sorted(job.terms.attempts_max for job in found) == [8, 9]


def test_terms_that_are_used_while_they_are_looked_for_stay(opening):
    opened = opening(Retention(record_ms=1_000))
    a_finished_job(opened, 7)
    opened.settle()
    opened.now += 2_000
    opened.store.prune(opened.now, 100)
    opened.store.touch()
    opened.settle()

    again = []

    def meanwhile() -> None:
        again.append(opened.submit(terms=Terms(DEFAULTS, attempts_max=7)))
        opened.settle()

    assert sweep(opened, meanwhile) == 0
    opened.reopen()
    assert opened.job(again[0].job_id).terms.attempts_max == 7


def test_terms_that_were_dropped_can_come_back(opening):
    opened = opening(Retention(record_ms=1_000))
    a_finished_job(opened, 7)
    opened.settle()
    opened.now += 2_000
    opened.store.prune(opened.now, 100)
    opened.store.touch()
    opened.settle()
    sweep(opened)
    again = opened.submit(terms=Terms(DEFAULTS, attempts_max=7))
    sweep(opened)
    opened.reopen()

    assert opened.job(again.job_id).terms.attempts_max == 7


def test_groups_of_failures_go_with_their_last_job(opening):
    opened = opening(Retention(record_ms=1_000))
    for code in ("old", "new"):
        opened.submit()
        (job,) = opened.claim()
        failure = Failure(code, "it broke")
        opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure))
        opened.settle()
        opened.now += 600
    opened.now += 100
    opened.store.prune(opened.now, 100)
    opened.store.touch()
    opened.settle()
    sweep(opened)

    assert [row[0] for row in opened.store.failure_codes()] == ["new"]
    if opened.kind == "sqlite":
        assert rows(opened, "failure_groups") == 1


def test_a_few_terms_are_not_looked_for(opening, monkeypatch):
    monkeypatch.setattr(SPARED, 1_000)
    opened = opening(Retention(record_ms=1_000))
    a_finished_job(opened, 7)
    opened.settle()
    opened.now += 2_000
    opened.store.prune(opened.now, 100)
    opened.store.touch()

    assert sweep(opened) == 0

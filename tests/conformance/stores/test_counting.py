"""What a filter finds is counted by state, and the counts agree with what a listing shows."""

import pytest

from manyhands.model.commands import ByToken, Claim, Complete, Fail, NewJob, Submit
from manyhands.model.failures import group_of
from manyhands.model.filter import Filter
from manyhands.model.job import Failure, Holder, Origin, State


@pytest.fixture
def filled(opened):
    """Jobs of several queues, states, tags, workers and fronts."""
    jobs = [
        NewJob(
            job_id=f"{number + 1:032x}",
            queue=("mail", "other")[number % 2],
            payload=b"needle \xff" if number % 3 == 0 else b"hay",
            tags=("red",) if number % 4 == 0 else ("blue", "red2"),
            origin=Origin(("native", "gearman", "qless")[number % 3], "w1" if number == 5 else ""),
            submitted_at=opened.now - number * 1000,
            unique_key=b"key" if number == 7 else None,
            name="a name" if number == 9 else None,
        )
        for number in range(24)
    ]
    opened.ask(Submit(tuple(jobs)))
    for turn, worker in enumerate(("w1", "w2", "w1", 'w"3')):
        reply = opened.ask(
            Claim(
                queues=("mail",),
                holder=Holder("native", worker),
                tokens=(f"token {turn} a", f"token {turn} b"),
            )
        )
        first, second = reply.jobs
        opened.ask(Complete(job_id=first.job_id, proof=ByToken(first.lease.token)))
        if turn % 2:
            proof = ByToken(second.lease.token)
            opened.ask(Fail(job_id=second.job_id, proof=proof, failure=Failure("boom", "it broke")))
    again = NewJob(job_id="f" * 32, queue="again", payload=b"hay", submitted_at=opened.now - 30_000)
    opened.ask(Submit((again,)))
    (job,) = opened.claim("again")
    failure = Failure("DBDown", "a needle in the way\nof the \0 wheel")
    proof = ByToken(job.lease.token)
    opened.ask(Fail(job_id=job.job_id, proof=proof, failure=failure, retry=True))
    opened.commit()
    return opened


WANTED = {
    "everything": {},
    "a queue": {"queue": "mail"},
    "a queue that is not there": {"queue": "nowhere"},
    "a tag": {"tag": "red"},
    "a tag in a queue": {"tag": "red2", "queue": "other"},
    "a worker": {"worker": "w1"},
    "a worker whose name needs escaping": {"worker": 'w"3'},
    "the front that is left unsaid": {"realm": "native"},
    "another front": {"realm": "gearman"},
    "a name": {"name": "a name"},
    "a unique key": {"unique_key": b"key"},
    "a text": {"text": "needle"},
    "a text in a queue by a worker": {"text": "hay", "queue": "mail", "worker": "w2"},
    "a text in a name": {"text": "a nam"},
    "a text in a failure": {"text": "wheel"},
    "a text with a zero": {"text": "the \0 w"},
    "a text in the code of a failure": {"text": "boo"},
    "jobs tried again": {"retrying": True},
    "jobs tried again of a queue": {"retrying": True, "queue": "again"},
    "jobs tried again of another queue": {"retrying": True, "queue": "mail"},
    "jobs tried again with a text": {"retrying": True, "text": "needle"},
    "jobs not tried again": {"retrying": False, "queue": "again"},
    "a group of failures": {"failure": group_of(Failure("boom", "it broke")).group_id},
    "a code of failures": {"failure_code": "boom", "queue": "mail"},
    "a group of failures with a tag": {
        "failure": group_of(Failure("boom", "it broke")).group_id,
        "tag": "red2",
    },
    "a code of failures with a tag": {"failure_code": "boom", "tag": "red2"},
    "a code of failures that a tag never had": {"failure_code": "boom", "tag": "red"},
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_the_counts_are_those_of_the_listing(filled, wanted):
    listed = dict.fromkeys(State, 0)
    for job in filled.store.search(Filter(**wanted, count_max=1000)).jobs:
        listed[job.state] += 1

    found = filled.store.count(Filter(**wanted))

    assert found.complete
    assert found.counts == listed


def test_what_was_counted_to_the_end_is_all_however_long_it_took(filled):
    wanted = Filter(tag="red2")

    assert filled.store.count(wanted, seconds_max=0.0) == filled.store.count(wanted)


def test_ages_are_counted(filled):
    bound = filled.now - 10_000
    younger = filled.store.count(Filter(submitted_after=bound))
    older = filled.store.count(Filter(submitted_before=bound))

    assert sum(younger.counts.values()) == 10
    assert sum(older.counts.values()) == 14


def test_the_states_of_a_filter_do_not_narrow_its_counts(filled):
    wanted = Filter(tag="red2", states=(State.FAILED,))

    assert filled.store.count(wanted) == filled.store.count(Filter(tag="red2"))

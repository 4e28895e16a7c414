"""The index of live jobs: what is due, who holds what, and what is let go of."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from manyhands.engine.timers import due_at
from manyhands.model.job import FINISHED, Holder, Job, Lease, State
from manyhands.model.policy import Queue
from manyhands.store.index.live import Index

HOLDER = Holder("native", "w")


def make_index(**finished):
    index = Index(finished.get)
    index.put_queue(Queue("q"))
    return index


def make_job(job_id, state, instant=None, deadline_at=None, **fields):
    """A job for which something is due at that instant, as far as its state allows it."""
    lease = None
    if state is State.LEASED:
        lease = Lease("t", 1, HOLDER, 0, expires_at=instant)
    return Job(
        job_id=job_id,
        queue="q",
        state=state,
        position=1 if state is State.READY else 0,
        run_at=instant if state is State.DELAYED else None,
        deadline_at=deadline_at,
        finished_at=0 if state in FINISHED else None,
        lease=lease,
        **fields,
    )


instants = st.integers(0, 50)
changes = st.builds(
    make_job,
    st.integers(0, 9).map(lambda number: f"{number:032x}"),
    st.sampled_from((State.DELAYED, State.LEASED, State.READY, State.COMPLETED)),
    instants,
    st.one_of(st.none(), st.none(), instants),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(changes, st.tuples(instants, st.integers(1, 5))), max_size=60))
def test_what_is_due_is_found_once_it_is_due_earliest_first_and_never_lost(steps):
    index = make_index()
    for step in steps:
        if isinstance(step, Job):
            index.put(step)
            continue
        now, count_max = step
        expected = sorted(
            (instant, job.job_id)
            for job in index.jobs.values()
            if (instant := due_at(job)) is not None and instant <= now
        )
        found = index.due(now, count_max)
        assert len(found) == min(count_max, len(expected))
        first = [instant for instant, _ in expected][: len(found)]
        assert sorted(due_at(index.jobs[job_id]) for job_id in found) == first
        # Nothing was changed by asking: it is all found again.
        assert list(index.due(now, count_max)) == list(found)

    wanted = [due_at(job) for job in index.jobs.values() if due_at(job) is not None]
    if wanted:
        assert index.due_times.next_at() is not None
        assert index.due_times.next_at() <= min(wanted)


def test_a_lease_that_is_renewed_is_due_later():
    index = make_index()
    job = make_job("a" * 32, State.LEASED, 10)
    index.put(job)
    for instant in range(20, 1_000, 10):
        index.put(replace(job, lease=replace(job.lease, expires_at=instant)))

    assert list(index.due(500, 10)) == []
    assert index.due_times.next_at() == 990
    assert list(index.due(990, 10)) == [job.job_id]


def test_a_name_that_a_later_job_took_is_not_given_back():
    old = make_job("a" * 32, State.COMPLETED, namespace="n", name="x", serial=1)
    index = make_index(**{old.job_id: old})
    new = make_job("b" * 32, State.READY, namespace="n", name="x", serial=2)
    index.put(new)
    index.take_back(old.job_id)
    index.put(replace(old, state=State.READY, position=2, finished_at=None, incarnation=1))

    assert index.named("n", "x") == new.job_id


def test_finished_jobs_of_a_graph_leave_with_its_last_one():
    index = make_index()
    first = make_job("a" * 32, State.READY, namespace="n", name="x")
    last = make_job("b" * 32, State.READY, namespace="n", name="y")
    for job in (first, last):
        index.put(job)
    for job, left in ((first, 2), (last, 0)):
        index.put(replace(job, state=State.COMPLETED, finished_at=1))
        index.forget(job)
        assert len(index.jobs) == left

    assert index.named("n", "x") is None
    assert list(index.namespaces.unfinished()) == []


def test_an_unfinished_job_is_never_forgotten():
    index = make_index()
    job = make_job("a" * 32, State.READY)
    index.put(job)
    index.forget(job)

    assert index.jobs == {job.job_id: job}


def test_a_record_of_a_forgotten_queue_can_be_changed():
    old = make_job("a" * 32, State.COMPLETED, serial=1)
    index = Index({old.job_id: old}.get)
    index.count_records("q", State.COMPLETED, 1)
    index.put_queue(Queue("other"))
    index.take_back(old.job_id)
    index.put(replace(old, queue="other", state=State.READY, position=1, finished_at=None))

    assert index.counts_of("q")[State.COMPLETED] == 0
    assert index.counts_of("other")[State.READY] == 1

"""Listings: the same jobs in the same order from every store, page by page in both directions."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from manyhands.model.commands import Cancel, SetQueue
from manyhands.model.failures import group_of
from manyhands.model.filter import Filter, Order
from manyhands.model.job import (
    FINISHED,
    Attempt,
    EndReason,
    Failure,
    Holder,
    Job,
    Lease,
    Origin,
    State,
)
from manyhands.model.roles import Caller, Role
from manyhands.store.records import search
from manyhands.store.sqlite.reader import Reader
from tests.conformance.stores.opened import START, Opened, ids

QUEUES = ("a", "b", "ü")
WORKERS = ("w1", 'w"2', "wörk\\er")
SUBMITTERS = ("", "@x", "@x host", "@xy")
CALLERS = (
    Caller("x", Role.READ, ("a", "b*")),
    Caller("x", Role.READ, ("?", "[ab]", "%", "_", "\\\\")),
    Caller("x", Role.READ, ("*ü",)),
    Caller("x", Role.SUBMIT),
    Caller("x", Role.WORKER, ("b",)),
    Caller("x", Role.WORK),
)
TAGS = ("red", "blue", "gre'en")
REALMS = ("native", "gearman", "qless")
KEYS = (b"k1", b"\xff\x00")
NAMES = ("n1", "n\n2")
HEADERS = (None, {"task": "t1"}, {"task": 't"2'}, {"task": "t", "trace": "t1"}, {"other": "t1"})
TEXTS = ("needle", "ne", "größe", "")
FAILURES = (Failure("boom", "it broke"), Failure("boom", "it is late"), Failure("late", ""))


def holders():
    return st.builds(Holder, st.sampled_from(REALMS), st.sampled_from((*WORKERS, None)))


@st.composite
def jobs(draw):
    state = draw(st.sampled_from(State))
    holder = draw(holders())
    attempts = [
        Attempt(number, one, START, START, EndReason.LOST)
        for number, one in enumerate(draw(st.lists(holders(), max_size=2)))
    ]
    return Job(
        job_id=draw(st.integers(0, 2**128 - 1)).to_bytes(16).hex(),
        queue=draw(st.sampled_from(QUEUES)),
        state=state,
        payload=draw(st.sampled_from((b"", b"\xffneedle\x00", "größe".encode(), b"n"))),
        origin=Origin(draw(st.sampled_from(REALMS)), draw(st.sampled_from(SUBMITTERS))),
        position=1 if state is State.READY else 0,
        submitted_at=START + draw(st.integers(0, 4)),
        lease=Lease("t", 1, holder, START) if state is State.LEASED else None,
        run_at=START if state is State.DELAYED else None,
        finished_at=START if state in FINISHED else None,
        failure=draw(st.sampled_from(FAILURES)) if state is State.FAILED else None,
        attempts=tuple(attempts),
        unique_key=draw(st.sampled_from((*KEYS, None, None, None))),
        namespace=draw(st.sampled_from(("x", None))),
        name=draw(st.sampled_from((*NAMES, None))),
        tags=tuple(draw(st.lists(st.sampled_from(TAGS), unique=True, max_size=2))),
        headers=draw(st.sampled_from(HEADERS)),
    )


def sometimes(values):
    return st.one_of(st.none(), st.none(), st.none(), st.sampled_from(values))


filters = st.builds(
    Filter,
    states=st.one_of(st.just(()), st.lists(st.sampled_from(State), max_size=3).map(tuple)),
    queue=sometimes((*QUEUES, "unknown")),
    tag=sometimes(TAGS),
    worker=sometimes(WORKERS),
    realm=sometimes(REALMS),
    seen_by=st.sampled_from((None, None, *CALLERS)),
    unique_key=sometimes(KEYS),
    name=sometimes(NAMES),
    submitted_before=sometimes((START + 1, START + 3)),
    submitted_after=sometimes((START, START + 2)),
    failure=sometimes([group_of(failure).group_id for failure in FAILURES]),
    failure_code=sometimes(("boom", "late")),
    header=sometimes((("task", "t1"), ("task", 't"2'), ("other", "t1"))),
    text=sometimes(TEXTS),
    id_tail=sometimes("0123456789abcdef"),
    order=st.sampled_from(Order),
    count_max=st.integers(1, 5),
    payload_bytes=sometimes((1, 4)),
)


def without_shared_keys(many):
    """Of unfinished jobs of a queue, one holds a key."""
    held, kept = set(), []
    for job in many:
        place = (job.queue, job.unique_key)
        if job.unique_key is not None and job.state not in FINISHED:
            if place in held:
                continue
            held.add(place)
        kept.append(job)
    return kept


def walk(opened, wanted, seconds_max=2.0):
    pages = [opened.store.search(wanted, seconds_max)]
    while pages[-1].next is not None:
        pages.append(opened.store.search(replace(wanted, after=pages[-1].next), seconds_max))
    return pages


def test_the_end_of_an_id_is_found_at_once_however_many_jobs_came_later(opened):
    first = opened.submit("a")
    for _ in range(1_500):
        opened.submit("a")
    opened.commit()

    found = opened.store.search(Filter(id_tail=first.job_id[-12:]), seconds_max=0)

    assert (ids(found.jobs), found.complete) == ([first.job_id], True)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(jobs(), max_size=30, unique_by=lambda job: job.job_id).map(without_shared_keys),
    st.lists(filters, min_size=20, max_size=20),
)
def test_both_stores_find_count_and_select_the_same_jobs_on_the_same_pages(many, wanteds):
    with tempfile.TemporaryDirectory() as directory:
        stores = [Opened("memory", Path(directory)), Opened("sqlite", Path(directory))]
        for opened in stores:
            for job in many:
                opened.put(job)
            opened.commit()
        for wanted in wanteds:
            memory, sqlite = ([page.jobs for page in walk(one, wanted)] for one in stores)
            assert sqlite == memory
            memory, sqlite = (
                (opened.store.count(wanted), opened.store.select(wanted)) for opened in stores
            )
            assert sqlite == memory
        for opened in stores:
            opened.close()


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("count_max", [1, 2, 7])
def test_pages_add_up_to_the_whole_listing_in_both_directions(opened, order, count_max):
    submitted = [opened.submit("a" if number % 3 else "b").job_id for number in range(7)]
    opened.ask(Cancel(job_ids=(submitted[2], submitted[3])))
    opened.commit()

    for states in ((), (State.READY,), (State.READY, State.CANCELLED)):
        wanted = Filter(states=states, order=order, count_max=count_max)
        pages = walk(opened, wanted)
        whole = ids(opened.store.search(replace(wanted, count_max=100)).jobs)
        assert [job_id for page in pages for job_id in ids(page.jobs)] == whole
        assert all(len(page.jobs) == count_max for page in pages[:-1])
        assert all(page.complete for page in pages)
        expected = [job_id for job_id in submitted if opened.job(job_id).state in (states or State)]
        assert whole == (expected if order is Order.OLDEST else expected[::-1])


def test_a_listing_may_show_the_beginnings_of_payloads_and_still_look_into_the_whole(opened):
    opened.submit(payload=b"begins like this and has a needle at its end")
    opened.submit(payload=b"begins like this, too")
    opened.commit()

    [found] = opened.store.search(Filter(text="needle", payload_bytes=6)).jobs

    assert found.payload == b"begins"
    assert len(opened.store.search(Filter(payload_bytes=6)).jobs) == 2


def test_the_beginning_of_an_empty_payload_is_empty(opened):
    opened.submit(payload=b"")
    opened.commit()

    [found] = opened.store.search(Filter(payload_bytes=6)).jobs
    assert found.payload == b""


def test_a_search_shows_what_is_committed_and_nothing_else(opened):
    if opened.kind == "memory":
        pytest.skip("a memory store commits at once")
    job = opened.submit()
    assert not opened.store.search(Filter()).jobs
    opened.commit()
    assert ids(opened.store.search(Filter()).jobs) == [job.job_id]


def test_a_search_out_of_time_says_where_to_go_on(tmp_path, monkeypatch):
    opened = Opened("sqlite", tmp_path)
    many = [opened.submit("ab"[number % 2], payload=b"%d" % (number % 5)) for number in range(40)]
    opened.commit()
    monkeypatch.setattr(search, "_SLICE_ROWS", 3)

    for order in Order:
        pages = walk(opened, Filter(states=(State.READY,), text="4", order=order), -1.0)
        found = [job.job_id for page in pages for job in page.jobs]
        expected = [job.job_id for job in many if job.payload == b"4"]
        assert len(pages) > 5
        assert not any(page.complete for page in pages[:-1])
        assert found == (expected if order is Order.OLDEST else expected[::-1])
    opened.close()


def test_very_many_queues_are_searched_by_walking_over_all_jobs(opened, monkeypatch):
    monkeypatch.setattr(search, "_PLACES_MAX", 3)
    many = [opened.submit(f"queue-{number}") for number in range(5)]
    opened.ask(Cancel(job_ids=(many[1].job_id, many[3].job_id)))
    opened.commit()

    found = opened.store.search(Filter(states=(State.CANCELLED, State.FAILED)))
    assert ids(found.jobs) == [many[3].job_id, many[1].job_id]


def test_a_queue_that_holds_nothing_is_an_empty_page(opened):
    opened.ask(SetQueue(queue="empty"))

    page = opened.store.search(Filter(queue="empty"))
    assert (page.jobs, page.next, page.complete) == ((), None, True)


def noted_statements(monkeypatch) -> list[str]:
    found = []
    read = Reader.rows

    def rows(reader, statement, values=()):
        found.append(statement)
        return read(reader, statement, values)

    monkeypatch.setattr(Reader, "rows", rows)
    return found


@pytest.mark.parametrize("order", Order)
def test_a_search_by_tag_and_queue_finds_the_same_in_every_store(opened, monkeypatch, order):
    monkeypatch.setattr(search, "_SLICE_ROWS", 3)
    many = [
        opened.submit(f"queue-{number % 2}", tags=("marked",) if number % 3 else ())
        for number in range(40)
    ]
    opened.commit()

    wanted = Filter(queue="queue-1", tag="marked", order=order, count_max=4)
    found = [job.job_id for page in walk(opened, wanted) for job in page.jobs]

    expected = [job.job_id for job in many if job.queue == "queue-1" and job.tags]
    assert found == (expected if order is Order.OLDEST else expected[::-1])
    assert opened.store.count(wanted).counts[State.READY] == len(expected)


@pytest.mark.parametrize("order", Order)
def test_a_walk_along_an_index_looks_only_at_the_jobs_of_its_slice(tmp_path, monkeypatch, order):
    opened = Opened("sqlite", tmp_path)
    for number in range(60):
        opened.submit(f"queue-{number % 3}", tags=("marked",))
    opened.commit()
    statements = noted_statements(monkeypatch)

    wanted = Filter(queue="queue-1", tag="marked", order=order, count_max=5)
    assert len(opened.store.search(wanted).jobs) == 5
    assert opened.store.count(wanted).counts[State.READY] == 20

    ends = [statement for statement in statements if "OFFSET" in statement]
    assert ends
    assert not any("jobs" in statement for statement in ends)
    listed = [statement for statement in statements if statement.count("ORDER BY")]
    connection = opened.store._reader.connection
    for statement in listed:
        marks = (None,) * statement.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", marks)]
        assert not any("TEMP B-TREE" in step for step in plan), plan
    opened.close()


@pytest.mark.parametrize("order", Order)
def test_a_listing_over_many_queues_reads_only_those_that_its_page_shows(
    tmp_path, monkeypatch, order
):
    opened = Opened("sqlite", tmp_path)
    many = [opened.submit(f"queue-{number % 40}") for number in range(200)]
    opened.commit()
    statements = noted_statements(monkeypatch)

    page = opened.store.search(Filter(states=(State.READY,), order=order, count_max=5))

    expected = many if order is Order.OLDEST else many[::-1]
    assert ids(page.jobs) == ids(expected[:5])
    assert len(statements) < 20
    opened.close()


def test_retried_jobs_are_counted_without_a_walk_over_all_others(tmp_path, monkeypatch):
    opened = Opened("sqlite", tmp_path)
    for number in range(200):
        opened.submit(f"queue-{number % 40}", payload=b"needle")
    opened.commit()
    statements = noted_statements(monkeypatch)

    counted = opened.store.count(Filter(retrying=True, text="needle"), 1.0)

    assert not any(counted.counts.values())
    assert not statements
    opened.close()

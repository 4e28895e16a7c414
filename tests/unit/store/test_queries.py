"""A condition means the same to SQLite as it does to a job in memory."""

import apsw
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.engine.effects import Effects
from manyhands.model.failures import group_of
from manyhands.model.filter import CONDITIONS, Filter
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
from manyhands.model.policy import Queue
from manyhands.store.collector import Collector
from manyhands.store.records.frames import Counters, cut
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.records.queries import MEANINGS, matches, place_beside, where
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.rows import DIALECT
from manyhands.store.sqlite.writer.apply import Applier

# Few values, so that conditions often hold; some that need escaping in JSON or SQL.
QUEUES = ("a", "b'c", 'd"e')
TAGS = ("red", "re", "rot'")
WORKERS = ("w1", 'w"2', "w\\3", "ü", "w")
REALMS = ("native", "gearman")
KEYS = (b"k1", b"\xff\x00")
NAMES = ("n1", "n'2", "n")
HEADERS = (None, {"task": "t1"}, {"task": 't"2'}, {"task": "t", "trace": "t1"}, {"other": "t1"})
TEXTS = ("needle", "\x00", "ü", "need", "it broke a", "boo", "n'", "the\nw")
PAYLOADS = (b"", b"needle", b"a \x00 b", "über".encode(), b"hay" * 1_000, b"needle" * 1_000)
FAILURES = (
    Failure("boom", "it broke"),
    Failure("boom", "it broke again"),
    Failure("x'", "it broke"),
    Failure("", "ü needle in \x00 the\nwheel"),
)
TIMES = range(1, 5)

holders = st.builds(Holder, st.just("native"), st.sampled_from((*WORKERS, None)))
leases = st.builds(Lease, st.just("token"), st.just(1), holders, st.just(1))
attempts = st.builds(
    Attempt, st.just(1), holders, st.just(1), st.just(2), st.just(EndReason.LOST), st.just("token")
)


@st.composite
def jobs(draw):
    state = draw(st.sampled_from(State))
    return Job(
        job_id=draw(st.uuids()).hex,
        queue=draw(st.sampled_from(QUEUES)),
        state=state,
        payload=draw(st.sampled_from(PAYLOADS)),
        origin=Origin(draw(st.sampled_from(REALMS)), draw(st.sampled_from(WORKERS))),
        submitted_at=draw(st.sampled_from(TIMES)),
        finished_at=9 if state in FINISHED else None,
        lease=draw(leases) if state is State.LEASED else None,
        attempts=tuple(draw(st.lists(attempts, max_size=2))),
        failure=draw(st.sampled_from((None, *FAILURES))),
        unique_key=draw(st.sampled_from((None, *KEYS))) if state in FINISHED else None,
        name=draw(st.sampled_from((None, *NAMES))) if state in FINISHED else None,
        namespace="space",
        tags=tuple(draw(st.lists(st.sampled_from(TAGS), unique=True, max_size=2))),
        headers=draw(st.sampled_from(HEADERS)),
    )


def sometimes(values):
    return st.one_of(st.none(), st.none(), st.sampled_from(values))


CONDITION_VALUES = {
    "states": st.one_of(st.just(()), st.lists(st.sampled_from(State), max_size=3).map(tuple)),
    "queue": sometimes((*QUEUES, "unknown")),
    "tag": sometimes(TAGS),
    "worker": sometimes(WORKERS),
    "realm": sometimes(REALMS),
    "unique_key": sometimes(KEYS),
    "name": sometimes(NAMES),
    "id_tail": sometimes("0123456789abcdef"),
    "submitted_before": sometimes(TIMES),
    "submitted_after": sometimes(TIMES),
    "failure": sometimes([group_of(failure).group_id for failure in FAILURES]),
    "failure_code": sometimes(("boom", "x'", "boo")),
    "header": sometimes((("task", "t1"), ("task", 't"2'), ("other", "t1"))),
    "text": sometimes(TEXTS),
    "retrying": sometimes((True, False)),
}
filters = st.builds(Filter, **CONDITION_VALUES)
# One condition by itself holds more often than many together.
single = st.sampled_from(sorted(CONDITION_VALUES)).flatmap(
    lambda field: st.builds(Filter, **{field: CONDITION_VALUES[field]})
)


def database(many):
    """The jobs as the writer has them in a file."""
    collector = Collector(lambda _: None)
    effects = Effects(collector.index, 1)
    for queue in QUEUES:
        effects.put_queue(Queue(queue))
    for job in many:
        effects.put(job)
    collector.write(effects)
    batch = collector.seal(1)
    counters = Counters(1, collector.index.serial)
    data = bytes(Packer(TermsBook(), None, 0).pack(batch, counters, Removals()))
    connection = apsw.Connection(":memory:")
    schema._run(connection, schema.MIGRATIONS)
    ((number, start, end),) = cut(data)[0]
    for _ in Applier(connection, "00").apply([(number, memoryview(data)[start:end])]):
        pass
    return connection


def serials(connection, tables, sql, values):
    found = connection.execute(f"SELECT serial FROM {tables} WHERE {sql}", values).fetchall()
    assert len(found) == len(set(found))
    return {serial for (serial,) in found}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(jobs(), max_size=25, unique_by=lambda job: job.job_id),
    st.lists(st.one_of(filters, single), min_size=30, max_size=30),
)
def test_sqlite_and_python_find_the_same_jobs(many, wanteds):
    connection = database(many)

    for wanted in wanteds:
        expected = {job.serial for job in many if matches(job, wanted)}
        narrowed = where(DIALECT, wanted)
        assert serials(connection, "jobs", narrowed.sql, narrowed.values) == expected
        place = place_beside(DIALECT, wanted)
        if place is not None:
            rest = where(DIALECT, wanted, place.fields)
            sql, values = f"{place.sql} AND {rest.sql}", (*place.values, *rest.values)
            assert serials(connection, place.tables, sql, values) == expected
    connection.close()


def test_a_record_that_is_damaged_does_not_end_a_search_by_worker():
    holder = Holder("native", "w")
    many = [
        Job(job_id=f"{n:032x}", queue="a", state=State.LEASED, lease=Lease("t", 1, holder, 1))
        for n in (1, 2)
    ]
    connection = database(many)
    cut_off = "UPDATE jobs SET record = substr(record, 1, length(record) - 1) WHERE serial = 1"
    connection.execute(cut_off)
    narrowed = where(DIALECT, Filter(worker="w"))

    assert serials(connection, "jobs", narrowed.sql, narrowed.values) == {2}


@settings(max_examples=20, deadline=None)
@given(st.lists(jobs(), min_size=1, max_size=25, unique_by=lambda job: job.job_id), filters)
def test_a_condition_that_is_left_out_narrows_nothing(many, wanted):
    everything = [meaning.field for meaning in MEANINGS]

    assert all(matches(job, wanted, without=everything) for job in many)
    assert where(DIALECT, wanted, without=everything).sql == "TRUE"


def test_every_condition_of_a_filter_has_a_meaning_a_name_and_is_tried_above():
    paging = {"order", "after", "count_max", "payload_bytes"}
    fields = {field.name for field in msgspec.structs.fields(Filter)} - paging

    assert {meaning.field for meaning in MEANINGS} == fields
    assert {condition.field for condition in CONDITIONS.values()} == fields
    assert set(CONDITION_VALUES) == fields

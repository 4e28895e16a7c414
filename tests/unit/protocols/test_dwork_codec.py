"""dwork's messages: the bytes of the original, and nothing that is not a whole message."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.dwork.codec import (
    BARE,
    Counts,
    Dep,
    Kind,
    LogEntry,
    Made,
    Phase,
    Query,
    Task,
    encode,
)
from manyhands.protocols.dwork.reader import (
    PlainReports,
    QueryMsg,
    WireError,
    decode,
    implementation,
    read_any,
)


def a_task(name: str, *preds: str) -> Task:
    return Task(name=name, origin="client", preds=tuple(map(Dep, preds)))


GOLDEN = [
    ("0806", Query(kind=Kind.OK)),
    (
        "08061a1e646875623a203020616374697665207461736b732c20302072656164792e2000",
        Query(kind=Kind.OK, name="dhub: 0 active tasks, 0 ready.", n=0),
    ),
    ("080132027731", Query(kind=Kind.STEAL, location="w1")),
    ("0801200a32027731", Query(kind=Kind.STEAL, location="w1", n=10)),
    ("080120ffffffffffffffffff0132027731", Query(kind=Kind.STEAL, location="w1", n=-1)),
    ("0800120b0a01411206636c69656e74", Query(kind=Kind.CREATE, tasks=(a_task("A"),))),
    (
        "0802120b0a01411206636c69656e7412100a066e6f737563681206636c69656e7432027731",
        Query(kind=Kind.COMPLETE, tasks=(a_task("A"), a_task("nosuch")), location="w1"),
    ),
    (
        "080312100a01411206636c69656e7422030a015832027731",
        Query(kind=Kind.TRANSFER, tasks=(a_task("A", "X"),), location="w1"),
    ),
    ("0807", Query(kind=Kind.EXIT)),
    ("08041a0141", Query(kind=Kind.LOOKUP, name="A")),
]


@pytest.mark.parametrize(("text", "query"), GOLDEN)
def test_d1_messages_have_the_bytes_of_the_original(text, query):
    assert decode(bytes.fromhex(text)) == query
    assert encode(query).hex() == text


def test_d17_a_stolen_task_of_the_original_can_be_read():
    query = decode(bytes.fromhex("080312140a01411202766d320b08011094b783daa4899803"))

    (task,) = query.tasks
    assert (query.kind, task.name, task.origin) == (Kind.TRANSFER, "A", "vm")
    assert [entry.phase for entry in task.log] == [Phase.STOLEN]


def test_replies_without_anything_in_them_are_two_bytes():
    assert {kind: encode(Query(kind=kind)) for kind in Kind} == BARE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the type is missing"),
        ("0863", "the type is missing or unknown"),
        ("0863120b0a01411206636c69656e74", "the type is missing or unknown"),
        ("080012100a064142434445461206636c69", "not a whole QueryMsg"),
        ("ffffffff", "not a whole QueryMsg"),
        ("080012030a0141", "required field"),
        ("0800120f0a0141120163320708631001", "not a whole QueryMsg"),
        ("0800120c0a014112016332040863 1001", "required field"),
        ("0800120b0a01ff1206636c69656e74", "the name of a task is not UTF-8"),
        ("08013201ff", "the location is not UTF-8"),
        ("08041a01ff", "the name is not UTF-8"),
        ("0800120b0a014112016322030a01ff", "the name of a predecessor is not UTF-8"),
    ],
)
def test_d4_what_is_not_a_whole_message_is_refused_with_a_reason(text, reason):
    with pytest.raises(WireError, match=reason):
        decode(bytes.fromhex(text.replace(" ", "")))


@given(st.binary(max_size=200))
def test_d4_random_bytes_are_a_message_or_refused(body):
    try:
        query = decode(body)
    except WireError:
        return
    assert decode(encode(query)) == query


PLAIN = st.builds(
    Query,
    kind=st.sampled_from(Kind),
    tasks=st.lists(
        st.builds(Task, name=st.text(max_size=130), origin=st.sampled_from(("a", "", "ö"))),
        max_size=3,
    ).map(tuple),
    location=st.none() | st.text(max_size=130),
)


@given(PLAIN, st.data())
def test_d4_plain_messages_are_read_as_protobuf_reads_them(query, data):
    body = bytearray(encode(query))
    for _ in range(data.draw(st.integers(0, 2))):  # and with a byte or two that are wrong
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    assert said(decode, bytes(body)) == said(read_any, bytes(body))


REPORTS = st.builds(
    Query,
    kind=st.sampled_from([Kind.COMPLETE, Kind.COMPLETE, Kind.TRANSFER]),
    tasks=st.lists(
        st.builds(Task, name=st.text(max_size=130), origin=st.text(max_size=130)),
        min_size=1,
        max_size=2,
    ).map(tuple),
    location=st.none() | st.text(max_size=130),
)


@given(st.lists(st.tuples(REPORTS, st.data()), max_size=5))
def test_d22_a_plain_report_is_read_as_any_other_message_is(given_queries):
    reports = PlainReports()
    for query, data in given_queries:
        body = bytearray(encode(query))
        for _ in range(data.draw(st.integers(0, 2), "bytes to spoil")):
            body[data.draw(st.integers(0, len(body) - 1), "where")] = data.draw(st.integers(0, 255))
        found = reports.read(bytes(body))
        if found is not None:
            name, (origin, location) = found
            task = Task(name=name, origin=origin)
            expected = Query(kind=Kind.COMPLETE, tasks=(task,), location=location)
            assert name
            assert location
            assert read_any(bytes(body)) == expected
        elif bytes(body) == encode(query):
            assert not is_plain(query)


def is_plain(query: Query) -> bool:
    """Whether it is a report that is read without protobuf."""
    if query.kind is not Kind.COMPLETE or len(query.tasks) != 1 or not query.location:
        return False
    task = query.tasks[0]
    inside = len(task.name.encode()) + len(task.origin.encode()) + 4
    return bool(task.name) and inside < 128 and len(query.location.encode()) < 128


def test_d22_the_ends_of_reports_that_are_remembered_are_bounded():
    reports = PlainReports()
    for number in range(5_000):
        task = Task(name="t", origin="o")
        assert reports.read(
            encode(Query(kind=Kind.COMPLETE, tasks=(task,), location=f"w{number}"))
        ) == ("t", ("o", f"w{number}"))
    assert len(reports._ends) <= 4_096


def said(read: Callable[[bytes], Query], body: bytes) -> Query | str:
    try:
        return read(body)
    except WireError as error:
        return str(error)


TEXTS = st.text(max_size=10)
TASKS = st.builds(
    Task,
    name=TEXTS,
    origin=TEXTS,
    preds=st.lists(st.builds(Dep, TEXTS, st.none() | TEXTS), max_size=2).map(tuple),
    log=st.lists(
        st.builds(LogEntry, st.sampled_from(Phase), st.integers(-(2**63), 2**63 - 1)), max_size=2
    ).map(tuple),
    payload=st.none() | st.binary(max_size=5),
    result=st.none() | st.binary(max_size=5),
    failure=st.none() | TEXTS,
    priority=st.none() | st.floats(allow_nan=False),
    attempt=st.none() | st.integers(-(2**31), 2**31 - 1),
    retry=st.booleans(),
    cancel_on_failure=st.booleans(),
    attempts_max=st.none() | st.integers(-(2**31), 2**31 - 1),
    attempts_used=st.none() | st.integers(0, 2**31 - 1),
    state=st.none() | TEXTS,
    keep=st.booleans(),
)
NUMBERS = st.integers(0, 2**63 - 1)
COUNTS = st.builds(Counts, waiting=NUMBERS, done=NUMBERS, held=NUMBERS)
MADE = st.builds(Made, added=NUMBERS, again=NUMBERS)
QUERIES = st.builds(
    Query,
    kind=st.sampled_from(Kind),
    tasks=st.lists(TASKS, max_size=3).map(tuple),
    name=st.none() | TEXTS,
    n=st.none() | st.integers(-(2**31), 2**31 - 1),
    location=st.none() | TEXTS,
    reason=st.none() | TEXTS,
    detail=st.booleans(),
    counts=st.none() | COUNTS,
    resume=st.booleans(),
    made=st.none() | MADE,
    lease_ms=st.none() | NUMBERS,
)


@given(QUERIES)
def test_d33_every_message_can_be_written_and_read_back(query):
    assert decode(encode(query)) == query


def set_given(message, source, *fields: str) -> None:
    """What is None, or a no, is left out."""
    for field in fields:
        value = getattr(source, field)
        if value is not None and value is not False:
            setattr(message, field, value)


def set_numbers(message, numbers: Counts | Made | None) -> None:
    if numbers is not None:
        message.SetInParent()
        for field in message.DESCRIPTOR.fields:
            if getattr(numbers, field.name):
                setattr(message, field.name, getattr(numbers, field.name))


def as_protobuf_writes(query: Query) -> bytes:
    """The same message, written by protobuf itself."""
    message = QueryMsg(type=query.kind)
    set_given(message, query, "name", "n", "location", "reason", "detail", "resume", "lease_ms")
    set_numbers(message.counts, query.counts)
    set_numbers(message.made, query.made)
    for task in query.tasks:
        made = message.task.add(name=task.name, origin=task.origin)
        for dep in task.preds:
            made.pred.add(name=dep.name, location=dep.location)
        for entry in task.log:
            made.log.add(state=entry.phase, time=entry.at_us)
        set_given(made, task, "payload", "result", "failure", "priority", "attempt", "retry")
        set_given(made, task, "cancel_on_failure", "attempts_max", "attempts_used", "state")
        set_given(made, task, "keep")
    return message.SerializeToString(deterministic=True)


@given(QUERIES)
def test_d33_every_message_has_the_bytes_that_protobuf_would_write(query):
    assert encode(query) == as_protobuf_writes(query)


def test_d33_long_fields_have_the_bytes_that_protobuf_would_write():
    sizes = (0, 1, 127, 128, 16_383, 16_384, 3_000_000)
    tasks = tuple(Task(name="n" * size, origin="ö" * size, payload=b"p" * size) for size in sizes)
    query = Query(kind=Kind.TRANSFER, tasks=tasks, location="l" * 200, reason="r" * 20_000)

    assert encode(query) == as_protobuf_writes(query)


@given(QUERIES, st.data())
def test_d4_a_message_cut_short_is_never_taken_for_another_one(query, data):
    body = encode(query)
    cut = data.draw(st.integers(0, len(body) - 1))

    try:
        shorter = decode(body[:cut])
    except WireError:
        return
    assert shorter.kind is query.kind
    assert len(shorter.tasks) <= len(query.tasks)


def test_the_fast_backend_of_protobuf_is_in_use():
    assert implementation() == "upb"

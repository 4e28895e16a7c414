"""Values of plain jobs say all that the jobs and events say that they stand for."""

from random import Random

import apsw
import msgspec
import pytest
from msgspec.structs import replace

from manyhands.engine import plain
from manyhands.model.commands import ByConnection, Claim, Complete, NewJob, Submit
from manyhands.model.job import Attempt, EndReason, Holder, Lease, Origin, State
from manyhands.model.payload import Encoding
from manyhands.model.plain import (
    PLAIN_BYTES_MAX,
    PlainCompleted,
    PlainLeased,
    PlainReady,
    event_of,
    job_of,
    plain_ready,
)
from manyhands.model.policy import TERMS, Queue
from manyhands.store.batch import Batch
from manyhands.store.collector import Collector
from manyhands.store.index.recount import check_index
from manyhands.store.records.frames import HEAD_BYTES, Counters
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.records.rows import decode_event, plain_event, split_events
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.writer.apply import Applier

NOW = 1_800_000_000_000
HOLDER = Holder("gearman", "w1", "127.0.0.1")


def a_ready(**fields) -> PlainReady:
    values = {
        "job_id": "0" * 32,
        "queue": "q",
        "payload": b"payload",
        "encoding": Encoding.TEXT,
        "terms": TERMS["gearman"],
        "origin": Origin("gearman", "", "127.0.0.1"),
        "priority": 10.0,
        "position": 7,
        "submitted_at": NOW - 5,
        "at": NOW,
        "unique_key": b"key",
        "durable_interest": False,
        "waiters": ("here/1",),
        "serial": 3,
    }
    return PlainReady(**values | fields)


def a_leased(ready: PlainReady) -> PlainLeased:
    lease = Lease("token", 1, HOLDER, NOW + 9, 60, NOW + 69, None, "here/2")
    return PlainLeased(ready, lease, ready.queue, HOLDER, NOW + 9, 9)


def a_completed(ready: PlainReady) -> PlainCompleted:
    return PlainCompleted(
        a_leased(ready), NOW + 20, b"result", Encoding.JSON, ready.queue, HOLDER, 11
    )


VALUES = [a_ready(), a_leased(a_ready()), a_completed(a_ready())]


@pytest.mark.parametrize("value", VALUES)
def test_the_event_of_a_plain_job_is_stored_in_few_words_and_read_as_it_was(value):
    body = msgspec.msgpack.encode(plain_event(value))

    assert decode_event(msgspec.Raw(body)) == value.event()
    assert len(body) < len(msgspec.msgpack.encode(value.event()))


@pytest.mark.parametrize("value", VALUES)
def test_a_value_has_what_counters_read_as_its_event_has_it(value):
    event = value.event()

    assert (value.at, value.state, value.job_id, value.queue) == (
        event.at,
        event.state,
        event.job_id,
        event.queue,
    )
    if not isinstance(value, PlainReady):
        assert (value.holder, value.lasted_ms) == (event.holder, event.lasted_ms)


def test_a_ready_job_with_nothing_rare_about_it_becomes_plain_again_when_it_is_loaded():
    assert plain_ready(a_ready().job()) == a_ready()


@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ("red",)},
        {"deadline_at": NOW + 1},
        {"limits": ("l",)},
        {"name": "n", "namespace": "ns"},
        {"headers": {"a": "b"}},
        {"attempts": (Attempt(1, HOLDER, NOW, NOW, EndReason.LOST),)},
        {"attempts_used": 1},
        {"lease_number": 1},
        {"incarnation": 1},
        {"metadata": b"{}"},
        {"payload": b"x" * (PLAIN_BYTES_MAX + 1)},
        {"payload": b"", "stored_bytes": 100_000},
        {"state": State.DELAYED, "run_at": NOW + 5},
    ],
)
def test_a_job_with_something_rare_stays_an_ordinary_one(fields):
    assert plain_ready(replace(a_ready().job(), **fields)) is None


class Server:
    """Plain jobs at random, by the short way; each batch is packed twice: as it is, and with
    ordinary jobs and events in place of values.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.collector = Collector(lambda _: None)
        self.index = self.collector.index
        self.index.put_queue(Queue("q"))
        self.packers = [Packer(TermsBook(), 1_000, 0) for _ in range(2)]
        self.now = NOW
        self.leased: list[str] = []
        self.frames: list[list[tuple[int, memoryview]]] = [[], []]
        self.count = 0
        self.plain_count = 0

    def step(self) -> None:
        self.now += self.random.randrange(3)
        match self.random.randrange(3):
            case 0:
                self.count += 1
                length = self.random.choice((10, 100, PLAIN_BYTES_MAX + 1, 3_000))
                realm = self.random.choice(("gearman", "draft", "native"))
                item = NewJob(
                    job_id=f"{self.count:0{self.random.choice((8, 32))}x}",
                    queue="q",
                    payload=b"p" * length,
                    terms=TERMS[realm],
                    unique_key=self.random.choice((None, b"%d" % self.count)),
                )
                changes = plain.submit(Submit((item,)), self.index, self.now)
            case 1:
                claim = Claim(queues=("q",), holder=HOLDER, tokens=("t",), connection="here/1")
                changes = plain.claim(claim, self.index, self.now)
                self.leased += [plain.value_of(change).job_id for change in changes or ()]
            case _:
                if not self.leased:
                    return
                job_id = self.leased.pop(self.random.randrange(len(self.leased)))
                result = self.random.choice((None, b"r", b"r" * (PLAIN_BYTES_MAX + 1)))
                proof = ByConnection("here/1")
                replaces = self.random.random() < 0.3
                command = Complete(
                    job_id=job_id, proof=proof, result=result, replaces_payload=replaces
                )
                change, _ = plain.complete(command, self.index, self.now)
                changes = (change,)
        for change in changes or ():
            self.plain_count += not isinstance(change, tuple)
            self.collector.write_plain((change,))

    def commit(self) -> None:
        batch = self.collector.seal(self.now)
        if batch is None:
            return
        counters = Counters(self.now, self.index.serial, self.collector.seq, self.index.position)
        for packer, frames, one in zip(
            self.packers, self.frames, (batch, at_length(batch)), strict=True
        ):
            packed = packer.pack(one, counters, Removals())
            frames.append((batch.number, memoryview(packed)[HEAD_BYTES:]))
        self.collector.committed(batch.number)


def at_length(batch: Batch) -> Batch:
    """The same with an ordinary job and event for each value."""
    same = Batch(batch.number)
    for name in Batch.__slots__:
        setattr(same, name, getattr(batch, name))
    same.values = {job_id: job_of(value) for job_id, value in batch.values.items()}
    same.entries = [event_of(entry) for entry in batch.entries]
    return same


def written(frames: list[tuple[int, memoryview]], size: int) -> tuple[list, list, list]:
    """The rows of the database after these frames, so many at a time, and the events."""
    connection = apsw.Connection(":memory:")
    schema._run(connection, schema.MIGRATIONS)
    for start in range(0, len(frames), size):
        for _ in Applier(connection, "00").apply(frames[start : start + size]):
            pass
    found = [
        connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
        for table in ("jobs", "payloads", "facts")
    ]
    events = [
        decode_event(body)
        for _, count, bodies, _ in connection.execute("SELECT * FROM events ORDER BY 1")
        for body in split_events(count, bodies)
    ]
    return *found, events


@pytest.mark.parametrize("seed", range(8))
def test_what_is_written_in_few_words_leaves_the_rows_and_events_that_are_written_at_length(seed):
    server = Server(seed)
    for _ in range(200):
        for _ in range(server.random.randrange(6)):
            server.step()
        server.commit()

    briefly, at_length = server.frames

    assert server.plain_count > 100
    expected = written(at_length, 1)
    assert expected[0]
    for size in (1, 3, 1_000):
        assert written(briefly, size) == expected
    check_index(server.index)

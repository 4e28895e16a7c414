"""Jobs and events of versions that stored a canceller's own words in the place of a reason."""

import apsw
import msgspec
import pytest

from manyhands.cli import lines
from manyhands.model import limits
from manyhands.model.commands import Cancel
from manyhands.model.job import State
from manyhands.model.policy import OnDependencyFailure, Terms
from manyhands.model.reasons import Reason
from manyhands.store.contract import Filter
from manyhands.store.records.rows import decode_event, decode_job, split_events
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.checksums import with_sum
from manyhands.store.sqlite.rows import changing_sum
from tests.conformance.stores.opened import Opened

# Written by version 0.1.0.
RECORD = (
    b'{"job_id":"","queue":"","state":"cancelled","priority":0.0,"position":1,'
    b'"entered_at":1700000000000,"reason":"wrong text"}'
)
EVENT = (
    b"\xdc\x00\x11\xcf\x00\x00\x01\x8b\xcf\xe5h\x00\xa9cancelled"
    b"\xd9 00000000000000000000000000000001\xa1q\xaawrong text\x00\x00\x00\x05\xc0\xc0"
    b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xcf\x00\x00\x01\x8b\xcf\xe5h\x00\xc0"
    b"\x81\xa5realm\xa6native\x00\xa0"
)
EARLIER_EVENT = EVENT.replace(b"\xdc\x00\x11", b"\xdc\x00\x10")[:-1]  # no queue that was left
LINE = (
    b'{"kind":"job","job":{"job_id":"00000000000000000000000000000001","queue":"q",'
    b'"state":"cancelled","priority":0.0,"position":1,"submitted_at":1700000000000,'
    b'"entered_at":1700000000000,"finished_at":1700000000000,"reason":"wrong text"},'
    b'"payload":{"base64":"eA=="},"doom":{"among":1,"reason":"wrong text"}}'
)


def test_a_record_of_a_job():
    job = decode_job(RECORD)

    assert (job.state, job.reason, job.detail) == (State.CANCELLED, Reason.CANCELLED, "wrong text")


@pytest.mark.parametrize("body", [EVENT, EARLIER_EVENT], ids=["latest", "earlier"])
def test_an_event(body):
    event = decode_event(msgspec.Raw(body))

    assert (event.reason, event.detail, event.left_queue) == (Reason.CANCELLED, "wrong text", "")
    assert (event.queue, event.origin.realm) == ("q", "native")


def test_a_line_of_an_export():
    line = lines.decode(LINE)

    assert isinstance(line, lines.JobLine)
    job = line.plain()
    assert (job.reason, job.detail, job.payload) == (Reason.CANCELLED, "wrong text", b"x")


@pytest.mark.parametrize("text", [b"[]", b'{"kind":"job","job":{"state":7},"payload":{}}'])
def test_a_line_that_is_damaged_is_refused_all_the_same(text):
    with pytest.raises(msgspec.ValidationError):
        lines.decode(text)


def make_older(file) -> None:
    """Have everything as version 0.1.0 wrote it."""
    connection = apsw.Connection(str(file))
    columns = "serial, queue, finished_at, CAST(record AS BLOB)"
    for serial, queue, finished_at, record in connection.execute(
        f"SELECT {columns} FROM jobs"
    ).fetchall():
        fields = msgspec.json.decode(record)
        fields["reason"] = fields.pop("detail", "") or fields.get("reason", "")
        old = msgspec.json.encode(fields)
        connection.execute(
            "UPDATE jobs SET record = ?, changing_sum = ? WHERE serial = ?",
            (old.decode(), changing_sum(serial, queue, finished_at, old), serial),
        )
    blocks = connection.execute("SELECT last_seq, count, bodies FROM events").fetchall()
    connection.execute("DELETE FROM events")
    for last_seq, count, bodies in blocks:
        events = [msgspec.msgpack.decode(body) for body in split_events(count, bodies)]
        for values in events:
            values[4] = values.pop() or values[4]
        old = b"".join(map(msgspec.msgpack.encode, events))
        row = with_sum((last_seq, count, old))
        connection.execute("INSERT INTO events VALUES(?, ?, ?, ?)", row)
    connection.close()


def test_a_data_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    opened = Opened("sqlite", tmp_path / "data")
    hold = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    first, plain = opened.submit("a"), opened.submit("a")
    for _ in range(5):
        opened.submit("b", depends_on=(first.job_id,), terms=hold)
    opened.ask(Cancel(job_ids=(plain.job_id,)))
    opened.ask(Cancel(job_ids=(first.job_id,), detail="wrong text"))
    opened.commit()
    jobs = opened.store.search(Filter(count_max=100)).jobs
    events = opened.store.events_after(0, 100)
    doomed = opened.store.live.unnotified[first.job_id]
    opened.close()
    make_older(opened.directory / schema.FILE_NAME)

    opened = Opened("sqlite", opened.directory)

    assert opened.store.search(Filter(count_max=100)).jobs == jobs
    assert opened.store.events_after(0, 100) == events
    assert {(row.event.reason, row.event.detail) for row in events} >= {
        (Reason.CANCELLED, "wrong text"),
        (Reason.CANCELLED, ""),
    }
    assert opened.store.live.unnotified[first.job_id] == doomed
    assert doomed.detail == "wrong text"
    opened.close()

"""Files and exports of schema 7, where the realm of the qless API was called "http"."""

import apsw
import msgspec
import pytest

from manyhands.cli import lines
from manyhands.model import limits
from manyhands.model.commands import ByToken, Cancel, Complete, Fail, NewJob, Submit
from manyhands.model.filter import Filter
from manyhands.model.job import Failure, Holder, Origin
from manyhands.model.receipts import Once
from manyhands.model.replies import Repeated
from manyhands.store.bulk import Bulk, BulkAction
from manyhands.store.contract import StoreError
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.inspection import Checker
from tests.conformance.stores.older import make_older
from tests.conformance.stores.opened import IDS, Opened

ORIGIN = Origin("qless", "me", "::1")
WORKER = Holder("qless", "w", "::1")
# Looks like the field of a record, and is a text in it.
MESSAGE = 'the "realm":"http" was wrong'
LARGE = b"large" * 20_000


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    opened = Opened("sqlite", tmp_path / "data")
    first = opened.submit(origin=ORIGIN, payload=LARGE)
    opened.submit()
    for job in opened.claim(count=2, holder=WORKER):
        opened.ask(
            Complete(job_id=job.job_id, proof=ByToken(job.lease.token), result=b"done")
            if job.job_id == first.job_id
            else Fail(
                job_id=job.job_id,
                proof=ByToken(job.lease.token),
                failure=Failure("boom", MESSAGE),
                retry=False,
            )
        )
    opened.submit("held", origin=ORIGIN)
    opened.claim("held", holder=WORKER)
    opened.submit("native")
    opened.claim("native")
    needed = opened.submit("needed", origin=ORIGIN)
    for _ in range(5):
        opened.submit("graph", depends_on=(needed.job_id,))
    opened.ask(Cancel(job_ids=(needed.job_id,)))
    once(opened)
    opened.store.keep_bulk(
        Bulk(
            bulk_id="b",
            action=BulkAction.RETRY,
            created_at=opened.now,
            filter=Filter(realm="qless"),
        )
    )
    opened.commit()
    return opened


def once(opened):
    job = NewJob(job_id=IDS.job_id(opened.now), queue="once")
    return opened.ask(Submit((job,), once=Once("qless/key", "digest")))


def everything(opened) -> tuple:
    store = opened.store
    return (
        [store.whole(job) for job in store.search(Filter(count_max=1_000)).jobs],
        [job.job_id for job in store.search(Filter(realm="qless", count_max=1_000)).jobs],
        store.events_after(0, 1_000),
        dict(store.bulks),
        dict(store.live.unnotified),
        {holder for holder, _ in store.live.holders()},
    )


def connect(opened) -> apsw.Connection:
    return apsw.Connection(str(opened.directory / schema.FILE_NAME))


def make_version_7(opened) -> None:
    opened.close()
    make_older(opened.directory / schema.FILE_NAME, 7)


def test_a_directory_of_schema_7_shows_qless_everywhere(opened):
    expected = everything(opened)
    jobs, found, events, bulks, unnotified, _ = expected
    assert len(found) == 3
    assert any(job.attempts for job in jobs)
    assert {"qless", "native"} == {row.event.origin.realm for row in events}
    assert bulks
    assert unnotified
    make_version_7(opened)
    assert connect(opened).execute("SELECT count(*) FROM jobs WHERE realm = 'http'").get == 3

    opened = Opened("sqlite", opened.directory)

    assert everything(opened) == expected
    assert isinstance(once(opened), Repeated)
    opened.close()


def test_only_texts_of_people_say_http_after_the_upgrade(opened):
    make_version_7(opened)

    Opened("sqlite", opened.directory).close()

    connection = connect(opened)
    for table in ("jobs", "cursors", "bulks", "audit", "queues", "schedules", "facts"):
        for row in connection.execute(f"SELECT * FROM {table}"):
            said = repr(row).replace(r"\\", "\\").replace(msgspec.json.encode(MESSAGE).decode(), "")
            assert "http" not in said, table
    assert not connection.execute("SELECT count(*) FROM events WHERE instr(bodies, 'http')").get


def test_all_checksums_match_after_the_upgrade(opened):
    make_version_7(opened)

    Opened("sqlite", opened.directory).close()

    damage = []
    checker = Checker(connect(opened), damage)
    checker.check_structure()
    checker.check_settings()
    checker.check_events(lambda *_: None)
    checker.check_jobs(lambda *_: None)
    assert damage == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE payloads SET payload = CAST(x'00' || substr(payload, 2) AS BLOB)", "payload"),
        ("UPDATE jobs SET record = replace(record, 'completed', 'conpleted')", "record"),
    ],
    ids=["payload", "record"],
)
def test_a_job_that_was_damaged_before_the_upgrade_is_found_to_be_after_it(opened, change, what):
    (job,) = [job for job in everything(opened)[0] if job.result]
    make_version_7(opened)
    connect(opened).execute(f"{change} WHERE serial = {job.serial}")

    opened = Opened("sqlite", opened.directory)

    with pytest.raises(StoreError, match=f"the {what} of job {job.job_id} does not match"):
        opened.store.find(job.job_id)
    opened.close()


def test_events_that_were_damaged_before_the_upgrade_are_left_as_they_are(opened):
    make_version_7(opened)
    connect(opened).execute("UPDATE events SET bodies = CAST(bodies || x'00' AS BLOB)")
    before = connect(opened).execute("SELECT * FROM events").fetchall()

    Opened("sqlite", opened.directory).close()

    assert connect(opened).execute("SELECT * FROM events").fetchall() == before


def test_an_export_that_was_made_before_is_read_with_the_new_word(opened):
    jobs = [job for job in everything(opened)[0] if job.origin == ORIGIN or job.attempts]
    assert len(jobs) == 4
    for job in jobs:
        text = lines.encode(lines.job_line(job))
        older = text.replace(b'"realm":"qless"', b'"realm": "http"')
        assert older != text

        line = lines.decode(older)

        assert line == lines.decode(text)
        assert line.job.origin == job.origin
        assert line.job.attempts == job.attempts
        assert line.job.lease == job.lease
    opened.close()

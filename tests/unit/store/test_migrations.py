"""A file of an older version becomes one of this, with everything that is new worked out."""

import apsw
import pytest

from manyhands.model.commands import ByToken, Fail
from manyhands.model.filter import Filter
from manyhands.model.job import Failure, Origin
from manyhands.store.contract import FailureQuestion
from manyhands.store.sqlite import schema
from tests.conformance.stores.older import make_older
from tests.conformance.stores.opened import Opened


def tables(file) -> set[str]:
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema")}
    found |= {row[0] for row in connection.execute("SELECT key FROM facts WHERE key = 'journal'")}
    found.add(f"version {connection.pragma('user_version')}")
    connection.close()
    return found


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_every_older_version_gets_the_tables_of_a_new_file(tmp_path, version):
    opened = Opened("sqlite", tmp_path / "data")
    file = opened.directory / schema.FILE_NAME
    opened.close()
    new = tables(file)
    make_older(file, version)
    assert tables(file) != new

    opened = Opened("sqlite", opened.directory)
    opened.close()

    assert tables(file) == new


def test_jobs_that_failed_before_failures_were_counted_are_counted(tmp_path):
    opened = Opened("sqlite", tmp_path / "data")
    for number in range(3):
        opened.submit()
        (job,) = opened.claim()
        failure = Failure("boom", f"row {number} is wrong")
        opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure))
    opened.submit()
    opened.commit()
    opened.close()
    make_older(opened.directory / schema.FILE_NAME, 2)

    opened = Opened("sqlite", opened.directory)
    found = opened.store.failures(FailureQuestion(now=opened.now))
    opened.close()

    assert [(row.group.line, row.count) for row in found.groups] == [("row <number> is wrong", 3)]


def test_jobs_and_events_that_were_written_at_length_are_all_there(tmp_path):
    opened = Opened("sqlite", tmp_path / "data")
    for number in range(300):
        opened.submit(unique_key=b"key %d" % number, origin=Origin("qless", "me", "::1"))
    opened.submit(payload=b"large" * 1_000, tags=("red",), namespace="n", name="x")
    for _ in range(3):
        opened.claim()
    opened.commit()
    jobs = opened.store.search(Filter(count_max=1_000)).jobs
    events = opened.store.events_after(0, 1_000)
    opened.close()
    make_older(opened.directory / schema.FILE_NAME, 5)

    opened = Opened("sqlite", opened.directory)

    assert len(jobs) == 301
    assert opened.store.search(Filter(count_max=1_000)).jobs == jobs
    assert len(events) == 304
    assert opened.store.events_after(0, 1_000) == events
    opened.close()

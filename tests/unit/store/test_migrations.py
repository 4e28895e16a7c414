"""A file of an older version becomes one of this, with everything that is new worked out."""

import apsw
import pytest

from manyhands.model.commands import ByToken, Fail
from manyhands.model.job import Failure
from manyhands.store import schema
from manyhands.store.rows import split_events
from manyhands.store.store import FailureQuestion
from tests.conformance.stores.opened import Opened

# What each version added, and how to take it away again.
TAKEN_AWAY = {
    6: "DROP TABLE events; CREATE TABLE events(seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    5: "DELETE FROM facts WHERE key = 'journal'",
    4: "DROP TABLE bulks; DROP TABLE audit",
    3: "DROP TABLE failures; DROP TABLE failure_groups",
    2: "DROP TABLE history",
}


def older(file, version: int) -> None:
    """Make a file what an older version would have written."""
    connection = apsw.Connection(str(file))
    for number in sorted(TAKEN_AWAY, reverse=True):
        if number > version:
            connection.execute(TAKEN_AWAY[number])
    connection.pragma("user_version", version)
    connection.close()


def tables(file) -> set[str]:
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_schema")}
    found |= {row[0] for row in connection.execute("SELECT key FROM facts WHERE key = 'journal'")}
    connection.close()
    return found


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_every_older_version_gets_the_tables_of_a_new_file(tmp_path, version):
    opened = Opened("sqlite", tmp_path / "data")
    file = opened.directory / schema.FILE_NAME
    opened.close()
    new = tables(file)
    older(file, version)
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
    older(opened.directory / schema.FILE_NAME, 2)

    opened = Opened("sqlite", opened.directory)
    found = opened.store.failures(FailureQuestion(now=opened.now))
    opened.close()

    assert [(row.group.line, row.count) for row in found.groups] == [("row <number> is wrong", 3)]


def test_events_that_were_rows_of_their_own_are_all_there(tmp_path):
    opened = Opened("sqlite", tmp_path / "data")
    for _ in range(300):
        opened.submit()
    opened.commit()
    before = opened.store.events_after(0, 1_000)
    opened.close()
    file = opened.directory / schema.FILE_NAME
    connection = apsw.Connection(str(file))
    rows = connection.execute("SELECT * FROM events").fetchall()
    connection.close()
    older(file, 5)
    connection = apsw.Connection(str(file))
    for last_seq, count, bodies in rows:
        for seq, body in enumerate(split_events(count, bodies), last_seq - count + 1):
            connection.execute("INSERT INTO events VALUES(?, ?)", (seq, bytes(body)))
    connection.close()

    opened = Opened("sqlite", opened.directory)
    after = opened.store.events_after(0, 1_000)
    opened.close()

    assert len(before) == 300
    assert after == before

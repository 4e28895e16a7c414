"""A data directory that schema 7 wrote, with something in every table, and a journal beside it.

``version7`` was made by that version: ``database.sql`` is the file as it was when the server was
killed, ``journal.txt`` (compressed, base64) what it had acknowledged since, with every kind of
change that a frame could hold, and ``replayed.json`` what that version made of both at its next
start: of each table the number of rows and a digest.
"""

import base64
import hashlib
import json
import zlib
from pathlib import Path

import apsw
import pytest

from manyhands.model.filter import Filter
from manyhands.model.job import State
from manyhands.store.contract import StoreError
from manyhands.store.records.rows import split_events
from manyhands.store.records.tables import TABLES
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.store import SqliteStore
from manyhands.store.sqlite.writer import journal

MADE = Path(__file__).parent / "version7"


@pytest.fixture
def data(tmp_path):
    """The directory as it was left."""
    connection = apsw.Connection(str(tmp_path / schema.FILE_NAME))
    connection.pragma("page_size", schema.PAGE_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.execute((MADE / "database.sql").read_text())
    connection.close()
    records = zlib.decompress(base64.b64decode((MADE / "journal.txt").read_text()))
    segment = tmp_path / "manyhands.journal-000000000001"
    segment.write_bytes(records.ljust(journal.SEGMENT_BYTES, b"\0"))
    return tmp_path


def open_and_close(data):
    SqliteStore(data).close()


def reading(file):
    return apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)


def rows_of(connection, table):
    rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    if table == "events":  # however many are in a row
        rows = [
            (last_seq - count + number, bytes(body))
            for last_seq, count, bodies, _ in rows
            for number, body in enumerate(split_events(count, bodies), 1)
        ]
    return rows


def digests(file):
    connection = reading(file)
    found = {}
    for table in json.loads((MADE / "replayed.json").read_text()):
        rows = rows_of(connection, table)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        found[table] = [len(rows), digest[:16]]
    connection.close()
    return found


def test_there_is_something_in_every_table_and_a_job_in_every_state(data):
    connection = reading(data / schema.FILE_NAME)

    assert connection.pragma("user_version") == 7
    assert all(rows_of(connection, table) for table in ("jobs", "events", "facts", *TABLES))
    states = connection.execute("SELECT DISTINCT state FROM jobs").fetchall()
    assert {state for (state,) in states} == {state.value for state in State}


def test_a_journal_that_schema_7_left_behind_is_replayed_as_that_version_would(data):
    open_and_close(data)

    assert digests(data / schema.FILE_NAME) == json.loads((MADE / "replayed.json").read_text())
    assert journal.segments(data) == []


def test_the_copy_that_is_made_first_holds_what_was_in_the_journal(data):
    open_and_close(data)

    copy = data / f"{schema.FILE_NAME}.before-v8"
    expected = json.loads((MADE / "replayed.json").read_text())
    found = digests(copy)
    assert reading(copy).pragma("user_version") == 7
    assert found.pop("facts") != expected.pop("facts")  # no journal belongs to a copy
    assert found == expected


def test_without_its_journal_the_file_is_upgraded_as_it_is(data):
    before = digests(data / schema.FILE_NAME)
    for segment in journal.segments(data):
        segment.unlink()

    open_and_close(data)

    assert digests(data / schema.FILE_NAME) == before
    assert reading(data / schema.FILE_NAME).pragma("user_version") == schema.VERSION


def test_a_start_that_ended_between_the_journal_and_the_upgrade_is_made_again(data, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrate", lambda _: pytest.fail("the power was cut"))
        with pytest.raises(pytest.fail.Exception):
            SqliteStore(data)
    assert reading(data / schema.FILE_NAME).pragma("user_version") == 7

    open_and_close(data)

    assert digests(data / schema.FILE_NAME) == json.loads((MADE / "replayed.json").read_text())
    assert reading(data / schema.FILE_NAME).pragma("user_version") == schema.VERSION


def test_a_journal_of_schema_7_that_is_damaged_is_refused_and_nothing_is_changed(data):
    (segment,) = journal.segments(data)
    content = bytearray(segment.read_bytes())
    content[600] ^= 1
    segment.write_bytes(content)
    before = digests(data / schema.FILE_NAME)

    with pytest.raises(StoreError, match="frame 1 of the journal is missing or not whole"):
        SqliteStore(data)

    assert digests(data / schema.FILE_NAME) == before
    assert segment.read_bytes() == content
    assert reading(data / schema.FILE_NAME).pragma("user_version") == 7


def test_what_was_set_and_submitted_is_there_after_the_upgrade(data):
    store = SqliteStore(data)
    index = store.live

    assert index.limits["licence"].concurrency_max == 6
    assert index.queues["set4"].queue.paused
    assert sorted(index.schedules) == [
        "hourly1",
        "hourly2",
        "hourly3",
        "hourly4",
        "passing2",
        "passing3",
    ]
    assert {"reader1", "reader4"} <= set(index.cursors)
    assert "passing1" not in index.cursors
    assert [entry.seq for entry in store.audit(None, 10)] == [4, 3, 2, 1]
    assert "ended1" not in store.bulks
    assert len(store.search(Filter(tag="late")).jobs) == 1
    assert index.receipt("once4") is not None
    store.close()

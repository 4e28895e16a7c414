"""A data directory that schema 8 wrote, before frames and events told of plain jobs in few words.

``version8`` was made by that version: ``database.sql`` is the file as it was when the server was
killed, ``journal.txt`` (compressed, base64) what it had acknowledged since, and ``expected.json``
all jobs and events as that server showed them at the end.
"""

import base64
import zlib
from pathlib import Path

import apsw
import msgspec
import pytest

from manyhands.model.events import Event
from manyhands.model.job import Job
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.store import SqliteStore
from manyhands.store.sqlite.writer import journal

MADE = Path(__file__).parent / "version8"


class Shown(msgspec.Struct):
    jobs: dict[str, Job]
    events: list[Event]


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


def test_a_directory_of_schema_8_and_its_journal_are_upgraded(data):
    shown = msgspec.json.decode((MADE / "expected.json").read_bytes(), type=Shown)
    connection = apsw.Connection(str(data / schema.FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("user_version") == 8
    assert connection.execute("SELECT count(*) FROM jobs").get < len(shown.jobs)
    connection.close()

    store = SqliteStore(data)
    try:
        assert {job_id: store.find(job_id) for job_id in shown.jobs} == shown.jobs
        assert [stored.event for stored in store.events_after(0, 1_000)] == shown.events
        assert store.facts()["schema"] == schema.VERSION
        store.check()
    finally:
        store.close()
    assert (data / f"{schema.FILE_NAME}.before-v9").exists()

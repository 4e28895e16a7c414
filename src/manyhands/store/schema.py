"""The tables of the SQLite store, and how a file of an older version becomes one of this.

Only what stays local is indexed. Serials, ids (they begin with the time) and instants grow, so
their entries lie side by side; a unique key or a name is random, and an index on it would make
every commit touch one page for each job as soon as there are many. Those are found in memory, or
by a walk over the records.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
import msgspec

from manyhands.model.failures import group_of_job
from manyhands.store.copying import copy_database, sync_file
from manyhands.store.rows import decode_job, encode_record, join_events
from manyhands.store.store import StoreError

FILE_NAME: Final = "manyhands.db"
APPLICATION_ID: Final = 0x4D616E79  # "Many": tells our files from other people's
# The least CPU a job: smaller pages cost more calls where windows are large, larger ones more bytes
# where windows are small (measured).
PAGE_BYTES: Final = 8192
_EVENTS_AT_ONCE: Final = 10_000

# SQLite writes a whole row anew when one column changes, so a large payload has a row of its own,
# which a claim does not touch. Every index ends in the serial, which SQLite adds by itself.
_FIRST: Final = """
CREATE TABLE jobs(
    serial INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    uid TEXT,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at INTEGER,
    result_until INTEGER,
    namespace TEXT,
    name TEXT,
    terms_id INTEGER NOT NULL,
    record TEXT NOT NULL,
    payload BLOB,
    result BLOB
) STRICT;
CREATE TABLE payloads(serial INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX jobs_by_id ON jobs(job_id);
CREATE UNIQUE INDEX jobs_by_uid ON jobs(uid) WHERE uid IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs(queue, state);
CREATE INDEX jobs_by_end ON jobs(queue, state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_result_end ON jobs(result_until) WHERE result_until IS NOT NULL;
CREATE INDEX jobs_by_namespace ON jobs(namespace) WHERE namespace IS NOT NULL;
CREATE TABLE terms(terms_id INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
CREATE TABLE events(seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE partials(
    serial INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    warning INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY(serial, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE tags(
    tag TEXT NOT NULL, serial INTEGER NOT NULL, PRIMARY KEY(tag, serial)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_by_serial ON tags(serial);
CREATE TABLE queues(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE limits(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE schedules(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE cursors(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE facts(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

# What happened when, for the operator: found by queue and time, dropped by time.
_HISTORY: Final = """
CREATE TABLE history(
    queue TEXT NOT NULL,
    step_ms INTEGER NOT NULL,
    at INTEGER NOT NULL,
    sample BLOB NOT NULL,
    PRIMARY KEY(queue, step_ms, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX history_by_time ON history(step_ms, at);
"""

# A row for each failed job on record, so that alike failures are counted without reading jobs.
_FAILURES: Final = """
CREATE TABLE failures(
    serial INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL,
    code TEXT NOT NULL,
    queue TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX failures_by_group ON failures(group_id, serial, at, queue);
CREATE INDEX failures_by_code ON failures(code);
CREATE TABLE failure_groups(
    group_id TEXT PRIMARY KEY, code TEXT NOT NULL, line TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"""


def _note_failures(connection: apsw.Connection) -> None:
    connection.execute(_FAILURES)
    rows = connection.execute("SELECT serial, record FROM jobs WHERE state = 'failed'")
    for serial, record in rows:
        job = decode_job(record)
        group = group_of_job(job)
        if group is not None:
            connection.execute(
                "INSERT INTO failures VALUES(?, ?, ?, ?, ?)",
                (serial, group.group_id, group.code, job.queue, job.finished_at or 0),
            )
            connection.execute(
                "INSERT OR IGNORE INTO failure_groups VALUES(?, ?, ?)",
                (group.group_id, group.code, group.line),
            )


# What operators do: operations on many jobs, and who did what.
_OPERATORS: Final = """
CREATE TABLE bulks(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE audit(seq INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
"""

# From here on what is durable may be in a journal beside the file: an older program, which does
# not know of it, must not open it. The row says how far the file has come with it.
_JOURNAL: Final = "INSERT INTO facts VALUES('journal', '{}')"

# What a job keeps for life has columns, so that a claim need not write it again. Events lie one
# behind the other, many in a row, and are found by the number of the last one.
_COMPACT: Final = """
ALTER TABLE jobs RENAME TO older_jobs;
ALTER TABLE events RENAME TO older_events;
CREATE TABLE jobs(
    serial INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    uid TEXT,
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at INTEGER,
    result_until INTEGER,
    namespace TEXT,
    name TEXT,
    terms_id INTEGER NOT NULL,
    submitted_at INTEGER NOT NULL,
    unique_key BLOB,
    realm TEXT NOT NULL,
    submitter TEXT NOT NULL,
    address TEXT NOT NULL,
    record TEXT NOT NULL,
    payload BLOB,
    result BLOB
) STRICT;
CREATE TABLE events(
    last_seq INTEGER PRIMARY KEY, count INTEGER NOT NULL, bodies BLOB NOT NULL
) STRICT;
"""
_COMPACTED: Final = """
DROP TABLE older_jobs;
DROP TABLE older_events;
CREATE UNIQUE INDEX jobs_by_id ON jobs(job_id);
CREATE UNIQUE INDEX jobs_by_uid ON jobs(uid) WHERE uid IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs(queue, state);
CREATE INDEX jobs_by_end ON jobs(queue, state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_result_end ON jobs(result_until) WHERE result_until IS NOT NULL;
CREATE INDEX jobs_by_namespace ON jobs(namespace) WHERE namespace IS NOT NULL;
"""


def _compact(connection: apsw.Connection) -> None:
    connection.execute(_COMPACT)
    insert = f"INSERT INTO jobs VALUES({', '.join('?' * 18)})"
    for row in connection.execute("SELECT * FROM older_jobs"):
        *columns, record, payload, result = row
        job = decode_job(record)
        origin = job.origin
        kept = (job.submitted_at, job.unique_key, origin.realm, origin.name, origin.address)
        record = encode_record(job).decode()
        connection.execute(insert, (*columns, *kept, record, payload, result))
    events = connection.execute("SELECT seq, body FROM older_events ORDER BY seq")
    while some := list(islice(events, _EVENTS_AT_ONCE)):
        rows = join_events(some[0][0] - 1, [msgspec.Raw(body) for _, body in some])
        connection.executemany("INSERT INTO events VALUES(?, ?, ?)", rows)
    connection.execute(_COMPACTED)


Migration = str | Callable[[apsw.Connection], None]
# What makes version n+1 out of version n. Entries are added, never changed.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    _FIRST,
    _HISTORY,
    _note_failures,
    _OPERATORS,
    _JOURNAL,
    _compact,
)
VERSION: Final = len(MIGRATIONS)


def create(file: Path) -> None:
    """A new file. It gets its name when it is whole, so that a crash leaves none half made."""
    draft = file.with_name(file.name + ".new")
    draft.unlink(missing_ok=True)
    connection = apsw.Connection(str(draft))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("application_id", APPLICATION_ID)
    _run(connection, MIGRATIONS)
    connection.pragma("journal_mode", "wal")
    connection.close()
    sync_file(draft)
    draft.rename(file)
    sync_file(file.parent)


def migrate(file: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring an older file to this version, after a copy of it is safe on disk."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        version = int(connection.pragma("user_version"))
        if version > len(migrations):
            raise StoreError(
                f"{file} was written by a newer version of manyhands (schema {version}, this one "
                f"knows {len(migrations)}). Run that version, or move the file away."
            )
        if version < len(migrations):
            connection.pragma("synchronous", "FULL")
            copy = file.with_name(f"{file.name}.before-v{version + 1}")
            copy.unlink(missing_ok=True)
            for _ in copy_database(connection, copy):
                pass
            _run(connection, migrations)
    finally:
        connection.close()


def _run(connection: apsw.Connection, migrations: Sequence[Migration]) -> None:
    for version in range(int(connection.pragma("user_version")), len(migrations)):
        # The version changes with what it stands for, or not at all.
        with connection:
            migration = migrations[version]
            if isinstance(migration, str):
                connection.execute(migration)
            else:
                migration(connection)
            connection.pragma("user_version", version + 1)

"""The tables of the SQLite store, and the migrations from older versions.

Only columns whose index entries stay local are indexed. Serials, ids (they begin with the time) and
instants grow, so their entries are next to each other; a unique key or a name is random, and an
index on it would make every commit touch one page per job once there are many. Those are found in
memory, or by a walk over the records.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import apsw
import msgspec

from manyhands.config.files import open_draft
from manyhands.model.failures import group_of_job
from manyhands.store.contract import StoreError
from manyhands.store.records.queries import PAYLOAD
from manyhands.store.records.rows import decode_job, encode_record, join_events
from manyhands.store.records.tables import SUMMED
from manyhands.store.sqlite.checksums import checksum
from manyhands.store.sqlite.copies import copy_database, sync_file
from manyhands.store.sqlite.renames import rename

FILE_NAME: Final = "manyhands.db"
APPLICATION_ID: Final = 0x4D616E79  # "Many": identifies our files
# The least CPU per job (measured): smaller pages cost more calls when windows are large, larger
# ones more bytes when windows are small.
PAGE_BYTES: Final = 8192
_EVENTS_AT_ONCE: Final = 10_000

# SQLite rewrites a whole row when one column changes, so a large payload has a row of its own,
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

# What happened when, for the operator: queried by queue and time, dropped by time.
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

# A row per failed job on record, so that failures are grouped without reading jobs.
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


# What operators do: bulk operations, and the audit log.
_OPERATORS: Final = """
CREATE TABLE bulks(name TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE audit(seq INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
"""

# From this version on, durable changes may be in a journal beside the file, so an older program,
# which would ignore it, must not open the file. The row says how much of it is applied.
_JOURNAL: Final = "INSERT INTO facts VALUES('journal', '{}')"

# What never changes in a job has columns, so that a claim need not write it again. Events are
# stored many to a row, which is found by the number of its last event.
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


# As they were in that version: later tables have their checksums from the start.
_FIRST_SUMMED: Final = (
    *("terms", "events", "partials", "history", "queues", "limits"),
    *("schedules", "cursors", "bulks", "audit", "facts"),
)


def _add_sums(connection: apsw.Connection) -> None:
    """From this version on, damage inside a value is noticed when it is read."""
    for column in ("kept_sum", "changing_sum", "result_sum"):
        connection.execute(f"ALTER TABLE jobs ADD COLUMN {column} INTEGER")
    for table in _FIRST_SUMMED:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
    sum_up(connection, _FIRST_SUMMED)


def sum_up(connection: apsw.Connection, tables: Iterable[str] = tuple(SUMMED)) -> None:
    """Sets the checksum of every row from its present values."""
    connection.create_scalar_function("checksum", checksum, deterministic=True)
    connection.execute(
        "UPDATE jobs SET kept_sum = checksum(serial, job_id, terms_id, submitted_at, unique_key,"  # noqa: S608
        f" realm, submitter, address, {PAYLOAD}),"
        " changing_sum = checksum(serial, queue, finished_at, CAST(record AS BLOB)),"
        " result_sum = CASE WHEN result IS NOT NULL THEN checksum(serial, result) END"
    )
    for table in tables:
        columns = ", ".join(SUMMED[table])
        connection.execute(f"UPDATE {table} SET checksum = checksum({columns})")  # noqa: S608


Migration = str | Callable[[apsw.Connection], None]
# Each migrates version n to n+1. Entries are added, never changed.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    _FIRST,
    _HISTORY,
    _note_failures,
    _OPERATORS,
    _JOURNAL,
    _compact,
    _add_sums,
    # From here on journal frames hold rows by table and key, which an older program would not
    # understand. The tables are the same.
    rename,
    # From here on frames and events may tell of plain jobs in few words, which an older program
    # would not understand. The tables are the same.
    "",
)
VERSION: Final = len(MIGRATIONS)
# The oldest version whose journal is still applied; its frames are translated first.
OLDEST_REPLAYED: Final = MIGRATIONS.index(rename)


def create(file: Path) -> None:
    """Creates a new file. It gets its name when it is complete, so that a crash leaves none half
    made.
    """
    draft = file.with_name(file.name + ".new")
    os.close(open_draft(draft))  # the log and other files of SQLite get the same permissions
    connection = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("application_id", APPLICATION_ID)
    _run(connection, MIGRATIONS)
    connection.pragma("journal_mode", "wal")
    connection.close()
    sync_file(draft)
    draft.rename(file)
    sync_file(file.parent)


def migrate(file: Path, migrations: Sequence[Migration] = MIGRATIONS) -> bool:
    """Migrates an older file to this version, after a copy of it is safe on disk. Returns whether
    it was older.
    """
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
        return version < len(migrations)
    finally:
        connection.close()


def _run(connection: apsw.Connection, migrations: Sequence[Migration]) -> None:
    for version in range(int(connection.pragma("user_version")), len(migrations)):
        # The version changes together with the tables, or not at all.
        with connection:
            migration = migrations[version]
            if isinstance(migration, str):
                connection.execute(migration)
            else:
                migration(connection)
            connection.pragma("user_version", version + 1)

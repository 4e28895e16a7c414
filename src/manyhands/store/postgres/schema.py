"""The tables of the PostgreSQL store, and the migrations between versions.

Texts that may hold a zero (names of queues, tags, submitters) are ``bytea`` in UTF-8, because
PostgreSQL's ``text`` refuses it. Payloads and results are plain columns: PostgreSQL keeps large
ones outside the row, and an update that does not name them does not write them again.
"""

import secrets
from typing import Any, Final

import psycopg
from msgspec import Struct

from manyhands.config.database import DatabaseAddress
from manyhands.store.contract import StoreError
from manyhands.store.postgres.processes import is_surely_gone
from manyhands.store.postgres.sessions import unusable

_Connection = psycopg.Connection[tuple[Any, ...]]

# Tables with much coming and going are vacuumed early, and without pauses.
_VACUUM: Final = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,"
    " toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0"
)
_FIRST: Final = f"""
CREATE TABLE {{schema}}.tenures(
    tenure bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server text NOT NULL,
    incarnation text NOT NULL UNIQUE,
    address text NOT NULL,
    process text NOT NULL,
    slot smallint NOT NULL,
    version text NOT NULL,
    link_min integer NOT NULL,
    link_max integer NOT NULL,
    frames integer NOT NULL,
    state text NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_by bigint,
    began_at timestamptz NOT NULL DEFAULT now(),
    load text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX tenures_slot ON {{schema}}.tenures(slot) WHERE state <> 'closed';
CREATE TABLE {{schema}}.journal(
    tenure bigint NOT NULL,
    record bigint NOT NULL,
    kind smallint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY(tenure, record)
) WITH ({_VACUUM});
ALTER TABLE {{schema}}.journal ALTER body SET STORAGE EXTERNAL;
CREATE TABLE {{schema}}.progress(
    tenure bigint PRIMARY KEY,
    applied bigint NOT NULL,
    batch bigint NOT NULL,
    counters text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {{schema}}.event_counter(seq bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO {{schema}}.event_counter VALUES(0);
CREATE TABLE {{schema}}.families(
    family bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenure bigint,
    epoch bigint NOT NULL DEFAULT 0,
    merged_into bigint,
    version bigint NOT NULL DEFAULT 0
);
INSERT INTO {{schema}}.families DEFAULT VALUES;
CREATE TABLE {{schema}}.jobs(
    serial bigint PRIMARY KEY,
    job_id text NOT NULL,
    uid text,
    queue bytea NOT NULL,
    state text NOT NULL,
    finished_at bigint,
    result_until bigint,
    namespace bytea,
    name bytea,
    terms_id bigint NOT NULL,
    submitted_at bigint NOT NULL,
    unique_key bytea,
    realm text NOT NULL,
    submitter bytea NOT NULL,
    address bytea NOT NULL,
    record text NOT NULL,
    payload bytea NOT NULL,
    result bytea
) WITH (fillfactor = 80, {_VACUUM});
CREATE UNIQUE INDEX jobs_by_id ON {{schema}}.jobs(job_id);
CREATE UNIQUE INDEX jobs_by_uid ON {{schema}}.jobs(uid) WHERE uid IS NOT NULL;
CREATE INDEX jobs_by_state ON {{schema}}.jobs(queue, state, serial);
CREATE INDEX jobs_by_end ON {{schema}}.jobs(queue, state, finished_at, serial)
    WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_result_end ON {{schema}}.jobs(result_until) WHERE result_until IS NOT NULL;
CREATE INDEX jobs_by_namespace ON {{schema}}.jobs(namespace, serial) WHERE namespace IS NOT NULL;
CREATE TABLE {{schema}}.terms(terms_id bigint PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.events(
    last_seq bigint PRIMARY KEY,
    count integer NOT NULL,
    tenure bigint NOT NULL,
    bodies bytea NOT NULL
) WITH ({_VACUUM});
CREATE TABLE {{schema}}.partials(
    serial bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    warning bigint NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY(serial, number)
);
CREATE TABLE {{schema}}.tags(tag bytea NOT NULL, serial bigint NOT NULL, PRIMARY KEY(tag, serial));
CREATE INDEX tags_by_serial ON {{schema}}.tags(serial);
CREATE TABLE {{schema}}.queues(name bytea PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.limits(name bytea PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.schedules(name bytea PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.cursors(name bytea PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.bulks(name bytea PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.audit(seq bigint PRIMARY KEY, record text NOT NULL);
CREATE TABLE {{schema}}.history(
    queue bytea NOT NULL,
    step_ms bigint NOT NULL,
    at bigint NOT NULL,
    sample bytea NOT NULL,
    PRIMARY KEY(queue, step_ms, at)
);
CREATE INDEX history_by_time ON {{schema}}.history(step_ms, at);
CREATE TABLE {{schema}}.failures(
    serial bigint PRIMARY KEY,
    group_id text NOT NULL,
    code bytea NOT NULL,
    queue bytea NOT NULL,
    at bigint NOT NULL
);
CREATE INDEX failures_by_group ON {{schema}}.failures(group_id, serial);
CREATE INDEX failures_by_code ON {{schema}}.failures(code, serial);
CREATE TABLE {{schema}}.failure_groups(
    group_id text PRIMARY KEY, code bytea NOT NULL, line bytea NOT NULL
);
"""
# Before everything else, and the only part that needs the right to create a schema.
_FACTS: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.facts(key text PRIMARY KEY, value text NOT NULL);
INSERT INTO {schema}.facts VALUES
    ('schema', '0'), ('frames', '1'), ('cluster', '{cluster}'), ('directory', '0');
"""


class Migration(Struct, frozen=True):
    """Brings the tables from version n to n + 1. A wide one only adds, so servers of the version
    before may go on beside it.
    """

    sql: str
    is_wide: bool = False


# Entries are added, never changed.
MIGRATIONS: Final = (
    Migration(_FIRST),
    # From here on frames and events may tell of plain jobs in few words.
    Migration("UPDATE {schema}.facts SET value = '2' WHERE key = 'frames';\n"),
)
VERSION: Final = len(MIGRATIONS)
FRAMES: Final = 2  # the version of the frames in the journal


def statements(schema: str) -> str:
    """Everything that a new schema needs, for those who run it themselves."""
    parts = [_FACTS.format(schema=schema, cluster=secrets.token_hex(8))]
    for version, migration in enumerate(MIGRATIONS, 1):
        parts.append(migration.sql.format(schema=schema))
        parts.append(_mark(schema, version))
    return "BEGIN;\n" + "".join(parts) + "COMMIT;\n"


def migrations_from(schema: str, version: int) -> str:
    """What brings an existing schema of an older version to this one."""
    parts = []
    for number, migration in enumerate(MIGRATIONS[version:], version + 1):
        parts.append(
            f"BEGIN;\n{migration.sql.format(schema=schema)}{_mark(schema, number)}COMMIT;\n"
        )
    return "".join(parts)


def _mark(schema: str, version: int) -> str:
    return f"UPDATE {schema}.facts SET value = '{version}' WHERE key = 'schema';\n"


def version_of(connection: _Connection, schema: str) -> int | None:
    """The version of the tables, or None if there are none."""
    row = connection.execute("SELECT to_regclass(%s)", (f"{schema}.facts",)).fetchone()
    if row is None or row[0] is None:
        return None
    statement = f"SELECT value FROM {schema}.facts WHERE key = 'schema'"
    try:
        found = connection.execute(statement).fetchone()
    except psycopg.errors.UndefinedColumn:
        found = None
    if found is None:
        raise StoreError(
            f"the schema {schema} has a table named facts that is not of manyhands. Name another "
            "schema in the address (?schema=NAME)."
        )
    return int(str(found[0]))


def migrate(connection: _Connection, address: DatabaseAddress) -> int | None:
    """Makes the tables, or brings them to this version, one transaction a migration. Returns the
    version before; None if there were no tables. Raises StoreError.
    """
    schema = address.schema
    try:
        before = version_of(connection, schema)
        if before is None:
            _begin(connection, schema)
        _refuse_newer(before or 0, schema)
        for number in range(before or 0, VERSION):
            _run(connection, schema, number)
    except psycopg.Error as error:
        raise unusable(address, error) from None
    return before


def _begin(connection: _Connection, schema: str) -> None:
    try:
        with connection.transaction():
            connection.execute(_FACTS.format(schema=schema, cluster=secrets.token_hex(8)))
    except (psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation):
        pass  # another server has made them in the same moment


def _refuse_newer(version: int, schema: str) -> None:
    if version > VERSION:
        raise StoreError(
            f"the schema {schema} was made by a newer version of manyhands (schema {version}, this "
            f"one knows {VERSION}). Run that version."
        )


def _run(connection: _Connection, schema: str, number: int) -> None:
    """Runs one migration, unless another server has done it meanwhile."""
    migration = MIGRATIONS[number]
    with connection.transaction():
        found = connection.execute(
            f"SELECT value FROM {schema}.facts WHERE key = 'schema' FOR UPDATE"
        ).fetchone()
        assert found is not None
        if int(str(found[0])) != number:
            return
        if number and not migration.is_wide:
            _refuse_beside(connection, schema, number)
        connection.execute(migration.sql.format(schema=schema))
        connection.execute(_mark(schema, number + 1))


def _refuse_beside(connection: _Connection, schema: str, version: int) -> None:
    """Raises StoreError while a server of an older version is up."""
    rows = connection.execute(
        f"SELECT server, process FROM {schema}.tenures WHERE state <> 'closed'"
        " AND beat_at > clock_timestamp() - interval '1 minute'"
    ).fetchall()
    for server, process in rows:
        if not is_surely_gone(str(process)):
            raise StoreError(
                f"the tables have version {version} and server {server} used them a moment ago; the"
                f" change to version {version + 1} has to wait until it has stopped, or has been"
                " silent for a minute. Stop it, then start this one."
            )


def require(connection: _Connection, address: DatabaseAddress) -> None:
    """Raises StoreError if the tables are missing or of another version."""
    version = version_of(connection, address.schema)
    if version is None:
        raise StoreError(
            f"{address.shown} has no tables of manyhands; start the server once, or run "
            "`manyhands migrate`."
        )
    _refuse_newer(version, address.schema)
    if version < VERSION:
        raise StoreError(
            f"the tables of {address.shown} have version {version} and this version of manyhands "
            f"needs {VERSION}; start the server once, or run `manyhands migrate`."
        )

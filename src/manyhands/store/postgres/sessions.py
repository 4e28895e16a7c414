"""Connections to the database: how they are made, checked and judged when they fail.

Nothing here sets anything in a session, because with a pooler the next transaction may run in
another one.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from manyhands.config.database import DatabaseAddress
from manyhands.store.contract import StoreError

VERSION_MIN: Final = 14
# Errors that pass: the connection is gone, the server stops or starts, it has run out of something,
# it cannot be written to because another one has taken over, or a lock was in the way.
_PASSING_CLASSES: Final = ("08", "53", "57P0", "25006", "40001", "40P01", "55P03", "58")
DISK_FULL: Final = "53100"
UNDEFINED_TABLE: Final = "42P01"  # another database: the journal's connection says so
UNIQUE_VIOLATION: Final = "23505"
# A pooler has sent a prepared statement to a connection that does not know it, or knows another.
LOST_STATEMENTS: Final = ("26000", "42P05")
REST_SECONDS: Final = 0.05
REST_SECONDS_MAX: Final = 1.0

_INT8: Final = struct.Struct(">q")


class RefusedError(Exception):
    """The database refused a statement. ``code`` is its SQLSTATE, empty if the connection broke."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def passes(self) -> bool:
        """Whether the same may succeed later."""
        return not self.code or is_passing(self.code)


def is_passing(code: str | None) -> bool:
    """Whether an error is worth another try."""
    return not code or code.startswith(_PASSING_CLASSES)


def connect(address: DatabaseAddress) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that commits each statement by itself, unless told otherwise."""
    return psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)


def unusable(address: DatabaseAddress, error: psycopg.Error) -> StoreError:
    """What to tell the operator about an error at the start."""
    text = " ".join(str(error).split())
    code = error.sqlstate or ""
    if code == "42501":
        advice = (
            "The role needs SELECT, INSERT, UPDATE and DELETE on the tables of the schema "
            f"{address.schema}, and USAGE of it; `manyhands migrate --print` prints what a role "
            "with more rights has to run."
        )
    elif code == "25006" or "read-only" in text:
        advice = "It is read-only: name a primary in the address, or all hosts of the cluster."
    elif code.startswith("28") or "password" in text or 'role "' in text:
        advice = "Check the user and the password (PGPASSWORD, or a password file: ~/.pgpass)."
    elif code == "3D000" or ('database "' in text and "does not exist" in text):
        advice = "Create the database first (createdb)."
    else:
        advice = "Check that PostgreSQL runs there and that this machine may connect."
    return StoreError(f"{address.shown} cannot be used: {text}. {advice}")


def check_server(
    connection: psycopg.Connection[tuple[Any, ...]], *, unsafe_commits: bool = False
) -> None:
    """Raises StoreError if the server is too old, or does not keep what it has committed."""
    version = connection.info.server_version // 10_000
    if version < VERSION_MIN:
        raise StoreError(
            f"the database is PostgreSQL {version}; manyhands needs {VERSION_MIN} or newer."
        )
    row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
    assert row is not None
    if row[0] == "off" and not unsafe_commits:
        raise StoreError(
            "the database has synchronous_commit = off, so a commit that it has acknowledged may "
            "be lost in a crash. Set it to on for this role (ALTER ROLE … SET synchronous_commit "
            "= on), or start with --unsafe-commits if losing the last moments is acceptable."
        )


# Raw calls, for what runs all the time. All values are in PostgreSQL's binary form.


def int8(number: int) -> bytes:
    """A number as a parameter."""
    return _INT8.pack(number)


def read_int8(value: bytes | None) -> int:
    """A number from a result."""
    assert value is not None
    return int(_INT8.unpack(value)[0])


def run(
    connection: pq.abc.PGconn, sql: bytes, values: Sequence[bytes | None] = ()
) -> pq.abc.PGresult:
    """Runs a statement and waits for it. Raises RefusedError."""
    binary = pq.Format.BINARY
    try:
        if values:
            result = connection.exec_params(sql, values, None, [binary] * len(values), binary)
        else:
            result = connection.exec_params(sql, None, None, None, binary)
    except psycopg.Error as error:
        raise RefusedError("", str(error)) from None
    return accepted(connection, result)


def accepted(connection: pq.abc.PGconn, result: pq.abc.PGresult) -> pq.abc.PGresult:
    """The result, if it is not an error. Raises RefusedError."""
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_IN):
        return result
    if connection.status == pq.ConnStatus.BAD:
        raise RefusedError("", message_of(result))
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    raise RefusedError(code.decode(), message_of(result))


def message_of(result: pq.abc.PGresult) -> str:
    """The database's own words."""
    return " ".join(result.get_error_message().split())


def copy_in(connection: pq.abc.PGconn, sql: bytes, rows: bytes | bytearray) -> None:
    """Runs a COPY from these rows in binary form. Raises RefusedError."""
    try:
        accepted(connection, connection.exec_(sql))
        connection.put_copy_data(bytes(rows))
        connection.put_copy_end()
        result = connection.get_result()
        assert result is not None
        failure = None
        try:
            accepted(connection, result)
        except RefusedError as error:
            failure = error
        while connection.get_result() is not None:
            pass
    except psycopg.Error as error:
        raise RefusedError("", str(error)) from None
    if failure is not None:
        raise failure

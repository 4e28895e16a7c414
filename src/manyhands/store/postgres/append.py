"""Appends to the journal from the event loop, without ever blocking it.

The journal is both the point of commit and the fence. Records are numbered by their writer, and the
number is the primary key: whoever takes over writes a closing record at the next number, and the
next append of the server before fails. If a connection breaks under an append, nobody knows whether
it happened; the same record is sent again, and a duplicate says that it did.
"""

import os
import select
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import pq

from manyhands.config.database import DatabaseAddress
from manyhands.loggers import get_logger
from manyhands.store.contract import StoreError, StoreFailedError, StoreFencedError
from manyhands.store.postgres.sessions import (
    DISK_FULL,
    LOST_STATEMENTS,
    REST_SECONDS,
    REST_SECONDS_MAX,
    UNIQUE_VIOLATION,
    check_server,
    connect,
    int8,
    is_passing,
    message_of,
)
from manyhands.store.postgres.tenure import Tenure

_Connection = psycopg.Connection[tuple[Any, ...]]
_log = get_logger("manyhands.store")

_RECORD_BYTES: Final = 4 * 1024 * 1024
# Records are kept for so long even if they are applied: a standby that is promoted may lack the
# last ones, and then they are written again.
_KEPT_SECONDS: Final = 30.0
_KEPT_BYTES: Final = 64 * 1024 * 1024
_FULL_SECONDS: Final = 1.0
APPEND_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 1.0, 5.0),
)
_BINARY: Final = (pq.Format.BINARY,) * 3
_FRAMES_KIND: Final = 0
FENCED: Final = (
    "another server has taken over what this one was doing, because it gave no sign of life for too"
    " long; nothing more is answered here. Start it again"
)


class Record(Struct):
    """What one append writes."""

    number: int
    batch: int  # the last one in it
    body: bytes
    at: float  # when it was sent; once it is durable, when that was


class Counts:
    """What the journal went through, for the metrics."""

    __slots__ = ("append_seconds", "appends", "in_doubt", "lost", "reconnects", "rewritten")

    def __init__(self) -> None:
        self.appends = [0] * (len(APPEND_BOUNDS) + 1)  # by how long they took
        self.append_seconds = 0.0
        self.in_doubt = 0
        self.reconnects = 0
        self.rewritten = 0  # records that the database had lost and has again
        self.lost = 0  # those that nobody has any more


class Appender:
    """The journal of one tenure. ``poll`` becomes readable when ``work`` has something to do."""

    def __init__(
        self,
        address: DatabaseAddress,
        cluster: str,
        tenure: Tenure,
        poll: select.epoll,
        durable: Callable[[Record], None],
        *,
        unsafe_commits: bool = False,
    ) -> None:
        self._address = address
        self._cluster = cluster
        self._tenure = tenure.number
        self._incarnation = tenure.incarnation
        self._poll = poll
        self._on_durable = durable
        self._unsafe_commits = unsafe_commits
        schema = address.schema
        self._insert = f"INSERT INTO {schema}.journal VALUES($1, $2, 0, $3)".encode()
        self._select = (
            f"SELECT kind FROM {schema}.journal WHERE tenure = $1 AND record = $2".encode()
        )
        # A pooler may lend a connection that another server has used: the name belongs to the text.
        self._name = b"manyhands_" + sha256(self._insert).hexdigest()[:16].encode()
        self._is_prepared = True
        self._gathered: deque[tuple[bytes | bytearray, int]] = deque()
        self._flight: Record | None = None
        self._in_doubt = False  # the record in flight may be there already
        self._asks = False  # what is in flight is the question whose record is there
        self._result: pq.abc.PGresult | None = None
        self._connection: _Connection | None = None
        self._pg: pq.abc.PGconn | None = None
        self._writes = False
        self._last = 0  # the number of the last record
        self._kept: deque[Record] = deque()
        self._kept_bytes = 0
        self._applied = 0
        self._directory = 0  # changes of who decides that this server has seen
        self.decides = False  # so the database is to say that this tenure does
        self._suspects = False  # another thread has found something wrong
        self._fresh: _Connection | None = None  # made by the thread that connects
        self._error: Exception | None = None  # why it could not
        self._rings = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self.acknowledged = 0  # the last durable record
        self.is_full = False  # the database has no room
        self.counts = Counts()
        poll.register(self._rings, select.EPOLLIN)
        self._take(self._connected())

    # Appending.

    def send(self, packed: bytes | bytearray, batch: int) -> None:
        """Appends a frame as soon as the one before is durable, with all that wait."""
        self._gathered.append((packed, batch))
        if self._flight is None and self._pg is not None:
            self._go_on()

    def has_unsettled(self) -> bool:
        """Whether something is not durable yet."""
        return self._flight is not None or bool(self._gathered)

    def _go_on(self) -> None:
        gathered = self._gathered
        packed, batch = gathered.popleft()
        if gathered and len(packed) < _RECORD_BYTES:
            parts, weight = [packed], len(packed)
            while gathered and weight + len(gathered[0][0]) <= _RECORD_BYTES:
                packed, batch = gathered.popleft()
                parts.append(packed)
                weight += len(packed)
            packed = b"".join(parts)
        self._last += 1
        self._flight = Record(self._last, batch, bytes(packed), time.perf_counter())
        self._dispatch()

    def _dispatch(self) -> None:
        """Sends the record in flight, perhaps again."""
        flight, pg = self._flight, self._pg
        assert flight is not None
        assert pg is not None
        values = (int8(self._tenure), int8(flight.number), flight.body)
        try:
            if self._is_prepared:
                pg.send_query_prepared(self._name, values, _BINARY, pq.Format.BINARY)
            else:
                pg.send_query_params(self._insert, values, None, _BINARY, pq.Format.BINARY)
            self._flush(pg)
        except psycopg.Error as error:
            self._lose(str(error))

    def _ask(self, pg: pq.abc.PGconn, flight: Record) -> None:
        self._asks = True
        values = (int8(self._tenure), int8(flight.number))
        pg.send_query_params(self._select, values, None, _BINARY[:2], pq.Format.BINARY)
        self._flush(pg)

    def _flush(self, pg: pq.abc.PGconn) -> None:
        writes = pg.flush() == 1
        if writes is not self._writes:
            self._writes = writes
            self._poll.modify(pg.socket, select.EPOLLIN | (select.EPOLLOUT if writes else 0))

    def work(self) -> None:
        """Reads answers, without blocking. Raises StoreFailedError if nothing can follow."""
        if self._suspects and self._has_rung():
            self._suspects = False
            if self._pg is not None:
                self._lose("another connection found something wrong")
        if self._pg is None:
            self._look_for_connection()
        pg = self._pg
        if pg is None:
            return
        try:
            if self._writes:
                self._flush(pg)
            pg.consume_input()
            while self._flight is not None and not pg.is_busy():
                result = pg.get_result()
                if result is not None:
                    self._result = result
                    continue
                result, self._result = self._result, None
                assert result is not None
                self._settle(pg, result)
                if self._pg is not pg:
                    return
        except psycopg.Error as error:
            self._lose(str(error))

    def _settle(self, pg: pq.abc.PGconn, result: pq.abc.PGresult) -> None:
        flight = self._flight
        assert flight is not None
        if self._asks:
            self._judge(pg, result, flight)
            return
        if result.status == pq.ExecStatus.COMMAND_OK:
            self._acknowledge(flight)
            return
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if code == UNIQUE_VIOLATION:
            self._ask(pg, flight)
        elif code in LOST_STATEMENTS and self._is_prepared:
            _log.warning("a pooler does not keep prepared statements; going on without them")
            self._is_prepared = False
            self._dispatch()
        elif is_passing(code):
            self._lose(message_of(result), is_full=code == DISK_FULL)
        else:
            raise StoreFailedError(f"the database refused a commit: {message_of(result)}")

    def _judge(self, pg: pq.abc.PGconn, result: pq.abc.PGresult, flight: Record) -> None:
        """The number is taken: by an earlier attempt of our own, or by whoever took over."""
        self._asks = False
        if result.status != pq.ExecStatus.TUPLES_OK:
            self._lose(message_of(result))
            return
        kind = result.get_value(0, 0) if result.ntuples else None
        if kind is not None and int.from_bytes(kind) != _FRAMES_KIND:
            raise StoreFencedError(FENCED)
        if kind is None or not self._in_doubt:
            raise StoreFailedError(
                f"record {flight.number} of the journal was written by another process"
            )
        self._acknowledge(flight)

    def _acknowledge(self, flight: Record) -> None:
        self._flight = None
        self._in_doubt = False
        if self.is_full:
            self.is_full = False
            _log.info("the database has room again")
        self.acknowledged = flight.number
        now, counts = time.perf_counter(), self.counts
        took = now - flight.at
        counts.appends[bisect_left(APPEND_BOUNDS, took)] += 1
        counts.append_seconds += took
        flight.at = now
        self._kept.append(flight)
        self._kept_bytes += len(flight.body)
        self._on_durable(flight)
        if self._gathered:
            self._go_on()

    def release(self, applied: int) -> None:
        """Records up to this one are applied; the last moments are kept all the same."""
        self._applied = applied
        if self._pg is None:
            return  # whoever connects may be reading them
        kept, before = self._kept, time.perf_counter() - _KEPT_SECONDS
        while kept and kept[0].number <= applied:
            if kept[0].at > before and self._kept_bytes <= _KEPT_BYTES:
                break
            self._kept_bytes -= len(kept.popleft().body)

    def lag_seconds(self) -> float:
        """For how long the oldest record that is not applied has been durable."""
        kept = self._kept
        if not kept or kept[-1].number <= self._applied:
            return 0.0
        place = max(0, self._applied + 1 - kept[0].number)
        return time.perf_counter() - kept[place].at

    # Connecting.

    def suspect(self) -> None:
        """Connects again, and so looks whether this is still the right database and this server
        still the one that may write. For other threads.
        """
        self._suspects = True
        self._ring()

    def see_directory(self, number: int) -> None:
        """Another connection has read the number of changes of who decides. For other threads."""
        if number < self._directory:
            self.suspect()
        else:
            self._directory = number

    def _ring(self) -> None:
        os.eventfd_write(self._rings, 1)

    def _has_rung(self) -> bool:
        try:
            os.eventfd_read(self._rings)
        except BlockingIOError:
            return False
        return True

    def _lose(self, why: str, *, is_full: bool = False) -> None:
        """The connection is gone, or cannot be trusted: another one is made in a thread."""
        if self._connection is not None:
            self._connection.close()  # which also takes its socket out of the poll
        self._connection = self._pg = self._result = None
        self._writes = self._asks = False
        if self._flight is not None and not is_full:
            self._in_doubt = True
            self.counts.in_doubt += 1
        if is_full and not self.is_full:
            _log.error("the database has no room; submits are refused", reason=why)
        elif not is_full:
            _log.warning("the database cannot be reached; nothing is acknowledged", reason=why)
        self.is_full = is_full
        rest = _FULL_SECONDS if is_full else 0.0
        self._thread = threading.Thread(
            target=self._reconnect, args=(rest,), name="manyhands-journal", daemon=True
        )
        self._thread.start()

    def _reconnect(self, rest: float) -> None:
        pause, reason = REST_SECONDS, ""
        self._ends.wait(rest)
        while not self._ends.is_set():
            try:
                self._fresh = self._connected()
            except psycopg.Error as error:
                before, reason = reason, " ".join(str(error).split())
                if reason != before:
                    _log.warning("the database cannot be reached yet", reason=reason)
                self._ends.wait(pause)
                pause = min(2 * pause, REST_SECONDS_MAX)
                continue
            except Exception as error:  # noqa: BLE001 - it ends the server, with this sentence
                self._error = error
            self._ring()
            return

    def _look_for_connection(self) -> None:
        if not self._has_rung():
            return
        error, fresh = self._error, self._fresh
        if error is not None:
            if isinstance(error, StoreFailedError):
                raise error
            raise StoreFailedError(str(error)) from error
        if fresh is None:
            return  # it rang for something else
        self._fresh = None
        self.counts.reconnects += 1
        _log.info("the database answers again")
        self._take(fresh)
        if self._flight is not None:
            self._dispatch()
        elif self._gathered:
            self._go_on()

    def _take(self, connection: _Connection) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._poll.register(self._pg.socket, select.EPOLLIN)

    def _connected(self) -> _Connection:
        """A connection to the database that this journal is in, with everything acknowledged in
        it. May take a while.
        """
        connection = connect(self._address)
        try:
            check_server(connection, unsafe_commits=self._unsafe_commits)
            self._check_journal(connection)
            if self._is_prepared:
                result = connection.pgconn.prepare(self._name, self._insert)
                if result.status != pq.ExecStatus.COMMAND_OK:
                    self._is_prepared = False
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_journal(self, connection: _Connection) -> None:
        """Raises StoreError if the database is not as this server knows it."""
        acknowledged = self.acknowledged
        cluster, directory, owner, state, is_closing, last = self._read_journal(connection)
        if cluster != self._cluster or state is None:
            self.counts.lost += acknowledged
            raise StoreFailedError(
                "the database is not the one that this server began with: it does not know tenure "
                f"{self._tenure}. Was it replaced, or restored from a backup? Up to record "
                f"{acknowledged} was acknowledged; what the database lacks is lost"
            )
        if is_closing or state == "closed":
            raise StoreFencedError(FENCED)
        if directory < self._directory or (self.decides and owner != self._tenure):
            lost = max(0, acknowledged - last)
            self.counts.lost += lost
            raise StoreFailedError(
                f"the database has gone back: it knows of {directory} changes of who decides, and "
                f"this server of {self._directory}; tenure {owner} decides there. It ends at "
                f"record {last}, and {acknowledged} was acknowledged: {lost} records are lost"
            )
        self._directory = directory
        self._write_again(connection, last)

    def _read_journal(self, connection: _Connection) -> tuple[Any, ...]:
        """The id of the database, the number of changes of who decides, the tenure that does, the
        state of this one, whether another server closes it, and its last record.
        """
        schema = self._address.schema
        try:
            row = connection.execute(
                f"SELECT (SELECT value FROM {schema}.facts WHERE key = 'cluster'),"
                f" (SELECT value::bigint FROM {schema}.facts WHERE key = 'directory'),"
                f" (SELECT tenure FROM {schema}.families WHERE family = 1), own.state,"
                " own.closed_by IS NOT NULL, coalesce(greatest((SELECT max(record)"
                f" FROM {schema}.journal WHERE tenure = %(t)s AND kind = 0),"
                f" (SELECT applied FROM {schema}.progress WHERE tenure = %(t)s)), 0)"
                f" FROM (SELECT 1) AS one LEFT JOIN {schema}.tenures own"
                " ON own.tenure = %(t)s AND own.incarnation = %(i)s",
                {"t": self._tenure, "i": self._incarnation},
            ).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return ("", 0, None, None, False, 0)
        assert row is not None
        return row

    def _write_again(self, connection: _Connection, last: int) -> None:
        """Writes what was acknowledged and is not there, because a standby that lacked it was
        promoted.
        """
        missing = range(last + 1, self.acknowledged + 1)
        if not missing:
            return
        kept = {record.number: record for record in self._kept}
        lost = [number for number in missing if number not in kept]
        if lost:
            # With a gap before them, those that are kept are of no use either.
            self.counts.lost += len(missing)
            raise StoreFailedError(
                f"the database has gone back: it ends at record {last}, and {self.acknowledged} "
                f"was acknowledged. These {len(missing)} records are lost: what comes after "
                f"{last} was written more than {_KEPT_SECONDS:.0f} seconds ago, and is not kept"
            )
        _log.warning(
            "the database has lost acknowledged records; they are written again",
            first=missing[0],
            last=missing[-1],
        )
        # At once: until then nobody else has them.
        with connection.transaction():
            for number in missing:
                connection.execute(
                    f"INSERT INTO {self._address.schema}.journal VALUES(%s, %s, 0, %s)"
                    " ON CONFLICT DO NOTHING",
                    (self._tenure, number, kept[number].body),
                )
        self.counts.rewritten += len(missing)

    def close_journal(self) -> None:
        """Ends the journal with a closing record. Raises StoreError if that fails; the next start
        does it then.
        """
        connection = self._connection
        if connection is None or self._flight is not None:
            raise StoreError("the database could not be reached")
        try:
            connection.execute(
                f"INSERT INTO {self._address.schema}.journal VALUES(%s, %s, 1, '')",
                (self._tenure, self._last + 1),
            )
        except psycopg.Error as error:
            raise StoreError(f"the database could not be reached: {error}") from None

    def close(self) -> None:
        """Lets the connection go."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(REST_SECONDS_MAX)
        for connection in (self._connection, self._fresh):
            if connection is not None:
                connection.close()
        os.close(self._rings)

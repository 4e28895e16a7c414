"""The store of one server among several on the same tables.

It joins beside others and begins without any live jobs. If it comes to decide, it loads them;
until then it shows what the server that decides sends, and writes only entries of its own, such as
those of the audit log. The statements here wait for the database: they are for threads.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import psycopg
from msgspec import Struct
from msgspec.structs import replace

from manyhands.store.bulk import Bulk
from manyhands.store.contract import Counted, Page, Selection, StoreError, StoreFencedError
from manyhands.store.index.live import Index
from manyhands.store.mirror import Mirror, Original
from manyhands.store.postgres import schema, tenure
from manyhands.store.postgres.append import FENCED
from manyhands.store.postgres.journal import take_over
from manyhands.store.postgres.processes import is_surely_gone
from manyhands.store.postgres.reader import Reader
from manyhands.store.postgres.serials import first_serial, second_at, second_of
from manyhands.store.postgres.sessions import check_server, connect
from manyhands.store.postgres.source import Source
from manyhands.store.postgres.store import PostgresStore
from manyhands.store.records.frames import Counters
from manyhands.store.records.loader import Loader, decode_counters
from manyhands.store.retention import Retention

Found = TypeVar("Found")
_Connection = psycopg.Connection[tuple[Any, ...]]
_LIVING: Final = "('joining', 'serving', 'leaving')"
_JOIN_TRIES: Final = 10
_LOOK_SECONDS: Final = 0.5
_APPLY_SECONDS_MAX: Final = 2.0
_APPLY_REST_SECONDS: Final = 0.005


class Row(Struct, frozen=True):
    """A tenure that is not closed."""

    tenure: int
    server: str
    incarnation: str
    address: str
    beats: int
    state: str
    version: str
    began_at: int
    closed_by: int | None
    process: str
    load: str


class Beaten(Struct, frozen=True):
    """What a beat brings back."""

    rows: tuple[Row, ...]
    owner: int | None
    epoch: int
    now: int


class Loaded(Struct):
    """Everything that the tables say about live jobs."""

    index: Index
    counters: Counters
    bulks: dict[str, Bulk]
    first_seq: int


class SharedStore(PostgresStore):
    """A store whose live jobs are those of another server, until this one decides."""

    listening: socket.socket | None = None  # for the other servers; bound before it joined
    secret = b""
    time_offset_ms = 0.0
    # Has what other servers decided applied: the last batch of each, by tenure, and whether all is
    # known. Waits; for threads.
    hurry_others: Callable[[], tuple[dict[int, int], bool]] = staticmethod(lambda: ({}, True))

    # Joining.

    def _open(self, applier_command: Sequence[str]) -> Counters | None:
        address = self._address
        with connect(address) as connection:
            check_server(connection, unsafe_commits=self._unsafe_commits)
            schema.migrate(connection, address)
            self._tenure = self._join_others(connection)
            self._begin_writing(connection, applier_command)
            row = connection.execute(f"SELECT seq FROM {address.schema}.event_counter").fetchone()
            self._begin_audit(connection)
        assert row is not None
        with self._pool.borrow() as reader:
            self._dialect = reader.dialect
            self._first_seq = reader.first_seq() or row[0] + 1
        return Counters(seq=row[0])

    def _begin_audit(self, connection: _Connection) -> None:
        """Entries of this server come after those of earlier ones in its slot."""
        slot, name = self._tenure.slot, self._address.schema
        row = connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,"
            f" (SELECT coalesce(max(seq), 0) FROM {name}.audit WHERE ((seq >> 16) & 127) = %s)",
            (slot,),
        ).fetchone()
        assert row is not None
        self._collector.audit_seq = max(first_serial(second_at(row[0]), slot), row[1])
        # How far the database's time is ahead of the monotonic clock, until beats say it better.
        self.time_offset_ms = row[0] - time.monotonic_ns() / 1e6

    def _join_others(self, connection: _Connection) -> tenure.Tenure:
        joining, name = self._joining, self._address.schema
        for _ in range(_JOIN_TRIES):
            found = tenure.join(
                connection,
                name,
                server=joining.server,
                address=joining.address,
                incarnation=joining.incarnation,
                beside=self._look_around(connection),
            )
            if found is not None:
                connection.execute(
                    f"UPDATE {name}.tenures SET state = 'serving' WHERE tenure = %s",
                    (found.number,),
                )
                return found
        raise StoreError("other servers start on this database at the same time; try again.")

    def _look_around(self, connection: _Connection) -> list[tenure.Seen]:
        """All others that are not closed. Raises StoreError beside a server that must be alone, or
        has the name of this one.
        """
        joining, name = self._joining, self._address.schema
        others = tenure.others(connection, name)
        until = time.perf_counter() + joining.lease_seconds
        before = {one.number: one for one in others if self._is_rival(one)}
        while before and time.perf_counter() < until:
            time.sleep(_LOOK_SECONDS)
            for one in tenure.others(connection, name):
                seen = before.get(one.number)
                if seen is None or seen.beats == one.beats:
                    continue
                if one.server == joining.server:
                    raise StoreError(
                        f"a server named {one.server} is up at {one.address}; give this one"
                        " another name (--server-name)."
                    )
                raise StoreError(
                    f"server {one.server} uses the schema {name} without --cluster, so it has to"
                    " be alone. Start it with --cluster too."
                )
        return others

    def _is_rival(self, one: tenure.Seen) -> bool:
        """Whether it may be alive and is not allowed beside this one."""
        joining = self._joining
        return (
            (one.server == joining.server or ":" not in one.address)
            and one.address != joining.address  # bound by this process: it is gone
            and not is_surely_gone(one.process)
        )

    @property
    def tenure(self) -> int:
        """The number of this life of this server."""
        return self._tenure.number

    def suspect(self) -> None:
        """Something is wrong with the database: the journal looks what."""
        self._suspect()

    def see_directory(self, number: int) -> None:
        """A beat has read the number of changes of who decides."""
        assert self._appender is not None
        self._appender.see_directory(number)

    @property
    def address(self) -> str:
        """Where the other servers reach this one."""
        return self._joining.address

    @property
    def incarnation(self) -> str:
        """Begins the names of all connections of this server."""
        return self._joining.incarnation

    # The live jobs of the server that decides.

    def mirror(self) -> Mirror:
        return Mirror(self.live)

    def original(self) -> Original:
        return Original(self.live)

    def applied_number(self) -> int:
        return self._applied

    def applied_record(self) -> int:
        """The last record of the journal that is known to be applied."""
        return self._link.record

    def hurry(self) -> int:
        """Has everything durable applied soon; returns the number of its last batch."""
        if self._applied < self._durable:
            self._link.hurry()
        return self._durable

    def follow(self, last_seq: int, applied_seq: int) -> None:
        """The server that decides has published events up to this number."""
        self._collector.seq = self._last_seq = last_seq
        self._applied_seq = applied_seq

    def applied_seq(self) -> int:
        return self._applied_seq

    def _begin(self, counters: Counters | None, retention: Retention) -> None:
        super()._begin(counters, retention)
        self.alive_at = None
        own_bytes = self._collector.backlog_bytes
        self.passed_on_bytes: Callable[[], int] = lambda: 0
        self.backlog_bytes = lambda: own_bytes() + self.passed_on_bytes()
        self.take_audit_seq = self._take_audit_seq

    def _take_audit_seq(self) -> int:
        """Like serials: about in order of time, and of this server alone."""
        lowest = first_serial(second_of(self.live.serial), self._tenure.slot)
        self._collector.audit_seq = max(self._collector.audit_seq, lowest) + 1
        return self._collector.audit_seq

    def take_up(self, loaded: Loaded) -> None:
        """Everything is loaded: new jobs and events come after what was there."""
        counters = loaded.counters
        self.live.position = max(self.live.position, counters.position)
        self.live.finished_bytes = loaded.index.finished_bytes
        self.live.serial = loaded.index.serial
        self._begin_serials()
        self._packer.begin_after(self.live.serial)
        self.alive_at = counters.alive_at
        self.behind_ms = counters.behind_ms
        self._collector.seq = self._last_seq = self._applied_seq = counters.seq
        self._first_seq = loaded.first_seq
        self.set_decides(True)
        for bulk_id, bulk in loaded.bulks.items():
            known = self.bulks.get(bulk_id)
            if known is None or bulk.is_further(known):  # this server may run some itself
                self.bulks[bulk_id] = bulk

    def set_decides(self, decides: bool) -> None:  # noqa: FBT001
        """Whether the database is to say that this server decides."""
        assert self._appender is not None
        self._appender.decides = decides

    def load_all(self) -> Loaded:
        """Reads everything from the tables, in one snapshot. Raises StoreFencedError if another
        server decides.
        """
        index, bulks = Index(lambda _: None), dict[str, Bulk]()
        name = self._address.schema
        with self._pool.borrow() as reader, reader.connection.transaction():
            reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (owner,) = reader.rows(f"SELECT tenure FROM {name}.families WHERE family = 1")[0]
            if owner != self._tenure.number:
                raise StoreFencedError(FENCED)
            Loader(Source(reader), index, self._terms, bulks, 1 << 62).load()
            found = [
                decode_counters(row[0])
                for row in reader.rows(f"SELECT counters FROM {name}.progress WHERE counters <> ''")
            ]
            counters = _latest(found)
            (seq,) = reader.rows(f"SELECT seq FROM {name}.event_counter")[0]
            counters = replace(counters, seq=max(seq, counters.seq))
            first_seq = reader.first_seq() or counters.seq + 1
        index.serial = max(index.serial, counters.serial)
        index.position = max(index.position, counters.position)
        return Loaded(index, counters, bulks, first_seq)

    def read_bulks(self) -> dict[str, Bulk]:
        """All bulk operations on record."""
        found = self._read(lambda reader: list(Source(reader).settings("bulks")))
        return {name: msgspec.json.decode(record, type=Bulk) for name, record in found}

    def drain(self) -> None:
        """Waits until the tables hold everything that is durable."""
        super()._read(lambda _reader: None)

    # Reading: whoever searches here finds all that was acknowledged before, by any server.

    def _read(self, question: Callable[[Reader], Found], number: int = 0) -> Found:
        batches, is_known = self.hurry_others()

        def caught_up(reader: Reader) -> Found:
            is_complete = is_known and all(
                _is_applied(reader, tenure, batch) for tenure, batch in batches.items()
            )
            found = question(reader)
            if not is_complete and isinstance(found, Page | Counted | Selection):
                return replace(found, complete=False)
            return found

        return super()._read(caught_up, number)


def _is_applied(reader: Reader, tenure: int, batch: int) -> bool:
    """Waits for a batch of another server, within reason."""
    give_up_at = time.perf_counter() + _APPLY_SECONDS_MAX
    while reader.applied_batch(tenure) < batch:
        if time.perf_counter() > give_up_at:
            return False
        time.sleep(_APPLY_REST_SECONDS)
    return True


def _latest(found: Sequence[Counters]) -> Counters:
    """Each server stores what it knew; all of them only grow, but for the time."""
    if not found:
        return Counters()
    # An earlier one may have lived by a clock that has been set back since.
    last = max(found, key=lambda one: (one.seq, one.alive_at))
    return Counters(
        last.alive_at,
        max(one.serial for one in found),
        max(one.seq for one in found),
        max(one.position for one in found),
        max((one.finished_bytes or 0) for one in found),
        max(one.behind_ms for one in found),
    )


class Seats:
    """Who lives and who decides, on a connection that is made again when it breaks."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._address = store._address  # noqa: SLF001
        self._name = self._address.schema
        self._tenure = store.tenure
        self._connection: _Connection | None = None

    @contextlib.contextmanager
    def _connected(self) -> Any:  # noqa: ANN401 - a generator
        if self._connection is None:
            self._connection = connect(self._address)
        try:
            yield self._connection
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        """Lets the connection go."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def cluster(self) -> str:
        """The id of the database."""
        with self._connected() as connection:
            row = connection.execute(
                f"SELECT value FROM {self._name}.facts WHERE key = 'cluster'"
            ).fetchone()
            return str(row[0])

    def beat(self, load: str) -> Beaten:
        """Says that this server lives, and reads who else does. Raises StoreFencedError."""
        name = self._name
        with self._connected() as connection:
            changed = connection.execute(
                f"UPDATE {name}.tenures SET beats = beats + 1, beat_at = clock_timestamp(),"
                f" load = %s WHERE tenure = %s AND incarnation = %s AND state IN {_LIVING}",
                (load, self._tenure, self._store.incarnation),
            )
            if changed.rowcount != 1:
                self._raise_why(connection)
            rows = connection.execute(
                "SELECT t.tenure, server, incarnation, address, beats, state, t.version,"
                " (extract(epoch FROM began_at) * 1000)::bigint, closed_by, process, load,"
                " f.tenure, f.epoch, (extract(epoch FROM clock_timestamp()) * 1000)::bigint,"
                f" (SELECT value::bigint FROM {name}.facts WHERE key = 'directory')"
                f" FROM {name}.tenures t, {name}.families f"
                " WHERE t.state <> 'closed' AND f.family = 1"
            ).fetchall()
        found = tuple(Row(*row[:11]) for row in rows)
        owner, epoch, now, directory = rows[0][11:]
        self._store.see_directory(directory)
        return Beaten(found, owner, epoch, now)

    def _raise_why(self, connection: _Connection) -> NoReturn:
        """The beat changed no row: another server has taken over, or this is another database."""
        row = connection.execute(
            f"SELECT 1 FROM {self._name}.tenures WHERE tenure = %s AND incarnation = %s",
            (self._tenure, self._store.incarnation),
        ).fetchone()
        if row is not None:
            raise StoreFencedError(FENCED)
        self._store.suspect()
        raise StoreError("the database does not know this server")

    def take_over(self, dead: Row) -> bool:
        """Ends and applies the journal of a dead server, and takes what it decided about."""
        seen = tenure.Seen(
            dead.tenure,
            dead.server,
            dead.address,
            dead.process,
            dead.beats,
            dead.state,
            dead.closed_by,
            dead.incarnation,
        )
        with self._connected() as connection:
            try:
                take_over(connection, self._name, seen, self._tenure)
            except tenure.NotDeadError:
                return False
            return True

    def claim(self) -> bool:
        """Becomes the owner if nobody is."""
        name = self._name
        with self._connected() as connection, connection.transaction():
            number = tenure.turn_directory(connection, name)
            changed = connection.execute(
                f"UPDATE {name}.families SET tenure = %s, epoch = epoch + 1, version = %s"
                f" WHERE family = 1 AND (tenure IS NULL OR tenure NOT IN (SELECT tenure"
                f" FROM {name}.tenures WHERE state <> 'closed'))",
                (self._tenure, number),
            )
            return bool(changed.rowcount)

    def hand_over(self, to: int | None, *, leaves: bool) -> bool:
        """Makes another server the owner. What this one decided is applied; not if the database has
        failed over since, and lacks some of it: that is about to be written again.
        """
        name = self._name
        with self._connected() as connection, connection.transaction():
            number = tenure.turn_directory(connection, name)
            changed = connection.execute(
                f"UPDATE {name}.families SET epoch = epoch + 1, version = %s, tenure = (SELECT"
                f" tenure FROM {name}.tenures WHERE tenure = %s AND state = 'serving')"
                " WHERE family = 1 AND tenure = %s"
                f" AND (SELECT applied FROM {name}.progress WHERE tenure = %s) >= %s",
                (number, to, self._tenure, self._tenure, self._store.applied_record()),
            )
            if leaves:
                connection.execute(
                    f"UPDATE {name}.tenures SET state = 'leaving' WHERE tenure = %s"
                    " AND state = 'serving'",
                    (self._tenure,),
                )
            return bool(changed.rowcount)

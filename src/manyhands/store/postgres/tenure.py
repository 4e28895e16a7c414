"""Tenures: one life of one server process on the database, a number that is never used again.

A tenure has a slot (part of the serials of its jobs), a beat that shows that it lives, and a
journal that it alone may continue. Whoever takes a dead one over ends its journal with a closing
record: if the dead one was only asleep, its next append fails, whatever it believes.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from msgspec import Struct

from manyhands import __version__
from manyhands.config.database import DatabaseAddress
from manyhands.loggers import get_logger
from manyhands.store.contract import StoreError
from manyhands.store.postgres.processes import is_surely_gone, this_process
from manyhands.store.postgres.schema import FRAMES
from manyhands.store.postgres.sessions import connect

_Connection = psycopg.Connection[tuple[Any, ...]]
_log = get_logger("manyhands.store")

SLOTS_COUNT: Final = 128
LEASE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_LOOKS_MIN: Final = 3
_BEAT_SECONDS: Final = 1.0
# How long the row and the closing record of a closed tenure stay: a server that slept through its
# takeover must still find them.
_KEPT: Final = "7 days"
_LIVING: Final = "('joining', 'serving', 'leaving')"
_LINK_VERSION: Final = 1


class NotDeadError(StoreError):
    """A server that was to be taken over lives, or another one takes it over."""


class Tenure(Struct, frozen=True):
    """Ours."""

    number: int
    slot: int
    incarnation: str


class Seen(Struct, frozen=True):
    """Another one that is not closed, as it was last seen."""

    number: int
    server: str
    address: str
    process: str
    beats: int
    state: str
    closed_by: int | None
    incarnation: str


def others(connection: _Connection, schema: str) -> list[Seen]:
    """All tenures that are not closed."""
    rows = connection.execute(
        f"SELECT tenure, server, address, process, beats, state, closed_by,"
        f" incarnation FROM {schema}.tenures"
        " WHERE state <> 'closed' ORDER BY tenure"
    ).fetchall()
    return [Seen(*row) for row in rows]


def find_dead(connection: _Connection, schema: str, lease_seconds: float) -> list[Seen]:
    """Tenures that are certainly dead, or have not beaten for the time of a lease. Raises
    StoreError if one of the others lives.
    """
    found = others(connection, schema)
    doubtful = [one for one in found if not is_surely_gone(one.process)]
    if doubtful:
        _log.info(
            "another server has not signed off; waiting to see whether it lives",
            server=doubtful[0].server,
            address=doubtful[0].address,
            seconds=lease_seconds,
        )
        _observe(connection, schema, doubtful, lease_seconds)
    return found


def _observe(
    connection: _Connection, schema: str, doubtful: Sequence[Seen], lease_seconds: float
) -> None:
    """Death is observed on the own clock, never read off one of another machine."""
    until = time.perf_counter() + lease_seconds
    looks = 0
    while time.perf_counter() < until or looks < _LOOKS_MIN:
        time.sleep(min(_LOOK_SECONDS, lease_seconds))
        looks += 1
        now = {one.number: one for one in others(connection, schema)}
        for before in doubtful:
            seen = now.get(before.number)
            if seen is not None and seen.beats != before.beats:
                raise StoreError(
                    f"server {seen.server} ({seen.address}) already uses this database, and a "
                    "server without --cluster has to be alone. Stop the other one, or name another "
                    "schema in the address (?schema=NAME)."
                )


def join(
    connection: _Connection,
    schema: str,
    *,
    server: str,
    address: str,
    incarnation: str,
    beside: Sequence[Seen],
) -> Tenure | None:
    """Begins a tenure in the lowest free slot, beside dead ones only. Returns None if another
    server was faster.
    """
    _drop_old(connection, schema)
    row = connection.execute(
        f"SELECT min(n) FROM generate_series(0, {SLOTS_COUNT - 1}) AS n WHERE n NOT IN"
        f" (SELECT slot FROM {schema}.tenures WHERE state <> 'closed')"
    ).fetchone()
    assert row is not None
    slot = row[0]
    if slot is None:
        raise StoreError(f"{SLOTS_COUNT} servers use this database already; there is no free slot.")
    try:
        with connection.transaction():
            made = connection.execute(
                f"INSERT INTO {schema}.tenures(server, incarnation, address, process, slot,"
                " version, link_min, link_max, frames, state)"
                " SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, 'joining' WHERE NOT EXISTS"
                f" (SELECT 1 FROM {schema}.tenures WHERE state <> 'closed'"
                " AND tenure <> ALL(%s)) RETURNING tenure",
                (
                    *(server, incarnation, address, this_process(), slot, __version__),
                    *(_LINK_VERSION, _LINK_VERSION, FRAMES, [one.number for one in beside]),
                ),
            ).fetchone()
            if made is None:
                return None
            connection.execute(
                f"INSERT INTO {schema}.progress VALUES(%s, 0, 0, '')",
                (made[0],),
            )
    except psycopg.errors.UniqueViolation:
        return None
    return Tenure(int(str(made[0])), int(str(slot)), incarnation)


def _drop_old(connection: _Connection, schema: str) -> None:
    with connection.transaction():
        rows = connection.execute(
            f"DELETE FROM {schema}.tenures WHERE state = 'closed' AND beat_at < now() - interval"
            f" '{_KEPT}' AND tenure < (SELECT max(tenure) FROM {schema}.tenures) RETURNING tenure"
        ).fetchall()
        gone = [row[0] for row in rows]
        if gone:
            connection.execute(f"DELETE FROM {schema}.journal WHERE tenure = ANY(%s)", (gone,))
            connection.execute(f"DELETE FROM {schema}.progress WHERE tenure = ANY(%s)", (gone,))


def turn_directory(connection: _Connection, schema: str) -> int:
    """Counts a change of who decides, in the transaction that makes it; returns its number. A
    database that knows fewer of them than a server has gone back.
    """
    row = connection.execute(
        f"UPDATE {schema}.facts SET value = (value::bigint + 1)::text WHERE key = 'directory'"
        " RETURNING value::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0])


def frames_of(connection: _Connection, schema: str, tenure: int) -> int:
    """The version of the frames in its journal; 0 if it is unknown."""
    row = connection.execute(
        f"SELECT frames FROM {schema}.tenures WHERE tenure = %s", (tenure,)
    ).fetchone()
    return 0 if row is None else int(str(row[0]))


def begin_closing(connection: _Connection, schema: str, dead: Seen, by: int) -> bool:
    """Marks a dead tenure as being taken over; False if it lives, or another server does it."""
    changed = connection.execute(
        f"UPDATE {schema}.tenures SET state = 'closing', closed_by = %s WHERE tenure = %s"
        f" AND beats = %s AND (state IN {_LIVING} OR closed_by IS NOT DISTINCT FROM %s)",
        (by, dead.number, dead.beats, dead.closed_by),
    )
    return changed.rowcount == 1


def close_journal(connection: _Connection, schema: str, tenure: int) -> int:
    """Ends the journal of a tenure with a closing record; returns its number. If there is one, it
    stays.
    """
    while True:
        found = connection.execute(
            f"SELECT min(record) FROM {schema}.journal WHERE tenure = %s AND kind = 1",
            (tenure,),
        ).fetchone()
        if found is not None and found[0] is not None:
            return int(str(found[0]))
        try:
            connection.execute(
                f"INSERT INTO {schema}.journal SELECT %s, greatest("
                f"(SELECT coalesce(max(record), 0) FROM {schema}.journal WHERE tenure = %s),"
                f" (SELECT applied FROM {schema}.progress WHERE tenure = %s)) + 1, 1, ''",
                (tenure, tenure, tenure),
            )
        except psycopg.errors.UniqueViolation:
            continue  # it was faster: at the next number


def finish_closing(connection: _Connection, schema: str, tenure: int, heir: int | None) -> None:
    """Everything of the tenure is applied: what it owned goes to the heir, and it is closed."""
    with connection.transaction():
        connection.execute(
            f"UPDATE {schema}.families SET tenure = %s, epoch = epoch + 1, version = %s"
            " WHERE tenure = %s",
            (heir, turn_directory(connection, schema), tenure),
        )
        connection.execute(
            f"UPDATE {schema}.tenures SET state = 'closed', beat_at = clock_timestamp()"
            " WHERE tenure = %s",
            (tenure,),
        )
    connection.execute(
        f"DELETE FROM {schema}.journal WHERE tenure = %s AND kind = 0",
        (tenure,),
    )


def begin_serving(connection: _Connection, schema: str, tenure: int) -> None:
    """The tenure owns everything that nobody owns, and serves."""
    with connection.transaction():
        connection.execute(
            f"UPDATE {schema}.families SET tenure = %s, epoch = epoch + 1, version = %s"
            " WHERE tenure IS NULL",
            (tenure, turn_directory(connection, schema)),
        )
        connection.execute(
            f"UPDATE {schema}.tenures SET state = 'serving' WHERE tenure = %s"
            " AND state = 'joining'",
            (tenure,),
        )


class Beat:
    """Shows once a second that the tenure lives, on a connection and in a thread of its own."""

    def __init__(
        self, address: DatabaseAddress, tenure: Tenure, suspect: Callable[[], None]
    ) -> None:
        """``suspect`` is called in the thread when the tenure is gone or not ours any more."""
        self._address = address
        self._tenure = tenure
        self._suspect = suspect
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manyhands-beat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops beating; waits for a beat that is on its way, within reason."""
        self._ends.set()
        self._thread.join(2 * _BEAT_SECONDS)

    def _run(self) -> None:
        connection: _Connection | None = None
        statement = (
            f"UPDATE {self._address.schema}.tenures SET beats = beats + 1,"
            " beat_at = clock_timestamp() WHERE tenure = %s AND incarnation = %s"
            f" AND state IN {_LIVING}"
        )
        while not self._ends.wait(_BEAT_SECONDS):
            try:
                if connection is None:
                    connection = connect(self._address)
                tenure = self._tenure
                changed = connection.execute(statement, (tenure.number, tenure.incarnation))
                if changed.rowcount == 0:
                    self._suspect()
            except psycopg.Error:
                # The journal says what is wrong with the database; the beat only tries again.
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()

"""Reads the journal of a tenure that has ended and applies it: the second half of a takeover."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from manyhands.loggers import get_logger
from manyhands.store.contract import StoreError
from manyhands.store.postgres import tenure as tenures
from manyhands.store.postgres.schema import FRAMES
from manyhands.store.postgres.sessions import RefusedError, int8, read_int8, run
from manyhands.store.postgres.windows import Progress, Windows

_Connection = psycopg.Connection[tuple[Any, ...]]
_log = get_logger("manyhands.store")
_RECORDS_AT_ONCE: Final = 64
_WINDOW_BYTES: Final = 4 * 1024 * 1024


def take_over(connection: _Connection, schema: str, dead: tenures.Seen, by: int) -> None:
    """Takes a dead tenure over: ends its journal, applies it, and closes it. Each step can be
    repeated, by another server too. Raises StoreError.
    """
    frames = tenures.frames_of(connection, schema, dead.number)
    if frames > FRAMES:
        raise StoreError(
            f"the journal of server {dead.server} was written by a newer version of manyhands"
            f" (frames {frames}, this one knows {FRAMES}). Start that version; nothing was removed."
        )
    if not tenures.begin_closing(connection, schema, dead, by):
        raise tenures.NotDeadError(
            f"server {dead.server} ({dead.address}) came back to life, or another server has taken "
            "it over just now. Start this one again."
        )
    end = tenures.close_journal(connection, schema, dead.number)
    windows = Windows(connection.pgconn, schema, dead.number, dead.incarnation)
    try:
        count = replay(connection, schema, dead.number, windows, end)
    except RefusedError as error:
        raise StoreError(
            f"the journal of server {dead.server} cannot be applied: {error}. Nothing was removed."
        ) from None
    tenures.finish_closing(connection, schema, dead.number, by)
    _log.info("took over from a server that had ended", server=dead.server, records=count)


def replay(connection: _Connection, schema: str, tenure: int, windows: Windows, end: int) -> int:
    """Applies all records before ``end`` that are not applied; returns how many. A gap ends the
    journal: what is behind it was never acknowledged.
    """
    began = windows.progress(closing=True)
    progress = began
    for bodies in _slices(connection, schema, tenure, began, end):
        progress = windows.apply(bodies, progress.applied, closing=True)
    return progress.applied - began.applied


def _slices(
    connection: _Connection, schema: str, tenure: int, began: Progress, end: int
) -> Iterator[list[bytes]]:
    statement = (
        f"SELECT record, body FROM {schema}.journal WHERE tenure = $1 AND record > $2"
        f" AND record < $3 AND kind = 0 ORDER BY record LIMIT {_RECORDS_AT_ONCE}"
    ).encode()
    last = began.applied
    while True:
        result = run(connection.pgconn, statement, [int8(tenure), int8(last), int8(end)])
        bodies: list[bytes] = []
        weight = 0
        for row in range(result.ntuples):
            if read_int8(result.get_value(row, 0)) != last + 1:
                break
            last += 1
            bodies.append(result.get_value(row, 1) or b"")
            weight += len(bodies[-1])
            if weight > _WINDOW_BYTES:
                break
        if not bodies:
            return
        yield bodies

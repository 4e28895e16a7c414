"""Looks now and then for what keeps PostgreSQL from removing dead rows: the database still works,
but each job costs it more and more.
"""

import threading
from contextlib import suppress
from typing import Final

import psycopg
from msgspec import Struct, field

from manyhands.loggers import get_logger
from manyhands.store.contract import StoreError
from manyhands.store.postgres.reader import Reader, ReaderPool

_log = get_logger("manyhands.store")
_LOOK_SECONDS: Final = 15.0
LONG_SECONDS: Final = 600.0
# Transactions of other roles are seen only by members of pg_read_all_stats.
_OLDEST: Final = (
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - began)), 0)::float8 FROM ("
    " SELECT xact_start AS began FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    " UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) AS open"
)
_DEAD: Final = "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = ?"


class Hindrance(Struct, frozen=True):
    """What the last look found."""

    oldest_transaction_seconds: float = 0.0
    dead_rows: dict[str, int] = field(default_factory=dict)  # by table

    @property
    def is_long(self) -> bool:
        """Whether the oldest transaction is so old that somebody should look at it."""
        return self.oldest_transaction_seconds > LONG_SECONDS


class VacuumWatch:
    """Looks in a thread of its own, from the start to ``end``."""

    def __init__(
        self, pool: ReaderPool, schema: str, *, look_seconds: float = _LOOK_SECONDS
    ) -> None:
        self.found = Hindrance()
        self._pool = pool
        self._schema = schema
        self._look_seconds = look_seconds
        self._is_long = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manyhands-vacuum", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Looks no more; what is under way may go on."""
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.wait(self._look_seconds):
            with suppress(StoreError, psycopg.Error):  # the journal reports what is wrong
                self.look()

    def look(self) -> None:
        """Looks once. Raises StoreError or psycopg.Error."""
        with self._pool.borrow() as reader:
            self.found = _read(reader, self._schema)
        is_long = self.found.is_long
        if is_long and not self._is_long:
            _log.warning(
                "a transaction in the database has been open for long; until it ends, PostgreSQL "
                "cannot remove dead rows, and every job costs more (see pg_stat_activity)",
                minutes=int(self.found.oldest_transaction_seconds // 60),
            )
        self._is_long = is_long


def _read(reader: Reader, schema: str) -> Hindrance:
    ((oldest,),) = reader.rows(_OLDEST)
    return Hindrance(oldest, dict(reader.rows(_DEAD, (schema,))))

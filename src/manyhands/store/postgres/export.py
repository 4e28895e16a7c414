"""Everything in the tables, in one snapshot, for an export."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from manyhands.config.database import DatabaseAddress
from manyhands.model.job import Job
from manyhands.model.policy import Terms
from manyhands.store.contract import StoreError
from manyhands.store.postgres import schema
from manyhands.store.postgres.reader import Reader
from manyhands.store.postgres.rows import COLUMNS, decode_row
from manyhands.store.postgres.sessions import unusable
from manyhands.store.postgres.source import Source
from manyhands.store.records.packer import TermsBook

# A server that is up applies its journal within a moment.
_CATCH_UP_REST_SECONDS: Final = 0.02
_CATCH_UP_SECONDS_MAX: Final = 30.0


class Tables(Source):
    """What an export reads."""

    def jobs(self, terms: Mapping[int, Terms]) -> Iterator[Job]:
        """All jobs, in order of serial."""
        with self._reader.connection.cursor("export", binary=True) as cursor:
            cursor.itersize = 1_000
            cursor.execute(f"SELECT {COLUMNS} FROM {self._prefix}jobs ORDER BY serial")
            for row in cursor:
                yield decode_row(row, terms)

    def jobs_count(self, until: int | None) -> int:
        """How many jobs there are, up to a serial if one is given."""
        condition = "TRUE" if until is None else f"serial <= {int(until)}"
        rows = self._reader.rows(f"SELECT count(*) FROM {self._prefix}jobs WHERE {condition}")
        return int(rows[0][0])


@contextlib.contextmanager
def snapshot(address: DatabaseAddress) -> Iterator[Tables]:
    """The tables with everything acknowledged before; the server may run meanwhile. Raises
    StoreError.
    """
    try:
        reader = Reader(address, TermsBook())
        try:
            schema.require(reader.connection, address)
            _catch_up(reader.connection, address.schema)
            with reader.connection.transaction():
                reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                yield Tables(reader)
        finally:
            reader.connection.close()
    except psycopg.Error as error:
        raise unusable(address, error) from None


def _catch_up(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    """Waits until everything that is in a journal now has been applied."""
    last = connection.execute(
        f"SELECT tenure, max(record) FROM {name}.journal WHERE kind = 0 GROUP BY tenure"
    ).fetchall()
    give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
    for tenure, record in last:
        statement = f"SELECT 1 FROM {name}.progress WHERE tenure = %s AND applied < %s"
        while connection.execute(statement, (tenure, record)).fetchone() is not None:
            if time.perf_counter() > give_up_at:
                raise StoreError(
                    "the tables do not catch up with the journal. Is the server alive? If not, "
                    "start it once, so that it applies what the last one left."
                )
            time.sleep(_CATCH_UP_REST_SECONDS)

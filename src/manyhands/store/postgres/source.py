"""The tables as a source to load from, at start."""

from collections.abc import Iterator

from manyhands.model.job import Job, State
from manyhands.store.postgres.reader import Reader
from manyhands.store.postgres.rows import COLUMNS


class Source:
    """Everything in one snapshot of a reader's connection."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._prefix = reader.dialect.prefix

    def terms(self) -> Iterator[tuple[int, str]]:
        yield from self._reader.rows(f"SELECT terms_id, record FROM {self._prefix}terms")

    def settings(self, table: str) -> Iterator[tuple[str, str]]:
        rows = self._reader.rows(f"SELECT name, record FROM {self._prefix}{table} ORDER BY 1")
        for name, record in rows:
            yield name.decode(), record

    def counts(self) -> Iterator[tuple[str, str, int]]:
        statement = f"SELECT queue, state, count(*) FROM {self._prefix}jobs GROUP BY queue, state"
        for queue, state, count in self._reader.rows(statement):
            yield queue.decode(), state, count

    def jobs_at(self, queue: str, state: State) -> Iterator[Job]:
        return self._jobs("queue = %s AND state = %s", (queue.encode(), str(state)))

    def finished_since(self, namespace: str, serial: int) -> Iterator[Job]:
        return self._jobs(
            "namespace = %s AND serial >= %s AND finished_at IS NOT NULL",
            (namespace.encode(), serial),
        )

    def _jobs(self, condition: str, values: tuple[object, ...]) -> Iterator[Job]:
        """In pieces, so that the answer need not fit into memory twice."""
        with self._reader.connection.cursor("loading", binary=True) as cursor:
            cursor.itersize = 1_000
            cursor.execute(
                f"SELECT {COLUMNS} FROM {self._prefix}jobs WHERE {condition} ORDER BY serial",
                values,
            )
            for row in cursor:
                yield self._reader.make_job(row)

    def counters(self) -> str | None:
        """Those of the last tenure that committed anything."""
        rows = self._reader.rows(
            f"SELECT counters FROM {self._prefix}progress WHERE counters <> ''"
            " ORDER BY tenure DESC LIMIT 1"
        )
        return str(rows[0][0]) if rows else None

    def finished_bytes(self) -> int:
        weight = self._reader.dialect.weight
        rows = self._reader.rows(
            f"SELECT coalesce(sum({weight}), 0) FROM {self._prefix}jobs"
            " WHERE finished_at IS NOT NULL"
        )
        return int(rows[0][0])

"""At start: everything that is not finished goes from the file into memory."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from manyhands.model.events import Cursor
from manyhands.model.job import FINISHED, UNKNOWN_ORIGIN, Job, Origin, Schedule, State, Untold
from manyhands.model.policy import NamedLimit, Queue
from manyhands.store.batch import GRAPH_PREFIX, UNTOLD_PREFIX
from manyhands.store.bulk import Bulk
from manyhands.store.frames import Counters
from manyhands.store.index import Index
from manyhands.store.opening import damaged
from manyhands.store.packing import TermsBook
from manyhands.store.reading import open_reader
from manyhands.store.ready import entry_order
from manyhands.store.rows import COLUMNS, decode_row

_decode_counters = msgspec.json.Decoder(Counters).decode
_decode_queue = msgspec.json.Decoder(Queue).decode
_decode_limit = msgspec.json.Decoder(NamedLimit).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_bulk = msgspec.json.Decoder(Bulk).decode
_decode_cursor = msgspec.json.Decoder(Cursor).decode


def load(file: Path, index: Index, terms: TermsBook, bulks: dict[str, Bulk]) -> Counters | None:
    """Fill an empty index. Gives how far the store had come; None: nothing was ever committed."""
    connection = open_reader(file)
    try:
        # One snapshot, and no collection while a million objects come into being.
        with _paused_collection(), connection:
            counters = _Loader(connection, index, terms).load()
            rows = map(
                _decode_bulk, (row[0] for row in connection.execute("SELECT record FROM bulks"))
            )
            bulks.update((row.bulk_id, row) for row in sorted(rows, key=_created_at))
    except (apsw.Error, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise damaged(file, f"a record cannot be read ({error})") from None
    finally:
        connection.close()
    return counters


@contextmanager
def _paused_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()  # what was loaded stays; later collections need not look at it
    finally:
        if enabled:
            gc.enable()


class _Loader:
    def __init__(self, connection: apsw.Connection, index: Index, terms: TermsBook) -> None:
        self._connection = connection
        self._index = index
        self._terms = terms
        self._queues: dict[str, str] = {}
        self._origins: dict[Origin, Origin] = {UNKNOWN_ORIGIN: UNKNOWN_ORIGIN}

    def load(self) -> Counters | None:
        index, execute = self._index, self._connection.execute
        for number, record in execute("SELECT terms_id, record FROM terms"):
            self._terms.learn(number, record)
        for _, record in execute("SELECT name, record FROM queues"):
            index.put_queue(_decode_queue(record))
        for name, record in execute("SELECT name, record FROM limits"):
            index.limits[name] = _decode_limit(record)
        for name, record in execute("SELECT name, record FROM schedules"):
            index.schedules[name] = _decode_schedule(record)
        graphs: dict[str, int] = {}
        for name, record in execute("SELECT name, record FROM cursors"):
            cursor = _decode_cursor(record)
            if name.startswith(GRAPH_PREFIX):
                graphs[name.removeprefix(GRAPH_PREFIX)] = cursor.seq
            elif name.startswith(UNTOLD_PREFIX):
                index.untold[name.removeprefix(UNTOLD_PREFIX)] = Untold(cursor.seq, cursor.notes)
            else:
                index.cursors[name] = cursor
        unfinished = self._count()
        self._put(unfinished)
        self._put_named(graphs)
        found = execute("SELECT value FROM facts WHERE key = 'counters'").get
        if found is None:
            return None
        counters = _decode_counters(found)
        index.serial = counters.serial
        index.position = counters.position
        return counters

    def _count(self) -> list[tuple[str, State]]:
        """Count the finished jobs; gives the queues and states in which there are others."""
        unfinished = []
        statement = "SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
        for queue, word, count in self._connection.execute(statement):
            state = State(word)
            self._queues[queue] = queue
            if state in FINISHED:
                self._index.counts_of(queue)[state] = count
            else:
                unfinished.append((queue, state))
        return unfinished

    def _put(self, places: list[tuple[str, State]]) -> None:
        ready: list[Job] = []
        others: list[Job] = []
        statement = f"SELECT {COLUMNS} FROM jobs WHERE queue = ? AND state = ? ORDER BY serial"  # noqa: S608
        for queue, state in places:
            jobs = ready if state is State.READY else others
            for row in self._connection.execute(statement, (queue, state)):
                jobs.append(self._make_job(row))
        # Dependants are told in order of arrival, ready jobs are handed out in order of place.
        others.sort(key=_serial)
        ready.sort(key=entry_order)
        put = self._index.put
        for job in others:
            put(job)
        for job in ready:
            put(job)

    def _put_named(self, graphs: dict[str, int]) -> None:
        """Names of graphs that are still being worked on keep their outcome here."""
        index = self._index
        index.namespaces.restore(graphs)
        statement = (
            f"SELECT {COLUMNS} FROM jobs WHERE namespace = ? AND serial >= ?"  # noqa: S608
            " AND finished_at IS NOT NULL ORDER BY serial"
        )
        for namespace, began in index.namespaces.graphs.items():
            for row in self._connection.execute(statement, (namespace, began)):
                job = self._make_job(row)
                index.keep(job)
                index.forget(job)  # that is: as soon as the graph is finished

    def _make_job(self, row: Sequence[Any]) -> Job:
        job = decode_row(row, self._terms.by_number)
        # Equal words are one object, as they are among jobs that were never on disk.
        return replace(
            job,
            queue=self._queues[job.queue],
            origin=self._origins.setdefault(job.origin, job.origin),
        )


def _serial(job: Job) -> int:
    return job.serial


def _created_at(bulk: Bulk) -> int:
    return bulk.created_at

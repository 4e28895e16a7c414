"""Loads everything unfinished from the file into memory, at start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.events import Cursor
from manyhands.model.job import FINISHED, UNKNOWN_ORIGIN, Job, Origin, State, Unnotified
from manyhands.model.reasons import as_detail
from manyhands.model.receipts import Receipt, read_receipt
from manyhands.store.batch import GRAPH_PREFIX, RECEIPT_PREFIX, UNNOTIFIED_PREFIX
from manyhands.store.bulk import Bulk
from manyhands.store.index.live import Index
from manyhands.store.index.ready import entry_order
from manyhands.store.records.frames import Counters
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.tables import SETTINGS, Table
from manyhands.store.sqlite.checksums import RecordDamagedError, read_fact, read_rows
from manyhands.store.sqlite.opening import damaged, damaged_record
from manyhands.store.sqlite.reader import open_reader
from manyhands.store.sqlite.rows import COLUMNS, WEIGHT, decode_row

_decode_counters = msgspec.json.Decoder(Counters).decode


def load(file: Path, index: Index, terms: TermsBook, bulks: dict[str, Bulk]) -> Counters | None:
    """Fills an empty index. Returns the counters of the last commit, or None if there was none."""
    connection = open_reader(file)
    try:
        with connection:  # one snapshot
            counters = _Loader(connection, index, terms, bulks).load()
    except RecordDamagedError as error:
        raise damaged_record(file, error) from None
    except (apsw.Error, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise damaged(file, f"a record cannot be read ({error})") from None
    finally:
        connection.close()
    return counters


class _Loader:
    def __init__(
        self,
        connection: apsw.Connection,
        index: Index,
        terms: TermsBook,
        bulks: dict[str, Bulk],
    ) -> None:
        self._connection = connection
        self._index = index
        self._terms = terms
        self._bulks = bulks
        self._graphs: dict[str, int] = {}  # where the graphs of namespaces began
        self._queues: dict[str, str] = {}
        self._origins: dict[Origin, Origin] = {UNKNOWN_ORIGIN: UNKNOWN_ORIGIN}

    def load(self) -> Counters | None:
        index, connection = self._index, self._connection
        for number, record in read_rows(connection, "terms"):
            self._terms.learn(number, record)
        for table in SETTINGS:
            self._take_settings(table)
        unfinished = self._count()
        self._put(unfinished)
        self._put_named(self._graphs)
        found = read_fact(connection, "counters")
        if found is None:
            return None
        counters = _decode_counters(found)
        index.serial = counters.serial
        index.position = counters.position
        index.finished_bytes = (
            self._weigh() if counters.finished_bytes is None else counters.finished_bytes
        )
        return counters

    def _take_settings(self, table: Table) -> None:
        decode = msgspec.json.Decoder(table.kind).decode
        found = {name: decode(record) for name, record in read_rows(self._connection, table.name)}
        if table.name == "queues":
            for queue in found.values():
                self._index.put_queue(queue)
        elif table.name == "cursors":
            self._take_cursors(found)
        elif table.name == "bulks":
            self._bulks.update(sorted(found.items(), key=lambda item: item[1].created_at))
        else:
            for name, value in found.items():
                self._index.put_setting(table.name, name, value)

    def _take_cursors(self, cursors: Mapping[str, Cursor]) -> None:
        """Takes cursors, and the other things stored among them."""
        index = self._index
        receipts: dict[str, Receipt] = {}
        for name, cursor in cursors.items():
            if name.startswith(GRAPH_PREFIX):
                self._graphs[name.removeprefix(GRAPH_PREFIX)] = cursor.seq
            elif name.startswith(UNNOTIFIED_PREFIX):
                unnotified = Unnotified(cursor.seq, as_detail(cursor.notes))
                index.unnotified[name.removeprefix(UNNOTIFIED_PREFIX)] = unnotified
            elif name.startswith(RECEIPT_PREFIX):
                receipt = read_receipt(cursor.seq, cursor.notes)
                receipts[name.removeprefix(RECEIPT_PREFIX)] = receipt
            else:
                index.cursors[name] = cursor
        for key, receipt in sorted(receipts.items(), key=lambda item: item[1].at):
            index.put_receipt(key, receipt)

    def _weigh(self) -> int:
        """Bytes of payloads and results of finished jobs."""
        statement = f"SELECT sum({WEIGHT}) FROM jobs WHERE finished_at IS NOT NULL"  # noqa: S608
        return int(self._connection.execute(statement).get or 0)

    def _count(self) -> list[tuple[str, State]]:
        """Counts the finished jobs; returns the queues and states that have unfinished ones."""
        unfinished = []
        statement = "SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
        for queue, word, count in self._connection.execute(statement):
            state = State(word)
            self._queues[queue] = queue
            if state in FINISHED:
                self._index.count_records(queue, state, count)
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
        # Dependants are notified in order of arrival; ready jobs are handed out by position.
        others.sort(key=_serial)
        ready.sort(key=entry_order)
        put = self._index.put
        for job in others:
            put(job)
        for job in ready:
            put(job)

    def _put_named(self, graphs: dict[str, int]) -> None:
        """Loads the finished jobs of open graphs, because their names keep their outcome."""
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
                index.forget(job)  # takes effect when the graph has finished
        index.namespaces.count_again()

    def _make_job(self, row: Sequence[Any]) -> Job:
        job = decode_row(row, self._terms.by_number)
        payload = job.payload
        is_large = len(payload) > limits.PAYLOAD_BYTES_IN_MEMORY  # it is not kept
        # Equal strings become one object, as they are in jobs that were never on disk.
        return replace(
            job,
            payload=b"" if is_large else payload,
            stored_bytes=len(payload) if is_large else 0,
            queue=self._queues[job.queue],
            origin=self._origins.setdefault(job.origin, job.origin),
        )


def _serial(job: Job) -> int:
    return job.serial

"""Loads everything unfinished from the records into memory, at start."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.events import Cursor
from manyhands.model.job import FINISHED, UNKNOWN_ORIGIN, Job, Origin, State, Unnotified
from manyhands.model.plain import plain_ready
from manyhands.model.reasons import as_detail
from manyhands.model.receipts import Receipt, read_receipt
from manyhands.store.batch import GRAPH_PREFIX, RECEIPT_PREFIX, UNNOTIFIED_PREFIX
from manyhands.store.bulk import Bulk
from manyhands.store.index.live import Index
from manyhands.store.index.ready import entry_order
from manyhands.store.records.frames import Counters
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.tables import SETTINGS, Table

decode_counters = msgspec.json.Decoder(Counters).decode


class Source(Protocol):
    """Where records are read from, in one snapshot."""

    def terms(self) -> Iterable[tuple[int, str]]:
        """All terms: number and record."""

    def settings(self, table: str) -> Iterable[tuple[str, str]]:
        """All settings of a table: name and record."""

    def counts(self) -> Iterable[tuple[str, str, int]]:
        """How many jobs there are by queue and state."""

    def jobs_at(self, queue: str, state: State) -> Iterable[Job]:
        """The jobs of a queue in a state, in order of serial."""

    def finished_since(self, namespace: str, serial: int) -> Iterable[Job]:
        """The finished jobs of a namespace from this serial on, in order of it."""

    def counters(self) -> str | None:
        """The counters of the last commit, if there was one."""

    def finished_bytes(self) -> int:
        """Bytes of payloads and results of all finished jobs."""


class Loader:
    """Fills an empty index."""

    def __init__(
        self,
        source: Source,
        index: Index,
        terms: TermsBook,
        bulks: dict[str, Bulk],
        payload_bytes_max: int = limits.PAYLOAD_BYTES_IN_MEMORY,
    ) -> None:
        self._source = source
        self._index = index
        self._terms = terms
        self._bulks = bulks
        self._payload_bytes_max = payload_bytes_max
        self._graphs: dict[str, int] = {}  # where the graphs of namespaces began
        self._queues: dict[str, str] = {}
        self._origins: dict[Origin, Origin] = {UNKNOWN_ORIGIN: UNKNOWN_ORIGIN}

    def load(self) -> Counters | None:
        """Returns the counters of the last commit, or None if there was none."""
        index, source = self._index, self._source
        for number, record in source.terms():
            self._terms.learn(number, record)
        for table in SETTINGS:
            self._take_settings(table)
        unfinished = self._count()
        self._put(unfinished)
        self._put_named(self._graphs)
        found = source.counters()
        if found is None:
            return None
        counters = decode_counters(found)
        index.serial = counters.serial
        index.position = counters.position
        index.finished_bytes = (
            source.finished_bytes() if counters.finished_bytes is None else counters.finished_bytes
        )
        return counters

    def _take_settings(self, table: Table) -> None:
        decode = msgspec.json.Decoder(table.kind).decode
        found = {name: decode(record) for name, record in self._source.settings(table.name)}
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

    def _count(self) -> list[tuple[str, State]]:
        """Counts the finished jobs; returns the queues and states that have unfinished ones."""
        unfinished = []
        for queue, word, count in self._source.counts():
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
        for queue, state in places:
            jobs = ready if state is State.READY else others
            jobs += [self._kept(job) for job in self._source.jobs_at(queue, state)]
        # Dependants are notified in order of arrival; ready jobs are handed out by position.
        others.sort(key=_serial)
        ready.sort(key=entry_order)
        put = self._index.put
        for job in others:
            put(job)
        for job in ready:
            plain = plain_ready(job)
            if plain is None:
                put(job)
            else:
                self._index.put_plain(plain)

    def _put_named(self, graphs: dict[str, int]) -> None:
        """Loads the finished jobs of open graphs, because their names keep their outcome."""
        index = self._index
        index.namespaces.restore(graphs)
        for namespace, began in index.namespaces.graphs.items():
            for found in self._source.finished_since(namespace, began):
                job = self._kept(found)
                index.keep(job)
                index.forget(job)  # takes effect when the graph has finished
        index.namespaces.count_again()

    def _kept(self, job: Job) -> Job:
        """A job as the index keeps it: without a large payload."""
        payload = job.payload
        is_large = len(payload) > self._payload_bytes_max
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

"""The live jobs of another server, kept up to date by what it commits.

A server that decides nothing shows its clients the same queues, jobs and workers as the one that
does. Values come whole, so that a later one simply replaces an earlier one. Nothing here decides
or writes: when the server takes over, it loads everything from the database instead.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from manyhands.model.events import Cursor
from manyhands.model.job import FINISHED, Job, Lease, State, Unnotified
from manyhands.model.payload import Encoding
from manyhands.model.plain import (
    Plain,
    PlainCompleted,
    PlainLeased,
    PlainReady,
    job_of,
    ready_of,
)
from manyhands.model.reasons import as_detail
from manyhands.model.receipts import read_receipt, write_receipt
from manyhands.store.batch import GRAPH_PREFIX, RECEIPT_PREFIX, UNNOTIFIED_PREFIX, Batch
from manyhands.store.index.live import Index
from manyhands.store.index.ready import entry_order


class Mirror:
    """Keeps an index as that of another server."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._unapplied: deque[Batch] = deque()  # the records of these cannot be read yet

    def begin(self) -> None:
        """Everything is about to come anew."""
        self._index.clear()
        self._unapplied.clear()

    def take(self, batch: Batch, serial: int, position: int) -> None:
        """Takes in what the other server committed."""
        index = self._index
        for name, queue in batch.rows_of("queues").items():
            if queue is not None:
                index.put_queue(queue)
            else:
                index.forget_queue(name)
        for job in _in_order(batch.values.values()):
            index.put(job_of(job))
        for table in ("limits", "schedules"):
            for name, value in batch.rows_of(table).items():
                index.put_setting(table, name, value)
        for name, cursor in batch.rows_of("cursors").items():
            self._put_cursor(name, cursor)
        index.namespaces.turned.clear()  # the other server stores where its graphs begin
        self.follow(batch, serial, position)

    def follow(self, batch: Batch, serial: int, position: int) -> None:
        """Goes on after a batch."""
        self._index.serial, self._index.position = serial, position
        self._unapplied.append(batch)

    # Steps of plain jobs (``engine/plain.py``), in order. None: it does not follow from what is
    # known.

    def add(self, ready: PlainReady) -> PlainReady | None:
        """A job was submitted."""
        if ready.job_id in self._index.values:
            return None
        self._index.put_plain(ready)
        return ready

    def lease(self, job_id: str, lease: Lease, lasted_ms: int) -> PlainLeased | None:
        """It was claimed."""
        before = self._index.value(job_id)
        if type(before) is not PlainReady:
            if type(before) is not Job or before.state is not State.READY:
                return None
            leased = _leased(ready_of(before), lease, lasted_ms)
        else:
            leased = _leased(before, lease, lasted_ms)
        self._index.lease_plain(before, leased)
        return leased

    def complete(
        self,
        job_id: str,
        at: int,
        lasted_ms: int,
        result: bytes | None,
        result_encoding: Encoding,
        payload: bytes | None,
    ) -> PlainCompleted | None:
        """It was completed."""
        index = self._index
        before = index.value(job_id)
        if type(before) is PlainLeased:
            leased = before
        elif type(before) is Job and before.state is State.LEASED and before.lease is not None:
            leased = _leased(ready_of(before), before.lease, 0)
        else:
            return None
        completed = PlainCompleted(
            leased, at, result, result_encoding, leased.queue, leased.holder, lasted_ms, payload
        )
        if before is leased:
            index.complete_plain(completed)
        else:
            assert isinstance(before, Job)
            index.change(before, completed.job())
            index.values[job_id] = completed
        return completed

    def _put_cursor(self, name: str, cursor: Cursor | None) -> None:
        index = self._index
        if name.startswith(UNNOTIFIED_PREFIX):
            job_id = name.removeprefix(UNNOTIFIED_PREFIX)
            if cursor is None:
                index.unnotified.pop(job_id, None)
            else:
                index.unnotified[job_id] = Unnotified(cursor.seq, as_detail(cursor.notes))
        elif name.startswith(RECEIPT_PREFIX):
            receipt = None if cursor is None else read_receipt(cursor.seq, cursor.notes)
            index.put_receipt(name.removeprefix(RECEIPT_PREFIX), receipt)
        elif not name.startswith(GRAPH_PREFIX):  # the jobs themselves show that
            index.put_setting("cursors", name, cursor)

    def applied(self, number: int) -> None:
        """The records of all batches up to this one can be read: finished jobs leave memory."""
        values = self._index.values
        while self._unapplied and self._unapplied[0].number <= number:
            for job_id, job in self._unapplied.popleft().values.items():
                if values.get(job_id) is not job:
                    continue
                if type(job) is PlainCompleted:
                    self._index.forget_plain(job_id)
                elif isinstance(job, Job) and job.state in FINISHED:
                    self._index.forget(job)

    def end(self, graphs: Mapping[str, int]) -> None:
        """All that the other server knew when it began has come. These graphs are open there."""
        index = self._index
        index.namespaces.restore(graphs)
        for job in [job for job in index.rare_jobs() if job.state in FINISHED]:
            index.forget(job)  # unless its graph is open
        index.namespaces.count_again()

    def count(self, finished: Mapping[str, Mapping[State, int]]) -> None:
        """Sets how many finished jobs are on record."""
        for queue, counts in finished.items():
            for state, count in counts.items():
                self._index.count_records(queue, state, count)


class Original:
    """The index that others mirror."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._counted: dict[str, tuple[int, ...]] = {}
        self._unsettled: set[str] = set()  # queues whose counts come once more

    @property
    def graphs(self) -> dict[str, int]:
        """Namespaces with an open graph, and where each began."""
        return dict(self._index.namespaces.graphs)

    def parts(self, jobs_max: int) -> Iterator[Batch]:
        """Everything in the index, a part at a time; between two parts it may change, and what
        changes is sent besides.
        """
        index = self._index
        first = Batch(0)
        for name, known in index.queues.items():
            first.put("queues", name, known.queue)
        for table in ("limits", "schedules", "cursors"):
            for name, value in index.settings[table].items():
                first.put(table, name, value)
        for job_id, unnotified in index.unnotified.items():
            first.mark(UNNOTIFIED_PREFIX + job_id, unnotified.doomed_max, unnotified.detail)
        for key, receipt in index.oldest_receipts(len(index.queues) + 1_000_000):
            first.mark(RECEIPT_PREFIX + key, receipt.at, write_receipt(receipt))
        yield first
        ids = iter([job.job_id for job in _in_order(index.values.values())])
        while part_ids := list(islice(ids, jobs_max)):
            part = Batch(0)
            jobs = (index.value(job_id) for job_id in part_ids)
            part.values = {job.job_id: job for job in jobs if job is not None}
            yield part

    def counts(
        self, *, all_of_them: bool = False, is_settled: bool = False
    ) -> dict[str, dict[State, int]]:
        """Finished jobs on record, of queues where that has changed. Unless all is committed
        (``is_settled``) some of them may be counted again when their commit is announced: those
        queues come once more the next time.
        """
        found: dict[str, dict[State, int]] = {}
        for queue in self._index.recorded_queues():
            counts = self._index.counts_of(queue)
            now = tuple(counts[state] for state in FINISHED)
            if self._counted.get(queue) != now:
                self._counted[queue] = now
                self._unsettled.add(queue)
            if all_of_them or queue in self._unsettled:
                found[queue] = dict(zip(FINISHED, now, strict=True))
        if is_settled and not all_of_them:
            self._unsettled.clear()
        return found


def _leased(ready: PlainReady, lease: Lease, lasted_ms: int) -> PlainLeased:
    return PlainLeased(ready, lease, ready.queue, lease.holder, lease.claimed_at, lasted_ms)


def _in_order(jobs: Collection[Job | Plain]) -> Sequence[Job | Plain]:
    """As they can be put into an index one by one: dependants are notified in order of arrival, and
    ready jobs are handed out by position.
    """
    ready = [job for job in jobs if job.state is State.READY]
    others = [job for job in jobs if job.state is not State.READY]
    others.sort(key=lambda job: job.serial)
    ready.sort(key=entry_order)
    return others + ready

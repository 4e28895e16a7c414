"""What stores with an in-memory index share: effects go into the index and the open batch, and
finished jobs leave the index once their record can be read.
"""

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import force_setattr, replace

from manyhands.engine.effects import Effects
from manyhands.engine.plain import Change
from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.events import Signal
from manyhands.model.history import StoredSample
from manyhands.model.job import Job
from manyhands.model.plain import PlainCompleted, PlainLeased, PlainReady
from manyhands.store.batch import GRAPH_PREFIX, Batch
from manyhands.store.bulk import Bulk, BulkState
from manyhands.store.index.live import Index


class Collector:
    """The index, the open batch, and the batches that are not readable as records yet."""

    def __init__(
        self,
        read_finished: Callable[[str], Job | None],
        whole: Callable[[Job], Job] | None = None,
        payload_bytes_max: int = limits.PAYLOAD_BYTES_IN_MEMORY,
    ) -> None:
        """``whole`` restores a payload that is only on record. Without it, all payloads stay in
        memory; with it, larger ones are dropped from memory once they are on record.
        """
        self.index = Index(read_finished)
        self._whole = whole
        self._payload_bytes_max = payload_bytes_max
        self._turned_graphs = self.index.namespaces.turned
        self.batch = Batch(1)
        self.sealed: deque[Batch] = deque()
        # Durable, but not yet where records are read.
        self.unapplied: deque[Batch] = deque()
        self.bulks: dict[str, Bulk] = {}  # in the order in which they began
        self.audit_seq = 0
        self.seq = 0  # of the newest event in a sealed batch
        # Weights of the sealed batches, and of those that are durable but not applied.
        self.sealed_bytes = 0
        self.unapplied_bytes = 0

    def write(self, effects: Effects) -> int:  # noqa: C901 - the hot path: one look
        """Applies the effects of one command in memory; returns the weight of the open batch."""
        index, batch = self.index, self.batch
        settings = effects.settings
        if settings is not None:
            for queue in settings.queues.values():
                if queue is not None:
                    index.put_queue(queue)
        for job_id, changed in effects.jobs.items():
            job = changed
            if job.serial:
                old = index.live_job(job_id) or index.take_back(job_id)
                if old.waiters is not job.waiters and _is_same_record(old, job):
                    index.change(old, job)
                    if job_id in batch.values:
                        batch.values[job_id] = job
                    continue
                if (
                    old.payload is not job.payload
                    or old.stored_bytes != job.stored_bytes
                    or old.tags is not job.tags
                    or old.terms is not job.terms
                    or old.incarnation != job.incarnation  # perhaps with a new name
                ):
                    if job.stored_bytes:
                        assert self._whole is not None
                        job = self._whole(job)  # its whole row is written again
                    batch.full.add(job_id)
                    batch.weight += len(job.payload)
                result = job.result
                if result is not None:
                    if result is not old.result:
                        batch.weight += len(result)
                elif job.failure is not None and job.failure is not old.failure:
                    batch.weight += len(job.failure.payload)
                index.change(old, job)
            else:
                index.serial += 1
                force_setattr(job, "serial", index.serial)  # not shared yet
                batch.full.add(job_id)
                batch.weight += len(job.payload)
                index.change(None, job)
            batch.values[job_id] = job
        batch.entries += effects.events
        batch.is_plain = False
        if self._turned_graphs:
            self._note_graphs()
        if settings is not None:
            for partial in settings.partials:
                serial = index.values[partial.job_id].serial
                batch.put("partials", (serial, partial.number), partial)
                batch.weight += len(partial.payload)
            index.take_settings(settings)
            batch.take_settings(settings)
        return batch.weight

    def write_plain(self, changes: Sequence[Change], _: Sequence[Signal] = ()) -> int:
        """Applies steps of plain jobs (``engine/plain.py``): new jobs, new leases or completions
        that change nothing besides.
        """
        index, batch = self.index, self.batch
        values, entries = batch.values, batch.entries
        for change in changes:
            if type(change) is PlainReady:
                index.add_plain(change)
                values[change.job_id] = change
                batch.full.add(change.job_id)
                batch.weight += len(change.payload)
            elif type(change) is tuple:
                before, job, event = change
                values[job.job_id] = job
                if before is None:
                    index.add_plain(job)
                    batch.full.add(job.job_id)
                    batch.weight += len(job.payload)
                elif job.lease is not None:
                    index.lease_plain(before, job)
                else:
                    index.complete_job(before, job)
                    if before.payload is not job.payload or before.stored_bytes != job.stored_bytes:
                        batch.full.add(job.job_id)
                        batch.weight += len(job.payload)
                    if job.result is not None:
                        batch.weight += len(job.result)
                entries.append(event)
                continue
            elif type(change) is PlainLeased:
                index.lease_plain(change.ready, change)
                values[change.ready.job_id] = change
            else:
                assert type(change) is PlainCompleted
                index.complete_plain(change)
                job_id = change.leased.ready.job_id
                values[job_id] = change
                if change.payload is not None:
                    batch.full.add(job_id)
                    batch.weight += len(change.payload)
                if change.result is not None:
                    batch.weight += len(change.result)
            entries.append(change)
        if self._turned_graphs:
            self._note_graphs()
        return batch.weight

    def backlog_bytes(self) -> int:
        """Payloads and results that are in memory only because their records cannot be read yet."""
        return self.batch.weight + self.sealed_bytes + self.unapplied_bytes

    def held_bytes(self) -> dict[str, int]:
        """Payloads and results in memory, by the reason they are there."""
        return {
            "gathering": self.batch.weight,
            "frames": self.sealed_bytes,
            "recent": self.unapplied_bytes,
            "jobs": self.index.unfinished_bytes,
        }

    def _note_graphs(self) -> None:
        """Stores where graphs begin, so that a restart knows which names count."""
        for namespace, began in self._turned_graphs.items():
            self.batch.mark(GRAPH_PREFIX + namespace, began)
        self._turned_graphs.clear()

    def take_audit_seq(self) -> int:
        """The number of the next entry of the audit log."""
        self.audit_seq += 1
        return self.audit_seq

    def keep_audit(self, entry: AuditEntry) -> None:
        """Keeps an entry of the audit log with its present value."""
        self.batch.put("audit", entry.seq, entry)

    def keep_samples(self, samples: Sequence[StoredSample]) -> None:
        """Keeps samples, replacing earlier ones of the same span and queue."""
        for row in samples:
            self.batch.put("history", (row.queue, row.step_ms, row.at), row)

    def keep_bulk(self, bulk: Bulk) -> None:
        """Keeps the present state of a bulk operation; drops the oldest finished ones."""
        self.bulks[bulk.bulk_id] = bulk
        self.batch.put("bulks", bulk.bulk_id, bulk)
        finished = [row for row in self.bulks.values() if row.state is not BulkState.ACTIVE]
        for row in finished[: max(0, len(finished) - limits.BULKS_KEPT_MAX)]:
            del self.bulks[row.bulk_id]
            self.batch.put("bulks", row.bulk_id, None)

    def is_unsaved(self, job_id: str) -> bool:
        """Whether the present value of the job is not committed yet."""
        if job_id in self.batch.values:
            return True
        for batch in self.sealed:  # one at most, hardly ever two  # noqa: SIM110 - the hot path
            if job_id in batch.values:
                return True
        return False

    def newest(self, job_id: str) -> Job | None:
        """The newest value of a job whose record cannot be read yet."""
        for batch in (self.batch, *reversed(self.sealed), *reversed(self.unapplied)):
            if job_id in batch.values:
                return batch.job(job_id)
        return None

    def seal(self, now: int) -> Batch | None:
        """Closes the open batch; further commands go into a new one."""
        batch = self.batch
        if batch.is_empty():
            return None
        batch.alive_at = now
        batch.events_after = self.seq
        self.seq += len(batch.entries)
        self.sealed_bytes += batch.weight
        self.sealed.append(batch)
        self.batch = Batch(batch.number + 1)
        return batch

    def committed(self, number: int) -> list[Batch]:
        """Notes that all batches up to this number are durable."""
        settled = []
        while self.sealed and self.sealed[0].number <= number:
            batch = self.sealed.popleft()
            self.sealed_bytes -= batch.weight
            self.unapplied_bytes += batch.weight
            settled.append(batch)
        self.unapplied += settled
        return settled

    def applied(self, number: int) -> list[Batch]:
        """Notes that the records of all batches up to this number can be read. Finished jobs leave
        memory.
        """
        settled = []
        index, payload_bytes_max = self.index, self._payload_bytes_max
        kept = index.values
        while self.unapplied and self.unapplied[0].number <= number:
            batch = self.unapplied.popleft()
            self.unapplied_bytes -= batch.weight
            settled.append(batch)
            for job_id, job in batch.values.items():
                # Only if there is no newer value: that one cannot be read yet.
                if type(job) is not Job:
                    if type(job) is PlainCompleted and kept.get(job_id) is job:
                        index.forget_plain(job_id)
                    continue
                if job.finished_at is not None and kept.get(job_id) is job:
                    index.forget(job)
                # Nor if the open batch writes the whole row again: it still needs the payload.
                if (
                    len(job.payload) > payload_bytes_max
                    and self._whole is not None
                    and job_id not in self.batch.full
                ):
                    index.shed_payload(job)
        return settled


def _is_same_record(old: Job, job: Job) -> bool:
    """Rule 22: whether only waiters of a job came or went that is wanted without them. They end
    with their connections or the server, so they are not worth a row.
    """
    return old.durable_interest and replace(old, waiters=job.waiters) == job

"""What stores with an index in memory share: effects go into the index and into the open batch;
jobs that have finished leave the index once their record can be read.
"""

from collections import deque
from collections.abc import Callable

from msgspec.structs import force_setattr

from manyhands.engine.effects import Effects
from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.job import FINISHED, Job
from manyhands.store.batch import GRAPH_PREFIX, Batch
from manyhands.store.bulk import Bulk, BulkState
from manyhands.store.index import Index


class Collector:
    """The index, the open batch, and the batches on their way to the records."""

    def __init__(self, read_finished: Callable[[str], Job | None]) -> None:
        self.index = Index(read_finished)
        self._turned_graphs = self.index.namespaces.turned
        self.batch = Batch(1)
        self.sealed: deque[Batch] = deque()
        # Durable, but not yet to be found where records are read.
        self.unapplied: deque[Batch] = deque()
        self.bulks: dict[str, Bulk] = {}  # in the order of their beginning
        self.audit_seq = 0
        self.seq = 0  # of the newest event of a batch that is sealed

    def write(self, effects: Effects) -> None:
        """Make the effects of one command true in memory."""
        index, batch = self.index, self.batch
        settings = effects.settings
        if settings is not None:
            for queue in settings.queues.values():
                index.put_queue(queue)
        for job_id, job in effects.jobs.items():
            if job.serial:
                old = index.jobs.get(job_id) or index.take_back(job_id)
                if (
                    old.payload is not job.payload
                    or old.tags is not job.tags
                    or old.terms is not job.terms
                    or old.incarnation != job.incarnation  # perhaps under a new name
                ):
                    batch.full.add(job_id)
                index.change(old, job)
            else:
                index.serial += 1
                force_setattr(job, "serial", index.serial)  # nobody has seen it without
                batch.full.add(job_id)
                index.change(None, job)
            batch.jobs[job_id] = job
        batch.events += effects.events
        if self._turned_graphs:
            self._note_graphs()
        if settings is not None:
            for partial in settings.partials:
                batch.partials.append((index.jobs[partial.job_id].serial, partial))
            index.take_settings(settings)
            batch.take_settings(settings)

    def _note_graphs(self) -> None:
        """Which names count is known after a restart, too."""
        for namespace, began in self._turned_graphs.items():
            self.batch.mark(GRAPH_PREFIX + namespace, began)
        self._turned_graphs.clear()

    def take_audit_seq(self) -> int:
        """The number of the next entry of the audit log."""
        self.audit_seq += 1
        return self.audit_seq

    def keep_audit(self, entry: AuditEntry) -> None:
        """An entry of the audit log as it is now."""
        self.batch.audit[entry.seq] = entry

    def keep_bulk(self, bulk: Bulk) -> None:
        """An operation on many jobs as it is now; the oldest finished ones give way."""
        self.bulks[bulk.bulk_id] = bulk
        self.batch.bulks[bulk.bulk_id] = bulk
        finished = [row for row in self.bulks.values() if row.state is not BulkState.ACTIVE]
        for row in finished[: max(0, len(finished) - limits.BULKS_KEPT_MAX)]:
            del self.bulks[row.bulk_id]
            self.batch.bulks.pop(row.bulk_id, None)
            self.batch.removed_bulks[row.bulk_id] = None

    def is_unsaved(self, job_id: str) -> bool:
        """Whether the job's present value has not been committed yet."""
        if job_id in self.batch.jobs:
            return True
        for batch in self.sealed:  # one at most, hardly ever two  # noqa: SIM110 - the hot path
            if job_id in batch.jobs:
                return True
        return False

    def newest(self, job_id: str) -> Job | None:
        """The newest value of a job whose record cannot be read yet."""
        for batch in (self.batch, *reversed(self.sealed), *reversed(self.unapplied)):
            if job_id in batch.jobs:
                return batch.jobs[job_id]
        return None

    def seal(self, now: int) -> Batch | None:
        """Close the open batch; the next commands go into a new one."""
        batch = self.batch
        if batch.is_empty():
            return None
        batch.alive_at = now
        batch.events_after = self.seq
        self.seq += len(batch.events)
        self.sealed.append(batch)
        self.batch = Batch(batch.number + 1)
        return batch

    def committed(self, number: int) -> list[Batch]:
        """All batches up to this number are durable."""
        settled = []
        while self.sealed and self.sealed[0].number <= number:
            settled.append(self.sealed.popleft())
        self.unapplied += settled
        return settled

    def applied(self, number: int) -> list[Batch]:
        """Records of all batches up to this number can be read. Finished jobs leave the memory."""
        settled = []
        index_jobs = self.index.jobs
        while self.unapplied and self.unapplied[0].number <= number:
            batch = self.unapplied.popleft()
            settled.append(batch)
            for job_id, job in batch.jobs.items():
                # Only if nothing newer is on its way: that value cannot be read yet.
                if job.state in FINISHED and index_jobs.get(job_id) is job:
                    self.index.forget(job)
        return settled

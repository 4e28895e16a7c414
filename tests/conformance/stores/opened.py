"""A store of either kind, opened in a directory of its own, with what a test does to it."""

import os
import select
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from manyhands.config.database import DatabaseAddress
from manyhands.dispatch.ids import Ids
from manyhands.engine.decide import decide
from manyhands.engine.effects import Effects
from manyhands.engine.invariants import check_job
from manyhands.engine.view import MissingError
from manyhands.model.commands import Claim, Command, NewJob, Submit
from manyhands.model.job import Holder, Job
from manyhands.model.policy import Queue
from manyhands.model.replies import Claimed, Reply, Submitted, SubmittedMany
from manyhands.store.batch import Batch
from manyhands.store.contract import Store
from manyhands.store.memory import MemoryStore
from manyhands.store.postgres.store import PostgresStore
from manyhands.store.retention import Retention
from manyhands.store.sqlite.store import SqliteStore

START = 1_700_000_000_000
WORKER = Holder("native", "worker")
IDS = Ids()


class Opened:
    def __init__(
        self,
        kind: str,
        directory: Path,
        retention: Retention | None = None,
        address: DatabaseAddress | None = None,
    ) -> None:
        self.kind = kind
        self.address = address
        self.directory = directory
        self.retention = retention
        self.now = START
        self.store: Store = self._open()

    def _open(self) -> Store:
        if self.kind == "memory":
            return MemoryStore(self.retention)
        if self.kind == "postgresql":
            return PostgresStore(self.address, self.retention, in_background=False)
        return SqliteStore(self.directory, self.retention)

    def reopen(self) -> None:
        """A stop and a start. What is only in memory cannot do that, and stays as it is."""
        self.commit()
        if self.kind != "memory":
            self.store.close()
            self.store = self._open()

    def close(self) -> None:
        self.store.close()

    def ask(self, command: Command) -> Reply:
        while True:
            try:
                reply, effects = decide(command, self.store.load(command), self.now)
                break
            except MissingError as missing:
                self.fetch(missing.job_id)
        self.store.write(effects)
        self.store.end_fetch()
        for job in effects.jobs.values():
            check_job(job)
        return reply

    def fetch(self, job_id: str) -> None:
        """As the dispatcher does it when a decision needs a record."""
        self.store.begin_fetch((job_id,))
        while not self.store.has_fetched():
            select.select([self.store.fileno()], [], [], 10)
            self.store.finish_commits()

    def put(self, *jobs: Job) -> list[Job]:
        """Jobs as they are, whatever the engine would think of them."""
        effects = Effects(self.store.live, self.now)
        for job in jobs:
            if self.store.live.queue(job.queue) is None:
                effects.put_queue(Queue(job.queue))
            effects.put(replace(job))  # it is given its serial, and others may use it again
        self.store.write(effects)
        return [self.store.live.live_job(job.job_id) for job in jobs]

    def commit(self, *, at_once: bool = False) -> Batch | None:
        batch = self.store.begin_commit(self.now, at_once=at_once)
        while batch is not None and self.store.finish_commits() < batch.number:
            fd = self.store.fileno()
            select.select([fd], [fd] if self.store.has_unsent() else [], [])
            self.store.send_more()
        self.store.send_more()  # what was durable at once had no hurry
        return batch

    def settle(self) -> None:
        """Commit, and wait until all of it can be read from the records and has left the memory."""
        self.commit()
        if self.kind != "memory":
            self.store._link.hurry()
            while self.store._collector.unapplied:
                select.select([self.store.fileno()], [], [], 10)
                self.store.finish_commits()

    def submit(self, queue: str = "q", **fields: object) -> Job:
        job_id = fields.pop("job_id", None) or IDS.job_id(self.now)
        reply = self.ask(Submit((NewJob(job_id=job_id, queue=queue, **fields),)))
        assert isinstance(reply, SubmittedMany)
        assert isinstance(reply.items[0], Submitted), reply
        return self.job(reply.items[0].job.job_id)

    def claim(self, queue: str = "q", count: int = 1, holder: Holder = WORKER) -> list[Job]:
        tokens = tuple(os.urandom(8).hex() for _ in range(count))
        reply = self.ask(Claim(queues=(queue,), holder=holder, tokens=tokens, term_ms=60_000))
        assert isinstance(reply, Claimed)
        return list(reply.jobs)

    def job(self, job_id: str) -> Job:
        job = self.store.live.job(job_id) or self.store.find(job_id)
        assert job is not None
        return self.store.whole(job)

    def ready(self, queue: str = "q") -> list[str]:
        return ids(self.store.live.view.ready(queue))


def ids(jobs: Iterable[Job]) -> list[str]:
    return [job.job_id for job in jobs]

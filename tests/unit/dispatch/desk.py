"""A dispatcher on a desk: virtual time, a store whose commits take ten milliseconds."""

import random
from typing import Any

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleeper
from manyhands.model.commands import ByToken, Claim, Command, Complete, NewJob, SetQueue, Submit
from manyhands.model.job import Holder, Job
from manyhands.model.policy import QueuePolicy
from manyhands.model.replies import Reply
from manyhands.store.batch import Batch
from tests.simulation.world import Disk, FaultyStore, SeededIds, ServerLoop, Time, VirtualClock

COMMIT_MS = 10


class Steady(random.Random):
    """Nothing by chance."""

    def random(self) -> float:
        return 0.99


class Told:
    """An answer, once it is there."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.at_ms: float | None = None


class Desk:
    """The parts, and short words for what tests do with them."""

    def __init__(
        self,
        disk: Disk | None = None,
        time: Time | None = None,
        payload_bytes_max: int = 0,
        **options: Any,
    ) -> None:
        self.time = time or Time()
        self.loop = ServerLoop(self.time)
        self.clock = VirtualClock(self.time)
        self.disk = disk or Disk()
        commit_us = COMMIT_MS * 1000
        self.store = FaultyStore(
            self.disk, self.loop, Steady(1), (commit_us, commit_us), payload_bytes_max
        )
        self.failures: list[str] = []
        self.dispatcher = Dispatcher(
            self.store, self.clock, self.loop, on_failure=self.failures.append, **options
        )
        self.batches: list[Batch] = []
        self.dispatcher.on_batch.append(lambda batch, _: self.batches.append(batch))
        self.ids = SeededIds(random.Random(1))

    @property
    def now_ms(self) -> float:
        return self.time.now_us / 1000

    def run(self, ms: float) -> None:
        self.time.run(int(ms * 1000))

    def ask(self, command: Command) -> Told:
        told = Told()

        def settle(reply: Reply) -> None:
            assert told.reply is None, "answered twice"
            told.reply = reply
            told.at_ms = self.now_ms

        self.dispatcher.ask(command, settle)
        return told

    def tell(self, command: Command) -> None:
        """Nobody is owed an answer."""
        self.dispatcher.ask(command)

    def submit(self, count: int = 1, **fields: Any) -> list[Job]:
        """Jobs that are on disk."""
        fields.setdefault("queue", "q")
        ids = [self.ids.job_id(self.clock.now()) for _ in range(count)]
        self.tell(Submit(tuple(NewJob(job_id=job_id, **fields) for job_id in ids)))
        self.run(COMMIT_MS * 2)
        return [self.job(job_id) for job_id in ids]

    def a_submit(self, queue: str = "q", **fields: Any) -> Submit:
        return Submit((NewJob(job_id=self.ids.job_id(self.clock.now()), queue=queue, **fields),))

    def a_claim(self, *queues: str, count: int = 1, **fields: Any) -> Claim:
        fields.setdefault("holder", Holder("native", "w"))
        tokens = tuple(self.ids.token() for _ in range(count))
        return Claim(queues=queues or ("q",), tokens=tokens, **fields)

    def claim(self, **fields: Any) -> Job:
        """A job in somebody's hands, on disk."""
        told = self.ask(self.a_claim(**fields))
        self.run(COMMIT_MS * 2)
        assert told.reply is not None
        (job,) = told.reply.jobs  # type: ignore[union-attr]
        return self.job(job.job_id)

    def a_complete(self, job: Job) -> Complete:
        assert job.lease is not None
        return Complete(job_id=job.job_id, proof=ByToken(job.lease.token))

    def set_queue(self, paused: bool | None = None, **policy: Any) -> None:
        wished = QueuePolicy(**policy) if policy else None
        self.tell(SetQueue(queue="q", paused=paused, policy=wished))
        self.run(COMMIT_MS * 2)

    def sleep(self, *queues: str, wakes: list[str] | None = None) -> Sleeper:
        heard = wakes if wakes is not None else []
        sleeper = Sleeper(queues or ("q",), heard.append)
        self.dispatcher.sleepers.sleep(sleeper)
        return sleeper

    def job(self, job_id: str) -> Job:
        job = self.store.live.job(job_id)
        assert job is not None
        return job

"""What operators do to jobs: the items of those batches, and the commands they become."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw, Struct

from manyhands.model.commands import (
    Command,
    ExpireLease,
    Move,
    Requeue,
    SendPartial,
    SetDependencies,
    SetPriority,
    SetTags,
)
from manyhands.model.job import Job, State
from manyhands.protocols.http_envelope import plain
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.items import (
    check_size,
    milliseconds,
    proof_of,
)
from manyhands.protocols.qless.paths import check_queue
from manyhands.protocols.qless.reading import Items


class Sender(Struct, frozen=True):
    """Who sends a batch, and what it may say."""

    host: str | None
    address: str
    rules: Rules


class RequeueItem(Struct):
    """A finished job, once more."""

    id: str
    queue: str | None = None
    delay: float = 0.0

    def command(self, job: Job | None, sender: Sender) -> Command:
        """A cancelled job is gone for good; it can only be added anew."""
        if job is not None and job.state is State.CANCELLED:
            raise WrongItemError("cancelled", "a cancelled job cannot be requeued; add it anew")
        if self.queue is not None:
            check_queue(self.queue)
        delay_ms = milliseconds(self.delay, "delay")
        return Requeue(job_id=sender.rules.read_id(self.id), queue=self.queue, delay_ms=delay_ms)


class MoveItem(Struct):
    """A job into another queue."""

    id: str
    queue: str
    delay: float = 0.0

    def command(self, _job: Job | None, sender: Sender) -> Command:
        """Whatever it does now."""
        check_queue(self.queue)
        delay_ms = milliseconds(self.delay, "delay")
        return Move(job_id=sender.rules.read_id(self.id), queue=self.queue, delay_ms=delay_ms)


class PriorityItem(Struct):
    """A new priority."""

    id: str
    priority: float

    def command(self, _job: Job | None, sender: Sender) -> Command:
        """Higher goes first."""
        return SetPriority(sender.rules.read_id(self.id), self.priority)


class TagItem(Struct):
    """Tags to add and to remove."""

    id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def command(self, _job: Job | None, sender: Sender) -> Command:
        """In any state."""
        return SetTags(sender.rules.read_id(self.id), self.add, self.remove)


class DependsItem(Struct):
    """Dependencies to add and to remove."""

    id: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def command(self, job: Job | None, sender: Sender) -> Command:
        """Only while the job waits: for others, or for a worker that has not had it yet."""
        if job is not None and (
            job.state in (State.DELAYED, State.LEASED)
            or (job.state is State.READY and job.lease is not None)
        ):
            raise WrongItemError("not_waiting", "dependencies change only while a job waits")
        return SetDependencies(
            job_id=sender.rules.read_id(self.id),
            add=tuple(sender.rules.read_id(text) for text in self.add),
            remove=tuple(sender.rules.read_id(text) for text in self.remove),
        )


class TimeoutItem(Struct):
    """A lock to end as if its time were up."""

    id: str

    def command(self, _job: Job | None, sender: Sender) -> Command:
        """The job is first in line then."""
        return ExpireLease(sender.rules.read_id(self.id))


class PartialItem(Struct):
    """A piece of the result, or a warning, for those who wait."""

    id: str
    data: Raw
    warning: bool = False
    lease: str | None = None

    def command(self, _job: Job | None, sender: Sender) -> Command:
        """By the holder only."""
        return SendPartial(
            job_id=sender.rules.read_id(self.id),
            proof=proof_of(self.lease, sender.host, sender.address),
            payload=check_size(self.data, sender.rules.meta_bytes_max),
            warning=self.warning,
        )


class Operation(Struct, frozen=True):
    """A route that changes jobs one by one: how its items are read, and what it answers."""

    items: Items[Any]
    show: Callable[[Job], object]


OPERATIONS: Final[dict[str, Operation]] = {
    "requeue": Operation(Items(RequeueItem, ("id",)), shown_id),
    "move": Operation(Items(MoveItem, ("id", "queue")), shown_id),
    "priority": Operation(Items(PriorityItem, ("id", "priority")), lambda job: plain(job.priority)),
    "tag": Operation(Items(TagItem, ("id",)), lambda job: job.tags),
    "depends": Operation(Items(DependsItem, ("id",)), lambda job: job.depends_on),
    "timeout": Operation(Items(TimeoutItem, ("id",)), shown_id),
    "partial": Operation(Items(PartialItem, ("id", "data")), lambda job: job.partials_count),
}

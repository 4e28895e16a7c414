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
from manyhands.model.job import Job
from manyhands.protocols.qless.decoder import Items
from manyhands.protocols.qless.identifiers import Rules, shown_id
from manyhands.protocols.qless.items import (
    check_size,
    milliseconds,
    proof_of,
)
from manyhands.protocols.qless.kinds import Id, Name, Priority, Seconds, Tags
from manyhands.protocols.qless.paths import check_queue
from manyhands.web.envelope import plain


class Sender(Struct, frozen=True):
    """The sender of a batch, and what its items may contain."""

    host: str | None
    address: str
    rules: Rules


class RequeueItem(Struct):
    """A finished job to run again."""

    id: Id
    queue: Name | None = None
    delay: Seconds = 0.0

    def command(self, sender: Sender) -> Command:
        """Cancelled jobs cannot be requeued, only added anew."""
        if self.queue is not None:
            check_queue(self.queue)
        return Requeue(
            job_id=sender.rules.read_id(self.id),
            queue=self.queue,
            delay_ms=milliseconds(self.delay, "delay"),
            cancelled_too=False,
        )


class MoveItem(Struct):
    """A job into another queue."""

    id: Id
    queue: Name
    delay: Seconds = 0.0

    def command(self, sender: Sender) -> Command:
        """Allowed in any state."""
        check_queue(self.queue)
        delay_ms = milliseconds(self.delay, "delay")
        return Move(job_id=sender.rules.read_id(self.id), queue=self.queue, delay_ms=delay_ms)


class PriorityItem(Struct):
    """A new priority."""

    id: Id
    priority: Priority

    def command(self, sender: Sender) -> Command:
        """Higher priorities go first."""
        return SetPriority(sender.rules.read_id(self.id), self.priority)


class TagItem(Struct):
    """Tags to add and to remove."""

    id: Id
    add: Tags = ()
    remove: Tags = ()

    def command(self, sender: Sender) -> Command:
        """Allowed in any state."""
        return SetTags(sender.rules.read_id(self.id), self.add, self.remove)


class DependsItem(Struct):
    """Dependencies to add and to remove."""

    id: Id
    add: tuple[Id, ...] = ()
    remove: tuple[Id, ...] = ()

    def command(self, sender: Sender) -> Command:
        """Only while the job waits for others or for its first worker."""
        return SetDependencies(
            job_id=sender.rules.read_id(self.id),
            add=tuple(sender.rules.read_id(text) for text in self.add),
            remove=tuple(sender.rules.read_id(text) for text in self.remove),
            only_idle=True,
        )


class TimeoutItem(Struct):
    """A lock to end as if it had expired."""

    id: Id

    def command(self, sender: Sender) -> Command:
        """The job then goes to the head of its queue."""
        return ExpireLease(sender.rules.read_id(self.id))


class PartialItem(Struct):
    """A partial result or a warning, for waiting clients."""

    id: Id
    data: Raw
    warning: bool = False
    lease: str | None = None

    def command(self, sender: Sender) -> Command:
        """Only the holder may send it."""
        return SendPartial(
            job_id=sender.rules.read_id(self.id),
            proof=proof_of(self.lease, sender.host, sender.address),
            payload=check_size(self.data, sender.rules.meta_bytes_max),
            warning=self.warning,
        )


class Operation(Struct, frozen=True):
    """A route that changes jobs one by one: how it reads items and what it answers."""

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

"""Which right each command needs, and which queues it concerns.

This is the only table of rights. ``access/gate.py`` asks it for every command of every protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from manyhands.model.commands import (
    Attach,
    Cancel,
    Claim,
    Command,
    Complete,
    Conclude,
    Depart,
    Detach,
    ExpireLease,
    Fail,
    Fire,
    FollowClock,
    ForgetIdle,
    ForgetQueue,
    LiftTerms,
    Look,
    LookByKey,
    LookByName,
    Move,
    NotifyDependants,
    Prolong,
    PutSchedule,
    Recover,
    Release,
    ReleaseAll,
    RemoveCursor,
    RemoveLimit,
    RemoveSchedule,
    Renew,
    RenewHeld,
    Report,
    Requeue,
    Resume,
    SendPartial,
    SetCursor,
    SetDependencies,
    SetLimit,
    SetPriority,
    SetQueue,
    SetTags,
    Submit,
    Tick,
)
from manyhands.model.job import Holder, Job, Schedule
from manyhands.model.roles import Right

# A command that concerns all queues: only callers without patterns may ask it.
ALL: Final = None
Queues = Iterator[str | None]


class OfJob(str):
    """The queue of a job or schedule that the sender named: it may not know the queue itself."""

    __slots__ = ()


class Live(Protocol):
    """What is looked up to find the queue of a job."""

    def job(self, job_id: str) -> Job | None:
        """Any job still on record."""

    def leased_by_holder(self, holder: Holder) -> Any:  # noqa: ANN401 - ids of jobs
        """What a worker holds."""

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Schedules by their ids."""


class Row:
    """One row: the right, and the queues that the command concerns."""

    __slots__ = ("queues", "right")

    def __init__(self, right: Right, queues: Callable[[Any, Live], Queues]) -> None:
        self.right = right
        self.queues = queues


def _none(_command: Command, _live: Live) -> Queues:
    yield from ()


def _all(_command: Command, _live: Live) -> Queues:
    yield ALL


def _of_job(job_id: str, live: Live) -> Queues:
    """The queue of a job. An unknown job has none: the engine says that it is unknown."""
    job = live.job(job_id)
    if job is not None:
        yield OfJob(job.queue)


def _named_job(command: Any, live: Live) -> Queues:  # noqa: ANN401 - any command with a job_id
    yield from _of_job(command.job_id, live)


def _named_queue(command: Any, _live: Live) -> Queues:  # noqa: ANN401 - any with a queue
    yield command.queue


def _submitted(command: Submit | Resume, live: Live) -> Queues:
    for item in command.items:
        yield item.queue
        if item.id_chosen:  # it may take the place of a job elsewhere
            yield from _of_job(item.job_id, live)


def _claimed(command: Claim, live: Live) -> Queues:
    yield from command.queues
    if command.job_id is not None:
        yield from _of_job(command.job_id, live)


def _completed(command: Complete, live: Live) -> Queues:
    yield from _of_job(command.job_id, live)
    if command.next_queue is not None:
        yield command.next_queue


def _concluded(command: Conclude, live: Live) -> Queues:
    for item in command.items:
        yield from _completed(item, live) if type(item) is Complete else _named_job(item, live)


def _released(command: ReleaseAll, live: Live) -> Queues:
    for item in command.items:
        yield from _of_job(item.job_id, live)


def _cancelled(command: Cancel, live: Live) -> Queues:
    for job_id in command.job_ids:
        yield from _of_job(job_id, live)


def _moved(command: Move | Requeue, live: Live) -> Queues:
    yield from _of_job(command.job_id, live)
    if command.queue is not None:
        yield command.queue


def _departed(command: Depart, live: Live) -> Queues:
    if command.holder is not None:
        for job_id in live.leased_by_holder(command.holder):
            yield from _of_job(job_id, live)
    for item in command.failed:
        yield from _of_job(item.job_id, live)


def _scheduled(command: PutSchedule, live: Live) -> Queues:
    yield command.schedule.queue
    known = live.schedules.get(command.schedule.schedule_id)
    if known is not None:
        yield OfJob(known.queue)


def _unscheduled(command: RemoveSchedule, live: Live) -> Queues:
    known = live.schedules.get(command.schedule_id)
    if known is not None:
        yield OfJob(known.queue)


TABLE: Final[dict[type, Row]] = {
    Submit: Row(Right.SUBMIT, _submitted),
    Resume: Row(Right.SUBMIT, _submitted),
    Claim: Row(Right.WORK, _claimed),
    Renew: Row(Right.WORK, _named_job),
    RenewHeld: Row(Right.WORK, _none),
    LiftTerms: Row(Right.WORK, _none),
    Report: Row(Right.WORK, _named_job),
    SendPartial: Row(Right.WORK, _named_job),
    Complete: Row(Right.WORK, _completed),
    Fail: Row(Right.WORK, _named_job),
    Conclude: Row(Right.WORK, _concluded),
    Release: Row(Right.WORK, _named_job),
    ReleaseAll: Row(Right.WORK, _released),
    Depart: Row(Right.WORK, _departed),
    Cancel: Row(Right.OPERATE, _cancelled),
    Requeue: Row(Right.OPERATE, _moved),
    Move: Row(Right.OPERATE, _moved),
    SetPriority: Row(Right.OPERATE, _named_job),
    SetTags: Row(Right.OPERATE, _named_job),
    SetDependencies: Row(Right.OPERATE, _named_job),
    ExpireLease: Row(Right.OPERATE, _named_job),
    SetQueue: Row(Right.OPERATE, _named_queue),
    ForgetQueue: Row(Right.OPERATE, _named_queue),
    SetLimit: Row(Right.OPERATE, _all),
    RemoveLimit: Row(Right.OPERATE, _all),
    PutSchedule: Row(Right.OPERATE, _scheduled),
    RemoveSchedule: Row(Right.OPERATE, _unscheduled),
    # What is found is checked before it is shown.
    Look: Row(Right.LOOK, _none),
    LookByKey: Row(Right.LOOK, _none),
    LookByName: Row(Right.LOOK, _none),
    Attach: Row(Right.LOOK, _none),
    Detach: Row(Right.OWN, _none),
    # Only the server itself asks these.
    ForgetIdle: Row(Right.SERVER, _all),
    Fire: Row(Right.SERVER, _all),
    SetCursor: Row(Right.SERVER, _all),
    RemoveCursor: Row(Right.SERVER, _all),
    Recover: Row(Right.SERVER, _all),
    Prolong: Row(Right.SERVER, _all),
    FollowClock: Row(Right.SERVER, _all),
    Tick: Row(Right.SERVER, _all),
    NotifyDependants: Row(Right.SERVER, _all),
}

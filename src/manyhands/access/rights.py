"""Which right each command needs, and which queues it concerns.

This is the only table of rights. ``access/gate.py`` asks it for every command of every protocol.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    NewJob,
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
from manyhands.model.identity import name_key
from manyhands.model.job import Holder, Job, Schedule
from manyhands.model.roles import Right

# A command that concerns all queues: only callers without patterns may ask it.
ALL: Final = None
Queues = Iterator[str | None]


class OfJob(str):
    """The queue of a job or schedule that the sender named: it may not know the queue itself."""

    __slots__ = ()


class View(Protocol):
    """What is looked up to find the queue of a job."""

    def job(self, job_id: str) -> Job | None:
        """Any job still on record."""

    def named(self, namespace: str, name: str) -> str | None:
        """The id that a name points to."""

    def leased_by_holder(self, holder: Holder) -> Sequence[str]:
        """Ids of jobs that a worker holds."""

    def schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule."""


class Row:
    """One row: the right, and the queues that the command concerns."""

    __slots__ = ("queues", "right")

    def __init__(self, right: Right, queues: Callable[[Any, View], Queues]) -> None:
        self.right = right
        self.queues = queues


def _none(_command: Command, _view: View) -> Queues:
    yield from ()


def _all(_command: Command, _view: View) -> Queues:
    yield ALL


def _of_job(job_id: str, view: View) -> Queues:
    """The queue of a job. An unknown job has none: the engine says that it is unknown."""
    job = view.job(job_id)
    if job is not None:
        yield OfJob(job.queue)


def _of_jobs(job_ids: Iterable[str], view: View) -> Queues:
    for job_id in job_ids:
        yield from _of_job(job_id, view)


def _named_job(command: Any, view: View) -> Queues:  # noqa: ANN401 - any command with a job_id
    yield from _of_job(command.job_id, view)


def _named_queue(command: Any, _view: View) -> Queues:  # noqa: ANN401 - any with a queue
    yield command.queue


def _submitted(command: Submit | Resume, view: View) -> Queues:
    for item in command.items:
        yield item.queue
        if item.namespace is not None and item.namespace != item.queue:
            yield item.namespace  # others of it may wait for the name
        for job in met_by(item, view):  # it may take their place, or move them
            yield OfJob(job.queue)
        yield from _awaited(item.depends_on, item.namespace, view)


def met_by(item: NewJob, view: View) -> Iterator[Job]:
    """Existing jobs with the id or the name that was chosen for a new one."""
    ids = [item.job_id] if item.id_chosen else []
    if item.name is not None:
        named = view.named(item.namespace or "", item.name)
        ids += [] if named is None else [named]
    for job_id in ids:
        job = view.job(job_id)
        if job is not None:
            yield job


def _awaited(keys: Iterable[str], namespace: str | None, view: View) -> Queues:
    """Of dependencies: whoever waits for a job sees how it ends."""
    for key in keys:
        yield from _of_job(key if namespace is None else name_key(namespace, key), view)


def _awaited_by(job_id: str, keys: Iterable[str], view: View) -> Queues:
    if keys:
        job = view.job(job_id)
        yield from _awaited(keys, None if job is None else job.namespace, view)


def _claimed(command: Claim, view: View) -> Queues:
    yield from command.queues
    if command.job_id is not None:
        yield from _of_job(command.job_id, view)


def _completed(command: Complete, view: View) -> Queues:
    yield from _of_job(command.job_id, view)
    if command.next_queue is not None:
        yield command.next_queue
    yield from _awaited_by(command.job_id, command.depends_on, view)


def _concluded(command: Conclude, view: View) -> Queues:
    for item in command.items:
        yield from _completed(item, view) if type(item) is Complete else _named_job(item, view)


def _released(command: Release, view: View) -> Queues:
    yield from _of_job(command.job_id, view)
    if command.namespace is None:
        yield from _awaited_by(command.job_id, command.depends_on, view)
    else:
        yield from _awaited(command.depends_on, command.namespace, view)


def _all_released(command: ReleaseAll, view: View) -> Queues:
    for item in command.items:
        yield from _released(item, view)


def _dependent(command: SetDependencies, view: View) -> Queues:
    yield from _of_job(command.job_id, view)
    yield from _awaited_by(command.job_id, command.add, view)


def _cancelled(command: Cancel, view: View) -> Queues:
    yield from _of_jobs(command.job_ids, view)


def _moved(command: Move | Requeue, view: View) -> Queues:
    yield from _of_job(command.job_id, view)
    if command.queue is not None:
        yield command.queue


def _departed(command: Depart, view: View) -> Queues:
    if command.holder is not None:
        for job_id in view.leased_by_holder(command.holder):
            yield from _of_job(job_id, view)
    for item in command.failed:
        yield from _of_job(item.job_id, view)


def _scheduled(command: PutSchedule, view: View) -> Queues:
    yield command.schedule.queue
    known = view.schedule(command.schedule.schedule_id)
    if known is not None:
        yield OfJob(known.queue)


def _unscheduled(command: RemoveSchedule, view: View) -> Queues:
    known = view.schedule(command.schedule_id)
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
    Release: Row(Right.WORK, _released),
    ReleaseAll: Row(Right.WORK, _all_released),
    Depart: Row(Right.WORK, _departed),
    Cancel: Row(Right.OPERATE, _cancelled),
    Requeue: Row(Right.OPERATE, _moved),
    Move: Row(Right.OPERATE, _moved),
    SetPriority: Row(Right.OPERATE, _named_job),
    SetTags: Row(Right.OPERATE, _named_job),
    SetDependencies: Row(Right.OPERATE, _dependent),
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

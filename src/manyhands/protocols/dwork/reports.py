"""Complete: each task of the message by itself, with one reply for all."""

from collections.abc import Mapping, Sequence

from manyhands.model import limits
from manyhands.model.commands import ByHolder, Complete, Conclude, Fail
from manyhands.model.identity import name_key
from manyhands.model.job import Failure, Job, State
from manyhands.model.replies import Concluded, Refusal, Reply, Why
from manyhands.protocols.dwork.codec import Kind, Query, Task, encode
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import note_of
from manyhands.protocols.dwork.turns import Turn
from manyhands.protocols.dwork.words import ANSWERS


def report_plain(hub: Hub, queue: str, turn: Turn, name: str, origin: str, location: str) -> None:
    """Completes one task with only a name and an origin, like most."""

    def settle(reply: Reply) -> None:
        if type(reply) is Refusal:
            shortfall = _Shortfall(hub, queue, turn, location, awaited_count=1)
            shortfall.settle((Task(name=name, origin=origin),), Concluded((reply,)))
        else:
            turn.finish()

    command = Complete(job_id=name_key(queue, name), proof=ByHolder("dwork", location))
    hub.ask(command, settle)


def report(hub: Hub, queue: str, turn: Turn, location: str, tasks: Sequence[Task]) -> None:
    """Completes each task; the reply follows the last answer."""
    proof = ByHolder("dwork", location)
    shortfall = _Shortfall(hub, queue, turn, location, awaited_count=len(tasks))
    for first in range(0, len(tasks), limits.BATCH_COUNT_MAX):
        some = tasks[first : first + limits.BATCH_COUNT_MAX]

        def settle_some(reply: Reply, some: Sequence[Task] = some) -> None:
            shortfall.settle(some, reply)

        hub.ask(Conclude(tuple([_command(queue, proof, task) for task in some])), settle_some)


def _command(queue: str, proof: ByHolder, task: Task) -> Complete | Fail:
    key = name_key(queue, task.name)
    note = note_of(task.log) if task.log else ""
    if task.failure is None:
        return Complete(job_id=key, proof=proof, result=task.result, note=note)
    failure = Failure("failed", task.failure, task.result or b"")
    return Fail(job_id=key, proof=proof, failure=failure, retry=task.retry, note=note)


class _Shortfall:
    """Which tasks of a message were not found, and other errors."""

    __slots__ = (
        "_awaited_count",
        "_fault",
        "_hub",
        "_location",
        "_missing",
        "_queue",
        "_turn",
        "_unknown",
    )

    def __init__(self, hub: Hub, queue: str, turn: Turn, location: str, awaited_count: int) -> None:
        self._hub = hub
        self._queue = queue
        self._turn = turn
        self._location = location
        self._awaited_count = awaited_count  # tasks without an answer
        self._missing: list[Task] = []
        self._unknown: dict[str, None] = {}  # names among them that are no longer known
        self._fault: Refusal | None = None

    def settle(self, tasks: Sequence[Task], reply: Reply) -> None:
        """Takes the answer to a part of the message; the last one sends the reply."""
        if type(reply) is Concluded:
            for task, item in zip(tasks, reply.items, strict=True):
                if type(item) is Refusal:
                    self._refused(task, item)
        else:
            assert type(reply) is Refusal
            self._fault = reply
        self._awaited_count -= len(tasks)
        if not self._awaited_count:
            self._reply()

    def _refused(self, task: Task, refusal: Refusal) -> None:
        why = refusal.why
        if why is Why.ALREADY_FAILED and self._is_mine(refusal.job):
            return
        if ANSWERS[why] is not Kind.NOT_FOUND:
            self._fault = refusal
            return
        self._missing.append(task)
        if why is Why.UNKNOWN_JOB:
            self._unknown[task.name] = None

    def _is_mine(self, job: Job | None) -> bool:
        if job is None or not job.attempts:
            return False
        holder = job.attempts[-1].holder
        return holder.realm == "dwork" and holder.name == self._location

    def _reply(self) -> None:
        if self._fault is not None:
            self._turn.refuse_by(self._fault)
        elif self._unknown:
            # D25: after a whole graph has ended, only the store knows how its tasks ended.
            self._hub.find_ended(self._queue, tuple(self._unknown), self._compare)
        else:
            self._answer()

    def _compare(self, found: Mapping[str, Job]) -> None:
        """These names were freed with their graphs; a repeated report is no error."""
        self._missing = [
            task
            for task in self._missing
            if task.name not in self._unknown or not self._repeats(task, found.get(task.name))
        ]
        self._answer()

    def _repeats(self, task: Task, job: Job | None) -> bool:
        if job is None or not self._is_mine(job):
            return False
        if job.state is State.COMPLETED:
            return task.failure is None and task.result in (None, job.result)
        return job.state is State.FAILED

    def _answer(self) -> None:
        if self._missing:
            missing = tuple(Task(name=task.name, origin=task.origin) for task in self._missing)
            self._turn.answer(encode(Query(kind=Kind.NOT_FOUND, tasks=missing)))
        else:
            self._turn.finish()

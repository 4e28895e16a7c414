"""Complete: each task of the message by itself, one reply for all of them."""

from collections.abc import Mapping, Sequence

from manyhands.model.commands import ByHolder, Complete, Fail
from manyhands.model.identity import name_key
from manyhands.model.job import Failure, Job, State
from manyhands.model.outcome import Refusal, Reply, Why
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import note_of
from manyhands.protocols.dwork.turns import Turn
from manyhands.protocols.dwork.words import ANSWERS
from manyhands.wire.dwork import Kind, Query, Task, encode


class Report:
    """One message on its way: what could not be found so far, and what else went wrong."""

    __slots__ = ("_fault", "_hub", "_location", "_missing", "_proof", "_queue", "_turn", "_unknown")

    def __init__(self, hub: Hub, queue: str, turn: Turn, location: str) -> None:
        self._hub = hub
        self._queue = queue
        self._turn = turn
        self._location = location
        self._proof = ByHolder("dwork", location)
        self._missing: list[Task] = []
        self._unknown: dict[str, None] = {}  # names among them that mean nothing any more
        self._fault: Refusal | None = None

    def make(self, tasks: Sequence[Task]) -> None:
        """Ask for each. Answers come in order, so the last one's is the end of the message."""
        ask = self._hub.ask
        for task in tasks[:-1]:

            def refused(reply: Reply, task: Task = task) -> None:
                assert isinstance(reply, Refusal)
                self._refused(task, reply)

            ask(self._command(task), None, refused)
        last = tasks[-1]

        def settle(reply: Reply) -> None:
            if type(reply) is Refusal:
                self._refused(last, reply)
            self._finish()

        ask(self._command(last), settle)

    def _command(self, task: Task) -> Complete | Fail:
        key = name_key(self._queue, task.name)
        note = note_of(task.log) if task.log else ""
        if task.failure is None:
            return Complete(job_id=key, proof=self._proof, result=task.result, note=note)
        failure = Failure("failed", task.failure, task.result or b"")
        return Fail(job_id=key, proof=self._proof, failure=failure, retry=task.retry, note=note)

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

    def _finish(self) -> None:
        if self._fault is not None:
            self._turn.tell(self._fault)
        elif self._unknown:
            # D25: after the end of a whole graph only the record tells who ended what.
            self._hub.find_ended(self._queue, tuple(self._unknown), self._compare)
        else:
            self._answer()

    def _compare(self, found: Mapping[str, Job]) -> None:
        """These names were given up with their graphs; a repeated report is no mistake."""
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

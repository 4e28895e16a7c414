"""Complete: each task of the message by itself, one reply for all of them."""

from collections.abc import Sequence
from typing import Final

from manyhands.model.commands import ByHolder, Complete, Fail
from manyhands.model.identity import name_key
from manyhands.model.job import Failure, Job
from manyhands.model.outcome import Refusal, Reply, Why
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.turns import Turn
from manyhands.protocols.dwork.words import ANSWERS
from manyhands.wire.dwork import Kind, Query, Task, encode

# Ends whose repetition is recognised although nothing is known of the task any more.
_RECENT_COUNT_MAX: Final = 10_000  # and up to as many again


class Reporting:
    """Ends that workers report to one endpoint, and the latest of them."""

    def __init__(self, hub: Hub, queue: str) -> None:
        self.hub = hub
        self.queue = queue
        # Names of tasks, with the workers that ended them. Two halves, since dropping the oldest
        # of a dict one by one walks over all that were dropped before.
        self._recent: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def note(self, name: str, location: str) -> str | None:
        """A worker says that a task ended (D25); gives who had said so before."""
        recent = self._recent
        before = recent.get(name) or self._older.get(name)
        recent[name] = location
        if len(recent) > _RECENT_COUNT_MAX:
            self._older, self._recent = recent, {}
        return before

    def take_back(self, name: str, before: str | None) -> None:
        """It was not so."""
        for half in (self._recent, self._older):
            half.pop(name, None)
        if before is not None:
            self._recent[name] = before


class Report:
    """One message on its way: what could not be found so far, and what else went wrong."""

    __slots__ = ("_fault", "_location", "_missing", "_proof", "_reporting", "_turn")

    def __init__(self, reporting: Reporting, turn: Turn, location: str) -> None:
        self._reporting = reporting
        self._turn = turn
        self._location = location
        self._proof = ByHolder("dwork", location)
        self._missing: list[Task] = []
        self._fault: Refusal | None = None

    def make(self, tasks: Sequence[Task]) -> None:
        """Ask for each. Answers come in order, so the last one's is the end of the message."""
        last = len(tasks) - 1
        for index, task in enumerate(tasks):
            self._ask(task, last=index == last)

    def _ask(self, task: Task, *, last: bool) -> None:
        reporting = self._reporting
        before = reporting.note(task.name, self._location)

        def refused(reply: Reply) -> None:
            assert isinstance(reply, Refusal)
            self._refused(task, reply, before)

        if not last:
            reporting.hub.ask(self._command(task), None, refused)
            return

        def settle(reply: Reply) -> None:
            if type(reply) is Refusal:
                refused(reply)
            self._finish()

        reporting.hub.ask(self._command(task), settle)

    def _command(self, task: Task) -> Complete | Fail:
        key = name_key(self._reporting.queue, task.name)
        if task.failure is None:
            return Complete(job_id=key, proof=self._proof, result=task.result)
        failure = Failure("failed", task.failure, task.result or b"")
        return Fail(job_id=key, proof=self._proof, failure=failure, retry=task.retry)

    def _refused(self, task: Task, refusal: Refusal, before: str | None) -> None:
        if refusal.why is Why.UNKNOWN_JOB and before == self._location:
            return  # its graph is drained, and this worker had said so before
        if refusal.why is Why.ALREADY_FAILED and self._is_mine(refusal.job):
            return
        if ANSWERS[refusal.why] is Kind.NOT_FOUND:
            self._missing.append(task)
        else:
            self._fault = refusal
        self._reporting.take_back(task.name, before)

    def _is_mine(self, job: Job | None) -> bool:
        if job is None or not job.attempts:
            return False
        holder = job.attempts[-1].holder
        return holder.realm == "dwork" and holder.name == self._location

    def _finish(self) -> None:
        if self._fault is not None:
            self._turn.tell(self._fault)
        elif self._missing:
            missing = tuple(Task(name=task.name, origin=task.origin) for task in self._missing)
            self._turn.answer(encode(Query(kind=Kind.NOT_FOUND, tasks=missing)))
        else:
            self._turn.finish()

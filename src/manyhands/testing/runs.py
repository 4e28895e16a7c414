"""One run of a job: its task is called as a worker would, and the engine gets the outcome."""

import contextvars
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from manyhands.client.errors import Fail, Retry
from manyhands.client.job import Job as JobInProgress
from manyhands.client.job import Released, current
from manyhands.client.outputs import HEADER as OUTPUTS_HEADER
from manyhands.client.outputs import filled, references, settled
from manyhands.client.signature import BadArguments, BadResult
from manyhands.client.task import Task
from manyhands.client.worker.execution import BAD_ARGUMENTS, BAD_RESULT
from manyhands.client.worker.failures import failure
from manyhands.model.commands import ByToken, Complete, Report, SendPartial
from manyhands.model.commands import Fail as FailCommand
from manyhands.model.commands import Release as ReleaseCommand
from manyhands.model.job import Failure, Job
from manyhands.model.payload import Encoding
from manyhands.protocols.native.bodies import departure
from manyhands.testing.courier import EngineCourier
from manyhands.testing.engine import Engine

# Steps of a run: coroutines to be awaited by whatever drives it, and what came of them.
Steps = Generator[Coroutine[Any, Any, Any], Any, BaseException | None]


class WorkerKilledError(BaseException):
    """The worker dies here. Raised by ``manyhands.kill_worker()`` inside a task."""


class RunningJob(JobInProgress):
    """The job that runs; it sees at once that the engine took it away."""

    def __init__(self, task: Task[..., Any], job: Job, engine: Engine) -> None:
        lease, deadline_at = job.lease, job.deadline_at
        assert lease is not None
        self._engine = engine
        self._number = lease.number
        deadline = None
        if deadline_at is not None:
            deadline = datetime.fromtimestamp(deadline_at / 1000, UTC)
        super().__init__(
            job.job_id,
            task.name,
            job.queue,
            job.attempts_used + 1,
            job.headers or {},
            _Desk(engine, job.job_id, ByToken(lease.token)),
            lambda: deadline,
        )

    def look(self) -> None:
        """Whether the lease is still there."""
        job = self._engine.find(self.id)
        if job is None or job.lease is None or job.lease.number != self._number:
            self.why = "expired" if job is None else str(job.reason) or "expired"

    @property
    def cancelled(self) -> bool:
        self.look()
        return super().cancelled

    def check(self) -> None:
        self.look()
        super().check()


class _Desk:
    def __init__(self, engine: Engine, job_id: str, proof: ByToken) -> None:
        self._engine = engine
        self._job_id = job_id
        self._proof = proof

    def progress(self, done: int, total: int, seconds_left: int | None) -> None:
        self._engine.ask(
            Report(
                job_id=self._job_id,
                proof=self._proof,
                numerator=done,
                denominator=total,
                seconds_left=seconds_left,
            )
        )

    def emit(self, piece: bytes) -> None:
        self._engine.ask(SendPartial(job_id=self._job_id, proof=self._proof, payload=piece))

    def log(self, line: str, *, warning: bool) -> None:
        self._engine.ask(
            SendPartial(
                job_id=self._job_id,
                proof=self._proof,
                payload=line.encode("utf-8", "replace"),
                warning=warning,
                is_log=True,
            )
        )

    def unshielded(self) -> None:
        """Nothing interrupts a task here: it sees a cancellation when it looks."""


class Run:
    """A job that was claimed, and its task."""

    def __init__(
        self, engine: Engine, courier: EngineCourier, task: Task[..., Any], job: Job, worker: str
    ) -> None:
        assert job.lease is not None
        self._engine = engine
        self._courier = courier
        self._task = task
        self._job = job
        self._worker = worker
        self._proof = ByToken(job.lease.token)
        self._give_up_on = tuple(task.options.get("give_up_on", ()))
        self.running = RunningJob(task, job, engine)
        self.context = contextvars.copy_context()  # P43: each job has its own

    def steps(self, *, is_killed: bool = False) -> Steps:
        """Runs the task and reports its outcome; returns an exception that nobody expected."""
        try:
            if is_killed:
                raise WorkerKilledError
            value = yield from self._call()
            result, encoding = self._task.results.encode(value, self._job.encoding.value)
        except BaseException as error:  # noqa: BLE001 - an outcome
            return self._failed(error)
        self._engine.ask(
            Complete(
                job_id=self._job.job_id,
                proof=self._proof,
                result=result if self._task.keeps_result else None,
                encoding=Encoding(encoding),
            )
        )
        return None

    def _call(self) -> Generator[Coroutine[Any, Any, Any], Any, Any]:
        task, context = self._task, self.context
        call = task.arguments.decode(self._payload(), self._job.encoding.value)
        context.run(current.set, self.running)
        entered: list[AbstractContextManager[Any] | AbstractAsyncContextManager[Any]] = []
        try:
            for around in task.app.arounds:
                manager = context.run(around)
                if isinstance(manager, AbstractAsyncContextManager):
                    yield manager.__aenter__()
                else:
                    context.run(manager.__enter__)
                entered.append(manager)
            value = context.run(task.function, *call.args, **call.kwargs)
            if inspect.iscoroutine(value):
                value = yield value
        except BaseException as error:
            yield from self._leave(entered, error)
            raise
        yield from self._leave(entered, None)
        return value

    def _leave(
        self,
        entered: list[AbstractContextManager[Any] | AbstractAsyncContextManager[Any]],
        error: BaseException | None,
    ) -> Generator[Coroutine[Any, Any, Any], Any, None]:
        told = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        while entered:
            manager = entered.pop()
            if isinstance(manager, AbstractAsyncContextManager):
                yield _awaited(manager.__aexit__, told)
            else:
                self.context.run(manager.__exit__, *told)

    def _payload(self) -> bytes:
        """P19: with the outputs of other jobs in place."""
        job = self._job
        if OUTPUTS_HEADER not in (job.headers or {}):
            return job.payload
        payload = settled(job.payload, job.headers or {})
        views = {job_id: self._courier.view(job_id) for job_id in references(payload)}
        try:
            return filled(payload, views)
        except LookupError as error:
            raise BadArguments(str(error)) from None

    # Outcomes.

    def _failed(self, error: BaseException) -> BaseException | None:
        job_id, proof = self._job.job_id, self._proof
        if isinstance(error, WorkerKilledError):
            reason = "the test killed its worker"
            self._engine.ask(departure(self._worker, reason, [(job_id, proof.token)]))
            return None
        if isinstance(error, Released):
            self._engine.ask(ReleaseCommand(job_id=job_id, proof=proof))
            return None
        if self.running.cancelled:
            return None  # the lease is gone, and nobody waits for a report
        code, message, details, retry, delay_ms = self._judge(error)
        self._engine.ask(
            FailCommand(
                job_id=job_id,
                proof=proof,
                failure=Failure(code, message, details),
                retry=retry,
                delay_ms=delay_ms,
            )
        )
        is_declared = isinstance(error, (Retry, Fail, *self._give_up_on))
        return None if is_declared else error

    def _judge(self, error: BaseException) -> tuple[str, str, bytes, bool, int | None]:
        """P6, P7, P62: code, message, details, and whether and when it is retried."""
        if isinstance(error, BadArguments):
            return BAD_ARGUMENTS, str(error), b"", False, None
        if isinstance(error, BadResult):
            return BAD_RESULT, str(error), b"", True, None
        held = (self._job.job_id, self._proof.token)
        _, _, code, message, details, retry, delay_ms = failure(held, error, self._give_up_on)
        return code, message, details, retry, delay_ms


async def _awaited(leave: Callable[..., Any], told: tuple[Any, ...]) -> None:
    await leave(*told)

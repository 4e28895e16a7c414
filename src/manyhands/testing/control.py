"""What a test does with jobs: run them, travel in time, kill their worker."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from manyhands.client.app import App
from manyhands.client.handle import Handle
from manyhands.client.options import TASK_HEADER
from manyhands.client.task import Task
from manyhands.client.worker.declared import settings_of
from manyhands.model.commands import ByToken, Claim, ClaimOrder, Fail
from manyhands.model.job import Failure, Holder, Job
from manyhands.model.replies import Claimed
from manyhands.protocols.native.bodies import REALM
from manyhands.testing.courier import EngineCourier, SubmittedJob
from manyhands.testing.direct import job_for
from manyhands.testing.engine import Engine
from manyhands.testing.runs import Run, WorkerKilledError
from manyhands.testing.settings import command_of

_TERM_MS: Final = 30_000
_ORIGIN: Final = "test"
_RUNS_MAX: Final = 100_000
# The job whose task runs in this context.
_running: contextvars.ContextVar[str | None] = contextvars.ContextVar("manyhands_running")

_Step = tuple[Coroutine[Any, Any, Any], contextvars.Context]
_Steps = Generator[_Step, Any, None]
_Entered = tuple[App[Any], AbstractAsyncContextManager[Any]]


class Manyhands:
    """The fixture ``manyhands``: an engine, and the apps that are bound to it."""

    job_for = staticmethod(job_for)

    def __init__(self, apps: Callable[[], Iterable[App[Any]]]) -> None:
        self.engine = Engine()
        self.courier = EngineCourier(self.engine)
        self._apps = apps
        self._workers = 1
        self._declared: set[tuple[str, str]] = set()  # kinds and names of settings
        self._is_doomed = False  # the worker dies in its next job
        self._runner: asyncio.Runner | None = None

    def close(self) -> None:
        """The test is over."""
        if self._runner is not None:
            self._runner.close()

    # Running jobs.

    def _declare(self) -> None:
        """P55: as a worker does at its start; once, for apps that came since."""
        for app in self._apps():
            for setting in settings_of(app, _ORIGIN):
                if (setting.kind, setting.name) not in self._declared:
                    self._declared.add((setting.kind, setting.name))
                    self.engine.ask(command_of(setting, self.engine.clock.now()))

    def drain(self, *, raises: bool = True) -> int:
        """P79: runs what is ready, until nothing is; returns how many jobs ran. The first exception
        of a task that it did not declare is raised at the end, unless ``raises`` is false.
        """
        self._declare()
        found: list[BaseException] = []
        entered: list[_Entered] = []
        try:
            self._drive(self._enter(entered))
            count = 0
            while (job := self._claim(count)) is not None:
                self._drive(self._work(job, found))
                count += 1
        finally:
            self._drive(self._leave(entered))
        if raises and found:
            raise found[0]
        return count

    async def adrain(self, *, raises: bool = True) -> int:
        """The same in a coroutine: tasks run in its loop."""
        self._declare()
        found: list[BaseException] = []
        entered: list[_Entered] = []
        try:
            await _awaited(self._enter(entered))
            count = 0
            while (job := self._claim(count)) is not None:
                await _awaited(self._work(job, found))
                count += 1
        finally:
            await _awaited(self._leave(entered))
        if raises and found:
            raise found[0]
        return count

    def _drive(self, steps: _Steps) -> None:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer, error = None, None
            try:
                answer = self._run(*step)
            except BaseException as found:  # noqa: BLE001 - the task's own
                error = found

    def _run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:  # noqa: ANN401
        """Runs a coroutine of a task; in a thread where this one has a loop that runs."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(coroutine, context=context)
        outcome: list[Any] = []

        def run() -> None:
            with asyncio.Runner() as runner:
                try:
                    outcome.append((runner.run(coroutine, context=context), None))
                except BaseException as error:  # noqa: BLE001 - the task's own
                    outcome.append((None, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    def _enter(self, entered: list[_Entered]) -> _Steps:
        """P64: what lifespans yield is there while jobs run."""
        for app in self._apps():
            if app.lifespan is not None and not app.has_state:
                manager = app.lifespan()
                state = yield manager.__aenter__(), contextvars.copy_context()
                app.set_state(state)
                entered.append((app, manager))

    def _leave(self, entered: list[_Entered]) -> _Steps:
        for app, manager in reversed(entered):
            app.set_state(None)
            yield _exit(manager), contextvars.copy_context()

    def _claim(self, count: int) -> Job | None:
        if count >= _RUNS_MAX:
            raise RuntimeError(f"{_RUNS_MAX} jobs ran, and more are ready: is there an end?")
        queues = dict.fromkeys(task.queue for task in self._tasks())
        if not queues:
            return None
        claim = Claim(
            queues=tuple(queues),
            holder=Holder(REALM, self._worker),
            tokens=(self.engine.ids.token(),),
            order=ClaimOrder.PRIORITY_IN_TURNS,
            term_ms=_TERM_MS,
            term_of_job=True,
        )
        reply = self.engine.ask(claim)
        return reply.jobs[0] if isinstance(reply, Claimed) and reply.jobs else None

    def _work(self, job: Job, found: list[BaseException]) -> _Steps:
        task = self._task_of(job)
        if task is None:
            self._refuse(job)
            return
        run = Run(self.engine, self.courier, task, job, self._worker)
        run.context.run(_running.set, job.job_id)
        is_killed, self._is_doomed = self._is_doomed, False
        steps = run.steps(is_killed=is_killed)
        worker = self._workers
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                if done.value is not None:
                    found.append(done.value)
                break
            answer, error = None, None
            try:
                answer = yield step, run.context
            except BaseException as problem:  # noqa: BLE001 - the task's own
                error = problem
        if is_killed and self._workers == worker:
            self._workers += 1

    def _tasks(self) -> Iterable[Task[..., Any]]:
        for app in self._apps():
            for task in app.tasks.values():
                if not task.is_remote:
                    yield task

    def _task_of(self, job: Job) -> Task[..., Any] | None:
        """P3: by the header, else the only task of the queue, or its default."""
        tasks = [task for task in self._tasks() if task.queue == job.queue]
        name = (job.headers or {}).get(TASK_HEADER)
        if name is not None:
            return next((task for task in tasks if task.name == name), None)
        own = [task for task in tasks if task.name == job.queue or task.is_default]
        return own[0] if own else None

    def _refuse(self, job: Job) -> None:
        assert job.lease is not None
        name = (job.headers or {}).get(TASK_HEADER, "")
        sentence = f"no app here has a task {name!r} in queue {job.queue!r}"
        failure = Failure("unknown_task", sentence)
        proof = ByToken(job.lease.token)
        self.engine.ask(Fail(job_id=job.job_id, proof=proof, failure=failure, retry=False))

    @property
    def _worker(self) -> str:
        return f"test-worker-{self._workers}"

    # What happened, and what else may happen.

    def submitted(self, task: Task[..., Any] | None = None) -> list[SubmittedJob]:
        """P80: what was submitted so far, by all tasks or by one."""
        return [each for each in self.courier.submitted if task is None or each.task == task.name]

    @property
    def now(self) -> datetime:
        """The time in this test."""
        return datetime.fromtimestamp(self.engine.clock.now() / 1000, UTC)

    def travel(self, to: datetime | timedelta | None = None, /, **parts: float) -> None:
        """P80: ``travel(hours=24)``, or to an instant: delays, backoff, deadlines, leases and
        schedules fall due on the way, in order. Jobs run when they are drained.
        """
        distance = to if isinstance(to, timedelta) else timedelta(**parts)
        if isinstance(to, datetime):
            distance = to - self.now
        if distance < timedelta(0):
            raise ValueError("time goes forward only")
        self._declare()
        # Rounded up: what is due at that instant is due.
        self.engine.travel(self.engine.clock.now() + -(-distance // timedelta(milliseconds=1)))

    def eager(self, *, on: bool = True) -> None:
        """P81: from now on a submit runs its job before it returns, and dependants too. Exceptions
        of tasks are recorded, as in production.
        """
        self.courier.after_submit = self._drain_quietly if on else None

    def _drain_quietly(self) -> None:
        self.drain(raises=False)

    def kill_worker(self) -> None:
        """P80: inside a task, the worker dies here; elsewhere, in the next job that it runs. What
        it was running fails as ``worker_died``.
        """
        if _running.get(None) is not None:
            self._workers += 1
            raise WorkerKilledError
        self._is_doomed = True

    def cancel(self, handle: Handle[Any], reason: str = "cancelled") -> bool:
        """P80: cancels a job and its dependants; returns whether it was unfinished. A task that
        runs sees it by ``job.cancelled`` and ``job.check()``.
        """
        return handle.cancel(reason)


async def _awaited(steps: _Steps) -> None:
    """Drives the steps of one run in the running loop."""
    loop = asyncio.get_running_loop()
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            coroutine, context = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            answer = await loop.create_task(coroutine, context=context)
        except BaseException as found:  # noqa: BLE001 - the task's own
            error = found


async def _exit(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)

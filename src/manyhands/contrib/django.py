"""Django: a backend for its tasks, submits after the commit, and workers.

    TASKS = {"default": {"BACKEND": "manyhands.contrib.django.Backend"}}

``django.tasks`` is used where Django has it (6.0), else the ``django_tasks`` package.
"""

import asyncio
import functools
import importlib.util
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Generic, ParamSpec, TypeVar

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import close_old_connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from manyhands.client import home
from manyhands.client.app import App
from manyhands.client.errors import Refused
from manyhands.client.handle import Handle
from manyhands.client.job import current_job
from manyhands.client.notes import View
from manyhands.client.options import TASK_HEADER
from manyhands.client.task import Task
from manyhands.client.worker.failures import details_of

if importlib.util.find_spec("django.tasks") is not None:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

P = ParamSpec("P")
R = TypeVar("R")
_OPTIONS: Final = frozenset({"server", "token", "ca", "timeout", "defaults"})
_STATUSES: Final = {
    "leased": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
_CLASS: Final = re.compile(r".*?\n([A-Za-z_][\w.]*)(?::|$)", re.DOTALL)


# Django makes a backend for each thread: what they share is here, by their aliases.


class _Shared:
    """The app of an alias, and the tasks that were declared for it, by their paths."""

    def __init__(self, alias: str, options: dict[str, Any], queues: set[str]) -> None:
        unknown = options.keys() - _OPTIONS
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: there is no option {min(unknown)!r}; there are {known}"
            )
        given = {"timeout": 60.0} | options
        self.alias = alias
        self.app: App[None] = App(given.pop("server", None), **given)
        self.app.more_queues = sorted(queues)
        self.declared: dict[str, Any] = {}
        self._lock = threading.Lock()

    def declare(self, task: Any) -> Task[..., Any]:  # noqa: ANN401 - Django has no types
        """Our task for one of Django's."""
        path = task.module_path
        with self._lock:
            if path not in self.declared or self.declared[path].func is not task.func:
                self.app.tasks.pop(path, None)
                self.declared[path] = task
                run = _acall if inspect.iscoroutinefunction(task.func) else _call
                self.app.task(name=path, queue=task.queue_name)(_bound(run, self, path))
            return self.app.tasks[path]


_shared: dict[str, _Shared] = {}
_lock: Final = threading.Lock()


def _forget(*, setting: str, **_: object) -> None:
    if setting == "TASKS":
        _shared.clear()


setting_changed.connect(_forget)


class Backend(BaseTaskBackend):  # type: ignore[misc] # Django has no types
    """Django's tasks as jobs: the queue is Django's, the header ``task`` the function's path."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        with _lock:
            if alias not in _shared:
                _shared[alias] = _Shared(alias, self.options, self.queues)
        self.shared = _shared[alias]

    def validate_task(self, task: Any) -> None:  # noqa: ANN401
        """Called for every task that is declared, which is how the worker knows it."""
        super().validate_task(task)
        self.shared.declare(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Returns when the job is on the server's disk."""
        result, ours = self._prepare(task, args, kwargs)
        return self._enqueued(result, ours.submit(result.args, result.kwargs))

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """The same in a coroutine."""
        result, ours = self._prepare(task, args, kwargs)
        handle = await ours.asubmit(result.args, result.kwargs)
        return await sync_to_async(self._enqueued)(result, handle)

    def _prepare(self, task: Any, args: Any, kwargs: Any) -> tuple[Any, Task[..., Any]]:  # noqa: ANN401
        self.validate_task(task)
        result = _result(task, "", list(args), dict(kwargs), self.alias)  # checks that it is JSON
        ours = self.shared.declare(task).using(queue=task.queue_name, priority=task.priority)
        if task.run_after is not None:
            ours = ours.using(run_at=_aware(task.run_after))
        return result, ours

    def _enqueued(self, result: Any, handle: Handle[Any]) -> Any:  # noqa: ANN401
        object.__setattr__(result, "id", handle.id)
        object.__setattr__(result, "enqueued_at", timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:  # noqa: ANN401
        """A job of this backend as Django shows it."""
        return self._read(*home.wait(self._look(result_id)))

    async def aget_result(self, result_id: str) -> Any:  # noqa: ANN401
        """The same in a coroutine."""
        return self._read(*await home.run(self._look(result_id)))

    async def _look(self, result_id: str) -> tuple[dict[str, Any], View]:
        server = self.shared.app.server
        try:
            # In this order, so that the failure is not that of an attempt before.
            job = await server.job(result_id)
            [view] = await server.courier.look([result_id])
        except Refused as error:
            if error.code in ("unknown_job", "bad_job_id"):
                raise TaskResultDoesNotExist(result_id) from None
            raise
        return job, view

    def _read(self, job: dict[str, Any], view: View) -> Any:  # noqa: ANN401
        path = job["headers"].get(TASK_HEADER)
        task = self.shared.declared.get(path)
        if task is None:  # not one of ours, or its module is not imported here
            raise TaskResultDoesNotExist(job["id"])
        payload = job["payload"]
        result = _result(task, job["id"], payload["args"], payload["kwargs"], self.alias)
        runs = [*job["attempts"], *([job["lease"]] if job["lease"] else [])]
        times = [_moment(run["claimed_at"]) for run in runs]
        found = {
            "status": _STATUSES.get(job["state"], TaskResultStatus.READY),
            "enqueued_at": _moment(job["submitted_at"]),
            "started_at": times[0] if times else None,
            "last_attempted_at": times[-1] if times else None,
            "finished_at": None if job["finished_at"] is None else _moment(job["finished_at"]),
            "worker_ids": [run["holder"]["name"] or "" for run in runs],
            "errors": [_error(view)] if view.failure is not None else [],
            "_return_value": job["result"] if job["state"] == "completed" else None,
        }
        for name, value in found.items():
            object.__setattr__(result, name, value)
        return result


def _result(
    task: Any,  # noqa: ANN401
    result_id: str,
    args: list[Any],
    kwargs: dict[str, Any],
    alias: str,
) -> Any:  # noqa: ANN401
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _aware(moment: datetime) -> datetime:
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def _error(view: View) -> Any:  # noqa: ANN401
    """The last failure. A traceback names the class in full, after its last frame."""
    assert view.failure is not None
    code, message, details = view.failure
    trace = details.decode(errors="replace")
    found = _CLASS.match(trace.rpartition('\n  File "')[2])
    path = code if found is None else found[1]
    if "." not in path:
        path = f"builtins.{path}"
    return TaskError(exception_class_path=path, traceback=trace or f"{code}: {message}")


# Running, in a worker.


def _bound(run: Callable[..., Any], shared: _Shared, path: str) -> Callable[..., Any]:
    """The function of our task, whose arguments are those of Django's, whatever they are."""
    if inspect.iscoroutinefunction(run):

        async def acall(args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            return await run(shared, path, args, kwargs)

        return acall

    def call(args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        return run(shared, path, args, kwargs)

    return call


def _call(shared: _Shared, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    result, given = _begin(shared, path, args, kwargs)
    try:
        value = normalize_json(result.task.func(*given, **kwargs))
    except BaseException as error:
        _finish(result, error, None)
        raise
    _finish(result, None, value)
    return value


async def _acall(shared: _Shared, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    result, given = await sync_to_async(_begin)(shared, path, args, kwargs)
    try:
        value = normalize_json(await result.task.func(*given, **kwargs))
    except BaseException as error:
        await asyncio.shield(sync_to_async(_finish)(result, error, None))
        raise
    await sync_to_async(_finish)(result, None, value)
    return value


def _begin(
    shared: _Shared, path: str, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any]]:
    job = current_job()
    task = shared.declared[path]
    result = _result(task, job.id, args, kwargs, shared.alias)
    now = timezone.now()
    object.__setattr__(result, "status", TaskResultStatus.RUNNING)
    object.__setattr__(result, "started_at", now)
    object.__setattr__(result, "last_attempted_at", now)
    result.worker_ids.extend([f"process {os.getpid()}"] * job.attempt)
    task_started.send(Backend, task_result=result)
    return result, [TaskContext(task_result=result), *args] if task.takes_context else args


def _finish(result: Any, error: BaseException | None, value: object) -> None:  # noqa: ANN401
    object.__setattr__(result, "finished_at", timezone.now())
    if error is None:
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "_return_value", value)
    else:
        kind = type(error)
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        path, trace = f"{kind.__module__}.{kind.__qualname__}", details_of(error).decode()
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
    task_finished.send(Backend, task_result=result)


# Workers.


def set_up() -> None:
    """What ``manyhands worker --django`` does before it loads the app: settings, models, and the
    ``tasks`` module of every installed app. Raises ValueError.
    """
    try:
        django.setup()
    except ImproperlyConfigured:
        if settings.configured:
            raise
        sentence = "DJANGO_SETTINGS_MODULE is not set; set it to the module that manage.py names"
        raise ValueError(sentence) from None
    autodiscover_modules("tasks")


def app(alias: str = "default") -> App[None]:
    """The app behind a backend of ``settings.TASKS``, for workers. Raises ValueError."""
    ours = f"{__name__}.{Backend.__name__}"
    declared = getattr(settings, "TASKS", None) or {}
    if declared.get(alias, {}).get("BACKEND") != ours:
        raise ValueError(f"the backend of TASKS[{alias!r}] in the settings is not {ours}")
    params = declared[alias]
    return Backend(alias, params).shared.app


def prepare(worked: App[Any]) -> None:
    """Closes connections of the database that are too old or broken, before and after each job."""
    for task in worked.tasks.values():
        if inspect.iscoroutinefunction(task.function):
            task.function = _afresh(task.function)
        else:
            task.function = _fresh(task.function)


@contextmanager
def _fresh_connections() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _fresh(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _fresh_connections():
            return function(*args, **kwargs)

    return wrapped


def _afresh(function: Callable[..., Any]) -> Callable[..., Any]:
    # Coroutines reach the database in the thread that sync_to_async gives them.
    close = sync_to_async(close_old_connections)

    @functools.wraps(function)
    async def wrapped(*args: object, **kwargs: object) -> Any:  # noqa: ANN401
        await close()
        try:
            return await function(*args, **kwargs)
        finally:
            await asyncio.shield(close())

    return wrapped


# After the commit.


class OnCommit(Generic[P, R]):
    """A task whose submits wait for the end of the transaction."""

    def __init__(self, task: Task[P, R], using: str | None) -> None:
        self._task = task
        self._using = using

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The handle of a job that is sent after the commit, and never after a rollback. Arguments
        are encoded now.
        """
        item, handle = self._task.prepared(args, kwargs)
        handle.is_pending = True

        def send() -> None:
            self._task.app.submission.submit(item, handle)
            handle.is_pending = False

        transaction.on_commit(send, using=self._using)
        return handle


def on_commit(task: Task[P, R], using: str | None = None) -> OnCommit[P, R]:
    """``on_commit(task).submit(…)``: sends the job when the transaction, if there is one, has
    committed. ``using`` names the database.
    """
    return OnCommit(task, using)

"""A ``concurrent.futures.Executor`` whose work is done by workers of an app."""

import concurrent.futures
import contextlib
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from manyhands.client import home
from manyhands.client.app import App
from manyhands.client.courier import SLICE_COUNT
from manyhands.client.handle import Handle
from manyhands.client.notes import Item, Submitted
from manyhands.client.submission import learn
from manyhands.client.task import Task

if TYPE_CHECKING:
    from manyhands.client.pickled import PickledTask

P = ParamSpec("P")
R = TypeVar("R")
# Jobs of a ``map`` that are submitted and whose results were not taken: what bounds its memory.
WINDOW_COUNT: Final = 10 * SLICE_COUNT


class JobFuture(concurrent.futures.Future[R]):
    """A future that is a job. ``cancel`` cancels the job, also while it runs."""

    def __init__(self, handle: Handle[R]) -> None:
        super().__init__()
        self.handle = handle
        self._ending = threading.Lock()

    def cancel(self) -> bool:
        """Returns whether the job was unfinished, as far as this process knows."""
        with self._ending:
            if self.cancelled():
                return True
            if not super().cancel():
                return False
            self.set_running_or_notify_cancel()
        courier = self.handle.courier
        home.home().start(courier.cancel(self.handle.id, "cancelled"), _ignore)
        return True

    def finish(self, result: object, error: BaseException | None) -> None:
        """The end of the job. A future that was cancelled meanwhile stays that."""
        with self._ending:
            if self.done():
                return
            self.set_running_or_notify_cancel()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(cast("R", result))


def _ignore(result: object, error: BaseException | None) -> None:
    """A job that has finished cannot be cancelled; nobody waits for that."""


class Executor(concurrent.futures.Executor):
    """P71: runs tasks of an app as jobs, and gives real futures.

    Only tasks can be submitted, since a worker knows nothing else; with ``pickle=True``, any
    function, if the workers allow it.
    """

    def __init__(self, app: App[Any], *, pickle: bool = False) -> None:
        self._app = app
        self._pickled: PickledTask | None = None
        if pickle:
            # Only those who want it load it.
            from manyhands.client import pickled  # noqa: PLC0415

            self._pickled = pickled.PickledTask(app)
        self._is_shut_down = False
        self._lock = threading.Lock()
        self._futures: weakref.WeakSet[JobFuture[Any]] = weakref.WeakSet()

    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[R]:
        """Submits a job without waiting for the server; errors of it are the future's."""
        return self._start(*self._prepared(task, args, kwargs, None))

    def _start(self, item: Item, handle: Handle[R]) -> JobFuture[R]:
        future = JobFuture(handle)
        with self._lock:
            self._futures.add(future)
        courier = handle.courier

        def submitted(exceptions: Any, error: BaseException | None) -> None:  # noqa: ANN401
            problem = error or _refusal_of(handle, exceptions)
            if problem is not None:
                future.finish(None, problem)
            elif future.cancelled():  # before the server knew the job
                home.home().start(courier.cancel(handle.id, "cancelled"), _ignore)
            else:
                courier.await_end(handle.id, ended)

        def ended(view: Any, error: BaseException | None) -> None:  # noqa: ANN401
            if error is not None:
                future.finish(None, error)
                return
            handle.ended(view)
            if not handle.has_succeeded and handle.is_on_record:
                home.home().start(handle.unsuccessful(), why)
                return
            try:
                result = handle.result()
            except Exception as problem:  # noqa: BLE001 - it is the future's
                future.finish(None, problem)
            else:
                future.finish(result, None)

        def why(problem: Any, error: BaseException | None) -> None:  # noqa: ANN401
            future.finish(None, problem or error)

        courier.submit((item,), submitted)
        return future

    def map(
        self,
        task: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        ordered: bool = True,
    ) -> Iterator[R]:
        """P73: the results for the items, in their order or, with ``ordered=False``, in that of
        their ends. However many there are, some thousand jobs are under way at a time.

        The first job that does not succeed raises; the others go on. With a task of
        ``using(key=…)`` the same call in a new process continues where the last one was.
        """
        del chunksize  # jobs are sent in slices anyway
        calls = enumerate(zip(*iterables, strict=False))
        futures = (self._start(*self._prepared(task, args, {}, n)) for n, args in calls)
        first = deque(itertools.islice(futures, WINDOW_COUNT))
        return self._results(first, futures, timeout, ordered=ordered)

    def _results(
        self,
        under_way: "deque[JobFuture[R]]",
        futures: "Iterator[JobFuture[R]]",
        timeout: float | None,
        *,
        ordered: bool,
    ) -> Iterator[R]:
        clock = home.home().loop.time
        deadline = None if timeout is None else clock() + timeout
        ended: SimpleQueue[JobFuture[R]] = SimpleQueue()
        waiting = dict.fromkeys(under_way)
        if not ordered:
            for future in under_way:
                future.add_done_callback(cast("Callable[[Any], None]", ended.put))
        try:
            while waiting:
                left = None if deadline is None else max(0.0, deadline - clock())
                future = _next(waiting, ended, left, ordered=ordered)
                result = future.result(left)
                del waiting[future]
                for another in itertools.islice(futures, 1):
                    waiting[another] = None
                    if not ordered:
                        another.add_done_callback(cast("Callable[[Any], None]", ended.put))
                yield result
        except KeyboardInterrupt:
            _ask_to_cancel([future for future in waiting if not future.done()])
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """No more submits. Waits for the jobs; does not close the app."""
        self._is_shut_down = True
        with self._lock:
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)

    def _prepared(
        self,
        task: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int | None,
    ) -> tuple[Item, Handle[R]]:
        if self._pickled is not None and not isinstance(task, Task):
            return self._pickled.prepared((self._pickled.call(task, args, kwargs),), {}, number)
        return self._checked(task).prepared(args, kwargs, number)

    def _checked(self, task: Callable[..., R]) -> Task[..., R]:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if not isinstance(task, Task):
            raise TypeError(
                f"{task!r} is no task: declare it with @app.task, so that workers know it"
            )
        if task.app is not self._app:
            raise ValueError(f"task {task.name} is of another app")
        return task


def _refusal_of(handle: Handle[Any], exceptions: list[Submitted]) -> Exception | None:
    try:
        learn([handle], exceptions)
    except Exception as error:  # noqa: BLE001 - it is the future's
        return error
    return None


def _next(
    waiting: dict[JobFuture[R], None],
    ended: "SimpleQueue[JobFuture[R]]",
    timeout: float | None,
    *,
    ordered: bool,
) -> JobFuture[R]:
    if ordered:
        return next(iter(waiting))
    try:
        return ended.get(timeout=timeout)
    except Empty:
        raise TimeoutError(f"{len(waiting)} jobs have not finished") from None


def _ask_to_cancel(futures: list[JobFuture[Any]]) -> None:
    """P73: after Ctrl-C, whether the workers are to stop, too."""
    if not futures or not sys.stdin.isatty():
        return
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        answer = input(f"\n{len(futures)} jobs are unfinished. Cancel them? [y/N] ")
        if answer.strip().lower() in ("y", "yes"):
            for future in futures:
                future.cancel()

"""One attempt at a job, from its arrival to its report."""

import asyncio
import ctypes
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from manyhands.client import notes
from manyhands.client.app import App
from manyhands.client.errors import Cancelled
from manyhands.client.job import Job
from manyhands.client.options import TASK_HEADER, TIMEOUT_HEADER, seconds
from manyhands.client.task import Task

if TYPE_CHECKING:
    from manyhands.client.worker.bulletin import Bulletin

TIMEOUT: Final = "timeout"
SHUTDOWN: Final = "shutdown"
_LINES_MAX: Final = 20  # of a job's log, in one note
_NO_HEADERS: Final[dict[str, str]] = {}
# Interruptions are decided in the loop and take effect in a thread that may just be finishing.
_lock: Final = threading.Lock()
Progress = tuple[int, ...]  # done, all, seconds left


class Run:
    """A job that this worker holds. It waits, then runs in a thread or as a coroutine."""

    # Most runs change few of these.
    slot = -1
    began = 0.0
    took = 0.0
    why: str | None = None  # why it is no longer wanted
    job: Job | None = None  # while it runs; the job refers to its run, so not for longer
    thread: int | None = None  # while it runs in one
    aio: "asyncio.Task[None] | None" = None  # while it runs as a coroutine
    timer: asyncio.TimerHandle | None = None
    words: "Words | None" = None
    is_in_user_code = False
    is_raised = False  # an exception is on its way into the thread
    is_gone = False  # the lease is lost: there is nothing to report
    is_over = False  # its outcome is decided
    was_given_up = False  # it did not end when interrupted: its slot is written off

    def __init__(
        self, given: notes.Job, task: Task[..., Any], bulletin: "Bulletin", arrived: float
    ) -> None:
        self.given = given
        self.task = task
        self.payload = given.payload
        self.bulletin = bulletin
        self.arrived = arrived

    @property
    def is_running(self) -> bool:
        """Whether the task has been started."""
        return self.thread is not None or self.aio is not None

    @property
    def is_lonely(self) -> bool:
        """P49: the last attempt ended with its worker, so no other job runs beside this one."""
        extras = self.given.extras
        return extras is not None and extras.get("failure") == "worker_died"

    @property
    def timeout(self) -> float | None:
        """P61: how many seconds the function may take."""
        headers = self.given.headers
        if headers is not None and TIMEOUT_HEADER in headers:
            try:
                return float(headers[TIMEOUT_HEADER])
            except ValueError:
                return None
        found = self.task.options.get("timeout")
        return None if found is None else seconds(found, "timeout")

    def _deadline(self) -> datetime | None:
        left_ms = (self.given.extras or {}).get("deadline_ms")
        if left_ms is None:
            return None
        gone = perf_counter() - self.arrived
        now = datetime.now(UTC)  # noqa: TID251 - for people's eyes, and code of theirs
        return now + timedelta(milliseconds=left_ms) - timedelta(seconds=gone)

    def _make_job(self) -> Job:
        """What the task sees."""
        given = self.given
        return Job(
            given.id,
            self.task.name,
            given.queue,
            given.attempts_used + 1,
            given.headers or _NO_HEADERS,
            self,
            self._deadline,
        )

    # Interruption.

    def interrupt(self, why: str) -> None:
        """P60: raises ``Cancelled`` in the thread, or cancels the coroutine. In the loop."""
        with _lock:
            if self.why is not None or self.is_over:
                return
            self.why = why
            if self.job is not None:
                self.job.why = why
                self._raise(self.job)

    def unshielded(self) -> None:
        """The last shield is gone. In the thread or coroutine of the task."""
        with _lock:
            if self.job is not None:
                self._raise(self.job)

    def _raise(self, job: Job) -> None:
        if job.is_shielded:
            return
        if self.aio is not None:
            self.aio.cancel()
        elif self.is_in_user_code and not self.is_raised and self.thread is not None:
            self.is_raised = True
            _raise_in(self.thread, Cancelled)

    def enter(self, thread: int | None = None) -> Job | None:
        """The function begins, in that thread or in the loop. None: the job is no longer wanted."""
        with _lock:
            if self.why is not None:
                return None
            self.job = self._make_job()
            self.thread = thread
            self.is_in_user_code = True
            return self.job

    def leave(self) -> None:
        """The function has ended: nothing is raised in the thread from here. May be repeated, as an
        exception on its way may arrive in here.
        """
        with _lock:
            self.job = None
            self.is_in_user_code = False
            if self.is_raised and self.thread is not None:
                _raise_in(self.thread, None)

    # What the task reports, from any thread.

    def progress(self, done: int, total: int, seconds_left: int | None) -> None:
        """The latest report wins."""
        progress = (done, total) if seconds_left is None else (done, total, seconds_left)
        self.bulletin.progress(self, progress)

    def emit(self, piece: bytes) -> None:
        """Pieces are never dropped."""
        self.bulletin.emit(self, piece)

    def log(self, line: str, *, warning: bool) -> None:
        """Of many at once, the latest arrive."""
        self.bulletin.log(self, line, warning=warning)


class Words:
    """What a task reported and has not been sent to the server."""

    __slots__ = ("is_due", "lines", "pieces", "progress", "sent_at", "unsent", "was_sent")

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.pieces: list[bytes] = []
        self.lines: deque[tuple[str, bool]] = deque(maxlen=_LINES_MAX)  # and whether it warns
        self.unsent = 0  # bytes of pieces that were not answered
        self.is_due = False
        self.sent_at = float("-inf")
        self.was_sent = threading.Event()


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raises an exception in a thread at its next bytecode, or takes back one that has not been
    raised yet.
    """
    target = ctypes.c_ulong(thread)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        target, ctypes.py_object(kind) if kind is not None else ctypes.c_void_p(None)
    )


class Catalogue:
    """P3: which task a job is for."""

    def __init__(self, app: App[Any]) -> None:
        self._here = {name: task for name, task in app.tasks.items() if not task.is_remote}
        self._by_queue: dict[str, list[Task[..., Any]]] = {}
        for task in self._here.values():
            self._by_queue.setdefault(task.queue, []).append(task)
        for queue in app.more_queues:
            self._by_queue.setdefault(queue, [])
        self._only = {queue: found[0] for queue, found in self._by_queue.items() if len(found) == 1}

    @property
    def queues(self) -> list[str]:
        """The queues of the tasks, in the order of their declaration."""
        return list(self._by_queue)

    def tasks_of(self, queue: str) -> list[Task[..., Any]]:
        """The tasks that share a queue."""
        return self._by_queue.get(queue, [])

    def find(self, given: notes.Job) -> Task[..., Any] | None:
        """The task of a job, by its header, or as the only one of its queue, the default, or that
        of the queue's name.
        """
        headers = given.headers
        if headers is None or TASK_HEADER not in headers:
            task = self._only.get(given.queue)
            if task is not None:
                return task
            default = (each for each in self.tasks_of(given.queue) if each.is_default)
            return next(default, self._here.get(given.queue))
        return self._here.get(headers[TASK_HEADER])

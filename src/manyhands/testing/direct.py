"""A current job for tasks that a test calls directly."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from manyhands.client import ids
from manyhands.client.job import Job, current
from manyhands.client.task import Task


class DirectJob(Job):
    """A job that keeps what its task reports."""

    def __init__(
        self,
        task: Task[..., Any],
        attempt: int,
        deadline: datetime | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.progress_seen: list[tuple[int, int]] = []
        self.emitted: list[bytes] = []
        super().__init__(
            ids.new_id(),
            task.name,
            task.queue,
            attempt,
            headers or {},
            _Kept(self),
            lambda: deadline,
        )

    def cancel(self, why: str = "cancelled") -> None:
        """From now on the job is no longer wanted."""
        self.why = why


class _Kept:
    def __init__(self, job: DirectJob) -> None:
        self._job = job

    def progress(self, done: int, total: int, seconds_left: int | None) -> None:
        del seconds_left
        self._job.progress_seen.append((done, total))

    def emit(self, piece: bytes) -> None:
        self._job.emitted.append(piece)

    def log(self, line: str, *, warning: bool) -> None:
        """Records of a test are read with pytest's ``caplog``."""

    def unshielded(self) -> None:
        """Nothing interrupts a direct call."""


@contextmanager
def job_for(
    task: Task[..., Any],
    *,
    attempt: int = 1,
    deadline: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[DirectJob]:
    """P82: ``with job_for(thumbnail, attempt=3) as job: thumbnail("a.png")``."""
    job = DirectJob(task, attempt, deadline, headers)
    token = current.set(job)
    try:
        yield job
    finally:
        current.reset(token)

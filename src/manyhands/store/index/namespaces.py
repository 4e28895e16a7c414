"""Names of jobs within their namespaces, and the graphs they form.

A graph is all unfinished jobs of a namespace, with those that finished since it began. Names are
valid as long as their graph is open.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from manyhands.model.job import FINISHED, Job, State

_COMPLETED: Final = State.COMPLETED


class Namespaces:
    """All namespaces of an index. ``get`` finds a job; ``drop`` removes a finished one."""

    def __init__(self, get: Callable[[str], Job | None], drop: Callable[[str], None]) -> None:
        self._get = get
        self._drop = drop
        self.names: dict[str, dict[str, str]] = {}  # namespace -> name -> job id
        self._unfinished: dict[str, int] = {}
        self._finished: dict[str, list[str]] = {}  # ids kept until their graph has finished
        # The open graph consists of the jobs from this serial on. Names of earlier graphs are no
        # longer valid.
        self.graphs: dict[str, int] = {}
        # Graphs that began or finished (None) and are not written down yet.
        self.turned: dict[str, int | None] = {}
        # How many names of the open graph are completed, and which jobs failed or were cancelled.
        # Those of the last graph are kept until the next one begins.
        self._completed: dict[str, int] = {}
        self.lost: dict[str, dict[str, State]] = {}
        self.forgotten: dict[str, int] = {}  # how often names of ended graphs were dropped

    def clear(self) -> None:
        """Forgets everything."""
        for table in (
            self.names,
            self._unfinished,
            self._finished,
            self.graphs,
            self.turned,
            self._completed,
            self.lost,
            self.forgotten,
        ):
            table.clear()

    def named(self, namespace: str, name: str) -> str | None:
        """The id of the job of this name."""
        names = self.names.get(namespace)
        return names.get(name) if names is not None else None

    def put_new(self, job: Job) -> None:
        """Adds a new job."""
        if job.namespace is not None and job.state not in FINISHED:
            self.count(job, job.namespace, job.serial)
        elif job.namespace is not None:  # cancelled at once, because a job it depends on is lost
            self._count_end(job.job_id, job.namespace, job.state, 1)
        if job.name is not None:
            names = self.names.setdefault(job.namespace or "", {})
            if job.name in names:
                self._supersede(names[job.name])
            names[job.name] = job.job_id

    def _supersede(self, job_id: str) -> None:
        """Discounts a finished job whose name now refers to another job."""
        job = self._get(job_id)
        if job is not None and job.state in FINISHED:
            self._count_end(job_id, job.namespace or "", job.state, -1)

    def _count_end(self, job_id: str, namespace: str, state: State, by: int) -> None:
        """Adds or subtracts one job with this final state."""
        if state is _COMPLETED:
            self._completed[namespace] = self._completed.get(namespace, 0) + by
        elif by > 0:
            self.lost.setdefault(namespace, {})[job_id] = state
        else:
            self.lost.get(namespace, {}).pop(job_id, None)

    def endings(self, namespace: str) -> dict[State, int]:
        """The final states of the jobs in the open graph, or in the last one."""
        lost = list(self.lost.get(namespace, {}).values())
        return {
            _COMPLETED: self._completed.get(namespace, 0),
            State.FAILED: lost.count(State.FAILED),
            State.CANCELLED: lost.count(State.CANCELLED),
        }

    def point(self, job: Job, name: str) -> None:
        """Makes the name refer to this job, unless a later one has taken it."""
        names = self.names.setdefault(job.namespace or "", {})
        other = self._get(names.get(name, ""))
        later = job.state not in FINISHED or other is None or other.serial < job.serial
        if other is None or (other.state in FINISHED and later):
            names[name] = job.job_id

    def count(self, job: Job, namespace: str, serial: int, was: State | None = None) -> None:
        """Counts a job that has finished, or that is unfinished (if it is so again, ``was`` is its
        previous final state). A graph that begins with this job begins at ``serial``.
        """
        counts = self._unfinished
        after = job.state not in FINISHED
        count = counts[namespace] = counts.get(namespace, 0) + (1 if after else -1)
        if not after:
            if job.state is _COMPLETED:  # the usual case
                self._completed[namespace] = self._completed.get(namespace, 0) + 1
            else:
                self._count_end(job.job_id, namespace, job.state, 1)
        elif was is not None:
            self._count_end(job.job_id, namespace, was, -1)
        if not count:
            self.graphs.pop(namespace, None)
            self.turned[namespace] = None
        elif after and count == 1:
            # Jobs of the graph before that are still here, because they are not on disk yet, no
            # longer count.
            self.graphs[namespace] = self.turned[namespace] = serial
            self._begin_counting(namespace)
            if self.names.pop(namespace, None):
                self._count_forgotten(namespace)
            for job_id in self._finished.pop(namespace, ()):
                self._drop(job_id)

    def _begin_counting(self, namespace: str) -> None:
        self._completed[namespace] = 0
        self.lost[namespace] = {}

    def begin_earlier(self, namespace: str, serial: int) -> None:
        """Moves the beginning of the open graph back, to include jobs that finished before its
        first live job was submitted.
        """
        if serial < self.graphs.get(namespace, 0):
            self.graphs[namespace] = self.turned[namespace] = serial

    def keeps(self, job: Job) -> bool:
        """Whether a finished job that is on record must stay in memory: its name and outcome count
        until the last job of its graph has finished. Drops the jobs of a graph that has finished.
        """
        namespace = job.namespace
        if namespace is None:
            return False
        began = self.graphs.get(namespace)
        if began is not None and job.serial >= began:
            self._finished.setdefault(namespace, []).append(job.job_id)
            return True
        if began is None:
            for other in self._finished.pop(namespace, ()):
                self._drop(other)
        self._count_forgotten(namespace)
        return False

    def _count_forgotten(self, namespace: str) -> None:
        self.forgotten[namespace] = self.forgotten.get(namespace, 0) + 1

    def forget(self, job: Job) -> None:
        """Drops a job, and its name."""
        names = self.names.get(job.namespace or "")
        if names is not None and job.name is not None and names.get(job.name) == job.job_id:
            del names[job.name]

    def unfinished(self) -> Iterator[str]:
        """Namespaces with unfinished jobs."""
        return (name for name, count in self._unfinished.items() if count > 0)

    def restore(self, began: Mapping[str, int]) -> None:
        """Restores the graphs once all unfinished jobs are loaded. A file of an earlier version
        does not say where they began; then everything belongs to them.
        """
        for namespace in self.unfinished():
            self.graphs[namespace] = began.get(namespace, 0)
        self.turned.clear()

    def count_again(self) -> None:
        """Restores the counts once all names of open graphs are loaded."""
        for namespace in self.graphs:
            self._begin_counting(namespace)
            for job_id in self.names.get(namespace, {}).values():
                job = self._get(job_id)
                if job is not None and job.state in FINISHED:
                    self._count_end(job_id, namespace, job.state, 1)

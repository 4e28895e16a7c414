"""Names of jobs within their namespaces, and the graphs that come and go there.

A graph is what is unfinished in a namespace at a time, with what has finished since it began. Names
mean something as long as their graph does.
"""

from collections.abc import Callable, Iterator, Mapping

from manyhands.model.job import FINISHED, Job


class Namespaces:
    """All namespaces of an index. ``get`` finds a job there; ``drop`` lets go of a finished one."""

    def __init__(self, get: Callable[[str], Job | None], drop: Callable[[str], None]) -> None:
        self._get = get
        self._drop = drop
        self.names: dict[str, dict[str, str]] = {}  # namespace -> name -> job id
        self._unfinished: dict[str, int] = {}
        self._finished: dict[str, list[str]] = {}  # ids kept until the graph is drained
        # The open graph is made of the jobs from this serial on: those of graphs before it ended
        # with them, and their names mean nothing any more.
        self.graphs: dict[str, int] = {}
        # Graphs that began or ended (None) since somebody wrote that down.
        self.turned: dict[str, int | None] = {}

    def named(self, namespace: str, name: str) -> str | None:
        """The id of the job of this name."""
        names = self.names.get(namespace)
        return names.get(name) if names is not None else None

    def put_new(self, job: Job) -> None:
        """A job that was not there before."""
        if job.namespace is not None and job.state not in FINISHED:
            self.count(job, job.namespace, job.serial)
        if job.name is not None:
            self.names.setdefault(job.namespace or "", {})[job.name] = job.job_id

    def point(self, job: Job, name: str) -> None:
        """The name means this job, unless a later one has taken it."""
        names = self.names.setdefault(job.namespace or "", {})
        other = self._get(names.get(name, ""))
        later = job.state not in FINISHED or other is None or other.serial < job.serial
        if other is None or (other.state in FINISHED and later):
            names[name] = job.job_id

    def count(self, job: Job, namespace: str, serial: int) -> None:
        """A job has finished, or is unfinished (again). ``serial``: where a graph begins that
        begins with this.
        """
        counts = self._unfinished
        after = job.state not in FINISHED
        count = counts[namespace] = counts.get(namespace, 0) + (1 if after else -1)
        if not count:
            self.graphs.pop(namespace, None)
            self.turned[namespace] = None
        elif after and count == 1:
            # Whatever of the graph before is still here, since it is not on disk yet, is over.
            self.graphs[namespace] = self.turned[namespace] = serial
            self.names.pop(namespace, None)
            for job_id in self._finished.pop(namespace, ()):
                self._drop(job_id)

    def begin_earlier(self, namespace: str, serial: int) -> None:
        """Some of the open graph had finished before the first of its jobs that is here came."""
        if serial < self.graphs.get(namespace, 0):
            self.graphs[namespace] = self.turned[namespace] = serial

    def keeps(self, job: Job) -> bool:
        """Whether a finished job that is safely stored stays all the same: its name and outcome
        count until the last job of its graph has finished. Those of a drained graph go here.
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
        return False

    def forget(self, job: Job) -> None:
        """The job is let go of, and so is its name."""
        names = self.names.get(job.namespace or "")
        if names is not None and job.name is not None and names.get(job.name) == job.job_id:
            del names[job.name]

    def unfinished(self) -> Iterator[str]:
        """Namespaces that have unfinished jobs."""
        return (name for name, count in self._unfinished.items() if count > 0)

    def restore(self, began: Mapping[str, int]) -> None:
        """All unfinished jobs are here again. A file of an earlier version does not tell where
        their graphs began: then everything belongs to them.
        """
        for namespace in self.unfinished():
            self.graphs[namespace] = began.get(namespace, 0)
        self.turned.clear()

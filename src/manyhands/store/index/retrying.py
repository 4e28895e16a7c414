"""Jobs that failed and are tried again: which they are, and how many in each queue and state."""

from collections.abc import Iterator, Mapping
from typing import Final

from manyhands.model.job import FINISHED, Job, State
from manyhands.store.index.tables import Table, add, discard

_NONE: Final[Mapping[State, int]] = dict.fromkeys(State, 0)


class Retrying:
    """Unfinished jobs with a reported failure, by queue."""

    __slots__ = ("by_queue", "counts")

    def __init__(self) -> None:
        self.by_queue: Table[str] = {}
        self.counts: dict[str, dict[State, int]] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self.by_queue.clear()
        self.counts.clear()

    def put(self, old: Job | None, job: Job) -> None:
        """Takes a job that has a failure, or had one."""
        if old is not None and is_retried(old):
            discard(self.by_queue, old.queue, job.job_id)
            counts = self.counts[old.queue]
            counts[old.state] -= 1
            if old.queue not in self.by_queue:
                del self.counts[old.queue]
        if is_retried(job):
            add(self.by_queue, job.queue, job.job_id)
            counts = self.counts.setdefault(job.queue, dict.fromkeys(State, 0))
            counts[job.state] += 1

    def counts_of(self, queue: str) -> Mapping[State, int]:
        """How many jobs of a queue are tried again, by the state they are in."""
        return self.counts.get(queue, _NONE)

    def places(self) -> list[tuple[str, str]]:
        """The queues and states that have some of them. May be called in a thread."""
        return [
            (queue, state.value)
            for queue, counts in tuple(self.counts.items())
            for state, count in tuple(counts.items())
            if count
        ]

    def ids(self) -> Iterator[str]:
        """All of them, queue by queue."""
        for ids in self.by_queue.values():
            yield from ids


def is_retried(job: Job) -> bool:
    """Whether a worker reported a failure of this job, which is not finished."""
    return job.failure is not None and job.state not in FINISHED

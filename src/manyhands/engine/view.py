"""What the engine may read. A store answers these questions for one command."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from manyhands.model.job import Holder, Job, Schedule, Unnotified
from manyhands.model.plain import Plain, PlainReady
from manyhands.model.policy import NamedLimit, Queue
from manyhands.model.receipts import Receipt


class MissingError(Exception):
    """A decision needs the record of a job that is not in memory. It has changed nothing; it is
    made again with the record.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class QueueView(Protocol):
    """One queue, for the short way of plain jobs (``plain.py``)."""

    @property
    def queue(self) -> Queue:
        """Its settings."""

    @property
    def key_holder(self) -> Callable[[bytes], str | None]:
        """Finds the unfinished job that holds a unique key."""

    @property
    def first_ready(self) -> Callable[[], Job | PlainReady | None]:
        """Finds the next job."""

    def all_ready(self) -> Iterator[Job | PlainReady]:
        """All ready jobs in the order in which they are handed out."""


class View(Protocol):
    """The stored state that a decision may depend on."""

    @property
    def value(self) -> Callable[[str], Job | Plain | None]:
        """Finds an unfinished job, or a finished one that is still in memory, by its own id, as it
        is kept.
        """

    @property
    def known_queue(self) -> Callable[[str], QueueView | None]:
        """Finds a known queue."""

    def job(self, job_id: str) -> Job | None:
        """Any job that is still on record, finished ones included, by its id, its uid, or the name
        key of a job that is unfinished or whose graph is unfinished. May raise MissingError.
        """

    def key_holder(self, queue: str, key: bytes) -> str | None:
        """The id of the unfinished job that holds a unique key."""

    def key_holder_anywhere(self, key: bytes, patterns: tuple[str, ...] = ()) -> str | None:
        """The same over all queues, or those that fit one of the patterns; the first match."""

    def named(self, namespace: str, name: str) -> str | None:
        """The id that a name points to."""

    def forgotten_count(self, namespace: str) -> int:
        """How often names ceased to be valid, because their graph ended, since the server
        started.
        """

    def is_awaited(self, job: Job) -> bool:
        """Whether any job waits for this one, by its id or by its name."""

    def has_dependants(self, job_id: str) -> bool:
        """Whether any job waits for this id."""

    def dependants(self, key: str) -> Sequence[str]:
        """Ids of unfinished jobs that wait for this id (or name key), in order of arrival."""

    def unnotified_of(self, job_id: str) -> Unnotified | None:
        """The pending notification of a finished job's dependants."""

    def last_serial(self) -> int:
        """The serial of the job that was submitted last."""

    def first_ready(self, queue: str) -> Job | None:
        """The next job of a queue whose named limits leave room."""

    def ready(self, queue: str) -> Iterator[Job]:
        """All ready jobs of a queue in the order in which they are handed out."""

    def queue(self, name: str) -> Queue | None:
        """A known queue, created by its first job or by its settings."""

    def queues_count(self) -> int:
        """How many queues are known."""

    def unfinished_count(self, queue: str) -> int:
        """Jobs of a queue that have not finished."""

    def blocked_count(self, queue: str) -> int:
        """Jobs of a queue that wait for other jobs."""

    def blocked(self, queue: str) -> Iterator[Job]:
        """Those jobs; finding them reads every job."""

    def while_unchanged(self, question: str, answer: Callable[[], bool]) -> bool:
        """The last answer to this question about many jobs, if no job has changed since; else a new
        one.
        """

    def recorded_count(self, queue: str) -> int:
        """All jobs of a queue that are on record, finished ones too."""

    def has_finished(self) -> bool:
        """Whether any finished job is on record, also of a queue that was forgotten."""

    def leased_count(self, queue: str) -> int:
        """Live leases of a queue."""

    def limit(self, name: str) -> NamedLimit | None:
        """A named concurrency limit."""

    def limit_used(self, name: str) -> int:
        """Live leases that count against a named limit."""

    def leased_by_connection(self, connection: str) -> Sequence[str]:
        """Ids of jobs whose leases are bound to a connection."""

    def leased_by_holder(self, holder: Holder) -> Sequence[str]:
        """Ids of jobs with free leases of a worker, by realm and name."""

    def leased(self) -> Iterable[str]:
        """Ids of all jobs that have a live or lapsed lease."""

    def waited_by(self, waiter: str) -> Sequence[str]:
        """Ids of jobs that a connection waits for."""

    def waited(self) -> Iterable[str]:
        """Ids of all jobs that have waiters, or no durable interest."""

    def due(self, now: int, count_max: int) -> Sequence[str]:
        """Ids of jobs for which something is due, earliest first."""

    def schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule."""

    def schedules_count(self) -> int:
        """How many schedules there are."""

    def receipt(self, key: str) -> Receipt | None:
        """The answer to a submit with this key."""

    def receipts_weight(self) -> int:
        """The total weight of the kept answers."""

    def oldest_receipts(self, count_max: int) -> Sequence[tuple[str, Receipt]]:
        """The oldest answers, with their keys."""

    def take_position(self) -> int:
        """The next number of the sequence that orders ready jobs. Never returned twice."""

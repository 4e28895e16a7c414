"""What a stream needs of its connection and of the server."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from manyhands.model.job import Job, Progress
from manyhands.model.roles import Caller

ITEMS_COUNT_MAX: Final = 500  # of a note


class Socket(Protocol):
    """The connection, as far as messages are concerned."""

    @property
    def is_behind(self) -> bool:
        """Whether the peer leaves too much unread."""

    def soon(self, call: Callable[[], None]) -> None:
        """Calls back at the end of this turn, when all its notes are known."""

    def send(self, message: bytes) -> None:
        """Sends a binary message."""

    def close(self, code: int | None = None, sentence: str = "") -> None:
        """Closes; without a code, as an answer to the peer's close."""


class Bounds(Struct, frozen=True):
    """What clients may send, announced to them."""

    message_bytes: int
    payload_bytes: int


class Stream(Protocol):
    """A stream, as the hub sees it."""

    def announce_stop(self, seconds: int) -> None:
        """The server is about to stop."""


class Piece(Protocol):
    """A part of a job's result, a warning, or a line of its log."""

    @property
    def number(self) -> int:
        """They are numbered in order, with gaps where one was too large to be kept."""

    @property
    def payload(self) -> bytes:
        """Its content."""

    @property
    def warning(self) -> bool:
        """Whether it is a warning."""

    @property
    def is_log(self) -> bool:
        """Whether it is a line of the log, which is for nobody who waits for the job."""


class Watcher(Protocol):
    """A stream whose client watches jobs."""

    def see_news(self, job: Job, pieces: Iterable[Piece]) -> None:
        """A job it follows changed, or there are new pieces of its result."""

    def see_end(self, job_id: str, job: Job | None) -> None:
        """A job it watches has finished; with None, there is no such job."""


class Worker(Protocol):
    """A stream whose client is a worker."""

    held: dict[str, int]  # lease numbers by job id

    @property
    def owner(self) -> str:
        """The name of its caller."""

    @property
    def queues(self) -> Sequence[str]:
        """Where it takes work from."""

    def lose(self, job: Job) -> None:
        """Its lease of that job was ended by another party or by time."""

    def take(self) -> None:
        """There may be work that no idle worker wants."""

    def give_way(self, sentence: str) -> None:
        """It gets no more work, and its stream is closed: another one has its name, or its death
        was reported.
        """


class Hub(Protocol):
    """What all streams share."""

    bounds: Bounds
    version: str  # of the server
    incarnation: str

    def look(
        self, ids: Sequence[str], bytes_max: int, found: Callable[[list[Job | None]], None]
    ) -> None:
        """Looks up jobs, live or stored, in order, until their results exceed so many bytes or one
        cannot be read.
        """

    def inputs(self, job_ids: Iterable[str]) -> dict[str, set[str]]:
        """Jobs that these unfinished ones depend on, each with the submitters of those that do."""

    def watch(self, watcher: Watcher, job_id: str) -> None:
        """Reports the end of a job, at once if it has finished."""

    def follow(self, watcher: Watcher, job_id: str) -> None:
        """Reports the progress of a job and pieces of its result, until it finishes."""

    def pieces(
        self, job_id: str, found: Callable[[Iterable[Piece], Progress | None], None]
    ) -> None:
        """Loads the pieces that are kept, and the progress of an unfinished job."""

    def unwatch(self, watcher: Watcher, job_id: str) -> None:
        """Ends the watch of a job."""

    def take_name(self, worker: Worker, name: str) -> None:
        """The worker goes by that name; one of the same caller that did so before gives way."""

    def dismiss(self, name: str, caller: Caller) -> None:
        """This caller reports that the worker of that name has left: its stream, if any, gives way.
        Only those of the caller itself do, and all whose queues it may operate.
        """

    def leave_name(self, worker: Worker, name: str) -> None:
        """The worker is gone."""

    def hold(self, worker: Worker, job_id: str, token: str) -> int | None:
        """Notes that a worker was handed a job or says that it has it. Returns the number of the
        lease, or None if it is not the worker's.
        """

    def let_go(self, worker: Worker, job_id: str) -> None:
        """The worker has reported on the job, or is gone."""

    def held_by(self, name: str) -> list[Job]:
        """All jobs leased to a worker of that name."""

    def is_wanted(self, queue: str) -> bool:
        """Whether an idle worker is waiting for work in that queue."""

    def ready_count(self, queues: Sequence[str]) -> int:
        """The number of ready jobs in these queues."""

    def await_surplus(self, worker: Worker, queues: Sequence[str]) -> None:
        """Has the worker look again when there is work that no sleeper wants; without queues,
        never.
        """

    def pass_on(self, queues: Sequence[str]) -> None:
        """Passes an unneeded wake-up on to the next sleeper."""

    def leave(self, stream: Stream) -> None:
        """The stream has ended."""

"""What a session of any protocol needs of the world, and how answers keep their order."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from manyhands.model.commands import Command
from manyhands.model.job import Job, State
from manyhands.model.outcome import Refusal, Reply, Submitted, SubmittedMany

Settle = Callable[[Reply], None]


class Ask(Protocol):
    """How a session asks the engine."""

    def __call__(
        self, command: Command, settle: Settle | None = None, refused: Settle | None = None
    ) -> None:
        """``settle`` gets the reply; ``refused`` gets it only if it is a refusal."""


class QueueSummary(Struct, frozen=True):
    """A queue as lists show it."""

    name: str
    counts: dict[State, int]
    ready_by_priority: dict[float, int]
    paused: bool = False

    @property
    def unfinished_count(self) -> int:
        """Jobs that have not finished."""
        return sum(self.counts[state] for state in UNFINISHED)


UNFINISHED = (State.BLOCKED, State.DELAYED, State.READY, State.LEASED)


class Backing(Protocol):
    """What stands behind the sessions of every protocol."""

    @property
    def ask(self) -> Ask:
        """Let the engine decide; see the dispatcher."""

    def now(self) -> int:
        """Server time."""

    def job_id(self) -> str:
        """A fresh id for a job."""

    @property
    def token(self) -> Callable[[], str]:
        """Makes a fresh token for a lease: hexadecimal digits."""


class Peer(Backing, Protocol):
    """The other end of a session, and the engine behind it. A listener provides it."""

    connection: str  # no other connection of any server has this name
    number: int  # small, for tables
    address: str

    def send(self, data: bytes) -> None:
        """To the peer, together with everything else sent in this turn."""

    def close(self) -> None:
        """After what was sent."""

    def operate(self, command: Command, settle: Settle) -> None:
        """Like ``ask``, for what an operator does: it is put on record."""

    def has_work(self, queues: Sequence[str]) -> bool:
        """Whether a claim over these queues would be given something."""

    def sleep(self, queues: Iterable[str], wake: Callable[[], None]) -> None:
        """Be woken once there is work in one of the queues."""

    def stay_awake(self) -> None:
        """Not wanting to be woken any more."""

    def is_asleep(self) -> bool:
        """Whether a wake-up is still to come."""

    def queues(self) -> Sequence[QueueSummary]:
        """All queues, in order of their names."""

    def unfinished_jobs(self, count_max: int) -> Sequence[Job]:
        """Jobs that have not finished, oldest first."""


def only_item(reply: Reply) -> Submitted | Refusal:
    """The answer to a submit of one job."""
    if type(reply) is SubmittedMany:
        return reply.items[0]
    assert isinstance(reply, Refusal)
    return reply


class Replies:
    """Answers leave in the order of their requests, whatever order they become known in."""

    __slots__ = ("_send", "_slots", "_then")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._then: Callable[[], None] | None = None
        self._slots: deque[list[bytes | None]] = deque()

    def reserve(self) -> list[bytes | None]:
        """A place for an answer that is not known yet."""
        slot: list[bytes | None] = [None]
        self._slots.append(slot)
        return slot

    def fill(self, slot: list[bytes | None], data: bytes) -> None:
        """The answer of that place; empty: there is none after all."""
        slot[0] = data
        slots = self._slots
        while slots:
            first = slots[0][0]
            if first is None:
                return
            slots.popleft()
            if first:
                self._send(first)
        if self._then is not None:
            then, self._then = self._then, None
            then()

    def say(self, data: bytes) -> None:
        """An answer that is known at once: behind those that are still awaited."""
        if self._slots:
            self._slots.append([data])
        else:
            self._send(data)

    def when_told(self, then: Callable[[], None]) -> None:
        """Call back once there is an answer to everything that was asked; after that nothing
        more may be said.
        """
        if self._slots:
            self._then = then
        else:
            then()

    @property
    def awaited_count(self) -> int:
        """Requests without an answer."""
        return len(self._slots)

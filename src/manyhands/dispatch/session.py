"""What a session of any protocol needs from its surroundings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from manyhands.model.commands import Command, NewJob, Proof
from manyhands.model.job import Holder, Job, State
from manyhands.model.plain import PlainLeased
from manyhands.model.replies import Refusal, Reply, Submitted, SubmittedMany
from manyhands.model.roles import Caller

Settle = Callable[[Reply], None]
Refused = Callable[[], Settle | None]


class Ask(Protocol):
    """How a session asks the engine."""

    def __call__(
        self, command: Command, settle: Settle | None = None, refused: Refused | None = None
    ) -> None:
        """``settle`` gets the reply. ``refused`` is called only on a refusal, at once, and returns
        the callback that gets it in its turn, if any: its place among the other answers is reserved
        by then.
        """


class Shortcut(Protocol):
    """How a session submits plain jobs, or has a plain job's lease begin or end, without a command
    and a reply. Each may decline, and then nothing has changed: the command decides.
    """

    def submit_at_once(
        self, items: Sequence[NewJob], settle: Callable[[list[str] | Refusal], None], *, early: bool
    ) -> bool:
        """Submits jobs, each of which is a request of its own. ``settle`` gets their ids once they
        are on disk, or at once if ``early``, which is for jobs that only waiters want.
        """

    def claim_at_once(
        self, queue: str, holder: Holder, token: str, connection: str
    ) -> Job | PlainLeased | None:
        """A job whose delivery need not wait for the disk, leased for as long as the connection
        lasts.
        """

    def complete_at_once(self, job_id: str, proof: Proof, result: bytes) -> bool:
        """Completes a job; its worker wants no answer."""


class QueueSummary(Struct, frozen=True):
    """A queue as lists show it."""

    name: str
    counts: Mapping[State, int]
    ready_by_priority: dict[float, int]
    paused: bool = False

    @property
    def unfinished_count(self) -> int:
        """Jobs that have not finished."""
        return sum(self.counts[state] for state in UNFINISHED)


UNFINISHED = (State.BLOCKED, State.DELAYED, State.READY, State.LEASED)


class Backing(Protocol):
    """What the sessions of every protocol use."""

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

    shortcut: Shortcut
    connection: str  # no other connection of any server has this name
    number: int  # small, for tables
    address: str
    caller: Caller | None  # None: not identified

    def send(self, data: bytes) -> None:
        """Sends to the peer, together with everything else sent in this turn."""

    def close(self) -> None:
        """Closes the connection after what was sent."""

    def come_back(self) -> None:
        """Not everything that arrived was handled: ``receive`` is called again in a later turn,
        once the peer reads its answers and the session is not overwhelmed.
        """

    @property
    def owed_bytes(self) -> int:
        """Bytes of payloads and results in all answers so far. Its growth while a request was
        handled is the share of that request; a turn ends when it has grown too much.
        """

    def operate(self, command: Command, settle: Settle) -> None:
        """Like ``ask``, for an operator's command, which is recorded in the audit log."""

    def has_work(self, queues: Sequence[str]) -> bool:
        """Whether a claim over these queues would get a job."""

    def sleep(
        self, queues: Iterable[str], wake: Callable[[], None], holder: Holder, hands: int = 1
    ) -> None:
        """Sleeps until there is work in one of the queues; without queues, until it names one. The
        holder is the worker that sleeps; ``hands`` is the number of jobs that it can take.
        """

    def stay_awake(self) -> None:
        """Ends the sleep."""

    def is_asleep(self) -> bool:
        """Whether a wake-up is pending."""

    def log_in(self, token: str, then: Callable[[bool], None]) -> None:
        """Makes the peer the caller whose token this is; calls back whether it is one."""

    def may_use(self, queue: str) -> bool:
        """Whether the peer may use this queue."""

    def sees(self, job: Job) -> bool:
        """Whether the peer may look at this job."""

    def refusal_to_work(self, queue: str) -> Refusal | None:
        """Why the peer may not offer to work on a queue, or None."""

    def refusal_to_look(self) -> Refusal | None:
        """Why the peer may not list queues and workers, or None."""

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

"""What a WMP session needs of the server. A listener provides it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from manyhands.dispatch.session import Backing, Settle
from manyhands.model.commands import Command as Operation
from manyhands.model.job import Holder
from manyhands.protocols.wmp.codec import Path

Nothing = Callable[[], None]


class Hub(Backing, Protocol):
    """The peers behind one socket, and the engine behind the session."""

    def send(self, route: tuple[bytes, ...], last: bytes, undelivered: Nothing | None) -> None:
        """Sends all frames of a message, the last one passed separately, together with everything
        else sent in this turn; ``undelivered`` is called if the peer cannot be reached.
        """

    def operate(self, command: Operation, settle: Settle, peer: bytes) -> None:
        """Like ``ask``, for an operator's command, which is recorded in the audit log."""

    def refusal_to_work(self, queues: tuple[str, ...]) -> str | None:
        """Why the peer whose message is handled may not offer to work on these queues, or without
        any on all of them: a sentence, or None.
        """

    def report_dropped(self, kind: str, peer: bytes, sentence: str) -> None:
        """Reports a dropped message, which cannot be answered."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""

    def ready_count(self, queue: str) -> int:
        """How many jobs of a queue are ready."""

    def has_work(self, queue: str) -> bool:
        """Whether a claim on this queue would get a job."""

    def queues_with_work(self) -> Sequence[str]:
        """Queues with ready jobs, for workers that take any work."""

    def sleep(
        self, queues: tuple[str, ...], wake: Callable[[str], None], holder: Holder | None = None
    ) -> Callable[[], None]:
        """Calls ``wake`` once, with the name of a queue, when there is work in one of these queues
        or, without any, in any queue. ``holder`` is the worker, if only one waits. Returns a
        function that cancels this.
        """

    def later(self, seconds: float, call: Nothing) -> Nothing:
        """Calls back after a while; returns a function that cancels this."""


def way_back(path: Path) -> tuple[bytes, ...]:
    """The frames that lead to a peer, followed by an empty trail."""
    return (*path, b"", b"")

"""What a dwork session needs of the world. A listener provides it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from manyhands.model.job import Holder, Job, State
from manyhands.protocols.session import Backing

Route = tuple[bytes, ...]  # the frames that lead back to a peer, its delimiter included


class Hub(Backing, Protocol):
    """The peers behind one socket, and the engine behind the session."""

    def send(self, route: Route, body: bytes, undelivered: Callable[[], None] | None) -> None:
        """To a peer, with everything else that is sent in this turn; ``undelivered`` is called
        if it cannot be reached.
        """

    def send_alone(self, route: Route, body: bytes, undelivered: Callable[[], None] | None) -> None:
        """The same at once, since nothing else is owed along that route."""

    def report_dropped(self, count: int) -> None:
        """Messages that nobody can be answered for, so far."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""

    def counts(self, queue: str) -> Mapping[State, int] | None:
        """Jobs of a queue by state; None: nobody ever heard of the queue."""

    def is_stuck(self, queue: str) -> bool:
        """Whether all that is blocked in a queue waits for jobs that failed or were cancelled."""

    def leased_ids(self, holder: Holder) -> Sequence[str]:
        """Ids of the jobs that a worker holds."""

    def name_of(self, key: str) -> str:
        """What a dependency is called: a name, where its job has one."""

    def find_ended(
        self,
        namespace: str,
        names: Sequence[str],
        then: Callable[[Mapping[str, Job]], None],
    ) -> None:
        """The latest jobs on record that ended under these names; told when they are found."""

    def sleep(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Be woken once there is work in the queue; gives how to be left alone."""

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Be called after a while; gives how to call that off."""

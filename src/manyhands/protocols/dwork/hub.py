"""What a dwork session needs of the server. A listener provides it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from manyhands.dispatch.session import Backing
from manyhands.model.job import Holder, Job, State

Route = tuple[bytes, ...]  # the frames that lead back to a peer, including its delimiter


class Hub(Backing, Protocol):
    """The peers behind one socket, and the engine behind the session."""

    def send(self, route: Route, body: bytes, undelivered: Callable[[], None] | None) -> None:
        """Sends to a peer, together with everything else sent in this turn; ``undelivered`` is
        called if the peer cannot be reached.
        """

    def send_alone(self, route: Route, body: bytes, undelivered: Callable[[], None] | None) -> None:
        """Sends at once, since no other reply is pending on that route."""

    def report_dropped(self, count: int) -> None:
        """Reports the number of messages dropped so far because they cannot be answered."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""

    def counts(self, queue: str) -> Mapping[State, int] | None:
        """Jobs of a queue by state, or None for a queue that never existed."""

    def endings(self, queue: str) -> Mapping[State, int]:
        """How the tasks of the open graph ended, or of the last one since the start."""

    def held_count(self, queue: str, *, exactly: bool) -> int:
        """How many tasks wait, directly or not, for a failed or cancelled one; a recent number
        unless it must be exact.
        """

    def known(self, name: str) -> Job | None:
        """The task of that name in the open graph."""

    def forgotten_count(self, namespace: str) -> int:
        """How often names ceased to be valid because their graph ended: what is looked up after
        this was read holds as long as it stays the same.
        """

    def leased_ids(self, holder: Holder) -> Sequence[str]:
        """Ids of the jobs that a worker holds."""

    def name_of(self, key: str) -> str:
        """The name of a dependency's job, or its key if it has none."""

    def sees(self, job: Job) -> bool:
        """Whether the present peer may look at a job."""

    def find_ended(
        self,
        namespace: str,
        names: Sequence[str],
        then: Callable[[Mapping[str, Job]], None],
    ) -> None:
        """Looks up the latest stored jobs that ended under these names; calls back when they are
        found.
        """

    def sleep(self, queue: str, wake: Callable[[], None], holder: Holder) -> Callable[[], None]:
        """Calls ``wake`` once there is work in the queue for this worker; returns a function that
        cancels this.
        """

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Calls back after a while; returns a function that cancels this."""

"""The real engine behind a dispatcher, in memory, on a clock that tests turn."""

from typing import Final, TypeVar

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.commands import Command, Recover
from manyhands.model.job import Job
from manyhands.model.replies import Refusal, Reply
from manyhands.operate.schedules import Calendar
from manyhands.store.memory import MemoryStore
from manyhands.testing.time import VirtualClock, VirtualLoop

R = TypeVar("R")
_PATIENCE_MS: Final = 1_000  # a reply may wait for the next commit, not for longer


class Engine:
    """Commands in, replies out, at once."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids()
        self._loop = VirtualLoop(self.clock)
        self.store = MemoryStore()
        self.dispatcher = Dispatcher(
            self.store, self.clock, self._loop, pace_ms=0.0, ride_ms=0.0, check_invariants=True
        )
        self._calendar = Calendar(self.dispatcher, self.ids)
        self.dispatcher.ask(Recover(self.ids.incarnation, 0))
        self._loop.run()

    def ask(self, command: Command) -> Reply:
        """The reply, once what it reports is committed."""
        replies: list[Reply] = []
        self.dispatcher.ask(command, replies.append)
        self._loop.run()
        while not replies:
            due_at = self._loop.next_at()
            assert due_at is not None
            assert due_at <= self.clock.now() + _PATIENCE_MS, "a command was not answered"
            self.clock.set(due_at)
            self._loop.run()
        return replies[0]

    def expect(self, command: Command, kind: type[R]) -> R | Refusal:
        """The reply of a command that has one kind of them."""
        reply = self.ask(command)
        assert isinstance(reply, kind | Refusal)
        return reply

    def find(self, job_id: str) -> Job | None:
        """A job, finished or not."""
        return self.store.find(job_id)

    def travel(self, to_ms: int) -> None:
        """Goes there in time: what falls due on the way happens in order."""
        while True:
            due_at = self._next_at()
            if due_at is None or due_at > to_ms:
                break
            self.clock.set(due_at)
            self._run()
        self.clock.set(to_ms)
        self._run()

    def _next_at(self) -> int | None:
        found = [
            schedule.next_at
            for schedule in self.store.live.schedules.values()
            if not schedule.paused and schedule.next_at > self.clock.now()
        ]
        due_at = self._loop.next_at()
        if due_at is not None:
            found.append(due_at)
        return min(found, default=None)

    def _run(self) -> None:
        self._calendar.look()
        self._loop.run()

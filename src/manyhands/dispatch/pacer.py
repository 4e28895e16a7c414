"""Paces background work: while commands come in, it takes only a share of the time."""

from collections.abc import Callable
from typing import Protocol

from manyhands.dispatch.dispatcher import Dispatcher


class Clocked(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Monotonic seconds."""


class Pacer:
    """After each piece of work there is a proportional pause, if the engine has work to do."""

    def __init__(self, dispatcher: Dispatcher, loop: Clocked, share: float) -> None:
        self._counts = dispatcher.counts
        self._loop = loop
        self._rest_factor = (1 - share) / share
        self._rests_until = 0.0
        # The number of commands when the last piece of work began, and the one before that.
        self._commands = self._commands_before = 0

    def delay(self) -> float:
        """Seconds until the next piece of work may begin."""
        if self._counts.commands == self._commands_before:
            return 0.0
        return max(0.0, self._rests_until - self._loop.time())

    def run(self, work: Callable[[], None]) -> None:
        """One piece of work."""
        self._commands_before, self._commands = self._commands, self._counts.commands
        started = self._loop.time()
        work()
        now = self._loop.time()
        self._rests_until = now + (now - started) * self._rest_factor

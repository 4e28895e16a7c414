"""The end of a job that very many wait for: it is told to them in slices, between which everybody
else has a turn.
"""

from collections.abc import Callable
from typing import Final

from manyhands.model.commands import Command, TellDependants
from manyhands.server.loops import Loop
from manyhands.store.index import Index

# A slice that ended in an assertion is tried again after this long.
_AGAIN_SECONDS: Final = 1.0


class Spreading:
    """Asks for the next slice as long as there is one."""

    def __init__(
        self,
        index: Index,
        loop: Loop,
        ask: Callable[[Command], None],
        failures: Callable[[], int],
    ) -> None:
        self._untold = index.untold
        self._loop = loop
        self._ask = ask
        self._failures = failures  # commands that ended in an assertion, so far
        self._soon = False
        self._ended = False
        if self._untold:
            self.go_on()  # a server before this one did not get to it

    def go_on(self) -> None:
        """There is somebody who has not heard."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._tell)

    def end(self) -> None:
        """The store failed: the next start sees to the rest."""
        self._ended = True

    def _tell(self) -> None:
        self._soon = False
        if self._ended or not self._untold:
            return
        self._soon = True  # not by what is asked here
        failures = self._failures()
        self._ask(TellDependants(next(iter(self._untold))))
        if self._failures() != failures:
            # What cannot be decided on must not keep the loop busy.
            self._loop.call_later(_AGAIN_SECONDS, self._tell)
        else:
            self._soon = False
            if self._untold:
                self.go_on()

"""Notifies the dependants of a finished job in slices, if there are very many."""

from collections.abc import Callable
from typing import Final

from manyhands.dispatch.loops import Loop
from manyhands.model.commands import Command, NotifyDependants
from manyhands.store.contract import Live

# A slice that failed with an assertion is retried after this long.
_AGAIN_SECONDS: Final = 1.0


class Spreading:
    """Asks for the next slice as long as there is one; other clients get their turn in between."""

    def __init__(
        self,
        live: Live,
        loop: Loop,
        ask: Callable[[Command], None],
        failures: Callable[[], int],
    ) -> None:
        self._unnotified = live.unnotified
        self._loop = loop
        self._ask = ask
        self._failures = failures  # commands that ended in an assertion, so far
        self._soon = False
        self._ended = False
        if self._unnotified:
            self.go_on()  # a server before this one did not get to it

    def go_on(self) -> None:
        """Starts, if dependants are still to be notified."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._notify)

    def end(self) -> None:
        """The store failed: the next start continues."""
        self._ended = True

    def _notify(self) -> None:
        self._soon = False
        if self._ended or not self._unnotified:
            return
        self._soon = True  # not by what is asked here
        failures = self._failures()
        self._ask(NotifyDependants(next(iter(self._unnotified))))
        if self._failures() != failures:
            # A slice that cannot be decided must not keep the event loop busy.
            self._loop.call_later(_AGAIN_SECONDS, self._notify)
        else:
            self._soon = False
            if self._unnotified:
                self.go_on()

"""Signals to connections of other servers. The name of a connection begins with the incarnation of
its server.
"""

from collections.abc import Callable

from manyhands.dispatch.delivery import Listeners
from manyhands.model.events import Signal


class FarListeners(Listeners):
    """Delivers to connections here, and passes on what is for others."""

    def __init__(self, incarnation: str) -> None:
        super().__init__()
        self._incarnation = incarnation
        # By incarnation: the fronts of an owner.
        self.fronts: dict[str, Callable[[Signal], None]] = {}

    def deliver(self, signal: Signal) -> None:
        fronts = self.fronts
        if not fronts:
            super().deliver(signal)
            return
        here = False
        there: dict[str, None] = {}
        for name in signal.waiters:
            if name in self.on_signal:
                here = True
            else:
                there[name.partition("/")[0]] = None
        passed_on = False
        for incarnation in there:
            if incarnation in fronts:
                fronts[incarnation](signal)
                passed_on = True
        if here or not passed_on:
            super().deliver(signal)
        if signal.what == "notice" and not here and not passed_on:
            # A lease without a connection: whichever server its worker talks to.
            for pass_on in fronts.values():
                pass_on(signal)

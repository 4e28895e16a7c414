"""Signals to connections of other servers. The name of a connection begins with the incarnation of
its server.
"""

from collections.abc import Callable
from typing import Final

from manyhands.dispatch.delivery import Listeners
from manyhands.model.events import Signal

_REPORTED_KEPT_MAX: Final = 10_000


class FarListeners(Listeners):
    """Delivers to connections here, and passes on what is for others."""

    def __init__(self, incarnation: str) -> None:
        super().__init__()
        self._incarnation = incarnation
        # By incarnation: the fronts of an owner.
        self.fronts: dict[str, Callable[[Signal], None]] = {}
        self.on_end: Callable[[str], None] = lambda _job_id: None  # before an end is reported
        # The latest ends that may be reported again.
        self._reported: dict[tuple[str, int], None] = {}

    def deliver_here(self, signal: Signal, *, once: bool = False) -> None:
        """Delivers to connections of this server. The end of a job that only they want is
        reported before it is on disk: if the server that decided it dies, the job ends once more,
        and that is not reported again. The same with ``once``.
        """
        if signal.what == "ended":
            job, reported = signal.job, self._reported
            end = (job.job_id, job.incarnation)
            if end in reported:
                return
            self.on_end(job.job_id)
            if once or not job.durable_interest:
                reported[end] = None
                if len(reported) > _REPORTED_KEPT_MAX:
                    del reported[next(iter(reported))]
        super().deliver(signal)

    def deliver(self, signal: Signal) -> None:
        fronts = self.fronts
        if not fronts:
            self.deliver_here(signal)
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
            self.deliver_here(signal)
        if signal.what == "notice" and not here and not passed_on:
            # A lease without a connection: whichever server its worker talks to.
            for pass_on in fronts.values():
                pass_on(signal)

"""Delivery of what was decided: answers and signals to peers, commits to listeners.

An error in one listener must not keep the others waiting.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from manyhands.loggers import get_logger
from manyhands.model.events import Signal
from manyhands.model.replies import Reply
from manyhands.store.batch import Batch

_log = get_logger("manyhands.dispatcher")

# A reply or signal, and the callback that delivers it.
Answer = tuple[Callable[[Any], None], Reply | Signal]


class Listeners:
    """Everything that listens to one dispatcher."""

    def __init__(self) -> None:
        self.on_signal: dict[str, Callable[[Signal], None]] = {}  # by connection
        self.on_notice: list[Callable[[Signal], None]] = []  # leases taken from free holders
        self.on_batch: list[Callable[[Batch, float], None]] = []  # with the commit's milliseconds

    def answer(self, answers: Sequence[Answer]) -> None:
        """Delivers replies and signals, in the order of the decisions."""
        for deliver, news in answers:
            try:
                deliver(news)
            except Exception:  # noqa: BLE001
                self._report("an answer")

    def committed(self, batch: Batch, elapsed_ms: float) -> None:
        """Notifies listeners that a batch is on disk."""
        for listener in self.on_batch:
            try:
                listener(batch, elapsed_ms)
            except Exception:  # noqa: BLE001
                self._report("a commit")

    def deliver(self, signal: Signal) -> None:
        """Delivers a signal to the connections that wait for it."""
        waiters = signal.waiters
        if len(waiters) == 1 and signal.what != "notice":  # as nearly always
            listener = self.on_signal.get(waiters[0])
            if listener is not None:
                try:
                    listener(signal)
                except Exception:  # noqa: BLE001
                    self._report("a signal")
            return
        listeners = [self.on_signal[name] for name in signal.waiters if name in self.on_signal]
        if not listeners and signal.what == "notice":
            listeners = self.on_notice
        for listener in listeners:
            try:
                listener(signal)
            except Exception:  # noqa: BLE001
                self._report("a signal")

    def deliver_fleeting(self, signals: Sequence[Signal]) -> None:
        """Delivers the signals that need not wait for a commit."""
        for signal in signals:
            if _is_fleeting(signal):
                self.deliver(signal)

    def gather_lasting(self, signals: Sequence[Signal], answers: list[Answer]) -> None:
        """Adds the other signals to the answers that leave with the commit."""
        answers += [(self.deliver, signal) for signal in signals if not _is_fleeting(signal)]

    def _report(self, what: str) -> None:
        _log.error(f"{what} could not be delivered", traceback=traceback.format_exc())


def _is_fleeting(signal: Signal) -> bool:
    """Whether a signal is about a job that only waiters want (rule 22). It need not wait for the
    disk: if the server dies, the waiters are gone, and so is the job.
    """
    return not signal.job.durable_interest and signal.what != "notice"

"""Who is told what was decided: peers their answers and signals, listeners what was committed.
One listener's trouble must not keep others waiting.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from manyhands.model.events import Signal
from manyhands.model.outcome import Reply
from manyhands.store.batch import Batch

_log = structlog.get_logger("manyhands.dispatcher")

# What is to be told, and by whom.
Answer = tuple[Callable[[Any], None], Reply | Signal]


class Telling:
    """All who listen to one dispatcher."""

    def __init__(self) -> None:
        self.on_signal: dict[str, Callable[[Signal], None]] = {}  # by connection
        self.on_told: list[Callable[[Signal], None]] = []  # leases taken from free holders
        self.on_batch: list[Callable[[Batch, float], None]] = []  # with the commit's milliseconds

    def answer(self, answers: Sequence[Answer]) -> None:
        """Replies and signals, in the order of the decisions."""
        for tell, news in answers:
            try:
                tell(news)
            except Exception:  # noqa: BLE001
                self._report("an answer")

    def committed(self, batch: Batch, elapsed_ms: float) -> None:
        """A batch is on disk."""
        for listener in self.on_batch:
            try:
                listener(batch, elapsed_ms)
            except Exception:  # noqa: BLE001
                self._report("a commit")

    def deliver(self, signal: Signal) -> None:
        """A signal, to the connections that wait for it."""
        listeners = [self.on_signal[name] for name in signal.waiters if name in self.on_signal]
        if not listeners and signal.what == "told":
            listeners = self.on_told
        for listener in listeners:
            try:
                listener(signal)
            except Exception:  # noqa: BLE001
                self._report("a signal")

    def deliver_fleeting(self, signals: Sequence[Signal]) -> None:
        """Those that wait for no commit."""
        for signal in signals:
            if _is_fleeting(signal):
                self.deliver(signal)

    def gather_lasting(self, signals: Sequence[Signal], answers: list[Answer]) -> None:
        """The others go among the answers that leave with the commit."""
        answers += [(self.deliver, signal) for signal in signals if not _is_fleeting(signal)]

    def _report(self, what: str) -> None:
        _log.error(f"{what} could not be told", traceback=traceback.format_exc())


def _is_fleeting(signal: Signal) -> bool:
    """News of a job that only those want who wait for it on a connection (rule 22). They need not
    wait for the disk: if the server dies, they are gone, and so is the job.
    """
    return not signal.job.durable_interest and signal.what != "told"

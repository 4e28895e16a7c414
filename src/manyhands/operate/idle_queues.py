"""Forgets unused queues: a slice at a time, faster while there are many."""

from collections.abc import Callable
from typing import Final

from manyhands.model import limits
from manyhands.model.commands import Command, ForgetIdle
from manyhands.store.contract import Live
from manyhands.store.rounds import Rounds

# Slices without a result after which there is no hurry: all queues were checked once.
_VAIN_LOOKS_MAX: Final = limits.QUEUES_COUNT_MAX // limits.QUEUES_A_SLICE


class IdleQueues:
    """Goes through all queues in turns and forgets those it may."""

    def __init__(self, live: Live, ask: Callable[[Command], None]) -> None:
        self._live = live
        self._ask = ask
        self._rounds = Rounds(lambda: live.queues)
        self._vain_looks_count = 0

    def look(self) -> bool:
        """Handles a slice; returns whether the next one is urgent."""
        before = self._live.queues_count()
        if before == 0:
            return False
        self._ask(ForgetIdle(tuple(self._rounds.part(limits.QUEUES_A_SLICE))))
        after = self._live.queues_count()
        self._vain_looks_count = 0 if after < before else self._vain_looks_count + 1
        return after > limits.QUEUES_CROWDED_COUNT and self._vain_looks_count < _VAIN_LOOKS_MAX

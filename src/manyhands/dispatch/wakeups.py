"""Wakes sleepers when there is work: as many hands as there are jobs, no more and no fewer."""

import traceback
from collections.abc import Sequence
from typing import Final

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.loops import Loop
from manyhands.dispatch.sleepers import Sleepers
from manyhands.engine import plain
from manyhands.engine.claim import Gate
from manyhands.engine.effects import Effects
from manyhands.loggers import get_logger
from manyhands.model.events import Event
from manyhands.model.job import State
from manyhands.model.plain import Plain
from manyhands.store.batch import Batch
from manyhands.store.contract import Live

_log = get_logger("manyhands.waking")
_READY: Final = State.READY
_LEASED: Final = State.LEASED


class Waking:
    """Matches what was committed with the sleepers."""

    def __init__(self, live: Live, sleepers: Sleepers, clock: Clock, loop: Loop) -> None:
        self._live = live
        self._sleepers = sleepers
        self._clock = clock
        self._loop = loop
        self._rate_wakes: dict[tuple[str, ...], int] = {}  # queues -> when their sleepers are woken

    def has_work(self, queues: Sequence[str]) -> bool:
        """Whether a claim over these queues would get a job now."""
        if len(queues) == 1:
            known = self._live.view.known_queue(queues[0])
            if known is not None and plain.next_of(known) is not None:
                return True  # as nearly always, if there is work at all
        gate = Gate(Effects(self._live.view, self._clock.now()))
        return any(gate.first(queue) is not None for queue in queues)

    def ready_count(self, queue: str) -> int:
        """Jobs of a queue that are ready, committed or about to be."""
        known = self._live.queues.get(queue)
        return known.ready_count if known is not None else 0

    def after_commit(self, batch: Batch) -> None:
        """Wakes as many sleepers as there are new jobs, and those for whom a limit made room."""
        sleepers = self._sleepers
        queues = self._live.queues
        counts: dict[str, int] = {}
        for event in batch.entries:
            queue = event.queue
            if event.state is _READY:
                counts[queue] = counts.get(queue, 0) + 1
            elif event.state is not _LEASED and sleepers.is_wanted(queue):
                known = queues.get(queue)
                if known is not None and known.queue.policy.concurrency_max is not None:
                    counts[queue] = counts.get(queue, 0) + 1
        for queue, changed in batch.rows_of("queues").items():
            # With a rate, each claim writes the queue.
            if changed is not None and changed.policy.rate is None:
                counts[queue] = self.ready_count(queue)
        for queue, count in counts.items():
            if sleepers.is_wanted(queue) and self.has_work((queue,)):
                self._wake(queue, min(count, self.ready_count(queue)))
        if self._live.limits:
            # A named limit may have made room in any queue.
            self.where_there_is_work()

    def before_commit(self, events: Sequence[Event | Plain]) -> None:
        """Wakes sleepers for jobs that may be handed out before they are on disk (rule 22)."""
        for event in events:
            if event.state is _READY and self.has_work((event.queue,)):
                self._wake(event.queue, 1)

    def where_there_is_work(self) -> None:
        """Wakes every sleeper that has work, whatever happened."""
        queues = self._sleepers.queues()
        if self._sleepers.anywhere:
            queues = [name for name, known in self._live.queues.items() if known.ready_count]
        for queue in queues:
            self.look_at(queue)

    def look_at(self, queue: str) -> None:
        """Wakes the sleepers of one queue, if it has work."""
        if self.has_work((queue,)):
            self._wake(queue, self.ready_count(queue))

    def later(self, queues: tuple[str, ...], retry_at: int) -> None:
        """A rate limit held work back: its sleepers are woken when it allows more."""
        if self._rate_wakes.get(queues) == retry_at:
            return
        self._rate_wakes[queues] = retry_at

        def wake() -> None:
            if self._rate_wakes.get(queues) == retry_at:
                del self._rate_wakes[queues]
            for queue in queues:
                self.look_at(queue)

        self._loop.call_later(max(1, retry_at - self._clock.now()) / 1000, wake)

    def _wake(self, queue: str, count: int) -> None:
        try:
            self._sleepers.wake(queue, count)
        except Exception:  # noqa: BLE001 - one sleeper's trouble must not keep others asleep
            _log.error("a wake-up could not be delivered", traceback=traceback.format_exc())

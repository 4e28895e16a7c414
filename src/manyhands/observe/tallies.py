"""Counts events: by queue for the history, by protocol and in total for the metrics.

Hot: every job is counted several times in its life.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from manyhands.model import limits
from manyhands.model.events import Event
from manyhands.model.history import ALL_QUEUES, BOUNDS_MS, Sample, merged, new_sample
from manyhands.model.job import State
from manyhands.model.plain import PlainCompleted, PlainLeased, PlainReady
from manyhands.model.reasons import Reason
from manyhands.observe.facts import Facts

Key = TypeVar("Key")
# The reasons for taking a lease from a silent worker.
TAKEN: Final = tuple(reason for reason in Reason if reason.is_lost and reason.charged)


class Tallies:
    """Everything since the start, and the current samples."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._taken: dict[Reason, int] = dict.fromkeys(TAKEN, 0)
        self._jobs_in: defaultdict[str, int] = defaultdict(int)
        self._jobs_out: defaultdict[str, int] = defaultdict(int)
        self._current: dict[str, Sample] = {}
        self._earlier = Sample()  # all queues, up to the last `cut`
        facts.on_submitted.append(self._submitted)
        facts.on_started.append(self._started)
        facts.on_completed.append(self._completed)
        facts.on_ended.append(self._ended)
        facts.on_attempt_failed.append(self._attempt_failed)
        facts.on_attempt_lost.append(self._attempt_lost)
        facts.on_failed.append(self._failed)
        facts.on_cancelled.append(self._cancelled)
        facts.on_resumed.append(self._changed)
        facts.on_placed.append(self._changed)

    def _open(self, queue: str) -> Sample:
        """A sample for a queue without one; beyond a bound, one for all such queues."""
        if len(self._current) >= limits.HISTORY_TALLIES_MAX:
            queue = ALL_QUEUES
        return self._current.setdefault(queue, new_sample())

    def _sample(self, event: Event) -> Sample:
        queue = event.queue
        return self._current.get(queue) or self._open(queue)

    def _changed(self, event: Event) -> None:
        """Opens a sample without counting: the queue changed, and samples have its depth too."""
        self._sample(event)

    def _submitted(self, event: Event | PlainReady) -> None:
        queue = event.queue
        sample = self._current.get(queue) or self._open(queue)
        sample.submitted += 1
        self._jobs_in[event.origin.realm] += 1

    def _started(self, event: Event | PlainLeased) -> None:
        queue, holder, lasted_ms = event.queue, event.holder, event.lasted_ms
        sample = self._current.get(queue) or self._open(queue)
        sample.started += 1
        sample.wait_ms += lasted_ms
        sample.wait[bisect_left(BOUNDS_MS, lasted_ms)] += 1
        self._jobs_out[holder.realm if holder is not None else ""] += 1

    def _completed(self, event: Event | PlainCompleted) -> None:
        queue = event.queue
        sample = self._current.get(queue) or self._open(queue)
        sample.completed += 1
        if event.holder is not None:
            lasted_ms = event.lasted_ms
            sample.run_ms += lasted_ms
            sample.run[bisect_left(BOUNDS_MS, lasted_ms)] += 1

    def _ended(self, event: Event) -> None:
        if event.reason in self._taken:
            self._taken[event.reason] += 1
        sample, lasted_ms = self._sample_before(event), event.lasted_ms
        sample.run_ms += lasted_ms
        sample.run[bisect_left(BOUNDS_MS, lasted_ms)] += 1

    def _sample_before(self, event: Event) -> Sample:
        """The sample of the queue where the attempt was: a moved job spent its time there."""
        queue = event.left_queue or event.queue
        return self._current.get(queue) or self._open(queue)

    def _attempt_failed(self, event: Event) -> None:
        self._sample_before(event).failed_attempts += 1

    def _attempt_lost(self, event: Event) -> None:
        self._sample_before(event).lost += 1

    def _failed(self, event: Event) -> None:
        self._sample(event).failed += 1

    def _cancelled(self, event: Event) -> None:
        self._sample(event).cancelled += 1

    # Reading.

    @property
    def entered(self) -> dict[State, int]:
        """Jobs that entered each state."""
        self._facts.count()
        return self._facts.entered

    @property
    def taken(self) -> dict[Reason, int]:
        """Leases that ended without a report, by reason."""
        self._facts.count()
        return self._taken

    @property
    def jobs_in(self) -> dict[str, int]:
        """Submitted, by realm."""
        self._facts.count()
        return self._jobs_in

    @property
    def jobs_out(self) -> dict[str, int]:
        """Handed out, by realm."""
        self._facts.count()
        return self._jobs_out

    @property
    def current(self) -> dict[str, Sample]:
        """The current samples, by queue."""
        self._facts.count()
        return self._current

    def cut(self) -> dict[str, Sample]:
        """Returns what was counted since the last time, and starts again."""
        finished, self._current = self.current, {}
        self._earlier.add(merged(finished.values()))
        return finished

    def total(self) -> Sample:
        """Everything since the start."""
        return merged((self._earlier, *self.current.values()))


class Totals:
    """What was counted by one or several tallies since the start: what this server decides, and
    what others do.
    """

    def __init__(self, *tallies: Tallies) -> None:
        self._tallies = tallies

    @property
    def entered(self) -> dict[State, int]:
        """Jobs that entered each state."""
        return _summed([each.entered for each in self._tallies])

    @property
    def jobs_in(self) -> dict[str, int]:
        """Submitted, by realm."""
        return _summed([each.jobs_in for each in self._tallies])

    @property
    def jobs_out(self) -> dict[str, int]:
        """Handed out, by realm."""
        return _summed([each.jobs_out for each in self._tallies])


def _summed(counts: Sequence[Mapping[Key, int]]) -> dict[Key, int]:
    total: dict[Key, int] = {}
    for each in counts:
        for key, count in each.items():
            total[key] = total.get(key, 0) + count
    return total

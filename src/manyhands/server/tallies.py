"""Counts what passes: by queue for the history, by protocol and in all for the metrics.

One walk over the events of many commits. Hot: every job is counted several times in its life.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from manyhands.model import limits
from manyhands.model.events import Event
from manyhands.model.history import ALL_QUEUES, BOUNDS_MS, Sample, merged, new_sample
from manyhands.model.job import EndReason, Job, State
from manyhands.server.uncounted import OUT_OF_ATTEMPTS, Noted, Uncounted

_READY, _LEASED, _COMPLETED = State.READY, State.LEASED, State.COMPLETED
TAKEN: Final = (EndReason.EXPIRED.value, EndReason.LOST.value, EndReason.CUTOFF.value)
_LAPSED: Final = "lapsed"
_LOST: Final = frozenset((*TAKEN, _LAPSED))
_FAILED_ATTEMPT: Final = frozenset(("failed", "retry", OUT_OF_ATTEMPTS))
_NOWHERE: Final = Sample()  # before the first event


class Tallies:
    """Everything since the start, and the samples that are going on."""

    def __init__(self, uncounted: Uncounted) -> None:
        self._uncounted = uncounted
        self._entered: dict[State, int] = dict.fromkeys(State, 0)
        self._taken: dict[str, int] = dict.fromkeys(TAKEN, 0)
        self._jobs_in: defaultdict[str, int] = defaultdict(int)
        self._jobs_out: defaultdict[str, int] = defaultdict(int)
        self._current: dict[str, Sample] = {}
        self._earlier = Sample()  # all queues, up to the last `cut`
        # Jobs that were submitted blocked in this very millisecond. One that is freed in it has
        # waited for no time, too, and yet was not submitted again.
        self._blocked: set[str] = set()
        self._blocked_at = 0
        uncounted.counters.append(self._take)

    def _take(self, noted: Noted) -> None:
        entered, current = self._entered, self._current
        jobs_in, jobs_out = self._jobs_in, self._jobs_out
        leased_count = completed_count = 0
        sample, last = _NOWHERE, None
        for event in noted.events:
            queue = event.queue
            if queue is not last:
                last = queue
                sample = current.get(queue) or self._open(queue)
            state, holder = event.state, event.holder
            if state is _LEASED:
                leased_count += 1
                if event.reason:
                    continue  # its last holder took up again what had lapsed
                sample.started += 1
                lasted_ms = event.lasted_ms
                sample.wait_ms += lasted_ms
                sample.wait[bisect_left(BOUNDS_MS, lasted_ms)] += 1
                jobs_out[holder.realm if holder is not None else ""] += 1
                continue
            if state is _COMPLETED:
                completed_count += 1
                sample.completed += 1
                if holder is not None:
                    lasted_ms = event.lasted_ms
                    sample.run_ms += lasted_ms
                    sample.run[bisect_left(BOUNDS_MS, lasted_ms)] += 1
                continue
            entered[state] += 1
            if holder is not None:
                self._end_lease(event, sample, noted.jobs)
            elif event.lasted_ms == 0 and (
                (state is _READY and not event.reason and event.at != self._blocked_at)
                or self._is_new(event)
            ):
                sample.submitted += 1
                jobs_in[event.origin.realm] += 1
            elif state is State.FAILED:
                sample.failed += 1
            elif state is State.CANCELLED:
                sample.cancelled += 1
        entered[_LEASED] += leased_count
        entered[_COMPLETED] += completed_count

    def _open(self, queue: str) -> Sample:
        """A sample for a queue that was quiet so far; beyond a bound, one for all such queues."""
        if len(self._current) >= limits.HISTORY_TALLIES_MAX:
            queue = ALL_QUEUES
        return self._current.setdefault(queue, new_sample())

    def _is_new(self, event: Event) -> bool:
        """Whether a job that entered its state from nowhere was submitted just now."""
        if event.reason or event.left_queue:
            return False
        if event.state is State.BLOCKED:
            if event.at != self._blocked_at:
                self._blocked.clear()
                self._blocked_at = event.at
            self._blocked.add(event.job_id)
            return True
        if event.state is _READY and event.at == self._blocked_at:
            return event.job_id not in self._blocked
        return event.state is _READY or event.state is State.DELAYED

    def _end_lease(self, event: Event, sample: Sample, jobs: Mapping[str, Job]) -> None:
        """A lease ended, and not by completing the job here."""
        reason = event.reason
        if reason in self._taken:
            self._taken[reason] += 1
        if event.state is State.FAILED:
            sample.failed += 1
        elif event.state is State.CANCELLED:
            sample.cancelled += 1
        if event.left_queue:  # the time was spent there
            sample = self._current.get(event.left_queue) or self._open(event.left_queue)
        if _ran_out(event, jobs) or (reason in _LOST and not _may_go_on(event)):
            sample.lost += 1
        elif reason in _FAILED_ATTEMPT:
            sample.failed_attempts += 1
        sample.run_ms += event.lasted_ms
        sample.run[bisect_left(BOUNDS_MS, event.lasted_ms)] += 1

    # Reading.

    @property
    def entered(self) -> dict[State, int]:
        """Jobs that entered each state."""
        self._uncounted.count()
        return self._entered

    @property
    def taken(self) -> dict[str, int]:
        """Leases that ended without a word, by why."""
        self._uncounted.count()
        return self._taken

    @property
    def jobs_in(self) -> dict[str, int]:
        """Submitted, by realm."""
        self._uncounted.count()
        return self._jobs_in

    @property
    def jobs_out(self) -> dict[str, int]:
        """Handed out, by realm."""
        self._uncounted.count()
        return self._jobs_out

    @property
    def current(self) -> dict[str, Sample]:
        """The samples that are going on, by queue."""
        self._uncounted.count()
        return self._current

    def cut(self) -> dict[str, Sample]:
        """What was counted since the last time; counting starts anew."""
        finished, self._current = self.current, {}
        self._earlier.add(merged(finished.values()))
        return finished

    def total(self) -> Sample:
        """Everything since the start."""
        return merged((self._earlier, *self.current.values()))


def _ran_out(event: Event, jobs: Mapping[str, Job]) -> bool:
    """Whether a job failed because its last allowed attempt was lost."""
    if event.reason != OUT_OF_ATTEMPTS:
        return False
    job = jobs.get(event.job_id)
    return job is not None and job.failure is not None and job.failure.code == "attempts"


def _may_go_on(event: Event) -> bool:
    """A lapsed lease that was the last allowed: it is lost when the job fails for it, not now."""
    allowed = event.attempts_max
    return event.reason == _LAPSED and allowed != -1 and event.attempts_used + 1 >= allowed

"""Counts what passes: by queue for the history, by protocol and in all for the metrics.

One walk over the events of each commit. Hot: well under half a microsecond an event.
"""

from bisect import bisect_left
from collections import defaultdict
from typing import Final

from manyhands.model import limits
from manyhands.model.events import Event
from manyhands.model.history import ALL_QUEUES, BOUNDS_MS, Sample, merged, new_sample
from manyhands.model.job import EndReason, Job, State
from manyhands.store.batch import Batch

_READY, _LEASED, _COMPLETED = State.READY, State.LEASED, State.COMPLETED
TAKEN: Final = (EndReason.EXPIRED.value, EndReason.LOST.value, EndReason.CUTOFF.value)
_LAPSED: Final = "lapsed"
_LOST: Final = frozenset((*TAKEN, _LAPSED))
_FAILED_ATTEMPT: Final = frozenset(("failed", "retry", "out_of_attempts"))


class Tallies:
    """Everything since the start, and the samples that are going on."""

    def __init__(self) -> None:
        self.entered: dict[State, int] = dict.fromkeys(State, 0)
        self.taken: dict[str, int] = dict.fromkeys(TAKEN, 0)
        self.jobs_in: defaultdict[str, int] = defaultdict(int)  # submitted, by realm
        self.jobs_out: defaultdict[str, int] = defaultdict(int)  # handed out, by realm
        self.current: dict[str, Sample] = {}  # by queue
        self._earlier = Sample()  # all queues, up to the last `cut`
        # Jobs that were submitted blocked in this very millisecond. One that is freed in it has
        # waited for no time, too, and yet was not submitted again.
        self._blocked: set[str] = set()
        self._blocked_at = 0

    def take(self, batch: Batch, _elapsed_ms: float) -> None:
        """One commit."""
        entered, current = self.entered, self.current
        jobs_in, jobs_out = self.jobs_in, self.jobs_out
        sample, last = None, ""
        for event in batch.events:
            state = event.state
            entered[state] += 1
            queue = event.queue
            if sample is None or queue is not last:
                last = queue
                sample = current.get(queue) or self._open(queue)
            holder = event.holder
            if state is _LEASED:
                if event.reason:
                    continue  # its last holder took up again what had lapsed
                sample.started += 1
                lasted_ms = event.lasted_ms
                sample.wait_ms += lasted_ms
                sample.wait[bisect_left(BOUNDS_MS, lasted_ms)] += 1
                realm = holder.realm if holder is not None else ""
                jobs_out[realm] += 1
            elif state is _COMPLETED:
                sample.completed += 1
                if holder is not None:
                    lasted_ms = event.lasted_ms
                    sample.run_ms += lasted_ms
                    sample.run[bisect_left(BOUNDS_MS, lasted_ms)] += 1
            elif holder is not None:
                self._end_lease(event, sample, batch)
            elif event.lasted_ms == 0 and (
                (state is _READY and not event.reason and event.at != self._blocked_at)
                or self._is_new(event)
            ):
                sample.submitted += 1
                realm = event.origin.realm
                jobs_in[realm] += 1
            elif state is State.FAILED:
                sample.failed += 1
            elif state is State.CANCELLED:
                sample.cancelled += 1

    def _open(self, queue: str) -> Sample:
        """A sample for a queue that was quiet so far; beyond a bound, one for all such queues."""
        if len(self.current) >= limits.HISTORY_TALLIES_MAX:
            queue = ALL_QUEUES
        return self.current.setdefault(queue, new_sample())

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

    def _end_lease(self, event: Event, sample: Sample, batch: Batch) -> None:
        """A lease ended, and not by completing the job here."""
        reason = event.reason
        job = batch.jobs.get(event.job_id)
        if reason in self.taken:
            self.taken[reason] += 1
        if event.state is State.FAILED:
            sample.failed += 1
        elif event.state is State.CANCELLED:
            sample.cancelled += 1
        if event.left_queue:  # the time was spent there
            sample = self.current.get(event.left_queue) or self._open(event.left_queue)
        if _ran_out(job, event) or (reason in _LOST and not _may_go_on(job, reason)):
            sample.lost += 1
        elif reason in _FAILED_ATTEMPT:
            sample.failed_attempts += 1
        sample.run_ms += event.lasted_ms
        sample.run[bisect_left(BOUNDS_MS, event.lasted_ms)] += 1

    # Reading.

    def cut(self) -> dict[str, Sample]:
        """What was counted since the last time; counting starts anew."""
        finished, self.current = self.current, {}
        self._earlier.add(merged(finished.values()))
        return finished

    def total(self) -> Sample:
        """Everything since the start."""
        return merged((self._earlier, *self.current.values()))


def _ran_out(job: Job | None, event: Event) -> bool:
    """Whether a job failed because its last allowed attempt was lost."""
    return (
        event.reason == "out_of_attempts"
        and job is not None
        and job.failure is not None
        and job.failure.code == "attempts"
    )


def _may_go_on(job: Job | None, reason: str) -> bool:
    """A lapsed lease that was the last allowed: it is lost when the job fails for it, not now."""
    return reason == _LAPSED and job is not None and job.lease is not None and job.lease.spent

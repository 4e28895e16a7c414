"""What events mean: one pass over them feeds all counters.

Only `Fold` knows what an event means. Counters subscribe to the facts that they count, and never
read a state or a reason to find out what happened.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never

from manyhands.loggers import get_logger
from manyhands.model.events import Event
from manyhands.model.job import Job, State
from manyhands.model.plain import Plain, PlainLeased, PlainReady
from manyhands.model.reasons import LOST_CODE, Outcome, Reason

_log = get_logger("manyhands.facts")
NO_JOBS: Final[Mapping[str, Job]] = {}
_BLOCKED, _READY, _LEASED = State.BLOCKED, State.READY, State.LEASED
_COMPLETED, _FAILED, _CANCELLED = State.COMPLETED, State.FAILED, State.CANCELLED
_NO_REASON: Final = Reason.NONE

Take: TypeAlias = Callable[[Event], None]
# Of a plain job these get its value, which has what counters read under the same names.
TakePlain: TypeAlias = Callable[[Any], None]


class Fold:
    """Events in, facts out, each to its subscribers and in the order of the events."""

    def __init__(self) -> None:
        # Of a job.
        self.on_event: list[Take] = []  # every event of a job that is not plain, before its facts
        self.on_submitted: list[TakePlain] = []
        self.on_completed: list[TakePlain] = []
        self.on_failed: list[Take] = []  # for good
        self.on_cancelled: list[Take] = []
        self.on_placed: list[Take] = []  # not new, and waiting: unblocked, due, put back, moved
        self.on_retried: list[Take] = []  # back to be claimed again, after a failure or a loss
        # Of an attempt. A completed job is the end of one as well.
        self.on_started: list[TakePlain] = []
        self.on_resumed: list[Take] = []  # by its holder, after it lapsed
        self.on_ended: list[Take] = []  # other than by completion, before the next three
        self.on_advanced: list[Take] = []
        self.on_attempt_failed: list[Take] = []  # its worker reported it, retried or not
        self.on_attempt_lost: list[Take] = []
        self.entered: dict[State, int] = dict.fromkeys(State, 0)
        # Jobs that were submitted as blocked in this millisecond. One that is released in it has
        # also waited for no time, but was not submitted again.
        self._blocked: set[str] = set()
        self._blocked_at = 0
        self._trouble: str | None = None

    def fold(  # noqa: C901 - the hot path
        self, events: Iterable[Event | Plain], jobs: Mapping[str, Job] = NO_JOBS
    ) -> None:
        """Takes events in order. ``jobs`` has at least those whose attempts are used up."""
        on_event, on_submitted = self.on_event, self.on_submitted
        on_started, on_completed = self.on_started, self.on_completed
        submitted_count = leased_count = completed_count = 0
        takers: Sequence[TakePlain]
        for event in events:
            if type(event) is not Event:
                if type(event) is PlainReady:
                    submitted_count += 1
                    takers = on_submitted
                elif type(event) is PlainLeased:
                    leased_count += 1
                    takers = on_started
                else:
                    completed_count += 1
                    takers = on_completed
                for take in takers:  # as in `_call`: the hot path
                    try:
                        take(event)
                    except Exception:  # noqa: BLE001
                        self._trouble = traceback.format_exc()
                continue
            if on_event:
                self._call(on_event, event)
            state = event.state
            if state is _LEASED:
                leased_count += 1
                takers = on_started if event.reason is _NO_REASON else self.on_resumed
            elif state is _COMPLETED:
                completed_count += 1
                takers = on_completed
            else:
                self.entered[state] += 1
                if event.holder is not None:
                    self._end(event, jobs)
                takers = self._placed(event, state)
            for take in takers:  # as in `_call`: the hot path
                try:
                    take(event)
                except Exception:  # noqa: BLE001
                    self._trouble = traceback.format_exc()
        self.entered[_READY] += submitted_count
        self.entered[_LEASED] += leased_count
        self.entered[_COMPLETED] += completed_count
        if self._trouble is not None:
            _log.error("events could not be counted", traceback=self._trouble)
            self._trouble = None

    def _call(self, takers: Sequence[TakePlain], event: Event | Plain) -> None:
        for take in takers:
            try:
                take(event)
            except Exception:  # noqa: BLE001 - one counter's trouble is not the next one's
                self._trouble = traceback.format_exc()

    def _is_new(self, event: Event, state: State) -> bool:
        """Whether a waiting job without a previous state was just submitted."""
        if event.lasted_ms or event.holder is not None or event.left_queue:
            return False
        if event.reason is not _NO_REASON:
            return False
        if state is _BLOCKED:
            if event.at != self._blocked_at:
                self._blocked.clear()
                self._blocked_at = event.at
            self._blocked.add(event.job_id)
        elif state is _READY and event.at == self._blocked_at:
            return event.job_id not in self._blocked
        return True

    def _end(self, event: Event, jobs: Mapping[str, Job]) -> None:
        """A lease ended, not by completing the job in this queue."""
        self._call(self.on_ended, event)
        match event.reason.outcome:
            case Outcome.LOST:
                if not _may_go_on(event):
                    self._call(self.on_attempt_lost, event)
            case Outcome.FAILED:
                self._call(self.on_attempt_failed, event)
            case Outcome.FAILED_OR_LOST:
                lost = _was_lost(jobs.get(event.job_id))
                self._call(self.on_attempt_lost if lost else self.on_attempt_failed, event)
            case Outcome.ADVANCED:
                self._call(self.on_advanced, event)
            case Outcome.NONE:
                pass
            case never:
                assert_never(never)

    def _placed(self, event: Event, state: State) -> Sequence[TakePlain]:
        """The subscribers to the new place of a job that is neither leased nor completed."""
        if state is _FAILED:
            return self.on_failed
        if state is _CANCELLED:
            return self.on_cancelled
        if self._is_new(event, state):
            return self.on_submitted
        if event.reason.is_lost or event.reason is Reason.RETRY:
            self._call(self.on_retried, event)
        return self.on_placed


def _was_lost(job: Job | None) -> bool:
    """Whether a job failed because its last allowed attempt was lost."""
    return job is not None and job.failure is not None and job.failure.code == LOST_CODE


def _may_go_on(event: Event) -> bool:
    """Whether a lapsed lease was the last allowed one: it counts as lost when the job fails, not
    now.
    """
    allowed = event.attempts_max
    return event.reason is Reason.LAPSED and allowed != -1 and event.attempts_used + 1 >= allowed

"""Incidents of jobs, in the log: expired leases, jobs that went back or used up their attempts."""

import logging
from collections.abc import Sequence
from typing import Final, assert_never

from manyhands.loggers import get_logger
from manyhands.model.events import Event
from manyhands.model.reasons import Reason
from manyhands.observe.facts import Facts
from manyhands.store.batch import Batch

_log = get_logger("manyhands.incidents")
# Lines per commit: a thousand leases that end together are one incident.
_LINES_MAX: Final = 20


def is_debugging() -> bool:
    """Whether debug lines are wanted. Checked once, not for every line."""
    return logging.getLogger("manyhands").isEnabledFor(logging.DEBUG)


def level_of(reason: Reason) -> int | None:
    """The log level of a change of state for this reason; None: not logged."""
    match reason:
        case Reason.EXPIRED | Reason.LAPSED | Reason.CUTOFF | Reason.OUT_OF_ATTEMPTS:
            return logging.INFO  # what an operator should always see
        case Reason.LOST | Reason.RELEASED | Reason.GOODBYE | Reason.RETRY:
            return logging.DEBUG  # routine
        case (
            Reason.NONE
            | Reason.RENEWED
            | Reason.ADVANCED
            | Reason.FAILED
            | Reason.DEADLINE
            | Reason.DEPENDENCY_FAILED
            | Reason.CANCELLED
            | Reason.ABANDONED
            | Reason.REPLACED
            | Reason.MOVED
            | Reason.REQUEUED
        ):
            return None
        case never:
            assert_never(never)


class Incidents:
    """Logs the incidents of every commit."""

    def __init__(self, facts: Facts) -> None:
        least = logging.DEBUG if is_debugging() else logging.INFO
        levels = {reason: level_of(reason) for reason in Reason}
        self._levels = {
            reason: level
            for reason, level in levels.items()
            if level is not None and level >= least
        }
        facts.watch(self._levels, self._note)

    def _note(self, events: Sequence[Event], batch: Batch) -> None:
        """Logs the incidents of one commit."""
        for event in events[:_LINES_MAX]:
            self._report(event, batch)
        if len(events) > _LINES_MAX:
            _log.info("more leases ended in the same commit", count=len(events) - _LINES_MAX)

    def _report(self, event: Event, batch: Batch) -> None:
        job, holder = batch.job(event.job_id), event.holder
        facts = {
            "job_id": event.job_id,
            "queue": event.queue,
            "attempts_used": event.attempts_used,
            "attempts_max": event.attempts_max,
        }
        if holder is not None:
            facts |= {"worker": holder.name, "address": holder.address, "held_ms": event.lasted_ms}
        if event.reason is Reason.OUT_OF_ATTEMPTS and job is not None and job.failure is not None:
            facts["failure"] = job.failure.message[:200]
        log = _log.debug if self._levels[event.reason] == logging.DEBUG else _log.info
        log(event.reason.sentence, **facts)

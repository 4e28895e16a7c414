"""The life of a job as one table. Two rules: every new value of ``Job.state`` comes from
``moved``, and what is not in ``TABLE`` cannot happen. The lifecycle page is drawn from it.
"""

import enum
from typing import Any, Final

from msgspec.structs import replace

from manyhands.model.job import Job, State


class Trigger(enum.StrEnum):
    """What moves a job."""

    HELD = "held"  # it has to wait for other jobs
    POSTPONED = "postponed"  # it has to wait for its time
    READIED = "readied"  # nothing is in its way (any more, or again)
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_B, _D, _R, _L = State.BLOCKED, State.DELAYED, State.READY, State.LEASED
_C, _F, _X = State.COMPLETED, State.FAILED, State.CANCELLED

TABLE: Final[dict[tuple[State, Trigger], State]] = {
    # Its dependencies have not completed yet. A move keeps it blocked.
    (_B, Trigger.HELD): _B,
    (_B, Trigger.POSTPONED): _D,
    (_B, Trigger.READIED): _R,
    (_B, Trigger.FAILED): _F,  # deadline, or a dependency failed
    (_B, Trigger.CANCELLED): _X,
    # Waiting for a set time: a delay, or the backoff before a retry.
    (_D, Trigger.HELD): _B,
    (_D, Trigger.POSTPONED): _D,
    (_D, Trigger.READIED): _R,
    (_D, Trigger.COMPLETED): _C,  # open completion only
    (_D, Trigger.FAILED): _F,
    (_D, Trigger.CANCELLED): _X,
    # Ready to be claimed. It may be moved, held back by new dependencies, or postponed.
    (_R, Trigger.HELD): _B,
    (_R, Trigger.POSTPONED): _D,
    (_R, Trigger.READIED): _R,
    (_R, Trigger.CLAIMED): _L,
    (_R, Trigger.COMPLETED): _C,  # open completion, or the holder of a lapsed lease
    (_R, Trigger.FAILED): _F,
    (_R, Trigger.CANCELLED): _X,
    # A worker has it. Whatever ends the lease moves the job.
    (_L, Trigger.HELD): _B,
    (_L, Trigger.POSTPONED): _D,
    (_L, Trigger.READIED): _R,
    (_L, Trigger.COMPLETED): _C,
    (_L, Trigger.FAILED): _F,
    (_L, Trigger.CANCELLED): _X,
    # Finished, unless it is requeued (rule 15). A failed one can still be cancelled.
    (_C, Trigger.HELD): _B,
    (_C, Trigger.POSTPONED): _D,
    (_C, Trigger.READIED): _R,
    (_F, Trigger.HELD): _B,
    (_F, Trigger.POSTPONED): _D,
    (_F, Trigger.READIED): _R,
    (_F, Trigger.CANCELLED): _X,
    (_X, Trigger.HELD): _B,
    (_X, Trigger.POSTPONED): _D,
    (_X, Trigger.READIED): _R,
}


class ImpossibleMoveError(AssertionError):
    """A defect: the engine tried a move that is not in the table."""


def moved(job: Job, trigger: Trigger) -> State:
    """The state after the trigger. The only source of a job's next state."""
    state = TABLE.get((job.state, trigger))
    if state is None:
        raise ImpossibleMoveError(f"job {job.job_id} is {job.state} and cannot be {trigger}")
    return state


class _From(dict[State, State]):
    """Where one trigger leads from each state."""

    def __init__(self, trigger: Trigger) -> None:
        super().__init__({was: then for (was, by), then in TABLE.items() if by is trigger})
        self._trigger = trigger

    def __missing__(self, state: State) -> State:
        raise ImpossibleMoveError(f"a job is {state} and cannot be {self._trigger}")


# What `moved` says, for the hot paths: ``CLAIMED_FROM[job.state]``.
CLAIMED_FROM: Final = _From(Trigger.CLAIMED)
COMPLETED_FROM: Final = _From(Trigger.COMPLETED)


def advance(job: Job, trigger: Trigger, now: int, **changes: Any) -> Job:  # noqa: ANN401
    """The job after the trigger, with further fields changed in the same step. Hot paths write
    ``replace(job, state=CLAIMED_FROM[job.state], …)`` instead: collecting the changes costs four
    times as much as making them.
    """
    return replace(job, state=moved(job, trigger), entered_at=now, **changes)

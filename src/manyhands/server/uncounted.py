"""What was committed and is not counted yet.

A commit is only noted, since others wait for their answers. It is counted with many more in one
go, which costs a third of counting a few events at a time: as soon as somebody wants to know a
figure, so nobody ever sees an old one, or when enough has come together.

Only events are held meanwhile, and the event log has those in memory anyway. The jobs of a commit
may be large: one that cannot be counted without them is counted at once.
"""

import traceback
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

import structlog

from manyhands.model.events import Event
from manyhands.model.job import Job
from manyhands.store.batch import Batch

_log = structlog.get_logger("manyhands.uncounted")
# Far fewer events than the event log keeps, and a fraction of a millisecond to count.
EVENTS_MAX: Final = 500
COMMITS_MAX: Final = 500  # they may have no events
# The reason of a job that failed on its last attempt: whether that attempt was lost or reported is
# written in the job alone.
OUT_OF_ATTEMPTS: Final = "out_of_attempts"
_reason_of: Final = attrgetter("reason")
_NO_JOBS: Final[Mapping[str, Job]] = {}


class Noted:
    """Commits, in their order."""

    __slots__ = ("commits", "events", "jobs")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.commits: list[tuple[float, int]] = []  # the milliseconds of each, and its jobs
        self.jobs = _NO_JOBS  # those that are out of attempts are among these


class Uncounted:
    """Takes every commit, and gives many together to those who count."""

    def __init__(self) -> None:
        self.counters: list[Callable[[Noted], None]] = []
        self._noted = Noted()

    def note(self, batch: Batch, elapsed_ms: float) -> None:
        """One commit."""
        noted, events = self._noted, batch.events
        noted.events += events
        noted.commits.append((elapsed_ms, len(batch.jobs)))
        if (
            len(noted.events) >= EVENTS_MAX
            or len(noted.commits) >= COMMITS_MAX
            or OUT_OF_ATTEMPTS in map(_reason_of, events)
        ):
            noted.jobs = batch.jobs
            self.count()

    def count(self) -> None:
        """Before anybody reads a figure."""
        noted = self._noted
        if not noted.commits:
            return
        self._noted = Noted()
        for counter in self.counters:
            try:
                counter(noted)
            except Exception:  # noqa: BLE001 - one counter's trouble is not the next one's
                _log.error("commits could not be counted", traceback=traceback.format_exc())

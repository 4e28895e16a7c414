"""All commits, counted by the fold.

A commit is only noted, since clients wait for their answers; it is counted later together with many
others, which costs a third of counting a few events at a time: before a figure is read, so that
figures are never old, or when enough events are noted. Only events are held until then, and the
event log has those in memory anyway. The jobs of a commit may be large: one that cannot be counted
without them is counted at once.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

from manyhands.loggers import get_logger
from manyhands.model.events import Event
from manyhands.model.job import Job
from manyhands.model.plain import Plain
from manyhands.model.reasons import Reason
from manyhands.observe.fold import NO_JOBS, Fold
from manyhands.store.batch import Batch

_log = get_logger("manyhands.facts")
# Far fewer events than the event log keeps, counted in a fraction of a millisecond.
EVENTS_MAX: Final = 500
COMMITS_MAX: Final = 500  # they may have no events
_reason_of: Final = attrgetter("reason")

Commits: TypeAlias = Sequence[tuple[float, int]]  # the milliseconds of each, and its jobs
Watcher: TypeAlias = Callable[[Sequence[Event], Batch], None]


class Facts(Fold):
    """All commits, counted before a figure is read."""

    def __init__(self) -> None:
        super().__init__()
        self.on_commits: list[Callable[[Commits], None]] = []
        self._events: list[Event | Plain] = []
        self._commits: list[tuple[float, int]] = []
        self._urgent: frozenset[Reason] = frozenset({Reason.OUT_OF_ATTEMPTS})
        self._watchers: list[tuple[frozenset[Reason], Watcher]] = []

    def watch(self, reasons: Iterable[Reason], watcher: Watcher) -> None:
        """Calls it with each commit that has events for one of these reasons, and with those."""
        wanted = frozenset(reasons)
        self._urgent |= wanted
        self._watchers.append((wanted, watcher))

    def note(self, batch: Batch, elapsed_ms: float) -> None:
        """Notes one commit."""
        self._events += batch.entries
        self._commits.append((elapsed_ms, len(batch.values)))
        if not batch.is_plain and not self._urgent.isdisjoint(map(_reason_of, batch.events)):
            events = batch.events
            # Only the job shows whether its last attempt was lost or reported.
            self._count(batch.jobs)
            for wanted, watcher in self._watchers:
                found = [event for event in events if event.reason in wanted]
                if found:
                    watcher(found, batch)
        elif len(self._events) >= EVENTS_MAX or len(self._commits) >= COMMITS_MAX:
            self.count()

    def count(self) -> None:
        """Counts everything noted; called before a figure is read."""
        self._count(NO_JOBS)

    def _count(self, jobs: Mapping[str, Job]) -> None:
        if not self._commits:
            return
        events, commits = self._events, self._commits
        self._events, self._commits = [], []
        self.fold(events, jobs)
        for take in self.on_commits:
            try:
                take(commits)
            except Exception:  # noqa: BLE001 - as in `_call`
                _log.error("commits could not be counted", traceback=traceback.format_exc())

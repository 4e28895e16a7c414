"""Checks of the invariants: after every command those of what it changed, and from time to time
those of everything. For tests; a broken one ends the server before anything more is acknowledged.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from manyhands.engine.effects import Effects
from manyhands.engine.invariants import check_effects, check_job, check_view
from manyhands.engine.plain import Change, entry_of, value_of
from manyhands.engine.view import View
from manyhands.model.commands import Command
from manyhands.model.events import Signal
from manyhands.model.plain import event_of, job_of
from manyhands.store.contract import Store

# Commands between two checks of everything; as many as there are jobs, if those are more.
WORLD_EVERY: Final = 500
# Jobs of one command that are looked up in the view: each may have many neighbours.
_VIEWED_MAX: Final = 50
_SHOWN_MAX: Final = 500


class BrokenInvariantError(Exception):
    """An invariant is broken. Its text is a sentence with the last decided command."""


class Checks:
    """Stands between the dispatcher and its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._command: Command | None = None
        self._left = 0  # commands before the next check of everything; the first has one

    def load(self, command: Command) -> View:
        """Loads as the store does."""
        self._command = command
        return self._store.load(command)

    def write(self, effects: Effects) -> int:
        """Writes as the store does, then checks the result."""
        try:
            check_effects(effects)
            weight = self._store.write(effects)
            self._check(effects.jobs)
        except AssertionError as error:
            raise self._broken(error) from error
        return weight

    def write_plain(self, changes: Sequence[Change], signals: Sequence[Signal] = ()) -> int:
        """The same for steps of plain jobs."""
        try:
            effects = Effects(self._store.live.view, entry_of(changes[0]).at)
            for change in changes:
                job = job_of(value_of(change))
                effects.jobs[job.job_id] = job
                effects.events.append(event_of(entry_of(change)))
            check_effects(effects)
            weight = self._store.write_plain(changes, signals)
            self._check(effects.jobs)
        except AssertionError as error:
            raise self._broken(error) from error
        return weight

    def _check(self, job_ids: Iterable[str]) -> None:
        live = self._store.live
        for number, job_id in enumerate(job_ids):
            job = live.live_job(job_id)
            assert job is not None, f"job {job_id} was written and is not there"
            check_job(job)
            if number < _VIEWED_MAX:
                check_view(live.view, job)
        self._left -= 1
        if self._left < 0:
            self._left = max(WORLD_EVERY, live.jobs_count())
            self._store.check()

    def _broken(self, error: AssertionError) -> BrokenInvariantError:
        shown = repr(self._command)[:_SHOWN_MAX]
        return BrokenInvariantError(f"an invariant is broken after {shown}: {error}")

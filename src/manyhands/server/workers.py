"""Who works: when each worker was heard of last, and what it did since the start.

Kept in memory only. Who holds what is known from the leases, which outlive a restart; the rest is
for people who look, and a worker that lives is back in here with its next request.
"""

from typing import Final

from manyhands.model.events import Event
from manyhands.model.job import EndReason, Holder, State
from manyhands.server.uncounted import Noted, Uncounted

WORKER_MS_MAX: Final = 24 * 3600 * 1000  # a silent worker is forgotten after that
# Beyond this many the longest silent ones are forgotten: names cost their sender nothing.
WORKERS_COUNT_MAX: Final = 100_000
_SEEN_MS: Final = 100  # who asks again within this time was just noted
_LEASED, _COMPLETED = State.LEASED, State.COMPLETED
# What only the worker itself can have brought about.
_SPOKEN: Final = frozenset({_LEASED, _COMPLETED})
_SAID: Final = frozenset({"failed", "retry", "advanced"})
_LOSSES: Final = frozenset({EndReason.EXPIRED.value, EndReason.CUTOFF.value, "lapsed"})
_FAILURES: Final = frozenset({"failed", "retry", "out_of_attempts"})


class WorkerRecord:
    """One worker."""

    __slots__ = ("address", "completed", "failed", "lost", "name", "seen_at", "taken")

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.seen_at = 0
        self.taken = 0
        self.completed = 0
        self.failed = 0
        self.lost = 0


class WorkerBook:
    """All workers of one realm, the longest silent first."""

    def __init__(self, realm: str, uncounted: Uncounted, *, learns: bool = False) -> None:
        self.realm = realm
        self._uncounted = uncounted
        self._learns = learns  # from leases alone who there is; else from requests
        # By name, or by the address of those without. Counted up to the last `Uncounted.count`.
        self.by_key: dict[str, WorkerRecord] = {}

    def see(self, name: str | None, address: str, now: int) -> None:
        """A request of a worker, by its name or else by its address."""
        key = name or address
        record = self.by_key.get(key)
        if record is not None and now - record.seen_at < _SEEN_MS and record.address == address:
            return
        if record is None:
            self._uncounted.count()  # what is not counted yet is not about the new record
            record = WorkerRecord(key)
        else:
            del self.by_key[key]  # to the end
        self.by_key[key] = record
        record.address = address
        record.seen_at = now
        if len(self.by_key) > WORKERS_COUNT_MAX:
            del self.by_key[next(iter(self.by_key))]

    def hear(self, event: Event, holder: Holder) -> WorkerRecord | None:
        """The record of a lease's holder, seen if only itself can have brought about the event."""
        if self._learns and (event.state in _SPOKEN or event.reason in _SAID):
            self.see(holder.name, holder.address, event.at)
        return self.by_key.get(holder.name or holder.address)

    def records(self, now: int) -> list[WorkerRecord]:
        """Everybody who was heard of lately, by name; others are forgotten here."""
        self._uncounted.count()
        for name, record in list(self.by_key.items()):
            if record.seen_at + WORKER_MS_MAX > now:
                break
            del self.by_key[name]
        return [self.by_key[name] for name in sorted(self.by_key)]

    def record(self, name: str) -> WorkerRecord | None:
        """One worker."""
        self._uncounted.count()
        return self.by_key.get(name)


class WorkerBooks:
    """The books of all realms whose workers have names. Gearman's have connections: those are
    there, or gone.
    """

    def __init__(self, uncounted: Uncounted) -> None:
        self.http = WorkerBook("http", uncounted)  # heard of with every request
        learning = ("native", "wmp", "dwork", "taskcluster")
        learners = (WorkerBook(realm, uncounted, learns=True) for realm in learning)
        self.by_realm = {book.realm: book for book in (self.http, *learners)}
        uncounted.counters.append(self._take)

    def _take(self, noted: Noted) -> None:
        by_realm = self.by_realm
        for event in noted.events:
            holder = event.holder
            if holder is None or holder.realm not in by_realm:
                continue
            book = by_realm[holder.realm]
            record = book.by_key.get(holder.name or holder.address)
            if (
                record is None
                or event.at - record.seen_at >= _SEEN_MS
                or record.address != holder.address
            ):
                record = book.hear(event, holder)
                if record is None:
                    continue
            state = event.state
            if state is _COMPLETED:
                record.completed += 1
            elif state is _LEASED:
                record.taken += event.reason != "renewed"
            elif event.reason == "advanced":
                record.completed += 1
            elif event.reason in _LOSSES:
                record.lost += 1
            elif event.reason in _FAILURES:
                record.failed += 1

"""Who works: when each worker was heard of last, and what it did since the start.

Kept in memory only. Who holds what is known from the leases, which outlive a restart; the rest is
for people who look, and a worker that lives is back in here with its next request.
"""

from typing import Final

from manyhands.model.events import Event
from manyhands.model.job import EndReason, Holder, State
from manyhands.store.batch import Batch

WORKER_MS_MAX: Final = 24 * 3600 * 1000  # a silent worker is forgotten after that
# Beyond this many the longest silent ones are forgotten: names cost their sender nothing.
WORKERS_COUNT_MAX: Final = 100_000
_SEEN_MS: Final = 100  # who asks again within this time was just noted
# What only the worker itself can have brought about.
_SPOKEN: Final = frozenset({State.LEASED, State.COMPLETED})
_SAID: Final = frozenset({"failed", "retry", "advanced"})
_LOSSES: Final = frozenset({EndReason.EXPIRED.value, EndReason.CUTOFF.value, "lapsed"})


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

    def __init__(self, realm: str, *, learns: bool = False) -> None:
        self.realm = realm
        self._learns = learns  # from leases alone who there is; else from requests
        self._records: dict[str, WorkerRecord] = {}

    def see(self, name: str | None, address: str, now: int) -> None:
        """A request of a worker, by its name or else by its address."""
        key = name or address
        record = self._records.get(key)
        if record is not None and now - record.seen_at < _SEEN_MS and record.address == address:
            return
        record = self._records.pop(key, None) or WorkerRecord(key)
        self._records[key] = record
        record.address = address
        record.seen_at = now
        if len(self._records) > WORKERS_COUNT_MAX:
            del self._records[next(iter(self._records))]

    def note(self, event: Event, holder: Holder) -> None:
        """What was committed about a lease of this realm."""
        spoke = event.state in _SPOKEN or event.reason in _SAID
        if self._learns and spoke:
            self.see(holder.name, holder.address, event.at)
        record = self._records.get(holder.name or holder.address)
        if record is None:
            return
        if event.state is State.LEASED:
            record.taken += event.reason != "renewed"
        elif event.state is State.COMPLETED or event.reason == "advanced":
            record.completed += 1
        elif event.reason in _LOSSES:
            record.lost += 1
        elif event.reason in ("failed", "retry", "out_of_attempts"):
            record.failed += 1

    def records(self, now: int) -> list[WorkerRecord]:
        """Everybody who was heard of lately, by name; others are forgotten here."""
        for name, record in list(self._records.items()):
            if record.seen_at + WORKER_MS_MAX > now:
                break
            del self._records[name]
        return [self._records[name] for name in sorted(self._records)]

    def record(self, name: str) -> WorkerRecord | None:
        """One worker."""
        return self._records.get(name)


class WorkerBooks:
    """The books of all realms whose workers have names. Gearman's have connections: those are
    there, or gone.
    """

    def __init__(self) -> None:
        self.http = WorkerBook("http")  # heard of with every request
        learning = ("native", "wmp", "dwork", "taskcluster")
        books = (self.http, *(WorkerBook(realm, learns=True) for realm in learning))
        self.by_realm = {book.realm: book for book in books}

    def take(self, batch: Batch, _elapsed_ms: float) -> None:
        """What was committed."""
        by_realm = self.by_realm
        for event in batch.events:
            holder = event.holder
            if holder is not None and holder.realm in by_realm:
                by_realm[holder.realm].note(event, holder)

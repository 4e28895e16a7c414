"""Workers: when each was last seen, and what it did since the start.

Kept in memory only. What each holds is known from the leases, which survive a restart; the rest is
for display, and a live worker is back in here with its next request.
"""

from collections.abc import Callable
from typing import Final

from manyhands.model.events import Event
from manyhands.model.plain import PlainCompleted, PlainLeased
from manyhands.model.policy import REALMS, KnownBy
from manyhands.observe.facts import Facts

WORKER_MS_MAX: Final = 24 * 3600 * 1000  # a silent worker is forgotten after that
# Beyond this many the longest silent ones are forgotten, because names cost their sender nothing.
WORKERS_COUNT_MAX: Final = 100_000
_SEEN_MS: Final = 100  # a worker that was seen within this time need not be noted again


class WorkerRecord:
    """One worker."""

    __slots__ = ("address", "completed", "failed", "lost", "name", "queue", "seen_at", "taken")

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.queue = ""  # of the last job it took
        self.seen_at = 0
        self.taken = 0
        self.completed = 0
        self.failed = 0
        self.lost = 0


class WorkerBook:
    """All workers of one realm, the longest silent first."""

    def __init__(self, realm: str, count: Callable[[], None], *, learns: bool = False) -> None:
        self.realm = realm
        self._count = count
        self.learns = learns  # of workers from their leases alone; else from requests
        # By name, or by address for those without. Counted up to the last `Facts.count`.
        self.by_key: dict[str, WorkerRecord] = {}

    def see(self, name: str | None, address: str, now: int) -> None:
        """Notes a request of a worker, by its name or else by its address."""
        key = name or address
        record = self.by_key.get(key)
        if record is not None and now - record.seen_at < _SEEN_MS and record.address == address:
            return
        if record is None:
            self._count()  # earlier events are not about the new record
            record = WorkerRecord(key)
        else:
            del self.by_key[key]  # to the end
        self.by_key[key] = record
        record.address = address
        record.seen_at = now
        if len(self.by_key) > WORKERS_COUNT_MAX:
            del self.by_key[next(iter(self.by_key))]

    def records(self, now: int) -> list[WorkerRecord]:
        """The workers seen recently, by name; others are forgotten here."""
        self._count()
        for name, record in list(self.by_key.items()):
            if record.seen_at + WORKER_MS_MAX > now:
                break
            del self.by_key[name]
        return [self.by_key[name] for name in sorted(self.by_key)]

    def record(self, name: str) -> WorkerRecord | None:
        """One worker."""
        self._count()
        return self.by_key.get(name)


class SeenBook:
    """A book without workers whose last job was of a queue that a caller may not see."""

    def __init__(self, book: WorkerBook, may_use: Callable[[str], bool]) -> None:
        self.realm = book.realm
        self._book = book
        self._may_use = may_use

    def records(self, now: int) -> list[WorkerRecord]:
        """The workers seen recently, by name."""
        return [record for record in self._book.records(now) if self._may_use(record.queue)]

    def record(self, name: str) -> WorkerRecord | None:
        """One worker."""
        record = self._book.record(name)
        return record if record is not None and self._may_use(record.queue) else None


class WorkerBooks:
    """The books of all realms whose workers have names. The others have connections: those are
    there, or gone.
    """

    def __init__(self, *facts: Facts) -> None:
        """Several: of what this server decides, and of what others do."""
        self._facts = facts
        self.by_realm = {
            name: WorkerBook(name, self._count, learns=realm.workers is KnownBy.LEASE)
            for name, realm in REALMS.items()
            if realm.workers is not KnownBy.CONNECTION
        }
        for each in facts:
            each.on_started.append(self._started)
            each.on_resumed.append(self._resumed)
            each.on_completed.append(self._completed)
            each.on_advanced.append(self._completed)
            each.on_attempt_failed.append(self._failed)
            each.on_attempt_lost.append(self._lost)

    def _count(self) -> None:
        for each in self._facts:
            each.count()

    def _started(self, event: Event | PlainLeased) -> None:
        record = self._speaker(event)
        if record is not None:
            record.taken += 1
            record.queue = event.queue

    def _resumed(self, event: Event) -> None:
        self._speaker(event)

    def _completed(self, event: Event | PlainCompleted) -> None:
        record = self._speaker(event)
        if record is not None:
            record.completed += 1

    def _failed(self, event: Event) -> None:
        record = self._speaker(event)
        if record is not None:
            record.failed += 1

    def _lost(self, event: Event) -> None:
        holder = event.holder
        if holder is not None and holder.realm in self.by_realm:
            record = self.by_realm[holder.realm].by_key.get(holder.name or holder.address)
            if record is not None:
                record.lost += 1

    def _speaker(self, event: Event | PlainLeased | PlainCompleted) -> WorkerRecord | None:
        """The record of a lease's holder, marked as seen: only it can have caused the event."""
        holder = event.holder
        if holder is None or holder.realm not in self.by_realm:
            return None
        book, name = self.by_realm[holder.realm], holder.name or holder.address
        if book.learns:
            book.see(holder.name, holder.address, event.at)
        return book.by_key.get(name)

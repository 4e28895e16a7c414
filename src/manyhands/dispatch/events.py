"""The event log as watchers see it: committed events, by sequence number, from any point.

The newest events are kept in memory; older ones come from the store. Watchers are notified of new
events and read at their own pace: a slow one costs no more than an entry in a list.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from manyhands.loggers import get_logger
from manyhands.model.events import Event
from manyhands.model.plain import Plain, event_of
from manyhands.store.contract import Store, StoredEvent

_log = get_logger("manyhands.events")
RECENT_COUNT_MAX: Final = 20_000


class EventLog:
    """Cursors read here: the AMQP relay and endpoint, server-sent events, the UI."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: deque[Event | Plain] = deque(maxlen=RECENT_COUNT_MAX)
        self._watchers: dict[Callable[[], None], None] = {}
        self.published_seq = store.last_seq()
        # How far the store can be read, if that is not all that is older than what is in memory.
        self._stored_seq: int | None = None
        # The last event that can be read. All before it can, unless they were dropped.
        self.last_seq = self.published_seq

    def publish(self, events: Sequence[Event | Plain], last_seq: int) -> None:
        """Publishes committed events, the last one with this number."""
        if not events:
            return
        self._recent.extend(events)
        self.published_seq = last_seq
        self._show()

    def restart(self, last_seq: int, stored_seq: int | None = None) -> None:
        """Everything up to ``last_seq`` has been published. Where another server did, the store may
        have it up to ``stored_seq`` only, and says when it has more (``stored``).
        """
        self._recent.clear()
        self.published_seq, self._stored_seq = last_seq, stored_seq
        self.last_seq = 0
        self._show()

    def stored(self, seq: int) -> None:
        """Events up to this number can be read from the store."""
        self._stored_seq = seq
        self._show()

    def _show(self) -> None:
        """What lies between the store and memory cannot be read yet, nor what follows it: whoever
        reads would pass over it.
        """
        shown, stored_seq = self.published_seq, self._stored_seq
        if stored_seq is not None and stored_seq < shown - len(self._recent):
            shown = stored_seq
        before, self.last_seq = self.last_seq, shown
        if shown > before and self._watchers:
            self._call_watchers()

    def _call_watchers(self) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:  # noqa: BLE001 - one watcher's trouble is not the next one's
                _log.error("a watcher of events failed", traceback=traceback.format_exc())

    def watch(self, watcher: Callable[[], None]) -> None:
        """Calls it whenever there are new events."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Stops calling it."""
        self._watchers.pop(watcher, None)

    @property
    def watchers_count(self) -> int:
        """The number of watchers."""
        return len(self._watchers)

    def is_recent(self, seq: int) -> bool:
        """Whether the events after a sequence number are in memory."""
        return seq >= self.published_seq - len(self._recent)

    def after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The events after a sequence number, in order; from memory if possible."""
        if seq >= self.last_seq:
            return ()
        recent = self._recent
        before = self.published_seq - len(recent)  # the number before that of the first
        if recent and before <= seq:
            start = seq - before
            stop = min(len(recent), start + count_max)
            # By index: readers are near the end, and iterating would start at the beginning.
            return [
                StoredEvent(before + index + 1, event_of(recent[index]))
                for index in range(start, stop)
            ]
        return self._store.events_after(seq, count_max)

    def before(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The latest events before a sequence number, in order."""
        start = max(0, seq - 1 - count_max)
        return [row for row in self.after(start, count_max) if row.seq < seq]

    def of_job(self, job_id: str) -> list[Event]:
        """The newest events about one job; older ones are not searched."""
        return [event_of(entry) for entry in self._recent if entry.job_id == job_id]

"""The event log as watchers see it: committed events, by sequence number, from any point on.

The newest events are kept in memory; older ones come from the store. Watchers are told that there
is news and read at their own pace: nobody's slowness costs more than a place in a list.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from manyhands.model.events import Event
from manyhands.store.store import Store, StoredEvent

_log = structlog.get_logger("manyhands.events")
RECENT_COUNT_MAX: Final = 20_000


class EventLog:
    """Cursors read here: the AMQP relay and endpoint, server-sent events, the UI."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: deque[Event] = deque(maxlen=RECENT_COUNT_MAX)
        self._watchers: dict[Callable[[], None], None] = {}
        self.last_seq = store.last_seq()

    def publish(self, events: Sequence[Event], last_seq: int) -> None:
        """These were committed, the last one with this number."""
        if not events:
            return
        self._recent.extend(events)
        self.last_seq = last_seq
        if self._watchers:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:  # noqa: BLE001 - one watcher's trouble is not the next one's
                _log.error("a watcher of events failed", traceback=traceback.format_exc())

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call it whenever there is news."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._watchers.pop(watcher, None)

    @property
    def watchers_count(self) -> int:
        """Those that wait for news."""
        return len(self._watchers)

    def after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The events that follow a sequence number, in order; from memory where they are there."""
        if seq >= self.last_seq:
            return ()
        recent = self._recent
        before = self.last_seq - len(recent)  # the number before that of the first
        if recent and before <= seq:
            start = seq - before
            stop = min(len(recent), start + count_max)
            # By index: readers are near the end, and iterating would walk there from the start.
            return [StoredEvent(before + index + 1, recent[index]) for index in range(start, stop)]
        return self._store.events_after(seq, count_max)

    def before(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The events that come before a sequence number, the latest ones, in order."""
        start = max(0, seq - 1 - count_max)
        return [row for row in self.after(start, count_max) if row.seq < seq]

    def of_job(self, job_id: str) -> list[Event]:
        """What the newest events tell about one job; older ones are not looked through."""
        return [event for event in self._recent if event.job_id == job_id]

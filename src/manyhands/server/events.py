"""The event log as watchers see it: committed events, by sequence number, from any point on.

The newest events are kept in memory; older ones come from the store. Watchers are told that there
is news and read at their own pace: nobody's slowness costs more than a place in a list.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from manyhands.model.events import Event
from manyhands.store.store import Store, StoredEvent

RECENT_COUNT_MAX: Final = 20_000


class EventLog:
    """Cursors read here: the AMQP relay and endpoint, server-sent events, the UI."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: deque[StoredEvent] = deque(maxlen=RECENT_COUNT_MAX)
        self._watchers: dict[Callable[[], None], None] = {}
        self.last_seq = store.last_seq()

    def publish(self, events: Sequence[tuple[int, Event]]) -> None:
        """These were committed."""
        if not events:
            return
        for seq, event in events:
            self._recent.append(StoredEvent(seq, event))
        self.last_seq = events[-1][0]
        for watcher in tuple(self._watchers):
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call it whenever there is news."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._watchers.pop(watcher, None)

    def after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The events that follow a sequence number, in order; from memory where they are there."""
        if seq >= self.last_seq:
            return ()
        recent = self._recent
        if recent and recent[0].seq <= seq + 1:
            start = seq + 1 - recent[0].seq
            stop = min(len(recent), start + count_max)
            return [recent[i] for i in range(start, stop)]
        return self._store.events_after(seq, count_max)

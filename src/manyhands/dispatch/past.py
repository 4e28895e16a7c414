"""Reading far back in the event log without holding up other clients: a page at a time, one reader
after the other, files outside the event loop.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from manyhands.dispatch.events import EventLog
from manyhands.store.contract import Store, StoredEvent


class Past:
    """The log for readers that can wait."""

    def __init__(self, log: EventLog, store: Store) -> None:
        self._log = log
        self._store = store
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A turn to read and handle a page. Other readers wait in order, and the event loop gets as
        much time again for everything else.
        """
        async with self._lock:
            began = time.perf_counter()  # the loop's own clock counts whole milliseconds
            yield
            await asyncio.sleep(time.perf_counter() - began)

    async def read(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """The events that follow a sequence number, in order."""
        if not self._log.is_recent(seq):
            found = await asyncio.to_thread(self._store.past_events, seq, count_max)
            if found:
                return found
        return self._log.after(seq, count_max)

"""The database as the cluster sees it: statements run in threads, and call back in the loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from manyhands.cluster.contract import FencedError
from manyhands.cluster.membership import Beat, Tenure
from manyhands.store.contract import StoreError, StoreFencedError
from manyhands.store.mirror import Mirror, Original
from manyhands.store.postgres.shared import Loaded, Row, Seats, SharedStore

# Jobs that are taken in before others get their turn: about 10 ms.
_PART_JOBS: Final = 2_000


class Database:
    """Implements ``Shared`` on PostgreSQL. Beats have a connection and a thread of their own."""

    def __init__(
        self, store: SharedStore, loop: asyncio.AbstractEventLoop, now: Callable[[], int]
    ) -> None:
        self._now = now
        self.tenure = store.tenure
        self._store = store
        self._loop = loop
        self._beats = Seats(store)
        self._seats = Seats(store)
        self.cluster = self._seats.cluster()
        self._beat_thread = ThreadPoolExecutor(1, thread_name_prefix="manyhands-beat")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="manyhands-cluster")

    def _run(
        self, thread: ThreadPoolExecutor, work: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        def run() -> None:
            try:
                found = work()
            except StoreFencedError as error:
                found = FencedError(str(error))
            except (psycopg.Error, StoreError, OSError) as error:
                found = error
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, found)

        thread.submit(run)

    def beat(self, load: str, done: Callable[[Beat | Exception], None]) -> None:
        def work() -> Beat:
            found = self._beats.beat(load)
            rows = tuple(_tenure(row) for row in found.rows)
            return Beat(rows, found.owner, found.epoch, found.now)

        self._run(self._beat_thread, work, done)

    def take_over(self, dead: Tenure, done: Callable[[bool | Exception], None]) -> None:
        row = Row(
            dead.tenure,
            dead.server,
            dead.incarnation,
            dead.address,
            dead.beats,
            dead.state,
            dead.version,
            dead.began_at,
            dead.closed_by,
            dead.process,
            "",
        )
        self._run(self._thread, lambda: self._seats.take_over(row), done)

    def claim(self, done: Callable[[bool | Exception], None]) -> None:
        self._run(self._thread, self._seats.claim, done)

    def load(self, done: Callable[[int | Exception], None]) -> None:
        def loaded(found: Loaded | Exception) -> None:
            if isinstance(found, Exception):
                done(found)
            else:
                self._take_in(found, done)

        self._run(self._thread, self._store.load_all, loaded)

    def _take_in(self, loaded: Loaded, done: Callable[[int | Exception], None]) -> None:
        """Copies what was loaded into the live jobs, a part in each turn of the loop."""
        mirror = Mirror(self._store.live)
        original = Original(loaded.index)
        parts = original.parts(_PART_JOBS)
        mirror.begin()

        def go_on() -> None:
            part = next(parts, None)
            if part is not None:
                mirror.take(part, loaded.index.serial, loaded.index.position)
                self._loop.call_soon(go_on)
                return
            mirror.end(original.graphs)
            mirror.count(original.counts(all_of_them=True))
            self._store.take_up(loaded)
            alive_at = loaded.counters.alive_at
            # Less than nothing if the database's clock was set back: leases keep what was left.
            done(self._now() - alive_at if alive_at else 0)

        go_on()

    def hand_over(
        self, to: int | None, done: Callable[[bool | Exception], None], *, leaves: bool
    ) -> None:
        self._store.set_decides(False)

        def work() -> bool:
            self._store.drain()
            return self._seats.hand_over(to, leaves=leaves)

        self._run(self._thread, work, done)

    def close(self) -> None:
        """Lets everything go, at the end."""
        for thread in (self._beat_thread, self._thread):
            thread.shutdown(wait=True, cancel_futures=True)
        self._beats.close()
        self._seats.close()


def _tenure(row: Row) -> Tenure:
    # A server without a cluster listener names its machine only.
    address = row.address if ":" in row.address else ""
    return Tenure(
        row.tenure,
        row.server,
        row.incarnation,
        address,
        row.beats,
        row.state,
        row.version,
        row.began_at,
        row.closed_by,
        row.process,
        row.load,
    )

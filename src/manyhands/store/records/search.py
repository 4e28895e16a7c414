"""Listings from the records: the database walks over the rows that an index finds and filters
them. A search is limited in time, and says where to continue.
"""

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from manyhands.model.filter import Filter, Order
from manyhands.model.job import FINISHED, Job, State
from manyhands.store.contract import SEARCH_SECONDS_MAX, Page, Selection
from manyhands.store.index.live import Index
from manyhands.store.records.queries import Place, all_jobs, jobs_at, place_beside, where
from manyhands.store.records.reading import Records

_SLICE_ROWS: Final = 1_000  # at most; the first slice is as long as the page
# Where rows of many places are merged, a page needs only a few of each.
_FIRST_ROWS_OF_MANY: Final = 8
# With more (queue, state) pairs than this, a walk over all rows is cheaper.
_PLACES_MAX: Final = 5_000
_TAILS_MAX: Final = 200  # ids with the same end that are looked up one by one
_SERIAL_MAX: Final = (1 << 63) - 1

# A serial and the row of a job, or None if all rows up to that serial were looked at, or nothing if
# the rows of a place begin after it.
_Step = tuple[int, Sequence[Any] | None]
_BEGINS: Final[Sequence[Any]] = ()


def search(reader: Records, index: Index, wanted: Filter, seconds_max: float) -> Page:
    """A page of a listing. The index only helps to find jobs; the page shows committed values."""
    newest = wanted.order is Order.NEWEST
    # A time limit of a query, which decides nothing about any job, so it need not be the server's
    # clock.
    give_up_at = time.perf_counter() + seconds_max
    streams = _Search(reader, wanted).streams(index)
    found: list[Job] = []
    for serial, row in heapq.merge(*streams, key=itemgetter(0), reverse=newest):
        if row is None:
            if time.perf_counter() > give_up_at:
                return Page(tuple(found), serial, complete=False)
            continue
        job = reader.whole_job(row) if row else None
        if job is not None:
            if len(found) == wanted.count_max:
                return Page(tuple(found), found[-1].serial)
            found.append(job)
    return Page(tuple(found), None)


def select(reader: Records, index: Index, wanted: Filter) -> Selection:
    """The ids of the jobs of a listing, without reading payloads or records."""
    newest = wanted.order is Order.NEWEST
    give_up_at = time.perf_counter() + SEARCH_SECONDS_MAX
    streams = _Search(reader, wanted, "jobs.serial, jobs.job_id").streams(index)
    found: list[tuple[int, str]] = []
    for serial, row in heapq.merge(*streams, key=itemgetter(0), reverse=newest):
        if row is None:
            if time.perf_counter() > give_up_at:
                return Selection(tuple(found), serial, complete=False)
            continue
        if not row:
            continue
        if len(found) == wanted.count_max:
            return Selection(tuple(found), found[-1][0])
        found.append((serial, row[1]))
    return Selection(tuple(found), None)


class _Search:
    """One search: the streams of matching rows."""

    def __init__(self, reader: Records, wanted: Filter, columns: str = "") -> None:
        dialect = self._dialect = reader.dialect
        self._reader = reader
        self._wanted = wanted
        self._newest = wanted.order is Order.NEWEST
        shown = wanted.payload_bytes
        if columns or shown is None:
            self._columns = columns or dialect.columns
        else:
            self._columns = dialect.cut(shown) if shown else dialect.weighed_columns

    def streams(self, index: Index) -> list[Iterator[_Step]]:
        """Streams of rows in order, as few as possible."""
        wanted = self._wanted
        dialect = self._dialect
        beside = place_beside(dialect, wanted)
        if beside is not None:
            return [self._walk(beside)]
        if wanted.id_tail is not None:
            ids = self._ids_with(wanted.id_tail)
            if len(ids) < _TAILS_MAX:
                return [self._jobs(ids)]
        states = wanted.states or tuple(State)
        streams = []
        if wanted.unique_key is not None:
            # An unfinished job is found by its key; only finished ones need a walk.
            streams.append(self._jobs(_key_holders(index, wanted.unique_key)))
            states = tuple(state for state in states if state in FINISHED)
        if wanted.retrying:
            return self._merged(
                place
                for place in index.retrying.places()
                if wanted.queue in (None, place[0]) and State(place[1]) in states
            )
        queues = index.recorded_queues() if wanted.queue is None else [wanted.queue]
        if wanted.queue is None and states == tuple(State):
            streams.append(self._walk(all_jobs(dialect)))
        elif len(queues) * len(states) > _PLACES_MAX:
            narrowed = where(dialect, Filter(states=states))
            streams.append(self._walk(all_jobs(dialect, narrowed.sql, narrowed.values)))
        else:
            streams += self._merged(
                (queue, state.value) for queue in queues for state in dict.fromkeys(states)
            )
        return streams

    def _ids_with(self, tail: str) -> list[str]:
        """Ids that end so. They alone are read, which is much quicker than a walk over the rows;
        a tail that many have is found by a walk.
        """
        ends = where(self._dialect, Filter(id_tail=tail))
        jobs = f"{self._dialect.prefix}jobs"
        statement = f"SELECT jobs.job_id FROM {jobs} WHERE {ends.sql} LIMIT {_TAILS_MAX}"  # noqa: S608
        return [row[0] for row in self._reader.rows(statement, ends.values)]

    def _merged(self, places: Iterable[tuple[str, str]]) -> list[Iterator[_Step]]:
        """The rows of several queues and states. One statement finds where each begins: a place is
        not read before the walk has come to it, so most are never read.
        """
        best, beyond = ("max", "<") if self._newest else ("min", ">")
        dialect = self._dialect
        queue, state = dialect.place_columns
        heads = (
            f"SELECT (SELECT {best}(serial) FROM {dialect.prefix}jobs WHERE queue = {queue}"  # noqa: S608
            f" AND state = {state} AND serial {beyond} ?), {queue}, {state} FROM {dialect.places}"
        )
        found = self._reader.rows(heads, (self._start(), *dialect.place_values(list(places))))
        begun = [row for row in found if row[0] is not None]
        rows = _FIRST_ROWS_OF_MANY if len(begun) > 1 else _SLICE_ROWS
        return [
            self._from_head(
                head, jobs_at(dialect, dialect.text(queue), state, "queue", "states"), rows
            )
            for head, queue, state in begun
        ]

    def _from_head(self, head: int, place: Place, rows_max: int) -> Iterator[_Step]:
        yield (head + 1 if self._newest else head - 1), _BEGINS
        yield from self._walk(place, rows_max)

    def _jobs(self, job_ids: Sequence[str]) -> Iterator[_Step]:
        """These jobs, if they match and come after the previous page."""
        after = self._start()
        narrowed = where(self._dialect, self._wanted)
        jobs = f"{self._dialect.prefix}jobs"
        statement = f"SELECT {self._columns} FROM {jobs} WHERE jobs.job_id = ? AND {narrowed.sql}"  # noqa: S608
        rows: list[Sequence[Any]] = []
        for job_id in job_ids:
            rows += self._reader.rows(statement, (job_id, *narrowed.values))
        rows.sort(key=itemgetter(0), reverse=self._newest)
        for row in rows:
            if row[0] < after if self._newest else row[0] > after:
                yield row[0], row

    def _start(self) -> int:
        after = self._wanted.after
        if after is not None:
            return after
        return _SERIAL_MAX if self._newest else 0

    def _walk(self, place: Place, first_rows: int | None = None) -> Iterator[_Step]:
        """All matching rows of a place, slice by slice, so that no snapshot is held for long and
        the walk can stop at any time.
        """
        direction, beyond, within = ("DESC", "<", ">=") if self._newest else ("ASC", ">", "<=")
        bound = (
            f"SELECT {place.serial} FROM {place.walked} WHERE {place.sql}"  # noqa: S608
            f" AND {place.serial} {beyond} ? ORDER BY {place.serial} {direction} LIMIT 1 OFFSET ?"
        )
        narrowed = where(self._dialect, self._wanted, place.fields)
        rows = (
            f"SELECT {self._columns} FROM {place.tables} WHERE {place.sql}"  # noqa: S608
            f" AND {place.serial} {beyond} ? AND {place.serial} {within} ? AND {narrowed.sql}"
            f" ORDER BY {place.serial} {direction}"
        )
        read = self._reader.rows
        start = self._start()
        last = 0 if self._newest else _SERIAL_MAX
        length = min(first_rows or _SLICE_ROWS, _SLICE_ROWS, self._wanted.count_max + 1)
        while True:
            ends = read(bound, (*place.values, start, length - 1))
            stop = ends[0][0] if ends else last
            for row in read(rows, (*place.values, start, stop, *narrowed.values)):
                yield row[0], row
            if not ends:
                return
            yield stop, None
            start = stop
            length = min(_SLICE_ROWS, 4 * length)


def _key_holders(index: Index, key: bytes) -> list[str]:
    """Unfinished jobs that hold a unique key. Runs in a thread, hence the copy."""
    holders = (queue.keys.get(key) for queue in list(index.queues.values()))
    return [job_id for job_id in holders if job_id is not None]

"""How many jobs match a filter, by state: counted in the database, newest first, until the time is
up. Rows that were not reached are not estimated.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from manyhands.model.filter import Filter
from manyhands.model.job import State
from manyhands.store.contract import Counted
from manyhands.store.index.live import Index
from manyhands.store.records.queries import (
    Place,
    Where,
    all_jobs,
    given,
    jobs_at,
    place_beside,
    where,
)
from manyhands.store.records.reading import Dialect, Records

_SLICE_ROWS: Final = 2_000
_SERIAL_MAX: Final = (1 << 63) - 1


def count_by_state(reader: Records, index: Index, wanted: Filter, seconds_max: float) -> Counted:
    """The number of jobs by state. The filter's own states are ignored, because the counts are by
    state.
    """
    counts = dict.fromkeys(State, 0)
    if not any(given(wanted, ("states", "queue"))):
        _count_queues(index, wanted.queue, counts)
        return Counted(counts)
    if wanted.retrying and not any(given(wanted, ("states", "queue", "retrying"))):
        for queue, state in index.retrying.places():
            if wanted.queue in (None, queue):
                counts[State(state)] += index.retrying.counts_of(queue)[State(state)]
        return Counted(counts)
    # A time limit of a query, which decides nothing about any job, so it need not be the server's
    # clock.
    give_up_at = time.perf_counter() + seconds_max
    dialect = reader.dialect
    places = tuple(_places(dialect, index, wanted))
    for place in places:
        for rows, more in _slices(reader, place, where(dialect, wanted, ("states", *place.fields))):
            for state, count in rows:
                counts[State(state)] += count
            if (more or place is not places[-1]) and time.perf_counter() > give_up_at:
                return Counted(counts, complete=False)
    return Counted(counts)


def _count_queues(index: Index, queue: str | None, counts: dict[State, int]) -> None:
    """Adds up the counts of the index. Runs in a thread, hence the copies."""
    for name in index.recorded_queues():
        if queue not in (None, name):
            continue
        for state, count in tuple(index.counts_of(name).items()):
            counts[state] += count


def _places(dialect: Dialect, index: Index, wanted: Filter) -> Iterator[Place]:
    """Where to look, as narrow as an index allows."""
    beside = place_beside(dialect, wanted)
    if beside is not None:
        yield beside
    elif wanted.retrying:
        for queue, state in index.retrying.places():
            if wanted.queue in (None, queue):
                yield jobs_at(dialect, queue, state, "queue")
    elif wanted.queue is not None:
        for state in State:
            yield jobs_at(dialect, wanted.queue, state, "queue")
    else:
        yield all_jobs(dialect)


def _slices(reader: Records, place: Place, narrowed: Where) -> Iterator[tuple[list[Any], bool]]:
    """Counts slice by slice, each with whether there is more."""
    bound = (
        f"SELECT {place.serial} FROM {place.walked} WHERE {place.sql} AND {place.serial} < ?"  # noqa: S608
        f" ORDER BY {place.serial} DESC LIMIT 1 OFFSET {_SLICE_ROWS - 1}"
    )
    rows = (
        f"SELECT jobs.state, count(*) FROM {place.tables} WHERE {place.sql}"  # noqa: S608
        f" AND {place.serial} < ? AND {place.serial} >= ? AND {narrowed.sql} GROUP BY jobs.state"
    )
    start = _SERIAL_MAX
    while True:
        ends = reader.rows(bound, (*place.values, start))
        stop = ends[0][0] if ends else 0
        yield reader.rows(rows, (*place.values, start, stop, *narrowed.values)), bool(ends)
        if not ends:
            return
        start = stop

"""Listings from the file: narrowed by an index and by plain looks at the rows, then decided job by
job. A search that finds little is bounded by time and says where to go on.
"""

import heapq
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from manyhands.model.job import FINISHED, Job, State
from manyhands.store.index import Index
from manyhands.store.matching import matches
from manyhands.store.reading import Reader
from manyhands.store.rows import COLUMNS, PAYLOAD, RECORD_COLUMNS
from manyhands.store.store import SEARCH_SECONDS_MAX, Filter, Order, Page, Selection

_SLICE_ROWS: Final = 1_000  # at most; the first slice is as long as the page
# Beyond this many (queue, state) pairs it is cheaper to walk over all rows.
_PLACES_MAX: Final = 500
_SERIAL_MAX: Final = (1 << 63) - 1

_encode = msgspec.json.Encoder().encode
# A serial, and the row of a job; or None: up to that serial all has been looked at.
_Step = tuple[int, Sequence[Any] | None]


def search(reader: Reader, index: Index, wanted: Filter, seconds_max: float) -> Page:
    """A page of a listing. The index only helps to find: what is shown is what was committed."""
    newest = wanted.order is Order.NEWEST
    # This bounds an effort and decides nothing about any job, so it need not be the server's clock.
    give_up_at = time.perf_counter() + seconds_max
    streams = _Search(reader, wanted).streams(index)
    found: list[Job] = []
    for serial, row in heapq.merge(*streams, key=itemgetter(0), reverse=newest):
        if row is None:
            if time.perf_counter() > give_up_at:
                return Page(tuple(found), serial, complete=False)
            continue
        job = reader.make_job(row)
        if matches(job, wanted):
            if len(found) == wanted.count_max:
                return Page(tuple(found), found[-1].serial)
            found.append(job)
    return Page(tuple(found), None)


def select(reader: Reader, index: Index, wanted: Filter) -> Selection:
    """The ids of the jobs of a listing. Payloads are not read, and records only if need be."""
    exact = _is_exact(wanted)
    columns = "serial, jobs.job_id" if exact else f"{RECORD_COLUMNS}, x'', NULL"
    newest = wanted.order is Order.NEWEST
    give_up_at = time.perf_counter() + SEARCH_SECONDS_MAX
    streams = _Search(reader, wanted, columns).streams(index)
    rest = replace(wanted, text=None)  # looked for by SQLite, and exactly so
    found: list[tuple[int, str]] = []
    for serial, row in heapq.merge(*streams, key=itemgetter(0), reverse=newest):
        if row is None:
            if time.perf_counter() > give_up_at:
                return Selection(tuple(found), serial, complete=False)
            continue
        job_id = row[1] if exact else _id_if(reader.make_job(row), rest)
        if job_id is None:
            continue
        if len(found) == wanted.count_max:
            return Selection(tuple(found), found[-1][0])
        found.append((serial, job_id))
    return Selection(tuple(found), None)


def _is_exact(wanted: Filter) -> bool:
    """Whether SQLite checks every condition, and so that nothing is left to be looked at."""
    beside = (wanted.tag, wanted.failure, wanted.failure_code)
    return wanted.worker is None and sum(value is not None for value in beside) <= 1


def _id_if(job: Job, wanted: Filter) -> str | None:
    return job.job_id if matches(job, wanted) else None


class _Search:
    """One search: the conditions that SQLite can check, and the streams of rows to look at."""

    def __init__(self, reader: Reader, wanted: Filter, columns: str = COLUMNS) -> None:
        self._reader = reader
        self._columns = columns
        self._wanted = wanted
        self._newest = wanted.order is Order.NEWEST
        if wanted.payload_bytes is not None and columns is COLUMNS:
            # SQLite takes a part of nothing for NULL.
            cut = f"coalesce(substr({PAYLOAD}, 1, {wanted.payload_bytes}), x'')"
            self._columns = f"{RECORD_COLUMNS}, {cut}, NULL"
        self._conditions: list[str] = []
        self._values: list[str | bytes | int] = []
        self._narrow()

    def _narrow(self) -> None:
        """Conditions that let pass at least what the filter wants; they need not be exact."""
        wanted = self._wanted
        if wanted.name is not None:
            self._add("name = ?", wanted.name)
        if wanted.text is not None:
            self._add(f"instr({PAYLOAD}, ?) > 0", wanted.text.encode())
        if wanted.unique_key is not None:
            self._add("unique_key = ?", wanted.unique_key)
        if wanted.worker is not None:
            # As it stands in the text of a record.
            self._add("instr(record, ?) > 0", '"name":' + _encode(wanted.worker).decode())
        if wanted.realm is not None:
            self._add("realm = ?", wanted.realm)
        if wanted.submitted_before is not None:
            self._add("submitted_at < ?", wanted.submitted_before)
        if wanted.submitted_after is not None:
            self._add("submitted_at > ?", wanted.submitted_after)

    def _narrow_place(self) -> None:
        """Queue and states, where rows are not found by them."""
        wanted = self._wanted
        if wanted.queue is not None:
            self._add("jobs.queue = ?", wanted.queue)
        if wanted.states:
            marks = ", ".join("?" * len(wanted.states))
            self._conditions.append(f"jobs.state IN ({marks})")
            self._values += wanted.states

    def _add(self, condition: str, value: str | bytes | int) -> None:
        self._conditions.append(condition)
        self._values.append(value)

    def streams(self, index: Index) -> list[Iterator[_Step]]:
        """Rows in order, from as few places as possible."""
        wanted = self._wanted
        beside = (
            ("tags", "tag", wanted.tag),
            ("failures", "group_id", wanted.failure),
            ("failures", "code", wanted.failure_code),
        )
        for table, column, value in beside:
            if value is not None:
                self._narrow_place()
                tables = f"{table} CROSS JOIN jobs USING(serial)"
                return [self._walk(f"{table}.{column} = ?", (value,), tables)]
        states = wanted.states or tuple(State)
        known: list[str] = []
        if wanted.unique_key is not None:
            # An unfinished job is found by its key; only finished ones need a walk.
            known = _key_holders(index, wanted.unique_key)
            states = tuple(state for state in states if state in FINISHED)
        streams = [self._jobs(known)]
        queues = index.recorded_queues() if wanted.queue is None else [wanted.queue]
        if wanted.queue is None and states == tuple(State):
            streams.append(self._walk("TRUE", ()))
        elif len(queues) * len(states) > _PLACES_MAX:
            marks = ", ".join("?" * len(states))
            streams.append(self._walk(f"state IN ({marks})", states))
        else:
            streams += [
                self._walk("queue = ? AND state = ?", (queue, state))
                for queue in queues
                for state in dict.fromkeys(states)
            ]
        return streams

    def _jobs(self, job_ids: Sequence[str]) -> Iterator[_Step]:
        """These jobs, if they come after the page before."""
        after = self._start()
        rows: list[Sequence[Any]] = []
        for job_id in job_ids:
            conditions = " AND ".join(["jobs.job_id = ?", *self._conditions])
            statement = f"SELECT {self._columns} FROM jobs WHERE {conditions}"  # noqa: S608
            rows += self._reader.rows(statement, (job_id, *self._values))
        rows.sort(key=itemgetter(0), reverse=self._newest)
        for row in rows:
            if row[0] < after if self._newest else row[0] > after:
                yield row[0], row

    def _start(self) -> int:
        after = self._wanted.after
        if after is not None:
            return after
        return _SERIAL_MAX if self._newest else 0

    def _walk(self, place: str, values: Sequence[Any], tables: str = "jobs") -> Iterator[_Step]:
        """All rows of a place that pass the conditions, slice by slice, so that no snapshot is
        held for long and the walk can be left at any time.
        """
        direction, beyond, within = ("DESC", "<", ">=") if self._newest else ("ASC", ">", "<=")
        bound = (
            f"SELECT serial FROM {tables} WHERE {place} AND serial {beyond} ?"  # noqa: S608
            f" ORDER BY serial {direction} LIMIT 1 OFFSET ?"
        )
        conditions = " AND ".join([place, f"serial {beyond} ?", f"serial {within} ?"])
        conditions = " AND ".join([conditions, *self._conditions])
        rows = (
            f"SELECT {self._columns} FROM {tables} WHERE {conditions}"  # noqa: S608
            f" ORDER BY serial {direction}"
        )
        read = self._reader.rows
        start = self._start()
        last = 0 if self._newest else _SERIAL_MAX
        length = min(_SLICE_ROWS, self._wanted.count_max + 1)
        while True:
            ends = read(bound, (*values, start, length - 1))
            stop = ends[0][0] if ends else last
            for row in read(rows, (*values, start, stop, *self._values)):
                yield row[0], row
            if not ends:
                return
            yield stop, None
            start = stop
            length = min(_SLICE_ROWS, 4 * length)


def _key_holders(index: Index, key: bytes) -> list[str]:
    """Unfinished jobs that hold a unique key. This runs beside the loop, hence the copy."""
    holders = (queue.keys.get(key) for queue in list(index.queues.values()))
    return [job_id for job_id in holders if job_id is not None]

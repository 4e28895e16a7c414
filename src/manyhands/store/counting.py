"""How many jobs a filter finds, by state: by SQLite alone, newest first, for as long as there is
time. What was not looked at in time is not guessed.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from manyhands.model.job import State
from manyhands.store.index import Index
from manyhands.store.reading import Reader
from manyhands.store.rows import PAYLOAD
from manyhands.store.store import Counted, Filter

_SLICE_ROWS: Final = 2_000
_IN_QUEUE: Final = "jobs.queue = ?"
_SERIAL_MAX: Final = (1 << 63) - 1
_Place = tuple[str, str, tuple[Any, ...]]  # tables, condition, its values

_encode = msgspec.json.Encoder().encode


def count_by_state(reader: Reader, index: Index, wanted: Filter, seconds_max: float) -> Counted:
    """Jobs by state. The states that the filter names do not narrow it: they are what is counted
    apart.
    """
    counts = dict.fromkeys(State, 0)
    if _conditions(wanted)[0] in ("TRUE", _IN_QUEUE) and wanted.tag is None and not _failed(wanted):
        _count_queues(index, wanted.queue, counts)
        return Counted(counts)
    # This bounds an effort and decides nothing about any job, so it need not be the server's clock.
    give_up_at = time.perf_counter() + seconds_max
    conditions, values = _conditions(wanted)
    places = tuple(_places(wanted))
    for place in places:
        for rows, more in _slices(reader, place, conditions, values):
            for state, count in rows:
                counts[State(state)] += count
            if (more or place is not places[-1]) and time.perf_counter() > give_up_at:
                return Counted(counts, complete=False)
    return Counted(counts)


def _failed(wanted: Filter) -> bool:
    return wanted.failure is not None or wanted.failure_code is not None


def _count_queues(index: Index, queue: str | None, counts: dict[State, int]) -> None:
    """From what is counted anyway. This runs beside the loop, hence the copies."""
    for name in index.recorded_queues():
        if queue not in (None, name):
            continue
        for state, count in tuple(index.counts_of(name).items()):
            counts[state] += count


def _places(wanted: Filter) -> Iterator[_Place]:
    """Where to look, as narrow as an index allows."""
    if wanted.tag is not None:
        yield "tags CROSS JOIN jobs USING(serial)", "tag = ?", (wanted.tag,)
    elif wanted.failure is not None:
        tables = "failures CROSS JOIN jobs USING(serial)"
        yield tables, "failures.group_id = ?", (wanted.failure,)
    elif wanted.failure_code is not None:
        yield "failures CROSS JOIN jobs USING(serial)", "code = ?", (wanted.failure_code,)
    elif wanted.queue is not None:
        for state in State:
            yield "jobs", "jobs.queue = ? AND jobs.state = ?", (wanted.queue, state.value)
    else:
        yield "jobs", "TRUE", ()


def _slices(
    reader: Reader, place: _Place, conditions: str, values: Sequence[Any]
) -> Iterator[tuple[list[Any], bool]]:
    """Counts of some rows, and whether there are more."""
    tables, where, given = place
    bound = (
        f"SELECT serial FROM {tables} WHERE {where} AND serial < ?"  # noqa: S608
        f" ORDER BY serial DESC LIMIT 1 OFFSET {_SLICE_ROWS - 1}"
    )
    rows = (
        f"SELECT jobs.state, count(*) FROM {tables} WHERE {where} AND serial < ?"  # noqa: S608
        f" AND serial >= ? AND {conditions} GROUP BY jobs.state"
    )
    start = _SERIAL_MAX
    while True:
        ends = reader.rows(bound, (*given, start))
        stop = ends[0][0] if ends else 0
        yield reader.rows(rows, (*given, start, stop, *values)), bool(ends)
        if not ends:
            return
        start = stop


def _conditions(wanted: Filter) -> tuple[str, list[Any]]:
    """The whole filter, exactly."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    if wanted.queue is not None:
        found.append((_IN_QUEUE, (wanted.queue,)))
    if wanted.name is not None:
        found.append(("name = ?", (wanted.name,)))
    if wanted.unique_key is not None:
        found.append(("unique_key = ?", (wanted.unique_key,)))
    if wanted.realm is not None:
        found.append(("realm = ?", (wanted.realm,)))
    if wanted.worker is not None:
        # A plain look first: it is quick, and passes only what names the worker somewhere.
        found.append(
            (
                "instr(record, ?) > 0 AND (record ->> '$.lease.holder.name' = ? OR EXISTS (SELECT 1"
                " FROM json_each(record, '$.attempts') WHERE value ->> '$.holder.name' = ?))",
                (
                    '"name":' + _encode(wanted.worker).decode(),
                    wanted.worker,
                    wanted.worker,
                ),
            )
        )
    if wanted.submitted_before is not None:
        found.append(("submitted_at < ?", (wanted.submitted_before,)))
    if wanted.submitted_after is not None:
        found.append(("submitted_at > ?", (wanted.submitted_after,)))
    if wanted.failure is not None and wanted.tag is not None:
        condition = "EXISTS (SELECT 1 FROM failures AS f WHERE f.serial = jobs.serial"
        found.append((condition + " AND f.group_id = ?)", (wanted.failure,)))
    if wanted.text is not None:
        found.append((f"instr({PAYLOAD}, ?) > 0", (wanted.text.encode(),)))
    text = " AND ".join(condition for condition, _ in found) or "TRUE"
    return text, [value for _, values in found for value in values]

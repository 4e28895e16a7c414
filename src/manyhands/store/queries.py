"""What each condition of a filter means, for a job in memory and for a row of the database.

Listings, counts and selections of every store use these definitions. A test compares both meanings
on random jobs and filters.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from manyhands.model.failures import group_of_job
from manyhands.model.filter import Filter
from manyhands.model.job import Job
from manyhands.store.sqlite.rows import PAYLOAD

_encode = msgspec.json.Encoder().encode


def _one(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any SQLite value
    return (value,)


class Meaning(Struct, frozen=True, kw_only=True):
    """What one field of a filter means."""

    field: str
    holds: Callable[[Job, Any], bool]
    sql: str  # for a row of `jobs`, exactly
    values: Callable[[Any], tuple[Any, ...]] = _one  # of its placeholders
    # An indexed column of another table that has the job's serial: a walk may begin there.
    beside: tuple[str, str] | None = None


def _beside(field: str, table: str, column: str, holds: Callable[[Job, Any], bool]) -> Meaning:
    sql = (
        f"EXISTS (SELECT 1 FROM {table} AS beside"  # noqa: S608 - our own words
        f" WHERE beside.serial = jobs.serial AND beside.{column} = ?)"
    )
    return Meaning(field=field, holds=holds, sql=sql, beside=(table, column))


def _has_worker(job: Job, name: str) -> bool:
    if job.lease is not None and job.lease.holder.name == name:
        return True
    return any(attempt.holder.name == name for attempt in job.attempts)


def _failed_alike(job: Job, group_id: str) -> bool:
    group = group_of_job(job)
    return group is not None and group.group_id == group_id


def _failed_with(job: Job, code: str) -> bool:
    group = group_of_job(job)
    return group is not None and group.code == code


def _has_header(job: Job, header: tuple[str, str]) -> bool:
    name, value = header
    return job.headers is not None and job.headers.get(name) == value


MEANINGS: Final = (
    # Where a walk can begin, the narrowest first.
    _beside("tag", "tags", "tag", lambda job, tag: tag in job.tags),
    _beside("failure", "failures", "group_id", _failed_alike),
    _beside("failure_code", "failures", "code", _failed_with),
    Meaning(field="queue", holds=lambda job, queue: job.queue == queue, sql="jobs.queue = ?"),
    Meaning(
        field="states",
        holds=lambda job, states: job.state in states,
        sql="jobs.state IN (SELECT value FROM json_each(?))",
        values=lambda states: (_encode(states).decode(),),
    ),
    Meaning(field="name", holds=lambda job, name: job.name == name, sql="jobs.name = ?"),
    Meaning(
        field="unique_key",
        holds=lambda job, key: job.unique_key == key,
        sql="jobs.unique_key = ?",
    ),
    Meaning(
        field="realm", holds=lambda job, realm: job.origin.realm == realm, sql="jobs.realm = ?"
    ),
    Meaning(
        field="submitted_before",
        holds=lambda job, at: job.submitted_at < at,
        sql="jobs.submitted_at < ?",
    ),
    Meaning(
        field="submitted_after",
        holds=lambda job, at: job.submitted_at > at,
        sql="jobs.submitted_at > ?",
    ),
    Meaning(
        field="worker",
        holds=_has_worker,
        # A plain search first: it is quick, and passes only records that contain the worker's name.
        # A damaged record must not end the search.
        sql=(
            "CASE WHEN instr(record, ?) > 0 AND json_valid(record)"
            " THEN record ->> '$.lease.holder.name' = ? OR EXISTS (SELECT 1"
            " FROM json_each(record, '$.attempts') WHERE value ->> '$.holder.name' = ?)"
            " ELSE FALSE END"
        ),
        values=lambda name: ('"name":' + _encode(name).decode(), name, name),
    ),
    Meaning(
        field="header",
        holds=_has_header,
        sql=(
            "CASE WHEN instr(record, ?) > 0 AND json_valid(record)"
            " THEN EXISTS (SELECT 1 FROM json_each(record, '$.headers')"
            " WHERE key = ? AND value = ?) ELSE FALSE END"
        ),
        values=lambda header: (_encode(dict([header]))[1:-1].decode(), *header),
    ),
    Meaning(
        field="text",
        holds=lambda job, text: text.encode() in job.payload,
        sql=f"instr({PAYLOAD}, ?) > 0",
        values=lambda text: (text.encode(),),
    ),
)


def given(wanted: Filter, without: Collection[str] = ()) -> Iterator[tuple[Meaning, Any]]:
    """The conditions of a filter, with their values; ``without`` leaves out fields."""
    for meaning in MEANINGS:
        value = getattr(wanted, meaning.field)
        if value is not None and value != () and meaning.field not in without:
            yield meaning, value


def matches(job: Job, wanted: Filter, without: Collection[str] = ()) -> bool:
    """Whether a job, given with its payload, meets every condition."""
    return all(meaning.holds(job, value) for meaning, value in given(wanted, without))


class Where(Struct, frozen=True):
    """Conditions for a statement, and the values of its placeholders."""

    sql: str
    values: tuple[Any, ...]


def where(wanted: Filter, without: Collection[str] = ()) -> Where:
    """All conditions, exactly."""
    found = tuple(given(wanted, without))
    return Where(
        " AND ".join(f"({meaning.sql})" for meaning, _ in found) or "TRUE",
        tuple(one for meaning, value in found for one in meaning.values(value)),
    )


class Place(Struct, frozen=True):
    """Rows that an index finds, in order of serial: tables, condition and values, and the fields of
    the filter that all of these rows match.
    """

    tables: str
    sql: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]


def place_beside(wanted: Filter) -> Place | None:
    """Where to walk, if the filter has a field that is indexed in another table."""
    for meaning, value in given(wanted):
        if meaning.beside is not None:
            table, column = meaning.beside
            tables = f"{table} CROSS JOIN jobs USING(serial)"
            return Place(tables, f"{table}.{column} = ?", (value,), (meaning.field,))
    return None

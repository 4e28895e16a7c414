"""What each condition of a filter means, for a job in memory and for a row of the database.

Listings, counts and selections of every store use these definitions. The SQL is SQLite's; where
another database says it differently, its dialect has the words. Tests compare the meanings on
random jobs and filters.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from manyhands.model.failures import group_of_job
from manyhands.model.filter import Filter
from manyhands.model.identity import is_job_id
from manyhands.model.job import FINISHED, Job
from manyhands.model.roles import Caller, Right
from manyhands.store.records.reading import Dialect

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
    return Meaning(field=field, holds=holds, sql=_sql_beside(table, column), beside=(table, column))


def _sql_beside(table: str, column: str) -> str:
    return (
        f"EXISTS (SELECT 1 FROM {table} AS beside"  # noqa: S608 - our own words
        f" WHERE beside.serial = jobs.serial AND beside.{column} = ?)"
    )


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


# As SQLite says it: a small payload is in the row of its job.
PAYLOAD: Final = (
    "coalesce(jobs.payload, (SELECT payload FROM payloads WHERE payloads.serial = jobs.serial))"
)
# Only a job's own failure is an object: that of an attempt is a text.
_HAS_FAILURE: Final = "instr(record, '\"failure\":{') > 0"
_TAIL_DIGITS_MIN: Final = 8  # of the end of an id, to look for it
_UNFINISHED: Final = "jobs.state NOT IN ('completed', 'failed', 'cancelled')"


def _is_retried(job: Job) -> bool:
    return job.failure is not None and job.state not in FINISHED


def _ends_id(text: str) -> bool:
    """Whether a text may be the end of an id: lists show no more of it."""
    return len(text) >= _TAIL_DIGITS_MIN and is_job_id(text.lower())


def _text_values(text: str) -> tuple[Any, ...]:
    tail = text.lower() if _ends_id(text) else ""
    return *(text.encode(),) * 4, -len(tail), tail


def _has_text(job: Job, text: str) -> bool:
    if text.encode() in job.payload or text in (job.name or ""):
        return True
    if _ends_id(text) and job.job_id.endswith(text.lower()):
        return True
    failure = job.failure
    return failure is not None and (text in failure.code or text in failure.message)


def fits(column: str) -> str:
    """Whether a queue fits one of some patterns, as SQLite says it."""
    patterns = "SELECT 1 FROM json_each(?) AS pattern"
    return f"EXISTS ({patterns} WHERE {column} GLOB pattern.value)"


def fits_values(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    """The patterns for it."""
    return (_encode([_glob(pattern) for pattern in patterns]).decode(),)


def _seen_by(caller: Caller) -> tuple[Any, ...]:
    sees_all = caller.has(Right.LOOK)
    mark = caller.signed("") if caller.has(Right.SUBMIT) else "\0"
    return *fits_values(caller.queues or ("*",)), int(sees_all), mark, f"{mark} ", f"{mark} "


def _glob(pattern: str) -> str:
    """The pattern in SQLite's words, where more than the star is special."""
    return re.sub(r"[\[?]", lambda found: f"[{found.group()}]", pattern)


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
    Meaning(
        field="seen_by",
        holds=lambda job, caller: caller.sees(job.queue, job.origin.name),
        sql=(
            f"{fits('jobs.queue')}"
            " AND (? OR jobs.submitter = ? OR substr(jobs.submitter, 1, length(?)) = ?)"
        ),
        values=_seen_by,
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
        field="id_tail",
        holds=lambda job, tail: job.job_id.endswith(tail),
        sql="substr(jobs.job_id, -length(?)) = ?",
        values=lambda tail: (tail, tail),
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
        holds=_has_text,
        # As bytes: a text may have a zero in it. A damaged record must not end the search.
        sql=(
            f"instr({PAYLOAD}, ?) > 0 OR instr(CAST(coalesce(jobs.name, '') AS BLOB), ?) > 0"
            f" OR CASE WHEN {_HAS_FAILURE} AND json_valid(record) THEN"
            " instr(CAST(record ->> '$.failure.code' AS BLOB), ?) > 0 OR"
            " instr(CAST(coalesce(record ->> '$.failure.message', '') AS BLOB), ?) > 0"
            " ELSE FALSE END OR substr(jobs.job_id, ?) = ?"
        ),
        values=_text_values,
    ),
    Meaning(
        field="retrying",
        holds=lambda job, retrying: _is_retried(job) is retrying,
        sql=f"({_UNFINISHED} AND {_HAS_FAILURE}) = ?",
        values=lambda retrying: (int(retrying),),
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


def where(dialect: Dialect, wanted: Filter, without: Collection[str] = ()) -> Where:
    """All conditions, exactly."""
    parts: list[str] = []
    values: list[Any] = []
    for meaning, value in given(wanted, without):
        sql, encode = dialect.conditions.get(meaning.field) or (meaning.sql, meaning.values)
        if meaning.beside is not None:
            table, column = meaning.beside
            sql = _sql_beside(dialect.prefix + table, column)
        parts.append(f"({sql})")
        values += encode(value)
    return Where(" AND ".join(parts) or "TRUE", tuple(values))


class Place(Struct, frozen=True):
    """Rows that an index finds, in order of serial: tables, condition and values, and the fields of
    the filter that all of these rows match.
    """

    tables: str
    sql: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]
    # The table with the index, and its serial. Where slices begin and end is read from it alone,
    # without a look at the jobs; and a range of any other serial could not use the index.
    walked: str
    serial: str = "jobs.serial"


def all_jobs(dialect: Dialect, sql: str = "TRUE", values: tuple[Any, ...] = ()) -> Place:
    """All jobs that meet a condition on their state."""
    fields = ("states",) if values else ()
    jobs = f"{dialect.prefix}jobs"
    return Place(jobs, sql, values, fields, jobs)


def jobs_at(dialect: Dialect, queue: str, state: str, *fields: str) -> Place:
    """The jobs of one queue in one state."""
    values = (dialect.name(queue), str(state))
    jobs = f"{dialect.prefix}jobs"
    return Place(jobs, "jobs.queue = ? AND jobs.state = ?", values, fields, jobs)


def place_beside(dialect: Dialect, wanted: Filter) -> Place | None:
    """Where to walk, if the filter has a field that is indexed in another table."""
    for meaning, value in given(wanted):
        if meaning.beside is not None:
            table, column = meaning.beside
            _, encode = dialect.conditions.get(meaning.field) or ("", meaning.values)
            walked = f"{dialect.prefix}{table} AS {table}"
            tables = f"{walked} JOIN {dialect.prefix}jobs AS jobs USING(serial)"
            if not dialect.prefix:
                tables = f"{table} CROSS JOIN jobs USING(serial)"  # SQLite walks in this order
            condition, fields = f"{table}.{column} = ?", (meaning.field,)
            return Place(tables, condition, encode(value), fields, walked, f"{table}.serial")
    return None

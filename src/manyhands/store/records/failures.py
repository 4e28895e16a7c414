"""Failed jobs grouped by error, counted from a table of their own.

The table has one small row per failed job on record, ordered by group, so that a million of them
are counted in a fraction of a second by a thread that only reads.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from manyhands.model.failures import Group, group_of_job
from manyhands.model.job import Job
from manyhands.model.roles import fits_any
from manyhands.store.contract import FailureGroup, FailureQuestion, Failures
from manyhands.store.records.reading import Records

HOUR_MS: Final = 3_600_000
TREND_HOURS: Final = 24
_SAMPLES_COUNT: Final = 5
_QUEUES_SHOWN: Final = 10


def read_failures(reader: Records, wanted: FailureQuestion) -> Failures:
    """Reads the groups. Call it within one snapshot, so that the numbers are consistent."""
    dialect = reader.dialect
    name = None if wanted.queue is None else dialect.name(wanted.queue)
    conditions, values = ["TRUE"], []
    for column, value in (("queue", name), ("group_id", wanted.group_id)):
        if value is not None:
            conditions.append(f"failures.{column} = ?")
            values.append(value)
    fits, patterns = "TRUE", ()
    if wanted.patterns:
        fits, patterns = dialect.fits("failures.queue"), dialect.fits_values(wanted.patterns)
        conditions.append(fits)
        values += patterns
    where = " AND ".join(conditions)
    order = "max(at)" if wanted.latest_first else "count(*)"
    rows = reader.rows(
        f"SELECT group_id, count(*), min(at), max(at) FROM {dialect.prefix}failures WHERE {where}"  # noqa: S608
        f" GROUP BY group_id ORDER BY {order} DESC, group_id",
        values,
    )
    groups = []
    for group_id, count, first_at, last_at in rows[: wanted.count_max]:
        only = (group_id, *([name] if name is not None else []), *patterns)
        inside = "group_id = ?" + (" AND failures.queue = ?" if name is not None else "")
        inside += f" AND {fits}"
        trend, queues = _spread(reader, inside, only, wanted.now)
        newest = _newest(reader, inside, only)
        group = _group(reader, group_id)
        groups.append(FailureGroup(group, count, first_at, last_at, trend, queues, newest))
    return Failures(tuple(groups), len(rows), sum(row[1] for row in rows))


def _group(reader: Records, group_id: str) -> Group:
    table, text = f"{reader.dialect.prefix}failure_groups", reader.dialect.text
    rows = reader.rows(f"SELECT code, line FROM {table} WHERE group_id = ?", (group_id,))  # noqa: S608
    code, line = rows[0]
    return Group(group_id, text(code), text(line))


def _spread(
    reader: Records, inside: str, values: Iterable[Any], now: int
) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """How many there are in each of the last hours, and in the queues with most of them: both from
    one walk over the group, which takes nearly all of the time.
    """
    since, text = _trend_start(now), reader.dialect.text
    rows = reader.rows(
        "WITH alike AS MATERIALIZED ("  # noqa: S608
        f"SELECT queue, CASE WHEN at >= {since} THEN (at - {since}) / {HOUR_MS} END AS hour,"
        f" count(*) AS jobs FROM {reader.dialect.prefix}failures WHERE {inside} GROUP BY 1, 2)"
        " SELECT * FROM (SELECT queue, CAST(NULL AS BIGINT), CAST(sum(jobs) AS BIGINT) FROM alike"
        f" GROUP BY queue ORDER BY 3 DESC, 1 LIMIT {_QUEUES_SHOWN}) AS largest"
        " UNION ALL SELECT NULL, hour, CAST(sum(jobs) AS BIGINT) FROM alike"
        " WHERE hour IS NOT NULL GROUP BY hour",
        tuple(values),
    )
    hours = {hour: count for queue, hour, count in rows if queue is None}
    queues = [(text(queue), count) for queue, _, count in rows if queue is not None]
    return _hours(hours), tuple(sorted(queues, key=lambda row: (-row[1], row[0])))


def _newest(reader: Records, inside: str, values: Iterable[Any]) -> tuple[str, ...]:
    prefix = reader.dialect.prefix
    join = (
        f"{prefix}failures JOIN {prefix}jobs USING(serial)"
        if prefix
        else "failures CROSS JOIN jobs USING(serial)"  # SQLite walks in this order
    )
    rows = reader.rows(
        f"SELECT job_id FROM {join} WHERE {inside} ORDER BY serial DESC LIMIT {_SAMPLES_COUNT}",  # noqa: S608
        tuple(values),
    )
    return tuple(row[0] for row in rows)


def read_codes(reader: Records) -> list[tuple[str, str, int]]:
    """The number of failed jobs on record by code and queue."""
    text, table = reader.dialect.text, f"{reader.dialect.prefix}failures"
    rows = reader.rows(f"SELECT code, queue, count(*) FROM {table} GROUP BY code, queue")  # noqa: S608
    return [(text(code), text(queue), count) for code, queue, count in rows]


def count_failures(jobs: Iterable[Job], wanted: FailureQuestion) -> Failures:
    """The same from jobs in memory."""
    alike: dict[Group, list[Job]] = {}
    for job in jobs:
        group = group_of_job(job)
        if (
            group is not None
            and wanted.queue in (None, job.queue)
            and wanted.group_id in (None, group.group_id)
            and fits_any(wanted.patterns, job.queue)
        ):
            alike.setdefault(group, []).append(job)
    groups = [_counted(group, found, wanted.now) for group, found in alike.items()]
    groups.sort(key=lambda row: row.group.group_id)
    groups.sort(key=lambda row: row.last_at if wanted.latest_first else row.count, reverse=True)
    total = sum(row.count for row in groups)
    return Failures(tuple(groups[: wanted.count_max]), len(groups), total)


def _counted(group: Group, jobs: list[Job], now: int) -> FailureGroup:
    instants = [job.finished_at or 0 for job in jobs]
    since = _trend_start(now)
    hours = Counter((at - since) // HOUR_MS for at in instants if at >= since)
    queues = sorted(Counter(job.queue for job in jobs).items(), key=lambda row: (-row[1], row[0]))
    newest = sorted(jobs, key=lambda job: -job.serial)[:_SAMPLES_COUNT]
    return FailureGroup(
        group,
        len(jobs),
        min(instants),
        max(instants),
        _hours(hours),
        tuple(queues[:_QUEUES_SHOWN]),
        tuple(job.job_id for job in newest),
    )


def _trend_start(now: int) -> int:
    return now - now % HOUR_MS - (TREND_HOURS - 1) * HOUR_MS


def _hours(counts: dict[int, int]) -> tuple[int, ...]:
    return tuple(counts.get(hour, 0) for hour in range(TREND_HOURS))

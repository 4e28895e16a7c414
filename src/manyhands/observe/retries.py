"""Failures of jobs that are tried again, added to the failures on record.

A job that failed for good is on record; one that is tried again is in memory, with its last
failure. Operators want to see both under the same error.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from manyhands.model.failures import Group, group_of
from manyhands.model.job import EndReason, Failure, Job
from manyhands.store.contract import FailureGroup, FailureQuestion, Failures, Store
from manyhands.store.records.failures import HOUR_MS, TREND_HOURS

# Jobs that are looked at for one answer. Beyond that, numbers are those of the jobs looked at.
RETRIED_JOBS_MAX: Final = 20_000
_SAMPLES_COUNT: Final = 5
_QUEUES_SHOWN: Final = 10


class FailureReader:
    """Reads the groups on record together with those of the retried jobs.

    It remembers the group of each retried job: to find it costs up to 50 µs, and there may be
    thousands of them that are the same each time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Failure, Group]] = {}

    async def read(self, store: Store, wanted: FailureQuestion) -> Failures:
        """The groups as they are now."""
        retried = store.live.retried_jobs(RETRIED_JOBS_MAX)
        return await asyncio.to_thread(self.read_now, store, wanted, retried)

    def read_now(self, store: Store, wanted: FailureQuestion, retried: Sequence[Job]) -> Failures:
        """The same with given jobs, in a thread or where the event loop may wait."""
        found = store.failures(wanted)
        alike = self._alike(retried, wanted)
        if not alike:
            return found

        def on_record(group_id: str) -> FailureGroup | None:
            known = store.failures(replace(wanted, group_id=group_id, count_max=1)).groups
            return known[0] if known else None

        return _merged(found, alike, wanted, on_record)

    def _alike(self, retried: Iterable[Job], wanted: FailureQuestion) -> dict[Group, list[Job]]:
        known = self._known
        fresh: dict[str, tuple[Failure, Group]] = {}
        by_text: dict[tuple[str, str], Group] = {}
        alike: dict[Group, list[Job]] = {}
        for job in retried:
            failure = job.failure
            if failure is None:
                continue
            kept = known.get(job.job_id)
            if kept is None or kept[0] is not failure:
                text = (failure.code, failure.message)
                group = by_text.get(text) or by_text.setdefault(text, group_of(failure))
                kept = failure, group
            fresh[job.job_id] = kept
            group = kept[1]
            if wanted.queue in (None, job.queue) and wanted.group_id in (None, group.group_id):
                alike.setdefault(group, []).append(job)
        self._known = fresh
        return alike


def failed_at(job: Job) -> int:
    """When the last reported failure of a job was."""
    for attempt in reversed(job.attempts):
        if attempt.reason is EndReason.FAILED:
            return attempt.ended_at
    return job.entered_at


def _merged(
    found: Failures,
    alike: dict[Group, list[Job]],
    wanted: FailureQuestion,
    on_record: Callable[[str], FailureGroup | None],
) -> Failures:
    rows = {row.group.group_id: row for row in found.groups}
    new_count = 0
    # The largest first: only as many as can be shown are looked up.
    for group, jobs in sorted(alike.items(), key=lambda pair: -len(pair[1])):
        known = rows.get(group.group_id)
        if known is None and len(rows) < wanted.count_max * 2:
            known = on_record(group.group_id)
        new_count += known is None
        rows[group.group_id] = _with(known, group, jobs, wanted.now)
    groups = sorted(rows.values(), key=lambda row: row.group.group_id)
    groups.sort(
        key=lambda row: row.last_at if wanted.latest_first else row.count + row.retrying,
        reverse=True,
    )
    return Failures(
        tuple(groups[: wanted.count_max]),
        found.groups_count + new_count,
        found.failed_count,
        sum(map(len, alike.values())),
    )


def _with(known: FailureGroup | None, group: Group, jobs: list[Job], now: int) -> FailureGroup:
    instants = [failed_at(job) for job in jobs]
    since = now - now % HOUR_MS - (TREND_HOURS - 1) * HOUR_MS
    hours = Counter((at - since) // HOUR_MS for at in instants if at >= since)
    queues = Counter(dict(known.queues) if known is not None else {})
    queues.update(job.queue for job in jobs)
    trend = known.trend if known is not None else (0,) * TREND_HOURS
    newest = sorted(jobs, key=lambda job: -job.serial)[:_SAMPLES_COUNT]
    ids = [job.job_id for job in newest]
    ordered = sorted(queues.items(), key=lambda row: (-row[1], row[0]))
    return FailureGroup(
        group=group,
        count=known.count if known is not None else 0,
        first_at=min(known.first_at, *instants) if known is not None else min(instants),
        last_at=max(known.last_at, *instants) if known is not None else max(instants),
        trend=tuple(count + hours[hour] for hour, count in enumerate(trend)),
        queues=tuple(ordered[:_QUEUES_SHOWN]),
        job_ids=tuple(ids + list(known.job_ids if known is not None else ()))[:_SAMPLES_COUNT],
        retrying=len(jobs),
    )

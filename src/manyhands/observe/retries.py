"""Failures of jobs that are tried again, added to the failures on record.

A job that failed for good is on record; one that is tried again is in memory, with its last
failure. Operators want to see both under the same error.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec.structs import replace

from manyhands.model.failures import Group, group_of
from manyhands.model.job import EndReason, Failure, Job
from manyhands.store.contract import FailureGroup, FailureQuestion, Failures, Store
from manyhands.store.records.failures import HOUR_MS, TREND_HOURS

# Jobs that are looked at for one answer. Beyond that, numbers are those of the jobs looked at.
RETRIED_JOBS_MAX: Final = 20_000
_SAMPLES_COUNT: Final = 5
_QUEUES_SHOWN: Final = 10


class _Known(NamedTuple):
    """What is known of the last failure of a retried job."""

    failure: Failure
    group: Group
    at: int


class _Alike(NamedTuple):
    """Retried jobs of one group, and when each failed."""

    group: Group
    jobs: list[Job]
    instants: list[int]


class FailureReader:
    """Reads the groups on record together with those of the retried jobs.

    It remembers the group of each retried job: to find it costs up to 50 µs, and there may be
    thousands of them that are the same each time.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

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

    def _alike(self, retried: Iterable[Job], wanted: FailureQuestion) -> dict[str, _Alike]:
        """The retried jobs that are asked for, by group."""
        known = self._known
        fresh: dict[str, _Known] = {}
        by_text: dict[tuple[str, str], Group] = {}
        alike: dict[str, _Alike] = {}
        for job in retried:
            failure = job.failure
            if failure is None:
                continue
            kept = known.get(job.job_id)
            if kept is None or kept.failure is not failure:
                text = (failure.code, failure.message)
                group = by_text.get(text) or by_text.setdefault(text, group_of(failure))
                kept = _Known(failure, group, failed_at(job))
            fresh[job.job_id] = kept
            group_id = kept.group.group_id
            if wanted.queue in (None, job.queue) and wanted.group_id in (None, group_id):
                found = alike.get(group_id)
                if found is None:
                    found = alike[group_id] = _Alike(kept.group, [], [])
                found.jobs.append(job)
                found.instants.append(kept.at)
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
    alike: dict[str, _Alike],
    wanted: FailureQuestion,
    on_record: Callable[[str], FailureGroup | None],
) -> Failures:
    rows = {row.group.group_id: row for row in found.groups}
    new_count = 0
    # The largest first: only as many as can be shown are looked up.
    for group_id, again in sorted(alike.items(), key=lambda pair: -len(pair[1].jobs)):
        known = rows.get(group_id)
        if known is None and len(rows) < wanted.count_max * 2:
            known = on_record(group_id)
        new_count += known is None
        rows[group_id] = _with(known, again, wanted.now)
    groups = sorted(rows.values(), key=lambda row: row.group.group_id)
    groups.sort(
        key=lambda row: row.last_at if wanted.latest_first else row.count + row.retrying,
        reverse=True,
    )
    return Failures(
        tuple(groups[: wanted.count_max]),
        found.groups_count + new_count,
        found.failed_count,
        sum(len(again.jobs) for again in alike.values()),
    )


def _with(known: FailureGroup | None, again: _Alike, now: int) -> FailureGroup:
    group, jobs, instants = again
    since = now - now % HOUR_MS - (TREND_HOURS - 1) * HOUR_MS
    hours = Counter([(at - since) // HOUR_MS for at in instants if at >= since])
    queues = Counter(dict(known.queues) if known is not None else {})
    queues.update([job.queue for job in jobs])
    trend = known.trend if known is not None else (0,) * TREND_HOURS
    newest = heapq.nlargest(_SAMPLES_COUNT, jobs, key=attrgetter("serial"))
    ids = [job.job_id for job in newest]
    ordered = sorted(queues.items(), key=lambda row: (-row[1], row[0]))
    return FailureGroup(
        group=group,
        count=known.count if known is not None else 0,
        first_at=min(instants) if known is None else min(known.first_at, *instants),
        last_at=max(instants) if known is None else max(known.last_at, *instants),
        trend=tuple(count + hours[hour] for hour, count in enumerate(trend)),
        queues=tuple(ordered[:_QUEUES_SHOWN]),
        job_ids=tuple(ids + list(known.job_ids if known is not None else ()))[:_SAMPLES_COUNT],
        retrying=len(jobs),
    )

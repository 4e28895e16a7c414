"""Workers: what each holds and for how long, its last sign of life, what idle ones wait for."""

import re
from typing import Any, Final

from manyhands.model.commands import Depart
from manyhands.model.job import EndReason, Holder, Job
from manyhands.observe.idle import idle_workers
from manyhands.observe.usual import Usual
from manyhands.observe.workers import WorkerRecord
from manyhands.ui import words
from manyhands.ui.actions import carry_out
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.visit import Form, Visit, back_to
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

_WORKERS_MAX: Final = 2_000
_LEASES_LOOKED_AT: Final = 20
_LEASES_SHOWN: Final = 3
_ROWS: Final = 50
_DIGITS: Final = re.compile(r"(\d+)")


class Workers(Page):
    """All workers that hold a lease, those that wait, and those seen recently."""

    name = "workers"
    title = "Workers"

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._usual = Usual(sources.history)

    async def show(self, visit: Visit) -> Shown:
        rows, left_out = worker_rows(self.sources, visit.now)
        text = visit.text("q").casefold()
        if text:
            rows = [row for row in rows if text in f"{row['name']} {row['address']}".casefold()]
        span = visit.span_of(len(rows), _ROWS)
        rows = rows[span["first"] :][:_ROWS]
        usual = await self._usual.read(
            {job.queue for row in rows for job, _ in row["jobs"]}, visit.now
        )
        for row in rows:
            row["unusual"] = unusual(row["jobs"], usual, visit.now)
        values = {
            "rows": rows,
            "known": self.live.queues,
            "span": span,
            "left_out": left_out,
            "holding": self.live.workers_count(),
            "asleep": self.sources.sleepers.count,
            "q": visit.text("q"),
        }
        return Shown("workers.html", values, self.title)

    async def act(self, visit: Visit, form: Form) -> Done | Confirm:
        return await release(self, visit, form, url("workers"))


async def release(page: Page, visit: Visit, form: Form, default: str) -> Done | Confirm:
    """Takes the jobs of a worker back, after a question."""
    if form.text("action") != "depart":
        raise Problem(400, "invalid_body", "the only action on a worker is to release its jobs")
    holder = Holder(form.text("realm"), form.raw("worker"))
    connection = form.raw("connection") or None
    if connection is None:
        count = len(page.live.leased_by_holder(holder))
    else:
        held = page.live.view.leased_by_connection(connection)
        count = len(held)
        if any(page.live.live_job(job_id) is None for job_id in held):
            raise Problem(403, "not_allowed", "this worker holds jobs that you may not see")
    name = words.shown(holder.name or "")
    back = back_to(form, default)
    if not count:
        return Done(back, f"Worker {name} no longer holds jobs.", failed=True)
    jobs = words.plural(count, "job")
    if not form.confirmed:
        return confirm_again(
            form,
            question=f"Release {jobs} of worker {name}? Others get them at once, and this"
            " worker's reports about them are refused.",
            button=f"Release {jobs}",
            back=back,
        )
    if connection is None:
        command = Depart(holder=holder, reason=EndReason.GOODBYE)
    else:
        command = Depart(connection=connection, reason=EndReason.GOODBYE)
    return await carry_out(visit, command, f"{jobs} of worker {name} are ready again.", back)


def worker_rows(sources: Sources, now: int) -> tuple[list[dict[str, Any]], int]:
    """The workers to show, those that hold jobs for the longest first, and how many are left
    out.
    """
    live, books = sources.store.live, sources.worker_books
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str | None]] = set()
    left_out = max(0, live.workers_count() - _WORKERS_MAX)
    for holder, count, jobs in live.workers(_WORKERS_MAX, _LEASES_LOOKED_AT):
        seen.add((holder.realm, holder.name))
        rows.append(_row(holder, count, jobs))
    idle, more = idle_workers(sources.sleepers, books.values(), seen, now, _WORKERS_MAX)
    left_out += more
    for one in idle:
        waits = one.awaits is not None
        rows.append(_row(one.holder, 0, []) | {"awaits": one.awaits or (), "waiting": waits})
    for row in rows:
        kept = books.get(row["realm"])
        row["record"] = kept and kept.record(row["name"] or row["address"])
        row["seen_at"] = _seen_at(row["jobs"], row["record"])
    # The age of a lease orders rows that stay in place while leases are renewed.
    rows.sort(
        key=lambda row: (
            not row["stalled"],
            row["since"] is None,
            row["since"] or 0,
            not row["waiting"],
            _natural(row["name"]),
        )
    )
    return rows, left_out


def unusual(jobs: list[tuple[Job, Any]], usual: dict[str, float], now: int) -> str:
    """A sentence if a worker has held a job for longer than is usual in its queue."""
    for job, lease in jobs:
        known = usual.get(job.queue)
        if known is not None and lease is not None and now - lease.claimed_at > max(known, 1_000):
            queue, most = words.shown(job.queue), words.duration(known)
            return f"99 of 100 attempts in {queue} take {most} or less"
    return ""


def _seen_at(jobs: list[tuple[Job, Any]], record: WorkerRecord | None) -> int | None:
    """The last sign of life: a request, a renewal, a report of progress, or the claim."""
    signs = [record.seen_at] if record is not None else []
    for job, lease in jobs:
        signs.append(lease.claimed_at)
        if lease.expires_at is not None and lease.term_ms is not None and not lease.in_grace:
            signs.append(lease.expires_at - lease.term_ms)
        if job.progress is not None:
            signs.append(job.progress.reported_at)
    return max(signs, default=None)


def _natural(name: str | None) -> list[tuple[int, str]]:
    """A sort key that puts worker-9 before worker-10."""
    parts = _DIGITS.split(name or "")
    return [(int(part) if at % 2 else 0, part) for at, part in enumerate(parts)]


def _row(holder: Holder, count: int, jobs: list[Job]) -> dict[str, Any]:
    leases = [job.lease for job in jobs if job.lease is not None]
    ends = [lease.expires_at for lease in leases if lease.expires_at is not None]
    held = [(job, job.lease) for job in jobs if job.lease is not None]
    held.sort(key=lambda pair: pair[1].claimed_at)
    return {
        "name": holder.name,
        "address": holder.address,
        "realm": holder.realm,
        "count": count,
        "connection": next((one.connection for one in leases if one.connection is not None), None),
        "stalled": sum(lease.lapsed or lease.in_grace for lease in leases),
        "ends_at": min(ends, default=None),
        "since": min((lease.claimed_at for lease in leases), default=None),
        "queues": sorted({job.queue for job in jobs}),
        "jobs": held[:_LEASES_SHOWN],
        "awaits": (),
        "waiting": False,
        "to": url("worker", realm=holder.realm, name=holder.name or "", address=holder.address),
    }

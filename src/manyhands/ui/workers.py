"""Workers: what each holds, until when, and when it was last seen."""

import re
from typing import Any, Final

from manyhands.model.commands import Depart
from manyhands.model.job import EndReason, Holder, Job
from manyhands.ui import words
from manyhands.ui.actions import carry_out
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.visit import Form, Visit, back_to
from manyhands.web.envelope import Problem

_WORKERS_MAX: Final = 2_000
_LEASES_LOOKED_AT: Final = 20
_LEASES_SHOWN: Final = 3
_ROWS: Final = 50
_DIGITS: Final = re.compile(r"(\d+)")


class Workers(Page):
    """All workers that hold a lease, and those seen recently."""

    name = "workers"
    title = "Workers"

    async def show(self, visit: Visit) -> Shown:
        rows, left_out = self._rows(visit.now)
        text = visit.text("q").casefold()
        if text:
            rows = [row for row in rows if text in f"{row['name']} {row['address']}".casefold()]
        span = visit.span_of(len(rows), _ROWS)
        values = {
            "rows": rows[span["first"] :][:_ROWS],
            "span": span,
            "left_out": left_out,
            "holding": self.live.workers_count(),
            "asleep": self.sources.dispatcher.sleepers.count,
            "q": visit.text("q"),
        }
        return Shown("workers.html", values, self.title)

    def _rows(self, now: int) -> tuple[list[dict[str, Any]], int]:
        """The workers to show, and how many there are in all."""
        books = self.sources.worker_books.by_realm
        rows: list[dict[str, Any]] = []
        seen: set[tuple[str, str | None]] = set()
        left_out = max(0, self.live.workers_count() - _WORKERS_MAX)
        for holder, count, jobs in self.live.workers(_WORKERS_MAX, _LEASES_LOOKED_AT):
            seen.add((holder.realm, holder.name))
            rows.append(_row(holder, count, jobs))
        for book in books.values():
            idle = [one for one in book.records(now) if (book.realm, one.name) not in seen]
            rows += [
                _row(Holder(book.realm, one.name, one.address), 0, [])
                for one in idle[:_WORKERS_MAX]
            ]
            left_out += max(0, len(idle) - _WORKERS_MAX)
        for row in rows:
            kept = books.get(row["realm"])
            row["record"] = kept and kept.record(row["name"] or row["address"])
        # Sorted by name, so that rows do not move while leases are renewed.
        rows.sort(key=lambda row: (not row["stalled"], not row["count"], _natural(row["name"])))
        return rows, left_out

    async def act(self, visit: Visit, form: Form) -> Done | Confirm:
        if form.text("action") != "depart":
            raise Problem(
                400, "invalid_body", "the only action on a worker is to take its jobs away"
            )
        holder = Holder(form.text("realm"), form.raw("worker"))
        count = len(self.live.leased_by_holder(holder))
        name = words.shown(holder.name or "")
        back = back_to(form, url("workers"))
        if not count:
            return Done(back, f"Worker {name} no longer holds jobs.", failed=True)
        jobs = words.plural(count, "job")
        if not form.confirmed:
            return confirm_again(
                form,
                question=f"Take {jobs} away from worker {name}? Others get them at once, and this"
                " worker's reports about them are refused.",
                button=f"Take {jobs} away",
                back=back,
            )
        command = Depart(holder=holder, reason=EndReason.GOODBYE)
        return await carry_out(visit, command, f"{jobs} of worker {name} are ready again.", back)


def _natural(name: str | None) -> list[tuple[int, str]]:
    """A sort key that puts worker-9 before worker-10."""
    parts = _DIGITS.split(name or "")
    return [(int(part) if at % 2 else 0, part) for at, part in enumerate(parts)]


def _row(holder: Holder, count: int, jobs: list[Job]) -> dict[str, Any]:
    leases = [job.lease for job in jobs if job.lease is not None]
    ends = [lease.expires_at for lease in leases if lease.expires_at is not None]
    return {
        "name": holder.name,
        "address": holder.address,
        "realm": holder.realm,
        "count": count,
        "connected": any(lease.connection is not None for lease in leases),
        "stalled": sum(lease.lapsed or lease.in_grace for lease in leases),
        "ends_at": min(ends, default=None),
        "since": min((lease.claimed_at for lease in leases), default=None),
        "queues": sorted({job.queue for job in jobs}),
        "jobs": [(job, job.lease) for job in jobs[:_LEASES_SHOWN]],
    }

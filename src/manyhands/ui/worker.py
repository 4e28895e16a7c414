"""One worker: what it holds now, what it waits for, and what it worked on before."""

from typing import Final

from manyhands.model.filter import Filter
from manyhands.model.job import Job
from manyhands.observe.usual import Usual
from manyhands.ui import listings, words
from manyhands.ui.page import Confirm, Done, Page, Shown, url
from manyhands.ui.query import quoted
from manyhands.ui.visit import Form, Visit
from manyhands.ui.workers import release, unusual, worker_rows
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

_JOBS_SHOWN: Final = 20
_HELD_MAX: Final = 50
_SECONDS: Final = 0.01


class WorkerPage(Page):
    """The page of a worker. Its protocol, name and address are parameters: they may be any text."""

    name = "worker"
    title = "Worker"

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._usual = Usual(sources.history)

    async def show(self, visit: Visit) -> Shown:
        realm, name = visit.text("realm"), visit.raw("name") or ""
        address = visit.raw("address") or ""
        rows, _ = worker_rows(self.sources, visit.now)
        found = [row for row in rows if row["realm"] == realm and (row["name"] or "") == name]
        if not name:
            found = [row for row in found if row["address"] == address]
        # Leases that a worker holds by name and by a connection are two rows of the list.
        held = self._held(found)
        before = None
        if name:
            wanted = Filter(worker=name, count_max=_JOBS_SHOWN)
            before = await listings.find(self.sources.store, wanted, _SECONDS)
        if not found and (before is None or not before.jobs):
            shown = words.shown(name or address) or "without a name"
            raise Problem(404, "unknown_worker", f"there is no worker {shown} now")
        usual = await self._usual.read({job.queue for job in held}, visit.now)
        values = {
            "worker": name,
            "realm": realm,
            "known": self.live.queues,
            "found": found,
            "address": next((row["address"] for row in found), address),
            "record": next((row["record"] for row in found if row["record"]), None),
            "seen_at": max((row["seen_at"] or 0 for row in found), default=0) or None,
            "awaits": sorted({queue for row in found for queue in row["awaits"]}),
            "waiting": any(row["waiting"] for row in found),
            "held": [
                listings.row(job, visit.now)
                | {
                    "claimed_at": job.lease.claimed_at,
                    "unusual": unusual([(job, job.lease)], usual, visit.now),
                }
                for job in held
                if job.lease is not None
            ],
            "held_count": sum(row["count"] for row in found),
            "before": []
            if before is None
            else [listings.row(job, visit.now) for job in before.jobs if job.lease is None],
            "all": url("jobs", q=f"worker:{quoted(name)}") if name else None,
        }
        title = f"{words.shown(name or address, 40)} · Worker"
        return Shown("worker.html", values, title)

    def _held(self, found: list[dict[str, object]]) -> list[Job]:
        keys = {(row["realm"], row["name"], row["connection"]) for row in found if row["count"]}
        jobs = [
            job
            for holder, _, some in self.live.workers(2_000, _HELD_MAX)
            for job in some
            if job.lease is not None and (holder.realm, holder.name, job.lease.connection) in keys
        ]
        jobs.sort(key=lambda job: 0 if job.lease is None else job.lease.claimed_at)
        return jobs[:_HELD_MAX]

    async def act(self, visit: Visit, form: Form) -> Done | Confirm:
        return await release(self, visit, form, url("workers"))

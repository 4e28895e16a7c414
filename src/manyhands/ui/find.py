"""One search for everything that has a name: a job by its id, a queue, a worker; else some text."""

import re
from typing import Any, Final

from manyhands.dispatch.lookup import find_job
from manyhands.model.filter import Filter
from manyhands.model.replies import Refusal
from manyhands.ui import listings
from manyhands.ui.page import Moved, Page, Shown, url
from manyhands.ui.query import Query, read_query
from manyhands.ui.visit import Visit
from manyhands.ui.workers import worker_rows

_SHOWN: Final = 10
_SECONDS: Final = 0.015
_TAIL: Final = re.compile(r"[0-9a-fA-F]{8,}")


class Find(Page):
    """What is found under a text; if it can only be one thing, that itself."""

    name = "find"
    title = "Find"

    async def show(self, visit: Visit) -> Shown | Moved:
        text = visit.text("q")
        query = read_query(text, visit.now)
        exact = await self._exact(query, text, visit.now)
        if exact is not None and not visit.is_refresh:
            return Moved(exact)
        if text and (query.problems or query.filter != Filter(text=query.filter.text)):
            return Moved(url("jobs", q=text))
        return await self._found(visit, query, text)

    async def _exact(self, query: Query, text: str, now: int) -> str | None:
        """Where to go if the text is the whole name of something."""
        if query.job_id is not None:
            job = await find_job(self.sources.dispatcher, query.job_id)
            if job is not None and not isinstance(job, Refusal):
                return f"/ui/job/{job.job_id}"
        if _TAIL.fullmatch(text):
            ended = Filter(id_tail=text.lower(), count_max=2)
            jobs = (await listings.find(self.sources.store, ended)).jobs
            if len(jobs) == 1:
                return f"/ui/job/{jobs[0].job_id}"
        if text in self.live.queues:
            return url("queue", name=text)
        named = [row["to"] for row in worker_rows(self.sources, now)[0] if row["name"] == text]
        return named[0] if text and len(set(named)) == 1 else None

    async def _found(self, visit: Visit, query: Query, text: str) -> Shown:
        folded = text.casefold()
        queues = sorted(name for name in self.live.queues if folded in name.casefold())
        workers = [
            row
            for row in worker_rows(self.sources, visit.now)[0]
            if folded in f"{row['name']} {row['address']}".casefold()
        ]
        jobs: list[dict[str, Any]] = []
        complete = True
        if text and query.filter.text:
            wanted = Filter(text=query.filter.text, count_max=_SHOWN)
            page = await listings.find(self.sources.store, wanted, _SECONDS)
            jobs = [listings.row(job, visit.now) for job in page.jobs]
            complete = page.complete and page.next is None
        values = {
            "q": text,
            "queues": queues[:_SHOWN] if text else [],
            "queues_count": len(queues),
            "workers": workers[:_SHOWN] if text else [],
            "workers_count": len(workers),
            "rows": jobs,
            "complete": complete,
        }
        return Shown("find.html", values, self.title)

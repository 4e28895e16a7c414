"""All jobs: a search with qualifiers, counts that follow it, and operations on what it finds."""

import asyncio
from collections import Counter
from typing import Any, Final

from msgspec.structs import replace

from manyhands.dispatch.lookup import find_job
from manyhands.model.filter import Order
from manyhands.model.job import State
from manyhands.model.policy import REALMS
from manyhands.model.replies import Refusal
from manyhands.store.contract import Counted
from manyhands.store.contract import Page as Found
from manyhands.ui import listings
from manyhands.ui.bulk import BulkForm, choices
from manyhands.ui.page import Confirm, Done, Moved, Page, Shown, url
from manyhands.ui.query import QUALIFIERS, RETRYING, Query, read_query, with_state
from manyhands.ui.visit import Form, Visit, back_to
from manyhands.web.envelope import Problem

# A page answers at once, with what it found so far; a second request finds more.
_SECONDS: Final = 0.01
_PATIENT_SECONDS: Final = 2.0
_BULKS_SHOWN: Final = 5


class Jobs(Page):
    """The list of jobs."""

    name = "jobs"
    title = "Jobs"

    async def show(self, visit: Visit) -> Shown | Moved:
        if visit.rest and visit.rest[0] == "bulk" and len(visit.rest) == 2:
            return Moved(url(f"bulk/{visit.rest[1]}"))  # where it was before
        if visit.rest and visit.rest != [""]:
            raise Problem(404, "not_found", "there is no such page")
        return await self._shown(visit)

    async def _shown(self, visit: Visit, given: Form | None = None) -> Shown:
        """The list; ``given`` is a form with mistakes, shown as it was filled in."""
        query = read_query(visit.text("q"), visit.now)
        if query.problems:
            visit.problems["q"] = " ".join(query.problems)
        order = visit.chosen("order", (Order.NEWEST.value, Order.OLDEST.value))
        after = visit.whole("after")
        patient = visit.text("patient") == "1"
        seconds = _PATIENT_SECONDS if patient or visit.is_refresh else _SECONDS
        (found, counted), retrying = await asyncio.gather(
            self._find(query, Order(order), after, seconds), self._retrying(query, seconds)
        )
        states = query.filter.states or tuple(State)
        total = sum(counted.counts[state] for state in states)
        here = {"q": query.text, "order": order if order != Order.NEWEST.value else None}
        again = {**here, "patient": 1 if patient else None}
        await self.sources.bulk.refresh()
        bulks = list(self.sources.store.bulks.values())[-_BULKS_SHOWN:]
        values = {
            "query": query,
            "rows": [listings.row(job, visit.now) for job in found.jobs],
            "order": order,
            "patient": patient,
            "counted": counted,
            "total": total,
            "known": any(sum(row.counts.values()) for row in self.live.queues.values()),
            "is_complete": found.complete,
            "tabs": self._tabs(query, counted, retrying, here),
            "first_page": url("jobs", **here) if after is not None else None,
            "next_page": url("jobs", **again, after=found.next) if found.next is not None else None,
            "further": url("jobs", **here, after=after, patient=1),
            "qualifiers": QUALIFIERS,
            "protocols": tuple(REALMS),
            "choices": choices(query),
            "bulks": list(reversed(bulks)),
            "given": given or Form([]),
            "chosen": set(given.all("job")) if given is not None else set(),
        }
        return Shown("jobs.html", values, self.title, "any")

    async def _find(
        self, query: Query, order: Order, after: int | None, seconds: float
    ) -> tuple[Found, Counted]:
        nothing = Counted(dict.fromkeys(State, 0))
        if query.problems:
            return Found((), None), nothing
        if query.job_id is not None:
            job = await find_job(self.sources.dispatcher, query.job_id)
            if job is not None and not isinstance(job, Refusal):
                return Found((job,), None), Counted({**nothing.counts, job.state: 1})
            if not query.bare:
                return Found((), None), nothing
        wanted = replace(query.filter, order=order, after=after, count_max=listings.ROWS)
        page, counted = await asyncio.gather(
            listings.find(self.sources.store, wanted, seconds),
            asyncio.to_thread(self.sources.store.count, query.filter, seconds),
        )
        if page.complete and page.next is None and after is None and not query.filter.states:
            # The page holds all of them: no need to count again, or to say that there may be more.
            states = Counter(job.state for job in page.jobs)
            counted = Counted({state: states[state] for state in State})
        return page, counted

    async def _retrying(self, query: Query, seconds: float) -> int:
        """How many jobs of the same search are being retried."""
        if query.problems or not self.live.retrying_queues():
            return 0
        again = replace(query.filter, retrying=True)
        counted = await asyncio.to_thread(self.sources.store.count, again, seconds)
        return sum(counted.counts.values())

    def _tabs(
        self, query: Query, counted: Counted, retrying: int, here: dict[str, Any]
    ) -> list[tuple[str, str, int, bool]]:
        """Tabs for the same search in other states: address, word, count."""
        wanted = query.filter
        counts: dict[str, int] = {state.value: counted.counts[state] for state in State}
        found = [("all", sum(counts.values())), *counts.items()]
        if wanted.retrying:
            retrying = sum(counts.values())
        found.insert(3, (RETRYING, retrying))  # also when there are none: no tab may move
        chosen = "all" if not wanted.states else ",".join(wanted.states)
        chosen = RETRYING if wanted.retrying else chosen
        return [
            (
                url(
                    "jobs", **{**here, "q": with_state(query.text, None if word == "all" else word)}
                ),
                word,
                count,
                word == chosen,
            )
            for word, count in found
        ]

    async def act(self, visit: Visit, form: Form) -> Done | Confirm | Shown:
        """Runs an operation on the selected jobs, or on all that the search finds."""
        given = BulkForm(self.sources, visit, form)
        answer = await given.answer()
        if answer is not None:
            return answer
        here = url("jobs", q=form.text("q"))
        back = back_to(form, here)
        # The jobs of a queue's tab are shown as the search that they are.
        visit.recall(back if back.startswith(url("jobs")) else here)
        return await self._shown(visit, form)

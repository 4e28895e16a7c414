"""All operations on many jobs: those that run, then those that ran."""

from typing import Any, Final

from manyhands.store.bulk import BulkState
from manyhands.ui.bulk import BulkForm, bulk_shown, described
from manyhands.ui.page import Confirm, Done, Page, Shown
from manyhands.ui.visit import Form, Visit
from manyhands.web.envelope import Problem

_ROWS: Final = 50


class Operations(Page):
    """The list, and one operation."""

    name = "bulk"
    title = "Operations"

    async def show(self, visit: Visit) -> Shown:
        if visit.rest and visit.rest[0]:
            return await bulk_shown(self.sources, visit.rest[0])
        await self.sources.bulk.refresh()
        bulks = list(reversed(self.sources.store.bulks.values()))
        bulks.sort(key=lambda bulk: bulk.state is not BulkState.ACTIVE)
        span = visit.span_of(len(bulks), _ROWS)
        rows: list[dict[str, Any]] = [
            {"bulk": bulk, **await described(self.sources, bulk)}
            for bulk in bulks[span["first"] :][:_ROWS]
        ]
        return Shown("operations.html", {"rows": rows, "span": span}, self.title)

    async def act(self, visit: Visit, form: Form) -> Done | Confirm:
        if form.text("action") != "stop" or not visit.rest:
            raise Problem(400, "invalid_body", "an operation can only be stopped here")
        return await BulkForm(self.sources, visit, form).stop(visit.rest[0])

"""The audit log: who did what, when, to how many."""

import asyncio
from typing import Final

from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit

_ROWS: Final = 50


class Audit(Page):
    """What operators did, over these pages, the API and the command line."""

    name = "audit"
    title = "Audit"

    async def show(self, visit: Visit) -> Shown:
        before = visit.whole("before")
        found = await asyncio.to_thread(self.sources.store.audit, before, _ROWS + 1)
        rows = found[:_ROWS]
        values = {
            "rows": rows,
            "first_page": url("audit") if before is not None else None,
            "next_page": url("audit", before=rows[-1].seq) if len(found) > _ROWS else None,
        }
        return Shown("audit.html", values, self.title)

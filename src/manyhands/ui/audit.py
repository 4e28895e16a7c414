"""The audit log: who did what, when, to how many."""

import asyncio
from typing import Final

from manyhands.access.audit import AUDIT_CONDITIONS, search_audit
from manyhands.ui.page import Page, Shown, url
from manyhands.ui.visit import Visit

_ROWS: Final = 50


class Audit(Page):
    """What operators did, over these pages, the API and the command line, and what was refused."""

    name = "audit"
    title = "Audit"

    async def show(self, visit: Visit) -> Shown:
        before = visit.whole("before")
        given = {name: visit.raw(name) or "" for name in AUDIT_CONDITIONS}
        wanted = {name: text for name, text in given.items() if text}
        store = self.sources.dispatcher.store
        rows, more = await asyncio.to_thread(
            search_audit, store, visit.exchange.caller, before, _ROWS, wanted
        )
        values = {
            "rows": rows,
            "given": given,
            "is_filtered": bool(wanted),
            "first_page": url("audit", **wanted) if before is not None else None,
            "next_page": None if more is None else url("audit", **wanted, before=more),
        }
        return Shown("audit.html", values, self.title)

"""The servers on this store, and which of them decides."""

from manyhands.ui.page import Page, Shown
from manyhands.ui.visit import Visit


class Servers(Page):
    """All servers, as the one that shows the page sees them."""

    name = "servers"
    title = "Servers"

    async def show(self, visit: Visit) -> Shown:
        del visit
        rows = self.sources.servers()
        return Shown("servers.html", {"rows": rows}, self.title)

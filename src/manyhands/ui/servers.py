"""The servers on this store, and which of them decides."""

from manyhands.ui import words
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.visit import Form, Visit
from manyhands.web.draining import drain_server
from manyhands.web.envelope import Problem


class Servers(Page):
    """All servers, as the one that shows the page sees them."""

    name = "servers"
    title = "Servers"

    async def show(self, visit: Visit) -> Shown:
        del visit
        rows = self.sources.servers()
        serving = sum(row.state == "serving" for row in rows)
        return Shown("servers.html", {"rows": rows, "serving": serving}, self.title)

    async def act(self, visit: Visit, form: Form) -> Done | Confirm:
        del visit
        if form.text("action") != "drain":
            raise Problem(400, "invalid_body", "a server can only be drained here")
        name = form.text("name")
        if not form.confirmed:
            return confirm_again(
                form,
                question=f"Drain server {words.shown(name)}? It hands over, lets its clients"
                " finish, and stops. The others continue.",
                button="Drain the server",
                back=url("servers"),
            )
        try:
            drain_server(self.sources, name)
        except Problem as problem:
            sentence = f"{problem.message[:1].upper()}{problem.message[1:]}."
            return Done(url("servers"), sentence, failed=True)
        return Done(url("servers"), f"Server {words.shown(name)} hands over and stops.")

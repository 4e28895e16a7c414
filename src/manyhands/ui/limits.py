"""Named limits: how many jobs that carry a name may be worked on at once."""

from typing import Final

from manyhands.dispatch.obstacles import why_held_back
from manyhands.model.commands import RemoveLimit, SetLimit
from manyhands.model.obstacles import Obstacle
from manyhands.ui import words
from manyhands.ui.actions import carry_out
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.visit import Form, Visit
from manyhands.web.envelope import Problem

_ROWS: Final = 100


class Limits(Page):
    """All named limits."""

    name = "limits"
    title = "Limits"

    async def show(self, visit: Visit) -> Shown:
        chosen = self.live.limits.get(visit.raw("name") or "")
        given = (chosen.name, str(chosen.concurrency_max)) if chosen is not None else ("", "")
        return self._shown(visit, given)

    def _shown(self, visit: Visit, given: tuple[str, str]) -> Shown:
        live = self.live
        span = visit.span_of(len(live.limits), _ROWS)
        names = sorted(live.limits)[span["first"] :][:_ROWS]
        held = self._held_back()
        rows = [(live.limits[name], live.limit_used(name), held.get(name, [])) for name in names]
        return Shown("limits.html", {"rows": rows, "given": given, "span": span}, self.title)

    def _held_back(self) -> dict[str, list[tuple[str, int]]]:
        """Queues whose next job waits for a limit, with the number of their ready jobs."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, known in self.live.queues.items():
            if known.ready_count:
                for wait in why_held_back(self.sources.dispatcher, name):
                    if wait.what is Obstacle.LIMIT:
                        found.setdefault(wait.name, []).append((name, known.ready_count))
        return found

    async def act(self, visit: Visit, form: Form) -> Done | Confirm | Shown:
        name = form.text("name")
        action = form.text("action")
        if action == "set":
            digits = form.text("max")
            if not (digits.isascii() and digits.isdigit() and 0 < len(digits) <= 9):
                visit.problems["max"] = "This must be a whole number."
            if not name:
                visit.problems["name"] = "A limit needs a name."
            if visit.problems:
                return self._shown(visit, (name, digits))
            sentence = (
                f"At most {words.plural(int(digits), 'job')} with {words.shown(name)} at once."
            )
            return await carry_out(visit, SetLimit(name, int(digits)), sentence, url("limits"))
        if action == "remove":
            name = form.raw("name")
            if name not in self.live.limits:
                return Done(url("limits"), f"There is no limit {words.shown(name)}.", failed=True)
            if not form.confirmed:
                return confirm_again(
                    form,
                    question=f"Remove the limit {words.shown(name)}? Jobs that carry it are then"
                    " no longer held back by it.",
                    button="Remove the limit",
                    back=url("limits"),
                )
            sentence = f"The limit {words.shown(name)} is removed."
            return await carry_out(visit, RemoveLimit(name), sentence, url("limits"))
        raise Problem(400, "invalid_body", "a limit can be set or removed here")

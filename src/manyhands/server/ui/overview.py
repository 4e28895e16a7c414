"""The first page: how much there is in each state, and what needs a person."""

from typing import Final

from msgspec import Struct

from manyhands.model.job import State
from manyhands.server.ui import words
from manyhands.server.ui.page import Page, Shown, url
from manyhands.server.ui.visit import Visit

_NOTES_MAX: Final = 8


class Note(Struct, frozen=True):
    """Something that needs a person."""

    level: str  # "bad" or "warn"
    what: str
    about: str  # a name, or nothing
    detail: str
    to: str


class Overview(Page):
    """The overview."""

    name = ""
    title = "Overview"

    async def show(self, visit: Visit) -> Shown:
        del visit
        totals = dict.fromkeys(State, 0)
        for known in self.index.queues.values():
            for state, count in known.counts.items():
                totals[state] += count
        notes = self._notes()
        values = {
            "totals": totals,
            "queues": len(self.index.queues),
            "notes": notes[:_NOTES_MAX],
            "notes_more": max(0, len(notes) - _NOTES_MAX),
        }
        return Shown("overview.html", values, self.title)

    def _notes(self) -> list[Note]:
        """What stands still though it could go on, the worst first."""
        found: list[tuple[int, Note]] = []
        waiters = self.server.dispatcher.waiters
        for name, known in self.index.queues.items():
            ready = known.counts[State.READY]
            if not ready:
                continue
            to = url("queue", name=name)
            jobs = words.plural(ready, "job")
            if known.queue.paused:
                found.append((ready, Note("warn", "paused", name, f"{jobs} held back", to)))
            elif not known.counts[State.LEASED] and not waiters.is_wanted(name):
                detail = f"{jobs} and nobody who works on them"
                found.append((ready, Note("bad", "no workers", name, detail, to)))
        found.sort(key=lambda pair: (pair[1].level != "bad", -pair[0], pair[1].about))
        return [note for _, note in found]

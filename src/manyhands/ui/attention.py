"""What needs attention, as the first page shows it: some of each kind, with where to look."""

from typing import Final

from msgspec import Struct

from manyhands.observe.attention import Note
from manyhands.ui import words
from manyhands.ui.page import url

_NOTES_OF_A_KIND: Final = 3  # shown; the others are one line with their number
# The page that lists all notes of a kind.
_ALL_OF_A_KIND: Final = {
    "failing": url("failures", order="latest"),
    "attempts fail": url("queues", sort="failed"),
    "no workers": url("queues", sort="ready"),
    "slow": url("queues", sort="oldest"),
    "paused": url("queues", sort="ready"),
    "expired leases": url("workers"),
    "held for long": url("workers"),
    "stuck": url("jobs", q="state:blocked"),
    "limit full": url("limits"),
    "queue full": url("queues", sort="ready"),
}


class Line(Struct, frozen=True):
    """A line of the list."""

    level: str
    what: str
    about: str
    detail: str
    to: str


def lines(notes: list[Note]) -> list[Line]:
    """Some of each kind, the worst kind first: a hundred of one must not hide another."""
    kinds: dict[str, list[Note]] = {}
    for note in notes:
        kinds.setdefault(note.what, []).append(note)
    found: list[Line] = []
    for what, members in kinds.items():
        shown = members[:_NOTES_OF_A_KIND]
        more = members[_NOTES_OF_A_KIND:]
        if len(more) == 1:
            shown, more = members, []
        found += [
            Line(note.level, what, note.about, words.visible(note.detail(words.rough)), _to(note))
            for note in shown
        ]
        if more:
            count = f"{words.number(len(more))} more"
            found.append(Line(more[0].level, what, count, "", _ALL_OF_A_KIND[what]))
    return found


def _to(note: Note) -> str:
    """Where to look."""
    match note.what:
        case "failing":
            return f"/ui/failures/{note.group_id}"
        case "expired leases" | "held for long":
            return url("workers", q=note.about)
        case "stuck" if note.job_id:
            return f"/ui/job/{note.job_id}"
        case "stuck":
            return url("queue", name=note.about, tab="blocked")
        case "attempts fail":
            return url("queue", name=note.about, tab="retrying")
        case _ if note.about:
            return url("queue", name=note.about)
        case _:
            return url("about")

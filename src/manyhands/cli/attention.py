"""What needs a person, as the server says, with a command that helps."""

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from msgspec import Struct

_SHOWN_OF_A_KIND: Final = 5


class Note(Struct, frozen=True):
    """Something that needs attention."""

    level: str  # "bad" or "warn"
    what: str
    about: str
    detail: str
    remedy: str  # a command to run


def note_of(found: Mapping[str, Any]) -> Note:
    """A note of `/api/attention`."""
    return Note(found["level"], found["what"], found["about"], found["detail"], _remedy(found))


def _remedy(found: Mapping[str, Any]) -> str:
    name = quote(found["about"])
    match found["what"]:
        case "paused":
            return f"manyhands queue resume {name}"
        case "no workers":
            return f"manyhands work {name} --command …"
        case "slow":
            return f"manyhands queue show {name}"
        case "attempts fail":
            return f"manyhands failures --queue {name}"
        case "expired leases":
            return f"manyhands expire --worker {name}"
        case "failing":
            # Jobs that are retried anyway need no retry.
            if found["retrying"] >= found["count"]:
                return "manyhands jobs is:retrying"
            return f"manyhands retry --failure {found['group']}"
        case _:
            return "manyhands doctor"


def gathered(found: list[Note], count_max: int | None = None) -> list[Note]:
    """Some of each kind: a hundred of one must not hide another. At most ``count_max`` in all, if
    there are not more kinds than that.
    """
    kinds: dict[str, list[Note]] = {}
    for note in found:
        kinds.setdefault(note.what, []).append(note)
    of_a_kind = _SHOWN_OF_A_KIND
    if count_max is not None and kinds:
        of_a_kind = max(1, min(of_a_kind, count_max // len(kinds) - 1))  # and how many more
    shown: list[Note] = []
    for members in kinds.values():
        # Instead of "1 more", that one.
        count = of_a_kind if len(members) > of_a_kind + 1 else len(members)
        shown += members[:count]
        more = len(members) - count
        if more:
            first = members[0]
            shown.append(Note(first.level, first.what, f"{more:,} more", "", ""))
    return shown

"""What needs a person, as the server says, with a command that helps."""

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from msgspec import Struct

_SHOWN_OF_A_KIND: Final = 5
_REMEDIES: Final = {
    "paused": "manyhands queue resume {name}",
    "no workers": "manyhands work {name} --command …",
    "slow": "manyhands queue show {name}",
    "queue full": "manyhands queue show {name}",
    "limit full": "manyhands limit list",
    "attempts fail": "manyhands failures --queue {name}",
    "expired leases": "manyhands expire --worker {name}",
    "held for long": "manyhands expire {job}",
    "stuck": "manyhands retry {job}",
    "stuck on several": "manyhands jobs state:blocked queue:{name}",
    "failing": "manyhands retry --failure {group}",
    "retrying": "manyhands jobs is:retrying",
}


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
    what = found["what"]
    if what == "failing" and found["retrying"] >= found["count"]:
        what = "retrying"  # jobs that are retried anyway need no retry
    elif what == "stuck" and found.get("job") is None:
        what = "stuck on several"
    remedy = _REMEDIES.get(what, "manyhands doctor")
    return remedy.format(name=quote(found["about"]), job=found.get("job"), group=found["group"])


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

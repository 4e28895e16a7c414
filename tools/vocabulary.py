"""Writes the section about events in docs/design.md from the values in the source; with --check,
only says if it differs.
"""

import sys
from pathlib import Path

from manyhands.model.events import KINDS, Event
from manyhands.model.reasons import Outcome, Reason

PAGE = Path(__file__).parents[1] / "docs" / "design.md"
BEGIN = (
    "<!-- Written by tools/vocabulary.py from model/events.py and model/reasons.py: "
    "change those, then run `make docs`. -->\n"
)
END = "<!-- The end of what tools/vocabulary.py wrote. -->\n"

ABOUT_FIELDS = {
    "at": "when",
    "state": "the state that was entered",
    "job_id": "which job",
    "queue": "where it is now",
    "reason": "why, see below",
    "incarnation": "how often it was requeued",
    "lease_number": "how often it was claimed",
    "attempts_used": "the budget spent in this incarnation",
    "attempts_max": "the budget; -1 is without end",
    "holder": "a worker, see above",
    "expires_at": "when the lease that began ends by itself",
    "priority": "the job's",
    "submitted_at": "the job's",
    "deadline_at": "the job's",
    "origin": "who submitted it, and over what",
    "lasted_ms": "how long the state before had lasted",
    "left_queue": "where it was before, if it changed queues",
    "detail": "with `cancelled`: the words of whoever cancelled it",
}

ABOUT_OUTCOMES = {
    Outcome.LOST: "lost",
    Outcome.FAILED: "failed",
    Outcome.FAILED_OR_LOST: "failed or lost: the job's failure shows which",
    Outcome.ADVANCED: "succeeded",
    Outcome.NONE: "-",
}


def section() -> str:
    """The text between the marks."""
    parts = [
        "An event is published for each change of a job's state, and for nothing else.",
        _kinds(),
        "Every event has all of these fields; new ones are appended, so that old logs stay "
        "readable.",
        _fields(),
        "A reason says what the state alone does not, and what became of the attempt that ended "
        "with it. An attempt is charged when it counts against the job's budget.",
        _reasons(),
    ]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _kinds() -> str:
    rows = ["| event | when | `holder` | reasons |", "|---|---|---|---|"]
    for state, kind in KINDS.items():
        reasons = ", ".join(f"`{reason}`" if reason else "none" for reason in kind.reasons)
        rows.append(f"| `{state}` | {kind.when} | {kind.holder} | {reasons} |")
    return "\n".join(rows)


def _fields() -> str:
    rows = ["| field | is |", "|---|---|"]
    rows += [f"| `{name}` | {ABOUT_FIELDS[name]} |" for name in Event.__struct_fields__]
    return "\n".join(rows)


def _reasons() -> str:
    rows = ["| reason | means | the attempt | charged | by |", "|---|---|---|---|---|"]
    for reason in Reason:
        if reason is Reason.NONE:
            continue
        charged = "yes" if reason.charged else "-"
        by = " or ".join(reason.by)
        outcome = ABOUT_OUTCOMES[reason.outcome]
        rows.append(f"| `{reason}` | {reason.sentence} | {outcome} | {charged} | {by} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with its section replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name} has no marks for the section about events")
    return before + begin + section() + end + after


def main(arguments: list[str]) -> int:
    """Writes the section, or checks it."""
    if arguments not in ([], ["--check"]):
        print("usage: vocabulary.py [--check]", file=sys.stderr)
        return 2
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text)
    if arguments == ["--check"]:
        if text == wanted:
            return 0
        print("docs/design.md is out of date; run tools/vocabulary.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

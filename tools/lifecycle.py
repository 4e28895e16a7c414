"""Writes docs/lifecycle.md from the table of transitions; with --check, only says if it differs."""

import sys
from pathlib import Path

from manyhands.engine.transitions import TABLE, Trigger
from manyhands.model.job import FINISHED, State

PAGE = Path(__file__).parents[1] / "docs" / "lifecycle.md"

ABOUT_STATES = {
    State.BLOCKED: "It waits for other jobs. When the last of them completes it becomes `ready`, "
    "or `delayed` if its time has not come. When one of them is lost, its own policy says whether "
    "it is held, cancelled, failed, or run all the same.",
    State.DELAYED: "It waits for its time: a delay asked for by its submitter, or the rest before "
    "a retry.",
    State.READY: "Nothing is in its way; the next worker that asks for its queue gets it, higher "
    "priority first, then by position. A job whose lease lapsed is ready too, and its last holder "
    "may take it up again until somebody else claims it.",
    State.LEASED: "A worker has it, and nobody else. The lease ends by the worker's word, by "
    "expiry, with the connection it is bound to, or because somebody cancels or moves the job.",
    State.COMPLETED: "The work is finished; dependants are set free.",
    State.FAILED: "It will not be tried again by itself: a worker said so, its budget of attempts "
    "is spent, its deadline passed, or a dependency was lost.",
    State.CANCELLED: "It is not wanted any more: somebody said so, the last one who waited for it "
    "left, another job took its place, or a dependency was lost.",
}

ABOUT_TRIGGERS = {
    Trigger.HELD: "it has to wait for other jobs",
    Trigger.POSTPONED: "it has to wait for its time",
    Trigger.READIED: "nothing is in its way, any more or again",
    Trigger.CLAIMED: "a worker takes it, or takes it up again",
    Trigger.COMPLETED: "the work is finished",
    Trigger.FAILED: "it is given up",
    Trigger.CANCELLED: "it is called off",
}

# How a job comes into being: not a move between states, so not in the table.
FIRST_STATES = (State.BLOCKED, State.DELAYED, State.READY)


def page() -> str:
    """The whole page as text."""
    parts = [
        "# The life of a job",
        "<!-- Written by tools/lifecycle.py from the table in engine/transitions.py: "
        "change that, then run `make docs`. -->",
        "Every change of a job's state is one line of a table; what is not in the table cannot "
        "happen. Each change is published as one event.",
        diagram(),
        "The drawing leaves out one thing: a finished job that is put to work again goes wherever "
        "a new one would go, under the same id.",
        "## States",
        "\n".join(f"- **{state}**: {ABOUT_STATES[state]}" for state in State),
        "## Triggers",
        "\n".join(f"- **{trigger}**: {ABOUT_TRIGGERS[trigger]}." for trigger in Trigger),
        "## The table",
        "Where a trigger leads from each state. A dash: this cannot happen.",
        table(),
    ]
    return "\n\n".join(parts) + "\n"


def diagram() -> str:
    """A state diagram of all moves between unfinished jobs and into their ends."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}: submitted" for state in FIRST_STATES]
    moves: dict[tuple[State, State], list[str]] = {}
    for (before, trigger), after in TABLE.items():
        if before not in FINISHED or after in FINISHED:
            moves.setdefault((before, after), []).append(trigger.value)
    for (before, after), triggers in moves.items():
        lines.append(f"    {before} --> {after}: {', '.join(triggers)}")
    lines += [f"    {state} --> [*]" for state in State if state in FINISHED]
    lines.append("```")
    return "\n".join(lines)


def table() -> str:
    """States down, triggers across."""
    rows = [
        "| | " + " | ".join(trigger.value for trigger in Trigger) + " |",
        "|---" * (len(Trigger) + 1) + "|",
    ]
    for state in State:
        cells = [TABLE.get((state, trigger)) for trigger in Trigger]
        shown = (after.value if after is not None else "-" for after in cells)
        rows.append(f"| **{state}** | " + " | ".join(shown) + " |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    if arguments not in ([], ["--check"]):
        print("usage: lifecycle.py [--check]", file=sys.stderr)
        return 2
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print("docs/lifecycle.md is out of date; run tools/lifecycle.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Writes docs/lifecycle.md from the table of transitions; with --check, only says if it differs."""

import sys
from pathlib import Path

from manyhands.engine.transitions import TABLE, Trigger
from manyhands.model.job import FINISHED, State

PAGE = Path(__file__).parents[1] / "docs" / "lifecycle.md"

ABOUT_STATES = {
    State.BLOCKED: "It waits for other jobs. When the last of them completes it becomes `ready`, "
    "or `delayed` if its time has not come. When one of them fails for good or is cancelled, its "
    "own policy says whether it is held, cancelled, failed, or run anyway.",
    State.DELAYED: "It waits for a set time: a delay that its submitter asked for, or the backoff "
    "before a retry.",
    State.READY: "Nothing blocks it; the next worker that claims from its queue gets it, higher "
    "priority first, then by position. A job whose lease lapsed is ready too, and its last holder "
    "may resume it until another worker claims it.",
    State.LEASED: "Exactly one worker has it. The lease ends when the worker reports, when it "
    "expires, with the connection it is bound to, or when the job is cancelled or moved.",
    State.COMPLETED: "The work is finished; dependants are released.",
    State.FAILED: "It will not be retried automatically: a worker reported a final failure, its "
    "budget of attempts is spent, its deadline passed, or a dependency failed or was cancelled.",
    State.CANCELLED: "It is no longer wanted: it was cancelled by request, the last client "
    "waiting for it left, another job replaced it, or a dependency failed or was cancelled.",
}

ABOUT_TRIGGERS = {
    Trigger.HELD: "it has to wait for other jobs",
    Trigger.POSTPONED: "it has to wait for a set time",
    Trigger.READIED: "nothing blocks it, any more or again",
    Trigger.CLAIMED: "a worker takes it, or resumes it",
    Trigger.COMPLETED: "the work is finished",
    Trigger.FAILED: "it is given up",
    Trigger.CANCELLED: "it is no longer wanted",
}

# How a job begins: not a transition between states, so not in the table.
FIRST_STATES = (State.BLOCKED, State.DELAYED, State.READY)


def page() -> str:
    """The whole page as text."""
    parts = [
        "# The life of a job",
        "<!-- Written by tools/lifecycle.py from the table in engine/transitions.py: "
        "change that, then run `make docs`. -->",
        "Every change of a job's state is one entry of a table; anything not in the table cannot "
        "happen. Each change is published as one event.",
        diagram(),
        "The diagram leaves out one thing: a finished job that is requeued goes wherever a new one "
        "would go, under the same id.",
        "## States",
        "\n".join(f"- **{state}**: {ABOUT_STATES[state]}" for state in State),
        "## Triggers",
        "\n".join(f"- **{trigger}**: {ABOUT_TRIGGERS[trigger]}." for trigger in Trigger),
        "## The table",
        "Where each trigger leads from each state. A dash means that it cannot happen.",
        table(),
    ]
    return "\n\n".join(parts) + "\n"


def diagram() -> str:
    """A state diagram of all transitions."""
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
    """A table with a row per state and a column per trigger."""
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
    """Writes the page, or checks it."""
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

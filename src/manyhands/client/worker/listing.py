"""The tasks of an app as a table."""

import sys
from collections.abc import Sequence
from typing import Any

from manyhands.client.app import App
from manyhands.client.options import Cron, Every
from manyhands.client.task import AsyncTask


def table(app: App[Any], queues: Sequence[str]) -> str:
    """One line for each task."""
    rows = [("queue", "task", "runs", "schedule")]
    for task in sorted(app.tasks.values(), key=lambda each: (each.queue, each.name)):
        if task.is_remote:
            where = "elsewhere"
        elif task.queue not in queues:
            where = "not here"
        else:
            where = "as a coroutine" if isinstance(task, AsyncTask) else "in a thread"
        rows.append((task.queue, task.name, where, _schedule(task.options.get("schedule"))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _schedule(schedule: object) -> str:
    match schedule:
        case Cron():
            return f"{schedule.expression} ({schedule.timezone})"
        case Every():
            return f"every {schedule.seconds:g} s"
        case _:
            return ""


def show(app: App[Any], queues: Sequence[str]) -> None:
    """Prints the table, on standard error as all that a worker says."""
    sys.stderr.write(f"{table(app, queues)}\n")
    sys.stderr.flush()

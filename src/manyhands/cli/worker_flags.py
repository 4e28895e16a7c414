"""Flags shared by the commands of dwork and WMP, most of them for workers."""

from pathlib import Path
from typing import Annotated, Final

import typer

from manyhands.cli.numbers import finite

Seconds = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.01, max=86_400, callback=finite, help="Seconds to wait for a reply."
    ),
]
TaskTimeout = Annotated[
    float | None,
    typer.Option(
        "--task-timeout", min=0.01, help="Seconds after which a command is ended as failed."
    ),
]
Logs = Annotated[
    Path | None,
    typer.Option(
        "--logs",
        help="Folder for the output of each command, and a list of all.",
        metavar="DIR",
    ),
]
# Together they stay below the 30 seconds that Slurm waits between SIGTERM and SIGKILL.
GRACE_SECONDS: Final = 10.0
KILL_AFTER_SECONDS: Final = 10.0
Grace = Annotated[
    float,
    typer.Option(
        "--grace", min=0, help="Seconds that running commands get to finish after SIGTERM."
    ),
]
KillAfter = Annotated[
    float,
    typer.Option(
        "--kill-after",
        min=0,
        help="Seconds between SIGTERM and SIGKILL to a command that is ended.",
    ),
]

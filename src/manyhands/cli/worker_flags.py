"""Flags shared by the commands of dwork and WMP, most of them for workers."""

from pathlib import Path
from typing import Annotated, Final

import typer

from manyhands.cli.durations import METAVAR, seconds

Seconds = Annotated[
    float,
    typer.Option(
        "--timeout",
        help="Time to wait for a reply.",
        metavar=METAVAR,
        parser=seconds(0.01, 86_400),
        show_default="30s",
    ),
]
TaskTimeout = Annotated[
    float | None,
    typer.Option(
        "--task-timeout",
        help="Time after which a command is ended as failed.",
        metavar=METAVAR,
        parser=seconds(0.01),
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
        "--grace",
        help="Time that running commands get to finish after SIGTERM.",
        metavar=METAVAR,
        parser=seconds(),
        show_default="10s",
    ),
]
KillAfter = Annotated[
    float,
    typer.Option(
        "--kill-after",
        help="Time between SIGTERM and SIGKILL to a command that is ended.",
        metavar=METAVAR,
        parser=seconds(),
        show_default="10s",
    ),
]

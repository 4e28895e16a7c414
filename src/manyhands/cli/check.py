"""`manyhands check`: verifies a store that is not in use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import typer

from manyhands.cli.stores import (
    AsJson,
    ConfigFile,
    Data,
    config_of,
    errors_shown,
    holding,
    progress,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN_MAX = 1_000


def check(
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a store for damage; the server must not run.

    Checks structure, checksums, journal, artifacts, and that rows agree. Nothing is changed. If
    anything is damaged, the command names it and exits with code 1.

    Examples:

      manyhands check

      manyhands check --data /var/lib/manyhands --json
    """
    found = config_of(data, config)

    from manyhands.dispatch.clock import Clock
    from manyhands.operate.artifacts import Artifacts
    from manyhands.store.sqlite.inspection import Checker, check_journal

    clock = Clock()
    started_ms = clock.monotonic_ms()
    damage: list[str] = []

    @contextmanager
    def part(name: str) -> Iterator["Callable[[int, int], None]"]:
        before = len(damage)
        with progress(f"checking {name}") as report:
            yield report
        if not as_json:
            count = len(damage) - before
            typer.echo(f"{name}: " + ("ok" if not count else f"{count} damaged"))

    with errors_shown(), holding(found.data) as (connection, file):
        checker = Checker(connection, damage)
        with part("structure"):
            readable = checker.check_structure()
        frames, artifacts = 0, 0
        if readable:
            with part("journal"):
                frames = check_journal(connection, file, damage)
            with part("settings"):
                checker.check_settings()
            with part("jobs") as report:
                checker.check_jobs(report)
            with part("events") as report:
                checker.check_events(report)
        with part("artifacts"):
            artifacts = Artifacts(found.data).check(damage)
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    facts = {
        "jobs": checker.jobs_count,
        "events": checker.events_count,
        "journal_frames": frames,
        "artifacts": artifacts,
        "damage": damage,
        "seconds": round(seconds, 3),
    }
    if as_json:
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        for sentence in damage[:_SHOWN_MAX]:
            typer.echo(f"manyhands: {sentence}", err=True)
        if len(damage) > _SHOWN_MAX:
            typer.echo(f"manyhands: and {len(damage) - _SHOWN_MAX} more; --json has all", err=True)
        typer.echo(
            f"{checker.jobs_count:,} jobs, {checker.events_count:,} events, {artifacts:,} artifacts"
            f" checked in {seconds:.1f} s: "
            + ("no damage found." if not damage else f"{len(damage):,} damaged.")
        )
    if damage:
        raise SystemExit(1)

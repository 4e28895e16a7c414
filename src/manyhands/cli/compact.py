"""`manyhands compact`: frees disk space that a store no longer uses."""

import msgspec
import typer

from manyhands.cli.stores import AsJson, ConfigFile, Data, config_of, errors_shown, locked, progress


def compact(
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Shrink the file of the store; the server must not run.

    Rewrites it without the free space that dropped jobs and events left. There must be disk space
    for a copy; a crash leaves the old file or the new one. A journal is applied to the database
    first.

    Examples:

      manyhands compact

      manyhands compact --data /var/lib/manyhands --json
    """
    found = config_of(data, config)

    from manyhands.dispatch.clock import Clock
    from manyhands.store.sqlite.compaction import compact as write_anew
    from manyhands.store.sqlite.compaction import store_bytes

    clock = Clock()
    started_ms = clock.monotonic_ms()
    with errors_shown(), locked(found.data) as file, progress("compacting") as report:
        before = store_bytes(file)
        write_anew(file, report)
        after = store_bytes(file)
    seconds = (clock.monotonic_ms() - started_ms) / 1000
    if as_json:
        facts = {"bytes_before": before, "bytes_after": after, "seconds": round(seconds, 3)}
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        typer.echo(
            f"{file}: {before:,} bytes before, {after:,} bytes now; {before - after:,} freed"
            f" in {seconds:.1f} s."
        )

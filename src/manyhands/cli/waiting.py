"""Waits for the end of a job, also while the server is away."""

import time
from typing import Any, Final

import msgspec
import typer
from msgspec import Struct

from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, give_up
from manyhands.cli.identity import job_path
from manyhands.dispatch.clock import Clock

_WAIT_SECONDS: Final = 60.0
_AWAY_SECONDS: Final = 0.5
# The status of an answer that says: not now.
_UNAVAILABLE: Final = 503
FINISHED: Final = ("completed", "failed", "cancelled")


class _State(Struct):
    state: str
    failure: dict[str, Any] | None
    reason: str | None


class _Answer(Struct):
    results: _State


_decode = msgspec.json.Decoder(_Answer).decode


def wait_for_end(link: HttpLink, job_id: str, limit_seconds: float | None) -> _State | None:
    """The job once it has finished, or None if the time is up. A server that goes away is waited
    for: the job is on its disk.
    """
    clock = Clock()
    until_ms = None if limit_seconds is None else clock.monotonic_ms() + limit_seconds * 1000
    away = False
    while True:
        left = (
            _WAIT_SECONDS
            if until_ms is None
            else max(0.0, (until_ms - clock.monotonic_ms()) / 1000)
        )
        wait = min(left, _WAIT_SECONDS)
        try:
            found: _State = link.ask(
                "GET",
                job_path(job_id),
                query={"wait": f"{wait:.3f}"},
                seconds=wait + 30,
                decode=_decode,
            ).results
        except (UnansweredError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.status != _UNAVAILABLE:
                give_up(error)
            if not away:
                typer.echo(f"manyhands: {str(error).rstrip('.')}; waiting for it.", err=True)
            away = True
            time.sleep(min(_AWAY_SECONDS, left))
        else:
            if away:
                typer.echo(f"manyhands: {link.name} is back.", err=True)
            away = False
            if found.state in FINISHED:
                return found
        if until_ms is not None and clock.monotonic_ms() >= until_ms:
            return None

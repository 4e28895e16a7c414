"""What workers reported about a job while they worked on it: log lines, warnings, partial data."""

import base64
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import typer

from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, give_up
from manyhands.cli.identity import job_path
from manyhands.cli.output import moment, plain, print_json, print_styled
from manyhands.cli.waiting import FINISHED

_LOOK_SECONDS: Final = 0.5
_STYLES: Final = {"warning": "yellow", "data": "dim"}


def entries_of(link: HttpLink, job_id: str, after: int = 0) -> list[dict[str, Any]]:
    """The entries since the one of this number, oldest first."""
    return link.get(f"{job_path(job_id)}/log", after=after)  # type: ignore[no-any-return]


def line_of(entry: Mapping[str, Any]) -> str:
    """An entry in one line."""
    value = entry["payload"]
    if isinstance(value, str):
        return plain(value.rstrip("\n"))
    data = base64.b64decode(value["base64"])
    return f"({len(data):,} bytes that are not text)"


def print_log(link: HttpLink, job_id: str, *, follow: bool, as_json: bool) -> None:
    """Prints the log; with ``follow`` until the job has finished."""
    last = 0
    away = False
    while True:
        try:
            finished = link.ask("GET", job_path(job_id))["results"]["state"] in FINISHED
            path = f"{job_path(job_id)}/log"
            found = link.ask("GET", path, query={"after": last})["results"]
        except (UnansweredError, RefusedError) as error:
            if not follow or isinstance(error, RefusedError):
                give_up(error)
            if not away:
                sentence = str(error).rstrip(".")
                typer.echo(f"manyhands: {sentence}; waiting for it.", err=True)
            away = True
        else:
            away = False
            _print(found, as_json=as_json)
            last = max([last, *(entry["number"] for entry in found)])
            if finished or not follow:
                return
        sys.stdout.flush()
        time.sleep(_LOOK_SECONDS)


def _print(entries: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    for entry in entries:
        kind = entry["kind"]
        if as_json:
            print_json(entry)
        elif sys.stdout.isatty():
            line = f"{moment(entry['at'])[11:23]}  {kind:<7}  {line_of(entry)}"
            print_styled(line, _STYLES.get(kind, ""))
        else:
            typer.echo(f"{entry['at']}\t{kind}\t{line_of(entry)}")

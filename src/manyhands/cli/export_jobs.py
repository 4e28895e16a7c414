"""`manyhands export`: everything that a store holds, as lines of JSON."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
import typer

from manyhands.cli.storing import AsJson, ConfigFile, Data, config_of, progress, reading, told

if TYPE_CHECKING:
    import apsw

    from manyhands.cli.lines import Doom, Line
    from manyhands.model.events import Cursor

_TOLD_EVERY = 1_000


def export_jobs(
    file: Annotated[Path, typer.Argument(help="File to write, or - for standard output.")] = Path(
        "-"
    ),
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Write queues, limits, schedules and jobs of all states as lines of JSON.

    It is one moment of the store, and the server may run meanwhile. Lease tokens are part of it:
    keep the file to yourself. Events and partial results are not part of it.

    Examples:

      manyhands export jobs.jsonl

      manyhands export - | gzip > jobs.jsonl.gz
    """
    found = config_of(data, config)
    counts: dict[str, int] = {}

    from manyhands.cli.lines import encode

    with (
        told(),
        reading(found.data) as connection,
        connection,  # one snapshot for all lines
        _output(file) as output,
        progress("exporting") as tell,
    ):
        total = connection.execute("SELECT count(*) FROM jobs").get
        for number, line in enumerate(_lines(connection)):
            kind = str(type(line).__struct_config__.tag)
            counts[kind] = counts.get(kind, 0) + 1
            output.write(encode(line) + b"\n")
            if number % _TOLD_EVERY == 0:
                tell(counts.get("job", 0), total)
    counts.pop("header")
    if as_json:
        typer.echo(msgspec.json.encode(counts).decode(), err=str(file) == "-")
    else:
        said = ", ".join(f"{count} {kind}s" for kind, count in counts.items()) or "nothing"
        typer.echo(f"exported {said}.", err=True)


@contextlib.contextmanager
def _output(file: Path) -> Iterator[BinaryIO]:
    """Standard output, or a file that nobody else can read and that is whole when it is there."""
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    draft = file.with_name(file.name + ".part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _lines(connection: "apsw.Connection") -> Iterator["Line"]:
    from manyhands import __version__
    from manyhands.cli import lines
    from manyhands.model.job import Schedule
    from manyhands.model.policy import NamedLimit, Queue
    from manyhands.server.clock import Clock
    from manyhands.store.packing import TermsBook
    from manyhands.store.rows import COLUMNS, decode_row

    execute = connection.execute
    yield lines.Header(lines.FORMAT, __version__, Clock().now())
    for (record,) in execute("SELECT record FROM queues ORDER BY name"):
        yield lines.QueueLine(msgspec.json.decode(record, type=Queue))
    for (record,) in execute("SELECT record FROM limits ORDER BY name"):
        yield lines.LimitLine(msgspec.json.decode(record, type=NamedLimit))
    for (record,) in execute("SELECT record FROM schedules ORDER BY name"):
        yield lines.ScheduleLine(msgspec.json.decode(record, type=Schedule))
    terms = TermsBook()
    for number, record in execute("SELECT terms_id, record FROM terms"):
        terms.learn(number, record)
    dooms, graphs = _dooms(connection), _graphs(connection)
    statement = f"SELECT {COLUMNS} FROM jobs ORDER BY serial"  # noqa: S608 - our own words
    for row in execute(statement):
        job = decode_row(row, terms.by_number)
        namespace = job.namespace or ""
        begins_graph = namespace in graphs and job.serial >= graphs[namespace]
        if begins_graph:
            del graphs[namespace]
        yield lines.job_line(job, dooms.get(job.job_id), begins_graph=begins_graph)


def _marks(connection: "apsw.Connection", prefix: str) -> Iterator["Cursor"]:
    """What is kept among the cursors, under what follows the prefix."""
    from manyhands.model.events import Cursor

    for (record,) in connection.execute("SELECT record FROM cursors"):
        cursor = msgspec.json.decode(record, type=Cursor)
        if cursor.name.startswith(prefix):
            yield Cursor(cursor.name.removeprefix(prefix), cursor.seq, cursor.notes)


def _graphs(connection: "apsw.Connection") -> dict[str, int]:
    """The serials at which the graphs began that are being worked on, by their namespaces."""
    from manyhands.store.batch import GRAPH_PREFIX

    return {mark.name: mark.seq for mark in _marks(connection, GRAPH_PREFIX)}


def _dooms(connection: "apsw.Connection") -> dict[str, "Doom"]:
    """Of jobs whose dependants are being cancelled, by their ids."""
    from manyhands.cli.lines import Doom
    from manyhands.store.batch import UNTOLD_PREFIX

    found = {}
    for mark in _marks(connection, UNTOLD_PREFIX):
        if mark.seq:
            statement = "SELECT count(*) FROM jobs WHERE serial <= ?"
            found[mark.name] = Doom(connection.execute(statement, (mark.seq,)).get, mark.notes)
    return found

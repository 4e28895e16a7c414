"""`manyhands export`: the contents of a store as lines of JSON."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Protocol

import msgspec
import typer

from manyhands.cli.stores import (
    AsJson,
    ConfigFile,
    Data,
    config_of,
    errors_shown,
    progress,
    reading,
)
from manyhands.config.files import open_draft, refuse_special

if TYPE_CHECKING:
    import apsw

    from manyhands.cli.lines import Doom, Line
    from manyhands.config import Config
    from manyhands.model.events import Cursor
    from manyhands.model.job import Job
    from manyhands.model.policy import Terms

_REPORTED_EVERY = 1_000


def export_jobs(
    file: Annotated[Path, typer.Argument(help="File to write, or - for standard output.")] = Path(
        "-"
    ),
    *,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Write jobs, queues, limits and schedules as lines of JSON.

    It is a snapshot with jobs of all states, and the server may run meanwhile. The file contains
    lease tokens, so keep it secret; it does not contain events and partial results. Damaged records
    are named and left out, and the command exits with code 1.

    Examples:

      manyhands export jobs.jsonl

      manyhands export - | gzip > jobs.jsonl.gz
    """
    found = config_of(data, config, or_database=True)
    counts: dict[str, int] = {}
    damage: list[str] = []

    from manyhands.cli.lines import encode

    with (
        errors_shown(),
        _contents(found, damage) as contents,
        _output(file) as output,
        progress("exporting") as report,
    ):
        total = contents.jobs_count(None)
        for number, line in enumerate(_lines(contents)):
            kind = str(type(line).__struct_config__.tag)
            counts[kind] = counts.get(kind, 0) + 1
            output.write(encode(line) + b"\n")
            if number % _REPORTED_EVERY == 0:
                report(counts.get("job", 0), total)
    counts.pop("header")
    if as_json:
        typer.echo(msgspec.json.encode(counts).decode(), err=str(file) == "-")
    else:
        said = ", ".join(f"{count} {kind}s" for kind, count in counts.items()) or "nothing"
        typer.echo(f"exported {said}.", err=True)
    for sentence in damage:
        typer.echo(f"manyhands: left out: {sentence}.", err=True)
    if damage:
        raise SystemExit(1)


@contextlib.contextmanager
def _output(file: Path) -> Iterator[BinaryIO]:
    """Standard output, or a private file that appears only when it is complete."""
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    refuse_special(file)
    draft = file.with_name(file.name + ".part")
    try:
        with os.fdopen(open_draft(draft), "wb") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


class Contents(Protocol):
    """A store in one snapshot; damaged records are left out."""

    def settings(self, table: str) -> "Iterable[tuple[str, str]]":
        """Names and records of a table."""

    def terms(self) -> "Iterable[tuple[int, str]]":
        """All terms."""

    def jobs(self, terms: "Mapping[int, Terms]") -> "Iterator[Job]":
        """All jobs, in order of serial."""

    def jobs_count(self, until: int | None) -> int:
        """How many jobs there are, up to a serial if one is given."""


@contextlib.contextmanager
def _contents(config: "Config", damage: list[str]) -> Iterator[Contents]:
    if config.store == "sqlite":
        with reading(config.data) as connection, connection:  # one snapshot for all lines
            yield _File(connection, damage)
        return
    from manyhands.config import DatabaseAddress
    from manyhands.store.postgres.export import snapshot

    assert isinstance(config.store, DatabaseAddress)
    with snapshot(config.store) as contents:
        yield contents


def _lines(contents: Contents) -> Iterator["Line"]:
    """All records."""
    from manyhands import __version__
    from manyhands.cli import lines
    from manyhands.dispatch.clock import Clock
    from manyhands.model.job import Schedule
    from manyhands.model.policy import NamedLimit, Queue
    from manyhands.store.records.packer import TermsBook

    yield lines.Header(lines.FORMAT, __version__, Clock().now())
    for _, record in contents.settings("queues"):
        yield lines.QueueLine(msgspec.json.decode(record, type=Queue))
    for _, record in contents.settings("limits"):
        yield lines.LimitLine(msgspec.json.decode(record, type=NamedLimit))
    for _, record in contents.settings("schedules"):
        yield lines.ScheduleLine(msgspec.json.decode(record, type=Schedule))
    terms = TermsBook()
    for number, record in contents.terms():
        terms.learn(number, record)
    cursors = [record for _, record in contents.settings("cursors")]
    dooms, graphs = _dooms(contents, cursors), _graphs(cursors)
    for job in contents.jobs(terms.by_number):
        namespace = job.namespace or ""
        begins_graph = namespace in graphs and job.serial >= graphs[namespace]
        if begins_graph:
            del graphs[namespace]
        yield lines.job_line(job, dooms.get(job.job_id), begins_graph=begins_graph)


class _File:
    """The file of a SQLite store; ``damage`` names what is left out."""

    def __init__(self, connection: "apsw.Connection", damage: list[str]) -> None:
        self._connection = connection
        self._damage = damage

    def settings(self, table: str) -> Iterator[Any]:
        from manyhands.store.sqlite.checksums import RecordDamagedError, verified

        for row in self._connection.execute(f"SELECT * FROM {table} ORDER BY 1"):  # noqa: S608
            try:
                yield verified(f"{table} {row[0]}", row)
            except RecordDamagedError as error:
                self._damage.append(str(error))

    def terms(self) -> Iterator[Any]:
        return self.settings("terms")

    def jobs(self, terms: "Mapping[int, Terms]") -> Iterator["Job"]:
        from manyhands.store.sqlite.checksums import RecordDamagedError
        from manyhands.store.sqlite.rows import COLUMNS, decode_row

        # One by one, so that an unreadable row does not end the loop.
        execute, damage = self._connection.execute, self._damage
        statement = f"SELECT {COLUMNS} FROM jobs WHERE serial = ?"  # noqa: S608 - our own words
        for (serial,) in execute("SELECT serial FROM jobs ORDER BY serial"):
            try:
                yield decode_row(execute(statement, (serial,)).fetchall()[0], terms)
            except RecordDamagedError as error:
                damage.append(str(error))
            except (msgspec.MsgspecError, KeyError, ValueError) as error:
                damage.append(f"the job with serial {serial} cannot be read ({error})")

    def jobs_count(self, until: int | None) -> int:
        statement = "SELECT count(*) FROM jobs WHERE serial <= coalesce(?, serial)"
        return int(self._connection.execute(statement, (until,)).get)


def _marks(cursors: Sequence[str], prefix: str) -> Iterator["Cursor"]:
    """The entries among the cursors whose names have this prefix, by the rest of the name."""
    from manyhands.model.events import Cursor

    for record in cursors:
        cursor = msgspec.json.decode(record, type=Cursor)
        if cursor.name.startswith(prefix):
            yield Cursor(cursor.name.removeprefix(prefix), cursor.seq, cursor.notes)


def _graphs(cursors: Sequence[str]) -> dict[str, int]:
    """The first serials of the unfinished graphs, by namespace."""
    from manyhands.store.batch import GRAPH_PREFIX

    return {mark.name: mark.seq for mark in _marks(cursors, GRAPH_PREFIX)}


def _dooms(contents: Contents, cursors: Sequence[str]) -> dict[str, "Doom"]:
    """The pending cascade cancellations, by job id."""
    from manyhands.cli.lines import Doom
    from manyhands.store.batch import UNNOTIFIED_PREFIX

    found = {}
    for mark in _marks(cursors, UNNOTIFIED_PREFIX):
        if mark.seq:
            found[mark.name] = Doom(contents.jobs_count(mark.seq), mark.notes)
    return found

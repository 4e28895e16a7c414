"""`manyhands import`: reads an export into the store of a server that does not run."""

import select
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from manyhands.cli.stores import AsJson, ConfigFile, Data, config_of, errors_shown, progress
from manyhands.model.reasons import as_detail

if TYPE_CHECKING:
    from manyhands.cli.lines import JobLine, Line
    from manyhands.engine.effects import Effects
    from manyhands.store.contract import Store

_BATCH_COUNT = 500
_BATCH_BYTES = 16 * 1024 * 1024


def import_jobs(
    file: Annotated[Path, typer.Argument(help="File that export wrote.")],
    *,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Skip jobs whose id already exists.")
    ] = False,
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Read an export into a store; the server must not run.

    The store may be new or existing. Nothing is written if a line cannot be read or a job already
    exists. Settings of queues, limits and schedules of the same name are replaced.

    Examples:

      manyhands import jobs.jsonl

      manyhands import --data /var/lib/manyhands --skip-existing jobs.jsonl
    """
    found = config_of(data, config, or_database=True)

    from manyhands.app import open_store

    with errors_shown():
        with file.open("rb"):
            pass  # a file that cannot be read leaves no new store behind
        store = open_store(found)
        try:
            importer = _Importer(store, skip_existing=skip_existing)
            importer.check(file)
            importer.write(file)
        finally:
            store.close()
    if as_json:
        typer.echo(msgspec.json.encode(importer.counts).decode())
    else:
        said = ", ".join(f"{count} {kind}" for kind, count in importer.counts.items())
        typer.echo(f"imported {said}.")


class _Importer:
    """Two passes over the file: one that checks, one that writes."""

    def __init__(self, store: "Store", *, skip_existing: bool) -> None:
        self._store = store
        self._skip_existing = skip_existing
        self._skipped: set[str] = set()
        self._jobs_total = 0
        self._jobs_read = 0
        self._awaited: set[str] = set()  # ids and names that imported jobs wait for
        # Jobs cancelled with their dependants, by the number of lines that those are among.
        self._dooms: dict[int, list[tuple[str, str]]] = {}
        self._graphs: dict[str, int] = {}  # first serials, by namespace
        self.counts = dict.fromkeys(("queues", "limits", "schedules", "jobs", "skipped"), 0)

    def check(self, file: Path) -> None:
        """Raises StoreError if anything in the file cannot be imported."""
        from manyhands.cli.lines import JobLine
        from manyhands.store.contract import StoreError

        seen: set[str] = set()
        for number, line in _lines(file):
            if not isinstance(line, JobLine):
                continue
            job_id = line.job.job_id
            if job_id in seen:
                raise StoreError(f"{file} line {number}: job {job_id} appears twice.")
            seen.add(job_id)
            sentence = self._clash(line)
            if sentence is None:
                continue
            if not self._skip_existing:
                raise StoreError(
                    f"{file} line {number}: {sentence}. Nothing was imported; "
                    "--skip-existing skips existing jobs."
                )
            self._skipped.add(job_id)
        self._jobs_total = len(seen)

    def _clash(self, line: "JobLine") -> str | None:
        from manyhands.model.job import FINISHED

        job, live = line.job, self._store.live
        if live.job(job.job_id) is not None or self._store.find(job.job_id) is not None:
            return f"job {job.job_id} already exists"
        if job.state in FINISHED:
            return None
        if job.unique_key is not None and live.key_holder(job.queue, job.unique_key):
            return f"another job holds the unique key of job {job.job_id}"
        if job.name is not None and live.named(job.namespace or "", job.name):
            return f"another job has the name of job {job.job_id}"
        return None

    def write(self, file: Path) -> None:
        """Writes everything that is not skipped, in batches."""
        effects = self._open()
        gathered = 0
        with progress("importing") as report:
            for _, line in _lines(file):
                gathered += self._put(effects, line)
                if len(effects.jobs) >= _BATCH_COUNT or gathered >= _BATCH_BYTES:
                    self._commit(effects)
                    effects, gathered = self._open(), 0
                    report(self.counts["jobs"], self._jobs_total)
            self._commit(effects)
        effects = self._open()
        self._note_unnotified(effects)
        for namespace, serial in self._graphs.items():
            self._store.begin_graph(namespace, serial)
        self._commit(effects)

    def _open(self) -> "Effects":
        from manyhands.dispatch.clock import Clock
        from manyhands.engine.effects import Effects

        return Effects(self._store.live.view, Clock().now())

    def _put(self, effects: "Effects", line: "Line") -> int:
        """Adds a line to the batch; returns its size in bytes."""
        from manyhands.cli import lines

        match line:
            case lines.QueueLine():
                effects.put_queue(line.queue)
                self.counts["queues"] += 1
            case lines.LimitLine():
                effects.set().limits[line.limit.name] = line.limit
                self.counts["limits"] += 1
            case lines.ScheduleLine():
                effects.set().schedules[line.schedule.schedule_id] = line.schedule
                self.counts["schedules"] += 1
            case lines.JobLine():
                weight = self._put_job(effects, line)
                self._jobs_read += 1
                self._note_dooms(effects)
                return weight
            case lines.Header():
                pass  # read by `_lines`
        return 0

    def _put_job(self, effects: "Effects", line: "JobLine") -> int:
        from manyhands.model.job import FINISHED
        from manyhands.model.policy import Queue

        job = line.plain()
        if job.job_id in self._skipped:
            self.counts["skipped"] += 1
            return 0
        if effects.queue(job.queue) is None:
            effects.put_queue(Queue(job.queue))
        # Later jobs must be placed after the imported ones.
        self._store.reserve_positions(job.position)
        effects.put(job)
        self.counts["jobs"] += 1
        if line.begins_graph:
            self._graphs[job.namespace or ""] = self._serial(effects)
        if job.state not in FINISHED:
            self._awaited.update(job.waits_for)
        if line.doom is not None:
            self._dooms.setdefault(line.doom.among, []).append(
                (job.job_id, as_detail(line.doom.reason))
            )
        return len(job.payload) + len(job.result or b"")

    def _note_dooms(self, effects: "Effects") -> None:
        """Notes the pending cascade cancellations, once all jobs are there."""
        from manyhands.model.job import Unnotified

        for job_id, detail in self._dooms.pop(self._jobs_read, ()):
            effects.set().unnotified[job_id] = Unnotified(self._serial(effects), detail)

    def _serial(self, effects: "Effects") -> int:
        """The serial that the latest job will have: all of them are new."""
        return self._store.live.last_serial() + len(effects.jobs)

    def _note_unnotified(self, effects: "Effects") -> None:
        """Lets the server notify dependants at its next start: at the time of the export some had
        not been notified that a dependency had finished, and what was skipped here may have ended
        differently.
        """
        from manyhands.engine.graph import job_of_key
        from manyhands.model.job import FINISHED, Unnotified

        self._fetch([key for key in self._awaited if "\0" not in key])
        for key in self._awaited:
            job = job_of_key(effects, key)
            if (
                job is None
                or job.state not in FINISHED
                or job.job_id in self._store.live.unnotified
            ):
                continue
            effects.set().unnotified[job.job_id] = Unnotified()

    def _fetch(self, job_ids: list[str]) -> None:
        """Has records read that a store does not read by itself."""
        self._store.begin_fetch(job_ids)
        while not self._store.has_fetched():
            descriptor = self._store.fileno()
            assert descriptor is not None
            select.select([descriptor], [], [])
            self._store.finish_commits()

    def _commit(self, effects: "Effects") -> None:
        store = self._store
        store.write(effects)
        batch = store.begin_commit(effects.now)
        descriptor = store.fileno()
        if batch is None or descriptor is None:
            return
        while store.has_unsent():
            select.select([], [descriptor], [])
            store.send_more()
        while store.finish_commits() < batch.number:
            select.select([descriptor], [], [])


def _lines(file: Path) -> Iterator[tuple[int, "Line"]]:
    """The lines after the header, with their numbers."""
    from manyhands.cli import lines
    from manyhands.store.contract import StoreError

    number = 0
    with file.open("rb") as stream:
        for number, text in enumerate(stream, start=1):
            try:
                line = lines.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"{file} line {number} cannot be read: {error}.") from None
            if isinstance(line, lines.Header) is not (number == 1):
                raise StoreError(f"{file} is not an export of manyhands: its header is missing.")
            if isinstance(line, lines.Header):
                if line.format != lines.FORMAT:
                    raise StoreError(
                        f"{file} has format {line.format}, written by manyhands {line.version}; "
                        f"this version reads format {lines.FORMAT}."
                    )
                continue
            yield number, line
    if number == 0:
        raise StoreError(f"{file} is empty.")

"""Inspection of a whole store: its structure, every checksum, and whether rows agree with each
other.

Nothing is changed. All damage is reported in sentences, so that an operator knows what a damaged
store still holds.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from manyhands.engine.invariants import check_job
from manyhands.model.failures import earlier_group_of, group_of_job
from manyhands.model.identity import uid_of
from manyhands.model.job import FINISHED, Job, State
from manyhands.store.batch import UNNOTIFIED_PREFIX
from manyhands.store.contract import StoreError
from manyhands.store.records.frames import Counters
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.rows import split_events
from manyhands.store.records.tables import OF_JOB, SUMMED, TABLES
from manyhands.store.sqlite.checksums import RecordDamagedError, verified
from manyhands.store.sqlite.recovery import unapplied_count
from manyhands.store.sqlite.rows import COLUMNS, decode_row

# Called with the work finished so far and the total.
Report = Callable[[int, int], None]

_REPORT_EVERY: Final = 1_000
_STRUCTURE_LINES_MAX: Final = 100
_UNREADABLE: Final = (msgspec.MsgspecError, KeyError, ValueError)
# Columns that repeat what a job's record says, or that are computed from it.
_AGREEING: Final = (
    "jobs.state, jobs.namespace, jobs.name, jobs.uid,"
    " (SELECT group_concat(tag, char(10) ORDER BY tag) FROM tags WHERE tags.serial = jobs.serial),"
    " (SELECT group_id FROM failures WHERE failures.serial = jobs.serial)"
)
_GROUP: Final = "group of failures"
_UNFINISHED: Final = "state NOT IN ('completed', 'failed', 'cancelled')"
# Rows that belong to no job, and unique values that several jobs have.
_STRAYS: Final = (
    *(
        (
            f"SELECT DISTINCT serial FROM {table} WHERE serial NOT IN (SELECT serial FROM jobs)",  # noqa: S608
            f"{table} has rows of a job with serial {{0}}, which is not there",
        )
        for table in (table.name for table in OF_JOB)
    ),
    (
        f"SELECT queue, group_concat(job_id, ' and ') FROM jobs WHERE {_UNFINISHED}"  # noqa: S608
        " AND unique_key IS NOT NULL GROUP BY queue, unique_key HAVING count(*) > 1",
        "jobs {1} of queue {0} hold the same unique key",
    ),
    (
        f"SELECT name, group_concat(job_id, ' and ') FROM jobs WHERE {_UNFINISHED}"  # noqa: S608
        " AND namespace IS NOT NULL AND name IS NOT NULL"
        " GROUP BY namespace, name HAVING count(*) > 1",
        "jobs {1} have the same name {0}",
    ),
    (
        "SELECT group_id FROM failures WHERE group_id NOT IN (SELECT group_id FROM failure_groups)"
        " GROUP BY group_id",
        "the group {0} of failures is not there",
    ),
)


class Checker:
    """Checks one database; ``damage`` lists what was found."""

    def __init__(self, connection: apsw.Connection, damage: list[str]) -> None:
        self.damage = damage
        self.jobs_count = 0
        self.events_count = 0
        self._connection = connection
        self._terms = TermsBook()
        self._unnotified: set[str] = (
            set()
        )  # finished jobs with dependants that have not been notified

    def check_structure(self) -> bool:
        """Whether the file can be read at all."""
        statement = f"PRAGMA integrity_check({_STRUCTURE_LINES_MAX})"
        try:
            found = [str(row[0]) for row in self._connection.execute(statement)]
        except apsw.Error as error:
            found = [str(error)]
        if found != ["ok"]:
            self.damage += [f"the structure is damaged: {line}" for line in found]
        return found == ["ok"]

    def check_settings(self) -> None:
        """Checks everything but jobs and events."""
        for table in TABLES.values():
            if not table.has_sum:
                continue
            for row in self._whole(table.name):
                if table.kind is not None:
                    self._decode(f"{table.name} {row[0]}", row[1], table.kind)
                if table.name == "cursors" and row[0].startswith(UNNOTIFIED_PREFIX):
                    self._unnotified.add(row[0].removeprefix(UNNOTIFIED_PREFIX))
                if table.name == "terms":
                    with contextlib.suppress(*_UNREADABLE):  # it is reported already
                        self._terms.learn(*row)
        for statement, sentence in _STRAYS:
            for row in self._connection.execute(statement):
                self.damage.append(sentence.format(*row))

    def check_events(self, report: Report) -> None:
        """Checks that every row of the event log is intact, and that none is missing in between."""
        total = self._connection.execute("SELECT count(*) FROM events").get
        facts = dict(self._whole("facts"))
        counters = self._decode("facts counters", facts.get("counters", "{}"), Counters)
        last = None
        for number, (last_seq, count, bodies) in enumerate(self._whole("events")):
            first = last_seq - count + 1
            if last is not None and first != last + 1:
                self.damage.append(f"the log of events has a hole from {last + 1} to {first - 1}")
            last = last_seq
            try:
                self.events_count += len(split_events(count, bodies))
            except _UNREADABLE as error:
                self.damage.append(f"events {first} to {last_seq} cannot be read ({error})")
            if number % _REPORT_EVERY == 0:
                report(number, total)
        if counters is None:
            return
        if last is not None and last != counters.seq:
            self.damage.append(f"the log of events ends at {last}, not at {counters.seq}")
        serial = self._connection.execute("SELECT max(serial) FROM jobs").get or 0
        if serial > counters.serial:
            self.damage.append(f"there is a job with serial {serial}, after {counters.serial}")

    def check_jobs(self, report: Report) -> None:
        """Checks each job by itself and against its rows in other tables."""
        total = self._connection.execute("SELECT count(*) FROM jobs").get
        # One by one, so that an unreadable row does not end the walk.
        statement = f"SELECT {COLUMNS}, {_AGREEING} FROM jobs WHERE serial = ?"  # noqa: S608
        for (serial,) in self._connection.execute("SELECT serial FROM jobs ORDER BY serial"):
            self.jobs_count += 1
            try:
                row = self._connection.execute(statement, (serial,)).fetchall()[0]
                self._check_job(decode_row(row[:-6], self._terms.by_number), row[-6:])
            except (RecordDamagedError, AssertionError) as error:
                self.damage.append(str(error))
            except _UNREADABLE as error:
                self.damage.append(f"the job with serial {serial} cannot be read ({error})")
            if self.jobs_count % _REPORT_EVERY == 0:
                report(self.jobs_count, total)

    def _check_job(self, job: Job, beside: tuple[Any, ...]) -> None:
        check_job(job)
        group = group_of_job(job)
        uid = None if len(job.job_id) == 32 else uid_of(job.job_id)
        tags = "\n".join(sorted(set(job.tags))) or None
        expected = (
            ("state", job.state.value),
            ("namespace", job.namespace),
            ("name", job.name),
            ("uid", uid),
            ("tags", tags),
            (_GROUP, None if group is None else group.group_id),
        )
        for (what, value), found in zip(expected, beside, strict=True):
            if value != found and not (what == _GROUP and _is_earlier_group(job, found)):
                self.damage.append(
                    f"job {job.job_id} is found by the {what} {found}, and has {value}"
                )
        if job.state not in FINISHED and job.waits_for:
            self._check_dependencies(job)

    def _check_dependencies(self, job: Job) -> None:
        for other in job.waits_for:
            statement = "SELECT state FROM jobs WHERE job_id = ?"
            state = self._connection.execute(statement, (other,)).get
            if state == "completed" and other not in self._unnotified:
                self.damage.append(f"job {job.job_id} waits for {other}, which is completed")

    def _whole(self, table: str) -> Iterator[Any]:
        columns = ", ".join(SUMMED[table])
        statement = f"SELECT {columns}, checksum FROM {table} ORDER BY 1"  # noqa: S608
        for row in self._connection.execute(statement):
            try:
                yield verified(f"{table} {row[0]}", row)
            except RecordDamagedError as error:
                self.damage.append(str(error))

    def _decode(self, what: str, record: str, kind: Any) -> Any:  # noqa: ANN401
        try:
            return msgspec.json.decode(record, type=kind)
        except msgspec.MsgspecError as error:
            self.damage.append(f"{what} cannot be read ({error})")
            return None


def _is_earlier_group(job: Job, group_id: str | None) -> bool:
    """Whether an earlier version put a failed job into this group."""
    if job.state is not State.FAILED or job.failure is None:
        return False
    return earlier_group_of(job.failure).group_id == group_id


def check_journal(connection: apsw.Connection, file: Path, damage: list[str]) -> int:
    """Checks that the journal is intact and belongs to the database; returns how many frames the
    next start has to apply.
    """
    try:
        return unapplied_count(connection, file)
    except StoreError as error:
        damage.append(str(error))
        return 0

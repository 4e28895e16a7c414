"""Packs batches into frames: a row per job, its terms by number, everything else by table."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from manyhands.engine.endings import result_ms_of
from manyhands.model.events import Event
from manyhands.model.failures import group_of_job
from manyhands.model.identity import uid_of
from manyhands.model.job import Job, State
from manyhands.model.plain import Plain, PlainCompleted, PlainLeased, PlainReady
from manyhands.model.policy import Terms
from manyhands.store.batch import Batch
from manyhands.store.records.frames import Counters, Frame, pack
from manyhands.store.records.rows import decode_terms, encode_record, encode_terms, plain_event
from manyhands.store.records.tables import EVENTS, JOBS, REPLACED, RESULTS, TABLES, Row, Rows, Table

_FAILED: Final = State.FAILED
_CANCELLED: Final = State.CANCELLED
_QUICK_MAX: Final = 4_096
_PAYLOAD_BYTES_INSIDE: Final = 2_000  # larger ones have a row of their own; a quarter of a page

_encode = msgspec.json.Encoder().encode


class Removals:
    """Removals by retention, to go into the next batch."""

    __slots__ = ("audit_to", "events_to", "groups", "jobs", "results", "samples", "terms")

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # job id -> serial
        self.results: list[int] = []  # serials
        self.events_to = 0
        self.audit_to = 0
        self.samples: list[Row] = []
        self.terms: list[Row] = []
        self.groups = False  # drop groups of failures that have no jobs any more

    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (
            self.jobs
            or self.results
            or self.events_to
            or self.audit_to
            or self.samples
            or self.terms
            or self.groups
        )

    def add_to(self, rows: Rows) -> None:
        """Adds the removals as rows."""
        rows[JOBS] = [((serial,), None) for serial in self.jobs.values()]
        rows[RESULTS] = [((serial,), None) for serial in self.results]
        rows[EVENTS] = [((self.events_to,), None)] if self.events_to else []
        rows["audit"] = [((self.audit_to,), None)] if self.audit_to else []
        rows["history"] = list(self.samples)
        rows["terms"] = list(self.terms)


class TermsBook:
    """Terms by number and numbers by terms. Equal terms are one object, however often they are
    loaded.
    """

    def __init__(self, number_for: Callable[[str], int] | None = None) -> None:
        """``number_for`` makes the number of new terms from their record; else they are counted."""
        self._number_for = number_for
        self.by_number: dict[int, Terms] = {}
        self.fresh: list[tuple[int, str]] = []  # new terms, not in any batch yet
        self._last = 0
        self._numbers: dict[Terms, int] = {}
        # Most jobs share a few objects, which are recognised by identity.
        self._quick: dict[int, tuple[Terms, int]] = {}
        self._used: set[int] | None = None  # numbers used since the watch began
        self._dropped: list[int] = []  # readers still know them for a while

    def learn(self, number: int, record: str) -> None:
        """Adds a row of the file."""
        terms = decode_terms(record.encode())
        self.by_number[number] = terms
        self._numbers[terms] = number
        self._last = max(self._last, number)

    def number_of(self, terms: Terms) -> int:
        """The number of these terms; new ones are written with the next batch."""
        known = self._quick.get(id(terms))
        if known is not None:
            return known[1]
        number = self._numbers.get(terms)
        if number is None:
            record = encode_terms(terms).decode()
            number = self._next(record)
            self.by_number[number] = terms
            self._numbers[terms] = number
            self.fresh.append((number, record))
        if self._used is not None:
            self._used.add(number)
        if len(self._quick) >= _QUICK_MAX:
            self._quick.clear()
        # This entry keeps the object alive, so its id is not reused.
        self._quick[id(terms)] = (terms, number)
        return number

    def _next(self, record: str) -> int:
        if self._number_for is not None:
            return self._number_for(record)
        self._last += 1
        return self._last

    def watch(self) -> None:
        """Starts to record which numbers are used."""
        self._quick.clear()  # or their use would not be seen
        self._used = set()

    def drop(self, numbers: Sequence[int]) -> list[int]:
        """Forgets terms that no row has and that were not used meanwhile. Readers may still hold
        rows that are gone from the file, so the numbers stay readable until the next call.
        """
        for number in self._dropped:
            del self.by_number[number]
        used = self._used or set()
        self._dropped = [
            number for number in numbers if number not in used and number in self.by_number
        ]
        for number in self._dropped:
            del self._numbers[self.by_number[number]]
        self._used = None
        return list(self._dropped)


class Packer:
    """Turns batches into frames, in order."""

    def __init__(
        self,
        terms: TermsBook,
        result_ms: int | None,
        serial: int,
        payload_bytes_inside: int = _PAYLOAD_BYTES_INSIDE,
    ) -> None:
        self._terms = terms
        self._inside_max = payload_bytes_inside
        self._result_ms = result_ms
        self._serial = serial  # jobs up to this one have a row

    def begin_after(self, serial: int) -> None:
        """Jobs up to this serial have a row, whoever wrote it."""
        self._serial = max(self._serial, serial)

    def pack(self, batch: Batch, counters: Counters, removals: Removals) -> bytearray:
        """Packs a sealed batch."""
        inserted: list[Any] = []
        updated: list[Any] = []
        last_serial, result_until = self._serial, self._result_until
        plain = not batch.rows and removals.is_empty()
        steps: list[Any] = []  # `PlainRow`, as tuples: they are quicker to make
        full = batch.full
        for job in batch.values.values():
            if type(job) is not Job:
                steps.append(self._plain(job, full))  # type: ignore[arg-type]
                if type(job) is PlainCompleted and job.payload is not None:
                    plain = False
                continue
            serial, state, result = job.serial, job.state, job.result
            record = encode_record(job)
            if state is _FAILED or state is _CANCELLED or job.incarnation:
                plain = False
            if serial <= last_serial and job.job_id not in batch.full:
                until = None if result is None else result_until(job)
                updated.append((serial, job.queue, state, job.finished_at, until, record, result))
                continue
            if serial <= last_serial or job.tags or len(job.payload) > self._inside_max:
                plain = False
            inserted.append(self._row(job, record))
        self._serial = max(last_serial, counters.serial)
        if self._terms.fresh:
            plain = False
        frame = Frame(
            number=batch.number,
            counters=_encode(counters).decode(),
            inserted=inserted,
            updated=updated,
            events_after=batch.events_after,
            events=[
                entry if type(entry) is Event else plain_event(entry)  # type: ignore[arg-type]
                for entry in batch.entries
            ],
            rows={} if plain else self._rows(batch, removals, last_serial),
            plain=steps,
        )
        packed = pack(frame)
        self._terms.fresh = []
        return packed

    def _rows(self, batch: Batch, removals: Removals, last_serial: int) -> Rows:
        """All rows but those of jobs and events; removals come first."""
        rows: Rows = {}
        removals.add_to(rows)
        rows["terms"] += [((number,), (record,)) for number, record in self._terms.fresh]
        replaced = rows[REPLACED] = []
        payloads: list[Row] = []
        tags: list[Row] = []
        failures: list[Row] = []
        groups: list[Row] = []
        for job in batch.values.values():
            if not isinstance(job, Job):
                if job.serial <= last_serial and job.job_id in batch.full:
                    replaced.append(((job.serial,), None))
                continue
            serial, state = job.serial, job.state
            is_new = serial > last_serial
            if is_new or job.job_id in batch.full:
                if not is_new:
                    replaced.append(((serial,), None))
                if len(job.payload) > self._inside_max:
                    payloads.append(((serial,), (job.payload,)))
                tags += [((tag, serial), ()) for tag in dict.fromkeys(job.tags)]
            if state is _FAILED:
                group = group_of_job(job)
                if group is not None:
                    failure = (group.group_id, group.code, job.queue, job.finished_at)
                    failures.append(((serial,), failure))
                    groups.append(((group.group_id,), (group.code, group.line)))
            elif state is _CANCELLED or job.incarnation:
                failures.append(((serial,), None))  # it may have failed before
        if removals.groups:
            groups.append(((), None))
        rows |= {"payloads": payloads, "tags": tags, "failures": failures, "failure_groups": groups}
        for name, changed in batch.rows.items():
            found = rows.setdefault(name, [])
            _add_changed(found, TABLES[name], changed)
        return {name: found for name, found in rows.items() if found}

    def _plain(self, value: Plain, full: Collection[str]) -> tuple[Any, ...]:
        lease = end = None
        if type(value) is PlainReady:
            ready = value
            payload, encoding = ready.payload, ready.encoding
        elif type(value) is PlainLeased:
            ready, lease = value.ready, value.lease
            payload, encoding = ready.payload, ready.encoding
        else:
            assert isinstance(value, PlainCompleted)
            ready, lease = value.leased.ready, value.leased.lease
            if value.payload is None:
                payload, encoding = ready.payload, ready.encoding
            else:
                payload, encoding = value.payload, value.result_encoding
            until = None
            if value.result is not None:
                until = self._until(ready.terms, value.at)
            end = (value.at, value.result, value.result_encoding, until)
        new = None
        job_id = ready.job_id
        if job_id in full:
            origin = ready.origin
            new = (
                job_id,
                None if len(job_id) == 32 else uid_of(job_id),
                self._terms.number_of(ready.terms),
                ready.submitted_at,
                ready.unique_key,
                origin.realm,
                origin.name,
                origin.address,
                payload,
            )
        return (
            ready.serial,
            ready.queue,
            encoding,
            ready.priority,
            ready.position,
            ready.at,
            ready.durable_interest,
            ready.waiters,
            new,
            lease,
            end,
        )

    def _row(self, job: Job, record: bytes) -> tuple[Any, ...]:
        job_id = job.job_id
        origin = job.origin
        return (
            job.serial,
            job_id,
            None if len(job_id) == 32 else uid_of(job_id),
            job.queue,
            job.state,
            job.finished_at,
            None if job.result is None else self._result_until(job),
            job.namespace,
            job.name,
            self._terms.number_of(job.terms),
            job.submitted_at,
            job.unique_key,
            origin.realm,
            origin.name,
            origin.address,
            record,
            job.payload if len(job.payload) <= self._inside_max else None,
            job.result,
        )

    def _result_until(self, job: Job) -> int | None:
        """When the result expires, if there is one."""
        return None if job.finished_at is None else self._until(job.terms, job.finished_at)

    def _until(self, terms: Terms, finished_at: int) -> int | None:
        kept = result_ms_of(terms)
        if kept is None:
            kept = self._result_ms
        return None if kept is None else finished_at + kept


def _add_changed(rows: list[Row], table: Table, changed: Mapping[Any, Any]) -> None:
    """Adds what changed in a table. Keys of one column are not tuples in a batch."""
    for found, value in changed.items():
        key = found if type(found) is tuple else (found,)
        if value is None:
            rows.append((key, None))
            continue
        if table.displaces is not None:
            removal = table.displaces(key)
            if removal is not None:
                rows.append((removal, None))
        rows.append((key, table.encode(value)))

"""Batches become frames: a row for each job, its terms by number, settings as records."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from manyhands.engine.ending import result_ms_of
from manyhands.model import limits
from manyhands.model.failures import group_of_job
from manyhands.model.identity import uid_of
from manyhands.model.job import Job, State
from manyhands.model.policy import Terms
from manyhands.store.batch import Batch
from manyhands.store.frames import Counters, Frame, Rarities, pack
from manyhands.store.rows import decode_terms, encode_record, encode_terms

_FAILED: Final = State.FAILED
_CANCELLED: Final = State.CANCELLED
_QUICK_MAX: Final = 4_096
_PAYLOAD_BYTES_INSIDE: Final = 2_000  # larger ones have a row of their own; a quarter of a page

_encode = msgspec.json.Encoder().encode
_encode_sample = msgspec.msgpack.Encoder().encode


class Removals:
    """What retention lets go of, on its way into the next batch."""

    __slots__ = ("events_to", "groups", "jobs", "results", "samples", "terms")

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # job id -> serial
        self.results: list[int] = []  # serials
        self.events_to = 0
        self.samples: list[tuple[int, int]] = []  # step, and before when
        self.terms: list[tuple[int]] = []  # numbers
        self.groups = False  # whatever groups of failures have no job any more

    def is_empty(self) -> bool:
        """Nothing goes."""
        return not (
            self.jobs or self.results or self.events_to or self.samples or self.terms or self.groups
        )


class TermsBook:
    """Terms by number and numbers by terms. Equal terms are one object, however often loaded."""

    def __init__(self) -> None:
        self.by_number: dict[int, Terms] = {}
        self.fresh: list[tuple[int, str]] = []  # not in any batch yet
        self._last = 0
        self._numbers: dict[Terms, int] = {}
        # Most jobs share a few objects: those are recognised without being compared.
        self._quick: dict[int, tuple[Terms, int]] = {}
        self._used: set[int] | None = None  # numbers given out since the watch began
        self._dropped: list[int] = []  # still known to those who read, for a while

    def learn(self, number: int, record: str) -> None:
        """A row of the file."""
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
            number = self._last = self._last + 1
            self.by_number[number] = terms
            self._numbers[terms] = number
            self.fresh.append((number, encode_terms(terms).decode()))
        if self._used is not None:
            self._used.add(number)
        if len(self._quick) >= _QUICK_MAX:
            self._quick.clear()
        # Kept alive by this very entry, so its id is nobody else's.
        self._quick[id(terms)] = (terms, number)
        return number

    def watch(self) -> None:
        """From now on remember which numbers are given out."""
        self._quick.clear()  # or they would be given out unseen
        self._used = set()

    def drop(self, numbers: Sequence[int]) -> list[int]:
        """Forget terms that no row has and that were not given out meanwhile. Who reads may have
        rows in hand that are gone already, so their meaning stays known until the next time.
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

    def __init__(self, terms: TermsBook, result_ms: int | None, serial: int) -> None:
        self._terms = terms
        self._result_ms = result_ms
        self._serial = serial  # jobs up to this one have a row

    def pack(self, batch: Batch, counters: Counters, removals: Removals) -> bytearray:
        """The frame of a sealed batch."""
        inserted: list[Any] = []
        updated: list[Any] = []
        last_serial, result_until = self._serial, self._result_until
        plain = batch.is_plain() and removals.is_empty()
        for job in batch.jobs.values():
            serial, state, result = job.serial, job.state, job.result
            record = encode_record(job)
            if state is _FAILED or state is _CANCELLED or job.incarnation:
                plain = False
            if serial <= last_serial and job.job_id not in batch.full:
                until = None if result is None else result_until(job)
                updated.append((serial, job.queue, state, job.finished_at, until, record, result))
                continue
            if serial <= last_serial or job.tags or len(job.payload) > _PAYLOAD_BYTES_INSIDE:
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
            events=batch.events,
            rarities=None if plain else self._rarities(batch, removals, last_serial),
        )
        packed = pack(frame)
        self._terms.fresh = []
        return packed

    def _rarities(self, batch: Batch, removals: Removals, last_serial: int) -> Rarities:
        """All but the rows of jobs and the events."""
        jobs = batch.jobs.values()
        full = [job for job in jobs if job.serial > last_serial or job.job_id in batch.full]
        groups = [
            (job, group)
            for job in jobs
            if job.state is _FAILED and (group := group_of_job(job)) is not None
        ]
        return Rarities(
            dropped_jobs=[(serial,) for serial in removals.jobs.values()],
            dropped_results=[(serial,) for serial in removals.results],
            events_dropped_to=removals.events_to,
            terms=self._terms.fresh,
            replaced=[(job.serial,) for job in full if job.serial <= last_serial],
            payloads=[
                (job.serial, job.payload)
                for job in full
                if len(job.payload) > _PAYLOAD_BYTES_INSIDE
            ],
            tagged=[(tag, job.serial) for job in full for tag in dict.fromkeys(job.tags)],
            partials=[
                (
                    serial,
                    piece.number,
                    piece.number - limits.PARTIALS_KEPT_MAX + 1,
                    piece.at,
                    int(piece.warning),
                    piece.payload,
                )
                for serial, piece in batch.partials
            ],
            queues=_records(batch.queues),
            removed_queues=[(name,) for name in batch.forgotten_queues],
            limits=_records(batch.limits),
            removed_limits=[(name,) for name in batch.removed_limits],
            schedules=_records(batch.schedules),
            removed_schedules=[(name,) for name in batch.removed_schedules],
            cursors=_records(batch.cursors),
            removed_cursors=[(name,) for name in batch.removed_cursors],
            # Jobs that may have been failed before.
            mended=[
                (job.serial,)
                for job in jobs
                if job.state is _CANCELLED or (job.incarnation and job.state is not _FAILED)
            ],
            failures=[
                (job.serial, group.group_id, group.code, job.queue, job.finished_at)
                for job, group in groups
            ],
            failure_groups=[(group.group_id, group.code, group.line) for _, group in groups],
            audit=_records(batch.audit),
            audit_dropped_to=[(seq - limits.AUDIT_KEPT_MAX,) for seq in batch.audit],
            bulks=_records(batch.bulks),
            removed_bulks=[(name,) for name in batch.removed_bulks],
            samples=[
                (row.queue, row.step_ms, row.at, _encode_sample(row.sample))
                for row in batch.samples
            ],
            dropped_samples=removals.samples,
            dropped_terms=removals.terms,
            dropped_groups=[()] if removals.groups else [],
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
            job.payload if len(job.payload) <= _PAYLOAD_BYTES_INSIDE else None,
            job.result,
        )

    def _result_until(self, job: Job) -> int | None:
        """When the result goes; it has one."""
        if job.finished_at is None:
            return None
        kept = result_ms_of(job)
        if kept is None:
            kept = self._result_ms
        return None if kept is None else job.finished_at + kept


def _records(settings: Mapping[Any, Any]) -> list[Any]:
    return [(name, _encode(value).decode()) for name, value in settings.items()]

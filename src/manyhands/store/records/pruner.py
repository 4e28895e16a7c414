"""Retention of records in a database: which records, results and events to drop.

Candidates are read in slices, oldest first; those that a live job needs are skipped. Removals are
noted for the next batch, so that they are applied in order with everything else. Every question to
the database is yielded and its answer sent back, so that a store may ask outside of the event loop.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from manyhands.model import limits
from manyhands.model.job import State
from manyhands.model.policy import NO_POLICY, QueuePolicy
from manyhands.store.collector import Collector
from manyhands.store.contract import StoredEvent
from manyhands.store.records.packer import Removals
from manyhands.store.records.reading import Dialect, Records
from manyhands.store.retention import OUTCOMES, SAMPLES_KEPT_MS, Retention
from manyhands.store.rounds import Rounds

_Place = tuple[str, State]
_START: Final = (-1, -1)
_SLICES_MAX: Final = 10  # of records that may still be needed
# To free bytes, the oldest records of this many places are compared, this many of each at a time.
# There may be a hundred thousand queues.
_SURPLUS_PLACES: Final = 100
_SURPLUS_COUNT: Final = 50
# How often samples and the audit log are pruned, and entries of the latter that go at once: more
# than can be made meanwhile.
_RARELY_MS: Final = 10 * 60 * 1000
_ENTRIES_COUNT: Final = 2_000
_EVENTS_A_JOB: Final = 20  # events dropped per record in one slice: they are many and cheap


class Prunable(Records, Protocol):
    """What is asked."""

    def events(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        """Events after a sequence number."""


class _Age(Struct):
    at: int


_decode_age: Final = msgspec.json.Decoder(_Age).decode

# A question to the records, and what a walk over its answers comes to.
Question = Callable[[Prunable], Any]
Steps = Generator[Question, Any, int]


def answered(steps: Steps, records: Prunable) -> int:
    """Takes all steps at once; returns what they come to."""
    try:
        question = next(steps)
        while True:
            question = steps.send(question(records))
    except StopIteration as end:
        return int(end.value)


class Pruner:
    """Finds what to drop, slice by slice, and remembers where it was."""

    def __init__(self, collector: Collector, dialect: Dialect, retention: Retention) -> None:
        # Ids of records, and serials of results, whose removal is not applied yet.
        self.leaving: dict[str, None] = {}
        self._leaving_results: dict[int, None] = {}
        self._collector = collector
        self._index = collector.index
        self._dialect = dialect
        self._retention = retention
        # No record of a place finished before this; what finishes later is younger anyway.
        self._oldest_at: dict[_Place, int] = {}
        # Where to continue after records that cannot be dropped yet, so that they are not walked
        # each time.
        self._passed: dict[_Place, tuple[int, int]] = {}
        self._rounds = Rounds(self._index.recorded_queues)
        self._rare_pruned_at = 0

    def prune(
        self, now: int, count_max: int, removals: Removals, first_seq: int, last_seq: int
    ) -> Steps:
        """Notes one slice of removals; comes to how many records and results it has."""
        count = 0
        for queue in self._rounds.part(limits.QUEUES_A_SLICE):
            known = self._index.queue(queue)
            policy = known.policy if known is not None else NO_POLICY
            for state in OUTCOMES:
                if count == count_max:
                    return count
                if self._may_hold_any((queue, state), policy, now):
                    room = count_max - count
                    count += yield from self._prune_place(
                        (queue, state), policy, now, room, removals
                    )
            self._forget_queue(queue)
        count += yield from self._prune_surplus(now, count_max - count, removals)
        count += yield from self._prune_results(now, count_max - count, removals)
        yield from self._prune_events(now, count_max * _EVENTS_A_JOB, removals, first_seq, last_seq)
        if now - self._rare_pruned_at >= _RARELY_MS:
            self._rare_pruned_at = now
            yield from self._prune_samples(now, removals)
            yield from self._prune_audit(now, removals)
        return count

    def forget(self, removals: Removals) -> None:
        """These removals are applied."""
        for job_id in removals.jobs:
            del self.leaving[job_id]
        for serial in removals.results:
            del self._leaving_results[serial]

    def _forget_queue(self, queue: str) -> None:
        """Forgets a queue whose last record is gone."""
        counts = self._index.counts_of(queue)
        if not any(counts[state] for state in OUTCOMES):
            for state in OUTCOMES:
                self._oldest_at.pop((queue, state), None)
                self._passed.pop((queue, state), None)
            self._index.let_go(queue)

    def _may_hold_any(self, place: _Place, policy: QueuePolicy, now: int) -> bool:
        queue, state = place
        count = self._index.counts_of(queue)[state]
        if count > self._retention.records_max_of(policy):
            return True
        oldest_at = self._oldest_at.get(place, 0)
        return count > 0 and oldest_at + self._retention.record_ms_of(policy) <= now

    def _prune_place(
        self, place: _Place, policy: QueuePolicy, now: int, count_max: int, removals: Removals
    ) -> Steps:
        queue, state = place
        counts = self._index.counts_of(queue)
        records_max = self._retention.records_max_of(policy)
        record_ms = self._retention.record_ms_of(policy)
        count = 0
        start = self._passed.pop(place, _START)
        for _ in range(_SLICES_MAX):  # and the next ones in the next call, until the end
            rows = yield from self._oldest(place, start, now, count_max)
            for finished_at, serial, job_id, weight in rows:
                if finished_at + record_ms > now and counts[state] <= records_max:
                    return count
                count += self._remove(place, serial, job_id, weight, removals)
                if count == count_max:
                    return count
            if len(rows) < count_max:
                return count
            start = (rows[-1][0], rows[-1][1])
        self._passed[place] = start
        return count

    def _remove(
        self, place: _Place, serial: int, job_id: str, weight: int, removals: Removals
    ) -> bool:
        """Notes the removal of a record, unless something needs it."""
        if job_id in self.leaving or self._is_needed(job_id):
            return False
        queue, state = place
        self.leaving[job_id] = None
        removals.jobs[job_id] = serial
        self._index.counts_of(queue)[state] -= 1
        self._index.finished_bytes -= weight
        return True

    def _prune_surplus(self, now: int, count_max: int, removals: Removals) -> Steps:
        """Drops the oldest records while all together have too many bytes."""
        index, bytes_max = self._index, self._retention.bytes_max
        if index.finished_bytes <= bytes_max or count_max <= 0:
            return 0
        places = nsmallest(
            _SURPLUS_PLACES, self._places(), key=lambda place: self._oldest_at.get(place, 0)
        )
        oldest: list[tuple[int, int, str, int, _Place]] = []
        for place in places:
            start = self._passed.pop(place, _START)
            rows = yield from self._oldest(place, start, now, _SURPLUS_COUNT)
            if rows and all(self._is_needed(row[2]) for row in rows):
                self._passed[place] = (rows[-1][0], rows[-1][1])
            oldest += [(*row, place) for row in rows]
        count = 0
        for _, serial, job_id, weight, place in sorted(oldest):
            count += self._remove(place, serial, job_id, weight, removals)
            if index.finished_bytes <= bytes_max or count == count_max:
                break
        return count

    def _places(self) -> Iterator[_Place]:
        for queue in self._index.recorded_queues():
            counts = self._index.counts_of(queue)
            for state in OUTCOMES:
                if counts[state]:
                    yield queue, state

    def _oldest(
        self, place: _Place, start: tuple[int, int], now: int, count_max: int
    ) -> Generator[Question, Any, list[tuple[int, int, str, int]]]:
        """A slice of the finished jobs of a place, oldest first."""
        queue, state = place
        dialect = self._dialect
        statement = (
            f"SELECT finished_at, serial, job_id, {dialect.weight} FROM {dialect.prefix}jobs"  # noqa: S608
            " WHERE queue = ? AND state = ?"
            " AND (finished_at, serial) > (?, ?) AND finished_at IS NOT NULL"
            " ORDER BY finished_at, serial LIMIT ?"
        )
        values = (dialect.name(queue), str(state), *start, count_max)
        rows: list[tuple[int, int, str, int]] = yield lambda reader: reader.rows(statement, values)
        if start == _START:
            self._oldest_at[place] = rows[0][0] if rows else now
        return rows

    def _is_needed(self, job_id: str) -> bool:
        """Whether a record is needed: by a job that depends on it, by its graph, or because it is
        about to change.
        """
        return job_id in self._index.values or bool(self._index.dependants(job_id))

    def _prune_results(self, now: int, count_max: int, removals: Removals) -> Steps:
        if count_max <= 0:
            return 0
        statement = (
            "SELECT serial, job_id, coalesce(length(result), 0)"  # noqa: S608 - our own words
            f" FROM {self._dialect.prefix}jobs"
            " WHERE result_until <= ? ORDER BY result_until LIMIT ?"
        )
        rows = yield lambda reader: reader.rows(statement, (now, count_max))
        serials = []
        for serial, job_id, weight in rows:
            # A job that changed since may have another result.
            if (
                job_id not in self.leaving
                and serial not in self._leaving_results
                and self._collector.newest(job_id) is None
            ):
                serials.append(serial)
                self._index.finished_bytes -= weight
        self._leaving_results.update(dict.fromkeys(serials))
        removals.results += serials
        return len(serials)

    def _prune_samples(self, now: int, removals: Removals) -> Generator[Question, Any, None]:
        table = f"{self._dialect.prefix}history"
        statement = f"SELECT 1 FROM {table} WHERE step_ms = ? AND at < ? LIMIT 1"  # noqa: S608
        for step_ms, kept_ms in SAMPLES_KEPT_MS.items():
            values = (step_ms, now - kept_ms)
            if (yield partial(_rows, statement, values)):
                removals.samples.append((values, None))

    def _prune_audit(self, now: int, removals: Removals) -> Generator[Question, Any, None]:
        too_old_at = now - self._retention.audit_ms
        table = f"{self._dialect.prefix}audit"
        statement = f"SELECT seq, record FROM {table} ORDER BY seq LIMIT ?"  # noqa: S608
        rows = yield partial(_rows, statement, (_ENTRIES_COUNT,))
        for seq, record in rows:
            try:
                at = _decode_age(record).at
            except msgspec.DecodeError:
                continue  # damaged: it goes with a later one
            if at > too_old_at:
                break
            removals.audit_to = seq

    def _prune_events(
        self, now: int, count_max: int, removals: Removals, first_seq: int, last_seq: int
    ) -> Generator[Question, Any, None]:
        """Drops events. They are in order of time, so the last one to drop is found by bisection,
        if the first one is to be dropped at all.
        """
        too_old_at = now - self._retention.event_ms
        low, high = first_seq, first_seq + count_max  # all before `low` go; none from `high` on do
        surplus_to = last_seq - self._retention.events_max
        low = min(high, max(low, surplus_to + 1))
        middle = low
        while low < high:
            found = yield partial(_events, middle - 1)
            if found and found[0].event.at <= too_old_at:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        if low > first_seq:
            removals.events_to = low - 1


def _rows(statement: str, values: Sequence[Any], records: Prunable) -> list[Any]:
    return records.rows(statement, values)


def _events(seq: int, records: Prunable) -> Sequence[StoredEvent]:
    return records.events(seq, 1)

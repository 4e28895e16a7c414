"""The reference store: everything in memory, committed at once, and lost with the process."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter

from msgspec.structs import replace

from manyhands.engine.endings import result_ms_of
from manyhands.engine.view import View
from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Command
from manyhands.model.filter import Filter, Order
from manyhands.model.history import STEPS, StoredSample
from manyhands.model.identity import uid_of
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.policy import NO_POLICY
from manyhands.store.batch import Batch
from manyhands.store.collector import Collector
from manyhands.store.contract import (
    SEARCH_SECONDS_MAX,
    Counted,
    FailureQuestion,
    Failures,
    Page,
    PartialResult,
    Selection,
    StoredEvent,
    StoreError,
)
from manyhands.store.index.recount import check_index
from manyhands.store.records.failures import count_failures
from manyhands.store.records.queries import matches
from manyhands.store.retention import OUTCOMES, SAMPLES_KEPT_MS, Retention
from manyhands.store.rounds import Rounds


class MemoryStore:
    """The in-memory store, which tests compare every other store with."""

    def __init__(self, retention: Retention | None = None) -> None:
        self.alive_at: int | None = None
        self.behind_ms = 0
        self._retention = retention or Retention()
        self._finished: dict[str, Job] = {}
        self._finished_order: dict[tuple[str, State], deque[tuple[int, str]]] = {}
        self._rounds = Rounds(lambda: dict.fromkeys(queue for queue, _ in self._finished_order))
        self._collector = Collector(self._finished.get)
        self.live = self._collector.index
        self.write = self._collector.write
        self.write_plain = self._collector.write_plain
        self.backlog_bytes = self._collector.backlog_bytes
        self.is_unsaved = self._collector.is_unsaved
        self.bulks = self._collector.bulks
        self.keep_bulk = self._collector.keep_bulk
        self.keep_audit = self._collector.keep_audit
        self.keep_samples = self._collector.keep_samples
        self.take_audit_seq = self._collector.take_audit_seq
        self._events: deque[StoredEvent] = deque()
        self._partials: dict[str, deque[PartialResult]] = {}
        # By step, then by time and queue, in order of time.
        self._samples: dict[int, dict[tuple[int, str], StoredSample]] = {step: {} for step in STEPS}
        self._audit: dict[int, AuditEntry] = {}
        self._committed = 0
        self._last_seq = 0

    def load(self, command: Command) -> View:
        return self.live

    def touch(self) -> None:
        self._collector.batch.touched = True

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        batch = self._collector.seal(now)
        if batch is None:
            return None
        for job in batch.jobs.values():
            self._keep(job)
        for seq, event in enumerate(batch.events, batch.events_after + 1):
            self._events.append(StoredEvent(seq, event))
        self._last_seq = batch.last_seq
        for partial in batch.rows_of("partials").values():
            kept = self._partials.setdefault(partial.job_id, deque(maxlen=limits.PARTIALS_KEPT_MAX))
            # Numbers start again when a job is retried: later ones are from before.
            while kept and kept[-1].number >= partial.number:
                kept.pop()
            kept.append(
                PartialResult(
                    partial.number, partial.at, partial.payload, partial.warning, partial.is_log
                )
            )
        self._audit.update(batch.rows_of("audit"))
        while len(self._audit) > limits.AUDIT_KEPT_MAX:
            del self._audit[next(iter(self._audit))]
        for row in batch.rows_of("history").values():
            self._samples[row.step_ms][row.at, row.queue] = row
        self._collector.committed(batch.number)
        self._collector.applied(batch.number)
        self._committed = batch.number
        batch.is_durable = True
        return batch

    def whole(self, job: Job) -> Job:
        return job

    def held_bytes(self) -> dict[str, int]:
        return {**self._collector.held_bytes(), "records": self.live.finished_bytes}

    def _keep(self, job: Job) -> None:
        if job.state not in FINISHED:
            self._finished.pop(job.job_id, None)
            return
        self._finished[job.job_id] = job
        assert job.finished_at is not None
        order = self._finished_order.setdefault((job.queue, job.state), deque())
        order.append((job.finished_at, job.job_id))

    def fileno(self) -> int | None:
        return None

    def has_unsent(self) -> bool:
        return False

    def send_more(self) -> None:
        """Does nothing: everything is sent at once."""

    def finish_commits(self) -> int:
        return self._committed

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        if not self._events:
            return ()
        start = max(0, seq - self._events[0].seq + 1)
        stop = min(len(self._events), start + count_max)
        return [self._events[i] for i in range(start, stop)]

    def past_events(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        return ()

    def last_seq(self) -> int:
        return self._last_seq

    def first_seq(self) -> int:
        return self._events[0].seq if self._events else self._last_seq + 1

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        return tuple(self._partials.get(job_id, ()))

    def find(self, job_id: str) -> Job | None:
        job = self.live.live_job(job_id) or self._finished.get(job_id)
        if job is None and len(job_id) == 32:
            job = self.live.job_by_uid(job_id) or next(
                (job for job in tuple(self._finished.values()) if uid_of(job.job_id) == job_id),
                None,
            )
        return job

    def _all(self) -> dict[str, Job]:
        return {**self._finished, **self.live.jobs}

    def find_ended(self, namespace: str, names: Sequence[str]) -> dict[str, Job]:
        wanted = frozenset(names)
        found: dict[str, Job] = {}
        for job in tuple(self._finished.values()):
            if job.namespace != namespace or job.name is None or job.name not in wanted:
                continue
            other = found.get(job.name)
            if other is None or other.serial < job.serial:
                found[job.name] = job
        return found

    def count(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Counted:
        del seconds_max  # searching memory is quick
        counts = dict.fromkeys(State, 0)
        for job in self._all().values():
            if matches(job, wanted, without=("states",)):
                counts[job.state] += 1
        return Counted(counts)

    def search(self, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
        del seconds_max
        jobs = self._all()
        newest = wanted.order is Order.NEWEST
        shown = wanted.payload_bytes
        found: list[Job] = []
        for job in sorted(jobs.values(), key=lambda job: job.serial, reverse=newest):
            if wanted.after is not None and (
                job.serial >= wanted.after if newest else job.serial <= wanted.after
            ):
                continue
            if matches(job, wanted):
                if len(found) == wanted.count_max:
                    return Page(tuple(found), found[-1].serial)
                found.append(job if shown is None else _cut(job, shown))
        return Page(tuple(found), None)

    def audit(self, before: int | None, count_max: int) -> Sequence[AuditEntry]:
        found = [row for seq, row in self._audit.copy().items() if before is None or seq < before]
        return found[::-1][:count_max]

    def failures(self, wanted: FailureQuestion) -> Failures:
        return count_failures(self._finished.copy().values(), wanted)

    def failure_codes(self) -> Sequence[tuple[str, str, int]]:
        counts = Counter(
            (job.failure.code, job.queue)
            for job in self._finished.copy().values()
            if job.state is State.FAILED and job.failure is not None
        )
        return [(code, queue, count) for (code, queue), count in sorted(counts.items())]

    def samples(
        self, step_ms: int, since: int, until: int, queue: str | None = None
    ) -> Sequence[StoredSample]:
        rows = sorted(self._samples[step_ms].copy().items(), key=itemgetter(0))
        found = [row for (at, _), row in rows if at < until]
        if queue is None:
            return [row for row in found if row.at >= since]
        found = [row for row in found if row.queue == queue]
        return [row for row in found if row.at < since][-1:] + [
            row for row in found if row.at >= since
        ]

    def select(self, wanted: Filter) -> Selection:
        page = self.search(wanted)
        return Selection(tuple((job.serial, job.job_id) for job in page.jobs), page.next)

    def prune(self, now: int, count_max: int) -> int:
        count = 0
        for step_ms, rows in self._samples.items():
            while rows and next(iter(rows))[0] + SAMPLES_KEPT_MS[step_ms] < now:
                del rows[next(iter(rows))]
        too_old_at = now - self._retention.audit_ms
        while self._audit and next(iter(self._audit.values())).at <= too_old_at:
            del self._audit[next(iter(self._audit))]
        for queue in self._rounds.part(limits.QUEUES_A_SLICE):
            for state in OUTCOMES:
                if (queue, state) in self._finished_order:
                    count += self._prune_place((queue, state), now, count_max - count)
            if count == count_max:
                break
            self.live.let_go(queue)
        count += self._drop_surplus(count_max - count)
        count += self._drop_results(now, count_max - count)
        while self._events and (
            self._events[0].event.at + self._retention.event_ms <= now
            or len(self._events) > self._retention.events_max
        ):
            self._events.popleft()
        return count

    def _prune_place(self, place: tuple[str, State], now: int, count_max: int) -> int:
        queue, state = place
        order = self._finished_order[place]
        known = self.live.queue(queue)
        policy = known.policy if known is not None else NO_POLICY
        counts = self.live.counts_of(queue)
        age = self._retention.record_ms_of(policy)
        records_max = self._retention.records_max_of(policy)
        count = 0
        kept_back = []
        while order and count < count_max:
            finished_at, job_id = order[0]
            job = self._finished.get(job_id)
            stale = job is None or job.finished_at != finished_at or job.state is not state
            if not stale and finished_at + age > now and counts[state] <= records_max:
                break
            order.popleft()
            if job is None or stale:
                continue
            if self._is_needed(job_id):
                kept_back.append((finished_at, job_id))
                continue
            self._drop(job)
            count += 1
        order.extendleft(reversed(kept_back))
        if not order:
            del self._finished_order[place]
        return count

    def _is_needed(self, job_id: str) -> bool:
        return bool(self.live.dependants(job_id)) or job_id in self.live.values

    def _drop(self, job: Job) -> None:
        del self._finished[job.job_id]
        self._partials.pop(job.job_id, None)
        self.live.counts_of(job.queue)[job.state] -= 1
        self.live.finished_bytes -= _weight(job)

    def _drop_surplus(self, count_max: int) -> int:
        """Drops the oldest records while all together have too many bytes."""
        surplus = self.live.finished_bytes - self._retention.bytes_max
        going: dict[str, Job] = {}
        for finished_at, job_id in merge(*self._finished_order.values()):
            if surplus <= 0 or len(going) >= count_max:
                break
            job = self._finished.get(job_id)
            if job is None or job.finished_at != finished_at or job_id in going:
                continue
            if not self._is_needed(job_id):
                going[job_id] = job
                surplus -= _weight(job)
        for job in going.values():
            self._drop(job)
        return len(going)

    def _drop_results(self, now: int, count_max: int) -> int:
        expired: list[Job] = []
        for job in self._finished.values():
            kept = result_ms_of(job.terms)
            if kept is None:
                kept = self._retention.result_ms
            if kept is None or job.result is None or job.finished_at is None:
                continue
            if job.finished_at + kept <= now and len(expired) < count_max:
                expired.append(job)
        for job in expired:
            self._finished[job.job_id] = replace(job, result=None)
            self.live.finished_bytes -= len(job.result or b"")
        return len(expired)

    def begin_sweep(self) -> None:
        """Does nothing: no data here outlives what refers to it."""

    def find_unused(self) -> Sequence[int]:
        return ()

    def end_sweep(self, unused: Sequence[int]) -> int:
        return len(unused)

    def begin_fetch(self, job_ids: Sequence[str]) -> None:
        """Never needed: decisions find every record by themselves."""

    def has_fetched(self) -> bool:
        return True

    def end_fetch(self) -> None:
        """Does nothing."""

    def check(self) -> None:
        check_index(self.live)

    def is_in_place(self) -> bool:
        return True

    def free_bytes(self) -> int | None:
        return None

    def facts(self) -> dict[str, str | int]:
        return {
            "kind": "memory",
            "unfinished_jobs": self.live.jobs_count(),
            "finished_jobs": len(self._finished),
            "events": len(self._events),
        }

    def reserve_positions(self, position: int) -> None:
        self.live.position = max(self.live.position, position)

    def begin_graph(self, namespace: str, serial: int) -> None:
        self.live.namespaces.begin_earlier(namespace, serial)

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        raise StoreError("a memory store has nothing on disk to copy; use export instead")

    def expect_no_answer(self) -> None:
        """Does nothing: there is no disk."""

    def close(self) -> str | None:
        return None


def _weight(job: Job) -> int:
    return len(job.payload) + len(job.result or b"")


def _cut(job: Job, length: int) -> Job:
    if not length:
        return replace(job, payload=b"", stored_bytes=len(job.payload), result=None)
    return replace(job, payload=job.payload[:length], result=None)

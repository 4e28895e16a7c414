"""A world without threads, sockets, disks or clocks: virtual time, a loop that is driven by hand,
and a disk that is slow, fails, and forgets what was not flushed.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.ids import Ids
from manyhands.engine.effects import Effects
from manyhands.engine.plain import Change, entry_of, value_of
from manyhands.model.commands import Command
from manyhands.model.events import Cursor, Event, Signal
from manyhands.model.filter import Filter
from manyhands.model.job import FINISHED, Job, Schedule, State, Unnotified
from manyhands.model.plain import event_of, job_of
from manyhands.model.policy import NamedLimit, Queue
from manyhands.model.receipts import read_receipt
from manyhands.store.batch import GRAPH_PREFIX, RECEIPT_PREFIX, UNNOTIFIED_PREFIX, Batch
from manyhands.store.collector import Collector
from manyhands.store.contract import Page, PartialResult, StoredEvent, StoreFailedError
from manyhands.store.index.ready import entry_order
from manyhands.store.index.recount import check_index
from manyhands.store.records.rows import decode_job

START_AT = 1_800_000_000_000
SETTINGS = ("queues", "limits", "schedules", "cursors")


class Handle:
    """Something to be called at its time."""

    __slots__ = ("callback", "cancelled", "order", "planned_us", "rank", "scope", "when_us")

    def __init__(self, when_us: int, rank: int, order: int, callback, scope) -> None:
        self.when_us = when_us
        self.planned_us = when_us
        self.rank = rank  # what came from outside goes before timers, as in a real loop
        self.order = order
        self.callback = callback
        self.scope = scope
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: "Handle") -> bool:
        mine = (self.when_us, self.rank, self.planned_us, self.order)
        return mine < (other.when_us, other.rank, other.planned_us, other.order)


class Time:
    """Virtual time in microseconds, and everything that is to happen in it."""

    def __init__(self) -> None:
        self.now_us = 0
        self.wall_ms = START_AT  # what the wall clock shows is this plus the time gone by
        self._heap: list[Handle] = []
        self._order = 0

    def at(self, when_us: int, callback, scope=None, rank: int = 1) -> Handle:
        self._order += 1
        handle = Handle(max(when_us, self.now_us), rank, self._order, callback, scope)
        heapq.heappush(self._heap, handle)
        return handle

    def after(self, delay_us: int, callback) -> Handle:
        return self.at(self.now_us + delay_us, callback)

    def run(self, duration_us: int) -> None:
        """Let so much time go by, with all that happens in it."""
        end_us = self.now_us + duration_us
        while self.step(end_us):
            pass
        self.now_us = end_us

    def step(self, end_us: int | None = None) -> bool:
        """Let the next thing happen; False if nothing is left until then."""
        while self._heap:
            if end_us is not None and self._heap[0].when_us > end_us:
                return False
            handle = heapq.heappop(self._heap)
            scope = handle.scope
            if handle.cancelled or (scope is not None and not scope.alive):
                continue
            if scope is not None and scope.stalled_until_us > handle.when_us:
                handle.when_us = scope.stalled_until_us
                heapq.heappush(self._heap, handle)
                continue
            self.now_us = max(self.now_us, handle.when_us)
            handle.callback()
            return True
        return False


class ServerLoop:
    """The event loop of one server process. It dies with it, and stands still when it does."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.alive = True
        self.stalled_until_us = 0
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}

    def call_soon(self, callback):
        return self.time.at(self.time.now_us, callback, self)

    def call_later(self, delay: float, callback):
        return self.time.at(self.time.now_us + int(delay * 1e6), callback, self)

    def arrive(self, delay_us: int, callback):
        """Something comes from outside."""
        return self.time.at(self.time.now_us + delay_us, callback, self, rank=0)

    def add_reader(self, fd: int, callback) -> None:
        self._readers[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: int, callback) -> None:
        self._writers[fd] = callback
        self.arrive(200, lambda: self._write(fd))

    def remove_writer(self, fd: int) -> bool:
        return self._writers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        callback = self._readers.get(fd)
        if callback is not None:
            callback()

    def _write(self, fd: int) -> None:
        callback = self._writers.get(fd)
        if callback is not None:
            callback()
            if fd in self._writers:
                self.arrive(200, lambda: self._write(fd))


class VirtualClock(Clock):
    """A server's clock: anchored to the wall at its start, like the real one."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._anchor_ms = time.wall_ms

    def now(self) -> int:
        return self._anchor_ms + self._time.now_us // 1000

    def monotonic_ms(self) -> float:
        return self._time.now_us / 1000

    def drift_ms(self) -> int:
        return self._time.wall_ms - self._anchor_ms

    def follow(self, drift_ms: int) -> None:
        self._anchor_ms += drift_ms


class SeededIds(Ids):
    """Ids that are the same each time."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng.randbytes(8))
        self._rng = rng

    def _pieces(self, digits: int) -> list[str]:
        return [f"{self._rng.getrandbits(4 * digits):0{digits}x}"]


_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_queue = msgspec.json.Decoder(Queue).decode
_decode_limit = msgspec.json.Decoder(NamedLimit).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_cursor = msgspec.json.Decoder(Cursor).decode


class Row:
    """A job on disk. What it keeps for life is only written where the batch says so."""

    __slots__ = ("kept", "payload", "record", "result")

    def __init__(self, record: bytes, kept: bytes, payload: bytes, result: bytes | None) -> None:
        self.record = record
        self.kept = kept
        self.payload = payload
        self.result = result

    def job(self) -> Job:
        job = replace(decode_job(self.record), payload=self.payload, result=self.result)
        assert _kept(job) == self.kept, f"{job.job_id}: what it keeps was not written"
        return job


def _kept(job: Job) -> bytes:
    return _encode((job.terms, job.tags, job.submitted_at, job.unique_key, job.origin))


class Disk:
    """What survives: encoded rows, written batch by batch."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.events: list[tuple[int, bytes]] = []
        self.partials: dict[int, list[tuple[int, int, bytes, bool]]] = {}
        self.settings: dict[str, dict[str, bytes]] = {name: {} for name in SETTINGS}
        self.alive_at: int | None = None
        self.counters = (0, 0)  # the last serial and the last position that were given

    def job(self, job_id: str) -> Job | None:
        row = self.rows.get(job_id)
        return row.job() if row is not None else None

    def ended(self, namespace: str) -> dict[str, State]:
        """How the latest job of each name ended."""
        jobs = sorted((row.job() for row in self.rows.values()), key=lambda job: job.serial)
        return {
            job.name: job.state
            for job in jobs
            if job.namespace == namespace and job.name is not None and job.state in FINISHED
        }


class Image:
    """A batch as it goes to the disk: encoded when it was sealed, so later changes do not leak."""

    def __init__(self, batch: Batch, counters: tuple[int, int]) -> None:
        self.batch = batch
        self.counters = counters
        self.number = batch.number
        self.jobs = [
            (
                job.job_id,
                _encode(replace(job, payload=b"", stored_bytes=0, result=None)),
                (_kept(job), job.payload) if job.job_id in batch.full else None,
                job.result,
            )
            for job in batch.jobs.values()
        ]
        self.events = [
            (seq, _encode(event)) for seq, event in enumerate(batch.events, batch.events_after + 1)
        ]
        self.settings = [
            (table, key, None if value is None else _encode(value))
            for table in SETTINGS
            for key, value in batch.rows_of(table).items()
        ]

    def apply(self, disk: Disk) -> None:
        batch = self.batch
        for job_id, record, kept, result in self.jobs:
            if kept is not None:
                disk.rows[job_id] = Row(record, *kept, result)
            else:
                row = disk.rows[job_id]
                row.record, row.result = record, result
        disk.events.extend(self.events)
        for (serial, _), partial in batch.rows_of("partials").items():
            piece = (partial.number, partial.at, partial.payload, partial.warning)
            disk.partials.setdefault(serial, []).append(piece)
        for table, key, body in self.settings:
            if body is None:
                disk.settings[table].pop(key, None)
            else:
                disk.settings[table][key] = body
        disk.alive_at = batch.alive_at
        disk.counters = self.counters


class FaultyStore:
    """A store whose commits take their time, finish in order, and may fail."""

    FD = 7

    def __init__(
        self,
        disk: Disk,
        loop: ServerLoop,
        rng: random.Random,
        commit_us: tuple[int, int],
        payload_bytes_max: int = 0,
    ) -> None:
        """Longer payloads leave the memory, except those of plain jobs."""
        self.disk = disk
        self.alive_at = disk.alive_at
        self.behind_ms = 0
        self.durable = 0  # number of the last batch that is on disk
        self.fails_next = False  # the next commit fails
        self.packing_fails_next = False  # the next batch cannot be made ready for the disk
        self.at_once_share = 0.0  # of the commits that may be durable at once, how many are
        self.on_load: Callable[[Command], None] = lambda _: None
        self.on_write: Callable[[Effects], None] = lambda _: None
        self.on_written: Callable[[Effects], None] = lambda _: None
        self.on_start: Callable[[], None] = lambda: None
        self.on_durable: Callable[[Batch], None] = lambda _: None
        self._loop = loop
        self._rng = rng
        self._commit_us = commit_us
        self._collector = Collector(self._read_finished, self.whole, payload_bytes_max)
        self.live = self._collector.index
        self._images: deque[Image] = deque()
        self._unsent: deque[Image] = deque()
        self._failed = False
        self._read_off()

    def _read_finished(self, job_id: str) -> Job | None:
        return self.disk.job(job_id)

    def _read_off(self) -> None:
        """Fill the index from the disk, as every store does when it is opened."""
        index, disk = self.live, self.disk
        for body in disk.settings["queues"].values():
            index.put_queue(_decode_queue(body))
        for body in disk.settings["limits"].values():
            limit = _decode_limit(body)
            index.limits[limit.name] = limit
        for body in disk.settings["schedules"].values():
            schedule = _decode_schedule(body)
            index.schedules[schedule.schedule_id] = schedule
        graphs: dict[str, int] = {}
        for body in disk.settings["cursors"].values():
            cursor = _decode_cursor(body)
            if cursor.name.startswith(RECEIPT_PREFIX):
                receipt = read_receipt(cursor.seq, cursor.notes)
                index.put_receipt(cursor.name.removeprefix(RECEIPT_PREFIX), receipt)
            elif cursor.name.startswith(GRAPH_PREFIX):
                graphs[cursor.name.removeprefix(GRAPH_PREFIX)] = cursor.seq
            elif cursor.name.startswith(UNNOTIFIED_PREFIX):
                index.unnotified[cursor.name.removeprefix(UNNOTIFIED_PREFIX)] = Unnotified(
                    cursor.seq, cursor.notes
                )
            else:
                index.cursors[cursor.name] = cursor
        jobs = sorted((row.job() for row in disk.rows.values()), key=lambda job: job.serial)
        live = [job for job in jobs if job.state not in FINISHED]
        ready = sorted((job for job in live if job.state is State.READY), key=entry_order)
        finished = Counter((job.queue, job.state) for job in jobs if job.state in FINISHED)
        for (queue, state), count in finished.items():
            index.count_records(queue, state, count)  # of forgotten queues, too
        for job in [job for job in live if job.state is not State.READY] + ready:
            index.put(job)
        # Names of graphs that are still being worked on keep their outcome.
        index.namespaces.restore(graphs)
        for job in jobs:
            began = index.namespaces.graphs.get(job.namespace or "")
            if job.state in FINISHED and began is not None and job.serial >= began:
                index.keep(job)
                index.forget(job)
        index.serial, index.position = disk.counters
        self._collector.seq = self.last_seq()

    # The contract.

    def load(self, command: Command):
        self.on_load(command)
        return self.live

    def write(self, effects: Effects) -> int:
        self.on_write(effects)
        weight = self._collector.write(effects)
        self.on_written(effects)
        return weight

    def write_plain(self, changes: Sequence[Change], signals: Sequence[Signal] = ()) -> int:
        effects = Effects(self.live, entry_of(changes[0]).at)  # for those who watch
        for change in changes:
            job = job_of(value_of(change))
            effects.jobs[job.job_id] = job
            effects.events.append(event_of(entry_of(change)))
        effects.signals.extend(signals)
        self.on_write(effects)
        weight = self._collector.write_plain(changes)
        self.on_written(effects)
        return weight

    def backlog_bytes(self) -> int:
        return self._collector.backlog_bytes()

    def whole(self, job: Job) -> Job:
        if not job.stored_bytes:
            return job
        kept = self.disk.rows[job.job_id].payload
        assert len(kept) == job.stored_bytes, f"{job.job_id}: another payload is on record"
        return replace(job, payload=kept, stored_bytes=0)

    def is_unsaved(self, job_id: str) -> bool:
        return self._collector.is_unsaved(job_id)

    def touch(self) -> None:
        self._collector.batch.touched = True

    def begin_commit(self, now: int, *, at_once: bool = False) -> Batch | None:
        batch = self._collector.seal(now)
        if batch is None:
            return None
        if self.packing_fails_next:
            # As when memory is short: the batch is sealed, and will never be on its way.
            self.packing_fails_next = False
            raise MemoryError
        image = Image(batch, (self.live.serial, self.live.position))
        free = not self._images and not self._unsent
        if at_once and free and self.at_once_share and self._rng.random() < self.at_once_share:
            self.on_start()
            if self.fails_next:
                self._failed = True
                raise StoreFailedError("the disk said no")
            self._keep(image)
            batch.is_durable = True
            return batch
        if self._unsent or self._rng.random() < 0.1:
            self._unsent.append(image)
        else:
            self._start(image)
        return batch

    def _start(self, image: Image) -> None:
        self._images.append(image)
        self.on_start()
        low, high = self._commit_us
        # The writer works beside the server: a standstill of the server does not stop it.
        self._loop.time.after(self._rng.randint(low, high), self._finish_first)

    def _finish_first(self) -> None:
        if not self._loop.alive or self._failed:
            return
        image = self._images.popleft()
        if self.fails_next:
            self._failed = True
            self._images.clear()
            if self._rng.random() < 0.5:
                self._keep(image)  # nobody knows: an error is no proof that nothing was written
        else:
            self._keep(image)
        self._loop.arrive(0, lambda: self._loop.readable(self.FD))

    def _keep(self, image: Image) -> None:
        image.apply(self.disk)
        self.durable = image.number
        self.on_durable(image.batch)

    def crash(self) -> int:
        """The process is gone. Of what was on its way, a strict prefix made it."""
        count = 0 if self._failed else self._rng.randint(0, len(self._images))
        for image in list(self._images)[:count]:
            self._keep(image)
        lost = len(self._images) - count
        self._images.clear()
        return lost

    def fileno(self) -> int | None:
        return self.FD

    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send_more(self) -> None:
        if self._unsent and self._rng.random() < 0.5:
            self._start(self._unsent.popleft())

    def finish_commits(self) -> int:
        if self._failed:
            raise StoreFailedError("the disk said no")
        self._collector.committed(self.durable)
        self._collector.applied(self.durable)
        return self.durable

    def events_after(self, seq: int, count_max: int) -> Sequence[StoredEvent]:
        return [
            StoredEvent(number, _decode_event(body))
            for number, body in self.disk.events[seq : seq + count_max]
        ]

    def last_seq(self) -> int:
        return self.disk.events[-1][0] if self.disk.events else 0

    def first_seq(self) -> int:
        return 1

    def search(self, wanted: Filter) -> Page:
        raise NotImplementedError

    def partials(self, job_id: str) -> Sequence[PartialResult]:
        job = self.find(job_id)
        pieces = self.disk.partials.get(job.serial, ()) if job is not None else ()
        return tuple(PartialResult(*piece) for piece in pieces)

    def find(self, job_id: str) -> Job | None:
        return self.disk.job(job_id)

    def prune(self, now: int, count_max: int) -> int:  # noqa: ARG002 - nothing grows old here
        return 0

    def check(self) -> None:
        check_index(self.live)

    def is_in_place(self) -> bool:
        return True

    def free_bytes(self) -> int | None:
        return None

    def facts(self) -> dict[str, str | int]:
        return {"kind": "simulated"}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to let go of."""

    # For the checkers.

    def unsaved_number(self) -> int:
        """The batch that has to be on disk before anything seen now may be told."""
        if not self._collector.batch.is_empty():
            return self._collector.batch.number
        return self._collector.batch.number - 1

    def decided_seq(self) -> int:
        return self._collector.seq + len(self._collector.batch.events)

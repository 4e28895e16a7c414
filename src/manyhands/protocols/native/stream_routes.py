"""Streams over WebSocket: how one is opened, and what all of them share."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from manyhands import __version__
from manyhands.access.audit import AuditLog
from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.lookup import find_job
from manyhands.dispatch.session import Settle
from manyhands.loggers import get_logger
from manyhands.model.commands import Command
from manyhands.model.job import FINISHED, Holder, Job, Progress, State
from manyhands.model.plain import job_of
from manyhands.model.replies import Refusal
from manyhands.model.roles import Caller, Right
from manyhands.net.tcp import Connection
from manyhands.net.websocket import answer_headers, not_websocket, read_offer
from manyhands.net.websocket_session import WebSocketSession
from manyhands.protocols.native.bodies import REALM
from manyhands.protocols.native.stream_hub import Bounds, Piece, Stream, Watcher, Worker
from manyhands.protocols.native.stream_session import SUBPROTOCOL, StreamSession
from manyhands.store.batch import Batch
from manyhands.store.contract import StoreFailedError
from manyhands.store.sqlite.checksums import RecordDamagedError
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange

_log = get_logger("manyhands.stream")

_ENVELOPE_BYTES: Final = 1024 * 1024  # ST7: what a message may contain besides one payload
_READY: Final = State.READY
# How long woken sleepers have to take new work before it goes to busy workers that fetch ahead; and
# how long until the next look while sleepers remain.
_SURPLUS_SECONDS: Final = 0.002
_SURPLUS_AGAIN_SECONDS: Final = 1.0


class StreamRoutes:
    """Opens streams and notifies them of commits."""

    def __init__(self, dispatcher: Dispatcher, ids: Ids, config: Config, audit: AuditLog) -> None:
        self._dispatcher = dispatcher
        self._audit = audit
        self._drain_seconds = config.drain_seconds
        payload_bytes = config.payload_bytes_max
        self.bounds = Bounds(payload_bytes + _ENVELOPE_BYTES, payload_bytes)
        self.version = __version__
        self.incarnation = ids.incarnation
        self._streams: dict[Stream, None] = {}
        self._watchers: dict[str, dict[Watcher, None]] = {}  # by job
        self._followers: dict[str, dict[Watcher, None]] = {}  # by job
        # By the name of the worker, and by that of its caller: callers know nothing of each other.
        self._named: dict[str, dict[str, Worker]] = {}
        self._holders: dict[str, Worker] = {}  # by job
        self._surplus: dict[str, dict[Worker, None]] = {}  # by queue
        self._surplus_of: dict[Worker, Sequence[str]] = {}
        self._surplus_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        dispatcher.on_batch.append(self._note)

    def metrics(self) -> list[Metric]:
        """The metrics of streams."""
        sentence = "Streams that are open."
        return [GaugeMetricFamily("manyhands_streams", sentence, len(self._streams))]

    async def open(self, exchange: Exchange) -> None:
        """ST1: ``GET /api/stream``."""
        session = exchange.connection
        if not session.may_hand_over(exchange) or exchange.is_old or not exchange.keep_alive:
            raise not_websocket("a stream is opened with GET, HTTP/1.1 and Upgrade: websocket")
        offer = read_offer(exchange.headers)
        if SUBPROTOCOL not in offer.subprotocols:
            raise not_websocket(f"the only Sec-WebSocket-Protocol here is {SUBPROTOCOL}")
        if self._dispatcher.draining:
            raise Problem(503, "shutting_down", "the server is shutting down")
        connection = session.connection
        socket = WebSocketSession(connection, self.bounds.message_bytes)
        address = exchange.address
        connection.take_caller(exchange.caller, "stream")
        operate = functools.partial(self._operate, connection, address)
        stream = StreamSession(connection, socket, self, operate, address)
        socket.begin(stream)
        exchange.upgrade(answer_headers(offer, SUBPROTOCOL), socket)
        self._streams[stream] = None

    def announce_stop(self) -> None:
        """Notifies all streams that the server is about to stop."""
        for stream in tuple(self._streams):
            stream.announce_stop(self._drain_seconds)

    # Commits.

    def _note(self, batch: Batch, _elapsed_ms: float) -> None:
        values = batch.values
        for job_id in _common(self._holders, values):
            worker, value = self._holders[job_id], values[job_id]
            lease = value.lease
            if lease is None or lease.number != worker.held[job_id]:
                worker.lose(job_of(value))
        if self._followers:
            self._report_news(batch)
        for job_id in _common(self._watchers, values):
            if values[job_id].state in FINISHED:
                self._end(job_id, job_of(values[job_id]))
        if self._surplus and self._surplus_timer is None:
            for event in batch.entries:
                if event.state is _READY and event.queue in self._surplus:
                    self._look_later(_SURPLUS_SECONDS)
                    break

    def _report_news(self, batch: Batch) -> None:
        pieces: dict[str, list[Piece]] = {}
        for piece in batch.rows_of("partials").values():
            pieces.setdefault(piece.job_id, []).append(piece)
        for job_id in _common(self._followers, batch.values):
            job = job_of(batch.values[job_id])
            for watcher in tuple(self._followers[job_id]):
                watcher.see_news(job, pieces.get(job_id, ()))

    def _look_later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._surplus_timer = loop.call_later(seconds, self._look_at_surplus)

    def _look_at_surplus(self) -> None:
        """Offers work that no idle worker took."""
        self._surplus_timer = None
        has_work = self._dispatcher.has_work
        for queue in list(self._surplus):
            if has_work((queue,)):
                for worker in list(self._surplus.get(queue, ())):
                    worker.take()
        if any(has_work((queue,)) for queue in self._surplus):
            self._look_later(_SURPLUS_AGAIN_SECONDS)  # for now a sleeper wants it

    def _end(self, job_id: str, job: Job | None) -> None:
        self._followers.pop(job_id, None)
        for watcher in self._watchers.pop(job_id, ()):
            watcher.see_end(job_id, job)

    # The streams' side.

    def look(
        self, ids: Sequence[str], bytes_max: int, found: Callable[[list[Job | None]], None]
    ) -> None:
        """Looks up jobs, live or stored, in order, until their results exceed so many bytes or one
        cannot be read.
        """
        self._begin(self._look(ids, bytes_max, found))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(
        self, ids: Sequence[str], bytes_max: int, found: Callable[[list[Job | None]], None]
    ) -> None:
        jobs: list[Job | None] = []
        try:
            for job_id in ids:
                job = await find_job(self._dispatcher, job_id)
                if isinstance(job, Refusal):  # the job is there, but cannot be shown
                    _log.warning("a job could not be shown", job_id=job_id, reason=job.sentence)
                    break
                jobs.append(job)
                if job is not None:
                    bytes_max -= len(job.result or b"")
                if bytes_max < 0:
                    break
        except (StoreFailedError, RecordDamagedError) as error:
            _log.warning("jobs could not be read", reason=str(error))
        found(jobs)

    def inputs(self, job_ids: Iterable[str]) -> dict[str, set[str]]:
        """Jobs that these unfinished ones depend on, each with the submitters of those that do."""
        found: dict[str, set[str]] = {}
        for job_id in job_ids:
            job = self._dispatcher.store.live.live_job(job_id)
            if job is not None:
                for needed in job.depends_on:
                    found.setdefault(needed, set()).add(job.origin.name)
        return found

    def watch(self, watcher: Watcher, job_id: str) -> None:
        """Reports the end of a job, at once if it has finished."""
        self._watchers.setdefault(job_id, {})[watcher] = None
        job = self._dispatcher.store.live.live_job(job_id)
        if job is None or job.state in FINISHED:
            self.look((job_id,), 0, functools.partial(self._found, job_id))

    def _found(self, job_id: str, jobs: list[Job | None]) -> None:
        for job in jobs:
            if job is None or job.state in FINISHED:
                self._end(job_id, job)

    def unwatch(self, watcher: Watcher, job_id: str) -> None:
        """Ends the watch of a job."""
        for table in (self._watchers, self._followers):
            watchers = table.get(job_id, {})
            watchers.pop(watcher, None)
            if not watchers:
                table.pop(job_id, None)

    def follow(self, watcher: Watcher, job_id: str) -> None:
        """Reports the progress of a job and pieces of its result, until it finishes."""
        self._followers.setdefault(job_id, {})[watcher] = None

    def pieces(
        self, job_id: str, found: Callable[[Iterable[Piece], Progress | None], None]
    ) -> None:
        """Loads the pieces that are kept, and the progress of an unfinished job."""
        self._begin(self._pieces(job_id, found))

    async def _pieces(
        self, job_id: str, found: Callable[[Iterable[Piece], Progress | None], None]
    ) -> None:
        kept: Sequence[Piece] = ()
        try:
            kept = await asyncio.to_thread(self._dispatcher.store.partials, job_id)
        except (StoreFailedError, RecordDamagedError) as error:
            _log.warning("pieces of a result could not be read", reason=str(error))
        job = self._dispatcher.store.live.live_job(job_id)
        found(kept, None if job is None else job.progress)

    def take_name(self, worker: Worker, name: str) -> None:
        """The worker goes by that name; one of the same caller that did so before gives way."""
        workers = self._named.setdefault(name, {})
        before = workers.get(worker.owner)
        workers[worker.owner] = worker
        if before is not None:
            before.give_way("another stream has the name of this worker")

    def dismiss(self, name: str, caller: Caller) -> None:
        """This caller reports that the worker of that name has left: its stream, if any, gives way.
        Only those of the caller itself do, and all whose queues it may operate.
        """
        operates = caller.has(Right.OPERATE)
        for owner, worker in tuple(self._named.get(name, {}).items()):
            if owner == caller.name or (operates and all(map(caller.may_use, worker.queues))):
                worker.give_way("this worker was reported to have left")

    def leave_name(self, worker: Worker, name: str) -> None:
        """The worker is gone."""
        workers = self._named.get(name, {})
        if workers.get(worker.owner) is worker:
            del workers[worker.owner]
            if not workers:
                del self._named[name]

    def hold(self, worker: Worker, job_id: str, token: str) -> int | None:
        """Notes that a worker has a job. Returns the number of the lease, or None if it is not the
        worker's.
        """
        value = self._dispatcher.store.live.view.value(job_id)
        lease = None if value is None else value.lease
        if lease is None or lease.token != token:
            return None
        self._holders[job_id] = worker
        return lease.number

    def let_go(self, worker: Worker, job_id: str) -> None:
        """The worker has reported on the job, or is gone."""
        if self._holders.get(job_id) is worker:
            del self._holders[job_id]

    def held_by(self, name: str) -> list[Job]:
        """All jobs leased to a worker of that name."""
        live = self._dispatcher.store.live
        jobs = map(live.live_job, live.leased_by_holder(Holder(REALM, name)))
        return [job for job in jobs if job is not None]

    def is_wanted(self, queue: str) -> bool:
        """Whether an idle worker is waiting for work in that queue."""
        return self._dispatcher.sleepers.is_wanted(queue)

    def ready_count(self, queues: Sequence[str]) -> int:
        """The number of ready jobs in these queues."""
        return sum(map(self._dispatcher.ready_count, queues))

    def await_surplus(self, worker: Worker, queues: Sequence[str]) -> None:
        """Has the worker look again when there is work that no sleeper wants; without queues,
        never.
        """
        for queue in self._surplus_of.pop(worker, ()):
            workers = self._surplus[queue]
            del workers[worker]
            if not workers:
                del self._surplus[queue]
        if queues:
            self._surplus_of[worker] = queues
            for queue in queues:
                self._surplus.setdefault(queue, {})[worker] = None

    def pass_on(self, queues: Sequence[str]) -> None:
        """Passes an unneeded wake-up on to the next sleeper."""
        for queue in queues:
            self._dispatcher.sleepers.wake(queue, self._dispatcher.ready_count(queue))

    def leave(self, stream: Stream) -> None:
        """The stream has ended."""
        self._streams.pop(stream, None)

    def _operate(
        self, connection: Connection, address: str, command: Command, settle: Settle
    ) -> None:
        caller, guard = connection.caller, connection.guard
        assert caller is not None
        ask = None if guard is None else guard.ask_recorded
        self._audit.ask(command, settle, address, "stream", "GET /api/stream", caller, ask)


def _common(mine: Mapping[str, object], jobs: Mapping[str, object]) -> list[str]:
    fewer, more = (mine, jobs) if len(mine) < len(jobs) else (jobs, mine)
    return [job_id for job_id in fewer if job_id in more]

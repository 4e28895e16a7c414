"""Gearman as its first design note had it: one connection of an application, a worker, or both.

A worker here holds one job at a time, so no packet of its names a job. Numbers such as A14 are
those of ``docs/protocols/gearman.md``, where every gap of the note is settled.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from manyhands.model.commands import (
    ByConnection,
    Claim,
    ClaimOrder,
    Complete,
    Depart,
    Detach,
    Fail,
    Look,
    NewJob,
    Renew,
    Report,
    Submit,
)
from manyhands.model.events import Signal
from manyhands.model.job import FINISHED, EndReason, Failure, Holder, Job, Origin, State
from manyhands.model.outcome import Claimed, Found, Refusal, Reply, Why
from manyhands.model.policy import TERMS, Terms
from manyhands.protocols.gearman_admin import Hall
from manyhands.protocols.session import Peer, Replies, only_item
from manyhands.wire import gearman_draft as wire

_TERMS: Final = TERMS["draft"]
_THROW_AWAY_TERMS: Final = replace(_TERMS, result_ms=0)
_HELD_BACK_BYTES_MAX: Final = 1024 * 1024

# Result codes that are the server's own (A38).
CANCELLED: Final = 251
DEADLINE: Final = 252
DEPENDENCY: Final = 253
LOST: Final = 254
UNKNOWN: Final = 255
_WORKER_CODE_MAX: Final = 249

_CODES_BY_REASON: Final = {
    "deadline": DEADLINE,
    "dependency_failed": DEPENDENCY,
    "out_of_attempts": LOST,
}
_UNKNOWN_JOB: Final = wire.JobCompleteRes(1, UNKNOWN, b"unknown job")
_UNFINISHED: Final = wire.JobCompleteRes(0, 0, b"")


class DraftSession:
    """One connection."""

    def __init__(self, peer: Peer, hall: Hall, *, packet_bytes_max: int) -> None:
        self.peer = peer
        self.hall = hall
        self.client_id = b""
        self.abilities: dict[str, int | None] = {}
        self.ignored_count = 0  # announcements about no job (A17)
        self._decoder = wire.Decoder(packet_bytes_max)
        self._replies = Replies(peer.send)
        self._turn = 0
        self._held: Job | None = None
        self._claiming = False
        self._sync_job: str | None = None  # the one this application waits for (A35)
        self._sync_asked = False
        self._held_back: deque[wire.Packet] = deque()
        self._held_back_bytes = 0
        self._proof = ByConnection(peer.connection)
        self._holder = Holder("draft", peer.connection, peer.address)
        self._origin = Origin("draft", "", peer.address)
        self._closed = False
        hall.enter(self)

    # The listener's side.

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        for message in self._decoder.feed(data):
            if isinstance(message, wire.Fault):
                self.hall.faults_count += 1
                self._replies.say(wire.encode(message.error))
                if message.closes:
                    self.peer.close()
            else:
                self._take(message)
        held = self._held
        if held is not None and held.lease is not None and held.lease.term_ms is not None:
            # Whatever a worker sends shows that it lives (A20, A23).
            self.peer.ask(Renew(job_id=held.job_id, proof=self._proof))

    def _take(self, packet: wire.Packet) -> None:
        if self._sync_asked and type(packet) in _APPLICATION_PACKETS:
            self._held_back.append(packet)
            self._held_back_bytes += len(wire.encode(packet))
        else:
            _ACTIONS[type(packet)](self, packet)

    def is_overwhelmed(self) -> bool:
        """What waits behind a sync job is bounded: the rest stays with the peer (A35)."""
        return self._held_back_bytes > _HELD_BACK_BYTES_MAX

    def lost(self) -> None:
        """The connection is gone (A22, A36)."""
        if self._closed:
            return
        self._closed = True
        self.hall.leave(self)
        self.peer.ask(Depart(connection=self.peer.connection))
        self.peer.ask(Detach(self.peer.connection))

    def hear(self, signal: Signal) -> None:
        """News of the job that the application waits for (A34), or of the lost lease."""
        job = signal.job
        if signal.what == "told":
            if self._held is not None and self._held.job_id == job.job_id:
                self._held = None
        elif job.job_id != self._sync_job:
            return
        elif signal.what == "progress":
            self.peer.send(wire.encode(_status(job, self.peer.now())))
        elif signal.what == "ended":
            self.peer.send(wire.encode(_completion(job, self.peer.now())))
            self._sync_over()

    def _sync_over(self) -> None:
        self._sync_job, self._sync_asked = None, False
        while self._held_back and not self._sync_asked:
            packet = self._held_back.popleft()
            self._held_back_bytes -= len(wire.encode(packet))
            _ACTIONS[type(packet)](self, packet)

    # Applications.

    def on_create(self, packet: wire.JobCreateReq) -> None:
        peer = self.peer
        sync = packet.job_type == wire.SYNC_WAIT
        terms: Terms = _TERMS
        if packet.job_type == wire.ASYNC_THROW_AWAY:
            terms = _THROW_AWAY_TERMS
        item = NewJob(
            job_id=peer.job_id(),
            queue=packet.name.decode("ascii"),
            payload=packet.args,
            terms=terms,
            origin=self._origin,
            unique_key=packet.dupkey or None,
            durable_interest=not sync,
            waiter=peer.connection if sync else None,
        )
        slot = self._replies.reserve()
        self._sync_asked = sync

        def settle(reply: Reply) -> None:
            answer = only_item(reply)
            if isinstance(answer, Refusal):
                self._replies.fill(slot, wire.encode(_refused(answer, packet)))
                if sync:
                    self._sync_over()
                return
            job = answer.job
            if sync:
                self._sync_job = job.job_id
            throw_away = packet.job_type == wire.ASYNC_THROW_AWAY
            handle = b"" if throw_away else self.hall.handle_of(job)
            self._replies.fill(slot, wire.encode(wire.JobCreateRes(handle)))

        peer.ask(Submit((item,)), settle)

    def on_status_req(self, packet: wire.JobStatusReq) -> None:
        self._look(packet.handle, lambda job: _status(job, self.peer.now()))

    def on_complete_req(self, packet: wire.JobCompleteReq) -> None:
        self._look(packet.handle, lambda job: _completion(job, self.peer.now()))

    def _look(self, handle: bytes, answer: Callable[[Job | None], wire.Packet]) -> None:
        job_id = self.hall.job_id_of(handle)
        if job_id is None:
            self._replies.say(wire.encode(answer(None)))
            return
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            job = reply.job if type(reply) is Found else None
            self._replies.fill(slot, wire.encode(answer(job)))

        self.peer.ask(Look(job_id), settle)

    # Workers.

    def on_noop(self, packet: wire.Noop) -> None:
        """A sign of life, no more (A20)."""

    def on_connect(self, packet: wire.WorkerConnect) -> None:
        self.abilities = {name.decode("ascii"): None for name in packet.names}

    def on_disconnect(self, packet: wire.WorkerDisconnect) -> None:
        command = Depart(connection=self.peer.connection, reason=EndReason.GOODBYE)
        self._held = None
        self.peer.ask(command)
        self.peer.close()

    def on_sleep(self, packet: wire.WorkerSleep) -> None:
        queues = tuple(self.abilities)
        if not queues:
            return
        if self.peer.has_work(queues):
            self.peer.stay_awake()
            self._replies.say(wire.encode(wire.Noop()))
        else:
            self.peer.sleep(queues, self._wake)

    def _wake(self) -> None:
        self.peer.send(wire.encode(wire.Noop()))

    def on_assign(self, packet: wire.JobAssignReq) -> None:
        self.peer.stay_awake()
        queues = tuple(self.abilities)
        if self._held is not None or self._claiming or not queues:
            self._replies.say(wire.encode(wire.JobAssignRes()))
            return
        self._turn += 1
        self._claiming = True
        claim = Claim(
            queues=queues,
            holder=self._holder,
            tokens=(self.peer.token(),),
            order=ClaimOrder.PRIORITY_IN_TURNS,
            turn=self._turn % len(queues),
            connection=self.peer.connection,
            early=True,
        )
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            self._claiming = False
            if type(reply) is not Claimed or not reply.jobs:
                self._replies.fill(slot, wire.encode(wire.JobAssignRes()))
                return
            job = self._held = reply.jobs[0]
            assignment = wire.JobAssignRes(job.queue.encode(), job.payload)
            self._replies.fill(slot, wire.encode(assignment))

        self.peer.ask(claim, settle)

    def on_status_announce(self, packet: wire.JobStatusAnnounce) -> None:
        job = self._held
        if job is None:
            self.ignored_count += 1
            return
        self.peer.ask(
            Report(
                job_id=job.job_id,
                proof=self._proof,
                numerator=packet.numerator,
                denominator=packet.denominator,
                seconds_left=packet.seconds_left or None,
            )
        )

    def on_complete_announce(self, packet: wire.JobCompleteAnnounce) -> None:
        job = self._held
        self._held = None
        if job is None:
            self.ignored_count += 1
        elif packet.code == 0:
            command = Complete(job_id=job.job_id, proof=self._proof, result=packet.data)
            self.peer.ask(command)
        else:
            code = min(packet.code, _WORKER_CODE_MAX)
            message = packet.data.decode("utf-8", "replace")[:10_000]
            failure = Failure(f"code {code}", message, packet.data)
            self.peer.ask(Fail(job_id=job.job_id, proof=self._proof, failure=failure))


def _refused(refusal: Refusal, packet: wire.JobCreateReq) -> wire.Error:
    code = wire.SHUTTING_DOWN if refusal.why is Why.SHUTTING_DOWN else wire.REFUSED
    text = refusal.sentence.encode("ascii", "replace")
    return wire.Error(code, wire.TYPES[type(packet)], text)


def _status(job: Job | None, now: int) -> wire.JobStatusRes:
    """How far it is (A39). The time left is aged by the time since it was reported (A40)."""
    if job is None:
        return wire.JobStatusRes(0, 0, 0)
    progress = job.progress
    if job.state in FINISHED:
        whole = max(1, progress.denominator) if progress is not None else 1
        return wire.JobStatusRes(whole, whole, 0)
    if progress is None:
        return wire.JobStatusRes(0, 0, 0)
    left = 0
    if progress.seconds_left is not None:
        left = max(1, progress.seconds_left - (now - progress.reported_at) // 1000)
    top = 2**32 - 1
    return wire.JobStatusRes(
        min(progress.numerator, top), min(progress.denominator, top), min(left, top)
    )


def _completion(job: Job | None, now: int) -> wire.JobCompleteRes:
    """How it ended (A42 to A45)."""
    if job is None:
        return _UNKNOWN_JOB
    if job.state not in FINISHED:
        return _UNFINISHED
    assert job.finished_at is not None
    kept_ms = job.terms.result_ms
    if kept_ms is None:
        kept_ms = job.terms.defaults.result_ms
    if kept_ms and now >= job.finished_at + kept_ms:
        return _UNKNOWN_JOB
    elapsed_ms = 0
    if job.attempts:
        elapsed_ms = job.attempts[-1].ended_at - job.attempts[-1].claimed_at
    seconds = max(1, -(-elapsed_ms // 1000))
    if job.state is State.COMPLETED:
        return wire.JobCompleteRes(seconds, 0, job.result or b"")
    failure = job.failure
    code = _CODES_BY_REASON.get(job.reason)
    if code is None:
        code = CANCELLED if job.state is State.CANCELLED else 1
        if failure is not None and failure.code.startswith("code "):
            code = int(failure.code[5:])
    data = b"" if failure is None else failure.payload or failure.message.encode()
    return wire.JobCompleteRes(seconds, code, data)


_APPLICATION_PACKETS: Final = frozenset({wire.JobCreateReq, wire.JobStatusReq, wire.JobCompleteReq})
_D = DraftSession
_ACTIONS: Final[dict[type, Callable[[DraftSession, Any], None]]] = {
    wire.Noop: _D.on_noop,
    wire.WorkerConnect: _D.on_connect,
    wire.WorkerDisconnect: _D.on_disconnect,
    wire.WorkerSleep: _D.on_sleep,
    wire.JobCreateReq: _D.on_create,
    wire.JobAssignReq: _D.on_assign,
    wire.JobStatusAnnounce: _D.on_status_announce,
    wire.JobStatusReq: _D.on_status_req,
    wire.JobCompleteAnnounce: _D.on_complete_announce,
    wire.JobCompleteReq: _D.on_complete_req,
}

"""Gearman as in its first design note: one connection of an application, a worker, or both.

A worker here holds one job at a time, so its packets name no job. Numbers such as A14 are those of
``docs/protocols/gearman.md``, which settles every gap of the note.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from manyhands.dispatch.session import Peer, only_item
from manyhands.loggers import get_logger
from manyhands.model import limits
from manyhands.model.commands import (
    ByConnection,
    Claim,
    ClaimOrder,
    Complete,
    Depart,
    Detach,
    Fail,
    Look,
    LookByKey,
    NewJob,
    Release,
    Renew,
    Report,
    Submit,
)
from manyhands.model.events import Signal
from manyhands.model.job import (
    FINISHED,
    EndReason,
    Holder,
    Job,
    Origin,
    State,
    failure_from_bytes,
)
from manyhands.model.reasons import LOST_CODE, Reason
from manyhands.model.replies import Claimed, Found, Refusal, Reply, Why
from manyhands.protocols.gearman import draft_codec as wire
from manyhands.protocols.gearman.admin import Hall
from manyhands.protocols.replies import Replies, Slot

_log = get_logger("manyhands.gearman_draft")

_HELD_BACK_BYTES_MAX: Final = 1024 * 1024
_HELD_BACK_EACH_BYTES: Final = 200  # memory taken even by an empty request
# Pending answers of a peer; above this, nothing more is read from it.
_AWAITED_COUNT_MAX: Final = 10_000
_NUMBER_MAX: Final = 2**32 - 1

# The server's own result codes (A38).
CANCELLED: Final = 251
DEADLINE: Final = 252
DEPENDENCY: Final = 253
LOST: Final = 254
UNKNOWN: Final = 255
_WORKER_CODE_MAX: Final = 249

# Codes of jobs that did not succeed; None: the code is in the failure.
CODES: Final[dict[Reason, int | None]] = {
    Reason.DEADLINE: DEADLINE,
    Reason.DEPENDENCY_FAILED: DEPENDENCY,
    Reason.CANCELLED: CANCELLED,
    Reason.ABANDONED: CANCELLED,
    Reason.REPLACED: CANCELLED,
    Reason.FAILED: None,
    Reason.OUT_OF_ATTEMPTS: None,
}
_UNKNOWN_JOB: Final = wire.JobCompleteRes(1, UNKNOWN, b"unknown job")
_UNFINISHED: Final = wire.JobCompleteRes(0, 0, b"")


class DraftSession:
    """One connection."""

    def __init__(
        self, peer: Peer, hall: Hall, *, packet_bytes_max: int, error_packets: bool = True
    ) -> None:
        self.peer = peer
        self.hall = hall
        self.client_id = b""
        self.abilities: dict[str, int | None] = {}
        self.ignored_count = 0  # announcements about no job (A17)
        self._decoder = wire.Decoder(packet_bytes_max)
        self._error_packets = error_packets  # otherwise a peer in error is disconnected (A7)
        self._replies = Replies(peer.send)
        self._undone: list[wire.Message] = []  # received, waiting for the next turn
        self._leaving = False  # further input is ignored
        self._warned = False
        self._turn = 0
        self._held: Job | None = None
        self._claiming = False
        self._sync_job: str | None = None  # the job this application waits for (A35)
        self._sync_asked = False
        self._held_back: deque[wire.Packet | wire.Fault] = deque()
        self._held_back_bytes = 0
        self._going_on = False
        self._proof = ByConnection(peer.connection)
        self._holder = Holder("draft", peer.connection, peer.address)
        self._origin = Origin("draft", "", peer.address)
        self._closed = False
        hall.enter(self)

    # The listener's side.

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        messages = self._decoder.feed(data)
        if self._undone:
            messages = self._undone + messages
            self._undone = []
        peer = self.peer
        owed_max = peer.owed_bytes + limits.TURN_BYTES_OWED_MAX
        for count, message in enumerate(messages):
            if self._leaving:
                return
            if count == limits.TURN_REQUESTS_MAX or peer.owed_bytes > owed_max:
                self._undone = messages[count:]
                peer.come_back()
                break
            if self._sync_asked and _waits_its_turn(message):
                self._held_back.append(message)
                self._held_back_bytes += _size(message)
            else:
                self._take(message)
        held = self._held
        if held is not None and held.lease is not None and held.lease.term_ms is not None:
            # Any packet from a worker shows that it is alive (A20, A23).
            self.peer.ask(Renew(job_id=held.job_id, proof=self._proof))

    def _take(self, message: wire.Message) -> None:
        if isinstance(message, wire.Fault):
            self.hall.faults_count += 1
            self._complain(None, message.error)
            if message.closes:
                self._leave()
        else:
            _ACTIONS[type(message)](self, message)

    def _complain(self, slot: Slot | None, error: wire.Error) -> None:
        """Sends an error packet in its turn, or closes the connection if there are no error
        packets.
        """
        self.hall.complain(self.peer, b"%d" % error.code, error.text)
        text = wire.encode(error) if self._error_packets else b""
        if slot is not None:
            self._replies.fill(slot, text)
        elif text:
            self._replies.say(text)
        if not text:
            self._leave()

    def _leave(self) -> None:
        self._leaving = True
        self._replies.when_sent(self.peer.close)

    def is_overwhelmed(self) -> bool:
        """Packets held behind a sync job are bounded; the rest stays with the peer (A35)."""
        return (
            self._held_back_bytes > _HELD_BACK_BYTES_MAX
            or self._replies.awaited_count > _AWAITED_COUNT_MAX
        )

    def held_bytes(self) -> int:
        """Bytes held of an incomplete packet, and of packets behind a sync job."""
        return self._decoder.held_bytes() + self._held_back_bytes

    def is_amid_packet(self) -> bool:
        """Whether a packet has begun to arrive."""
        return self._decoder.held_bytes() > 0

    def ended(self) -> None:
        """The peer closed its side: it gets its answers, then the connection is closed."""
        self._leave()

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone (A22, A36)."""
        if self._closed:
            return
        self._closed = self._leaving = True
        self._held_back.clear()
        self.hall.leave(self)
        ask, connection = self.peer.ask, self.peer.connection
        ask(Detach(connection))
        reason = EndReason.RELEASED if blameless else EndReason.LOST
        depart = Depart(connection=connection, reason=reason)
        if self._claiming:
            # A job on its way to the worker is given back first: the worker never saw it.
            ask(LookByKey(b"", ""), lambda _: ask(depart))
        else:
            ask(depart)

    def notify(self, signal: Signal) -> None:
        """News of the job that the application waits for (A34), or of the lost lease."""
        job = signal.job
        if signal.what == "notice":
            if self._held is not None and self._held.job_id == job.job_id:
                self._held = None
        elif job.job_id != self._sync_job:
            return
        elif signal.what == "progress":
            self._replies.say(wire.encode(_status(job, self.peer.now())))
        elif signal.what == "ended":
            self._replies.say(wire.encode(_ending(job)))
            self._sync_over()

    def _sync_over(self) -> None:
        """The application no longer waits: the requests it sent meanwhile get their turn."""
        self._sync_job, self._sync_asked = None, False
        if self._going_on:
            return  # a refused request, found while resuming
        self._going_on = True
        while self._held_back and not (self._sync_asked or self._leaving):
            message = self._held_back.popleft()
            self._held_back_bytes -= _size(message)
            self._take(message)
        self._going_on = False

    # Applications.

    def on_create(self, packet: wire.JobCreateReq) -> None:
        peer = self.peer
        sync = packet.job_type == wire.SYNC_WAIT
        # A result that is thrown away, or that only the waiter gets, is not kept (A45).
        kept = packet.job_type == wire.ASYNC_HANDLE
        terms = self.hall.draft_terms if kept else self.hall.draft_unkept_terms
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
                self._complain(slot, _refused(answer, packet))
                if sync:
                    self._sync_over()
                return
            job = answer.job
            if sync:
                self._sync_job = job.job_id
            throw_away = packet.job_type == wire.ASYNC_THROW_AWAY
            handle = b"" if throw_away else self.hall.handle_of(job)
            self._replies.fill(slot, wire.encode(wire.JobCreateRes(handle)))

        peer.ask(Submit((item,), early=sync), settle)

    def on_status_req(self, packet: wire.JobStatusReq) -> None:
        self._look(packet, lambda job: _status(job, self.peer.now()))

    def on_complete_req(self, packet: wire.JobCompleteReq) -> None:
        self._look(packet, lambda job: _completion(job, self.peer.now()))

    def _look(
        self,
        packet: wire.JobStatusReq | wire.JobCompleteReq,
        answer: Callable[[Job | None], wire.Packet],
    ) -> None:
        job_id = self.hall.job_id_of(packet.handle)
        if job_id is None:
            self._replies.say(wire.encode(answer(None)))
            return
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            if type(reply) is Refusal and reply.why is Why.NOT_ALLOWED:
                self._complain(slot, _refused(reply, packet))
                return
            job = reply.job if type(reply) is Found else None
            self._replies.fill(slot, wire.encode(answer(job)))

        self.peer.ask(Look(job_id, brief=True), settle)

    # Workers.

    def on_noop(self, packet: wire.Noop) -> None:
        """A sign of life, nothing more (A20)."""

    def on_connect(self, packet: wire.WorkerConnect) -> None:
        abilities: dict[str, int | None] = {name.decode("ascii"): None for name in packet.names}
        if len(abilities) > limits.CLAIM_QUEUES_MAX:
            text = b"a worker can do at most %d jobs" % limits.CLAIM_QUEUES_MAX
            self._complain(None, wire.Error(wire.REFUSED, wire.TYPES[type(packet)], text))
            return
        for name in abilities:
            refusal = self.peer.refusal_to_work(name)
            if refusal is not None:
                self._complain(None, _refused(refusal, packet))
                return
        self.abilities = abilities
        for name in abilities:
            self.hall.learn(name)
        if self.peer.is_asleep():
            self.peer.sleep(abilities, self._wake, self._holder)

    def on_disconnect(self, packet: wire.WorkerDisconnect) -> None:
        command = Depart(connection=self.peer.connection, reason=EndReason.GOODBYE)
        self._held = None
        self.abilities = {}
        self.peer.stay_awake()
        self.peer.ask(command)
        self._leave()

    def on_sleep(self, packet: wire.WorkerSleep) -> None:
        queues = tuple(self.abilities)
        if self.peer.has_work(queues):
            self.peer.stay_awake()
            self._replies.say(wire.encode(wire.Noop()))
        else:
            self.peer.sleep(queues, self._wake, self._holder)

    def _wake(self) -> None:
        self._replies.say(wire.encode(wire.Noop()))

    def on_assign(self, packet: wire.JobAssignReq) -> None:
        self.peer.stay_awake()
        queues = tuple(self.abilities)
        if self._held is not None or self._claiming or not queues:
            if queues and not self._warned:
                self._warned = True
                _log.warning("a worker with a job asked for another", peer=self.peer.address)
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
            if type(reply) is Refusal and reply.why is Why.NOT_ALLOWED:
                self._complain(slot, _refused(reply, packet))
                return
            if type(reply) is not Claimed or not reply.jobs:
                self._replies.fill(slot, wire.encode(wire.JobAssignRes()))
                return
            job = reply.jobs[0]
            if self._leaving:
                self.peer.ask(Release(job_id=job.job_id, proof=self._proof))  # never delivered
                self._replies.fill(slot, b"")
                return
            self._held = job
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
            ),
            None,
            self._ignore,
        )

    def _ignore(self) -> None:
        """The job was taken back: announcements about it are only counted (A17)."""
        self.ignored_count += 1

    def on_complete_announce(self, packet: wire.JobCompleteAnnounce) -> None:
        job = self._held
        self._held = None
        if job is None:
            self.ignored_count += 1
        elif packet.code == 0:
            command = Complete(job_id=job.job_id, proof=self._proof, result=packet.data)
            self.peer.ask(command, None, self._ignore)
        else:
            code = min(packet.code, _WORKER_CODE_MAX)
            failure = failure_from_bytes(f"code {code}", packet.data)
            command_fail = Fail(job_id=job.job_id, proof=self._proof, failure=failure)
            self.peer.ask(command_fail, None, self._ignore)


def _refused(refusal: Refusal, packet: wire.Packet) -> wire.Error:
    code = wire.SHUTTING_DOWN if refusal.why is Why.SHUTTING_DOWN else wire.REFUSED
    text = refusal.sentence.encode("ascii", "replace")
    return wire.Error(code, wire.TYPES[type(packet)], text)


def _status(job: Job | None, now: int) -> wire.JobStatusRes:
    """A job's progress (A39). The remaining time is reduced by the time since it was reported
    (A40).
    """
    if job is None:
        return wire.JobStatusRes(0, 0, 0)
    progress = job.progress
    if job.state in FINISHED:
        whole = 1
        if progress is not None and progress.denominator:
            whole = min(progress.denominator, _NUMBER_MAX)
        return wire.JobStatusRes(whole, whole, 0)
    if progress is None or job.state is not State.LEASED:
        return wire.JobStatusRes(0, 0, 0)
    left = 0
    if progress.seconds_left is not None:
        left = max(1, progress.seconds_left - (now - progress.reported_at) // 1000)
    return wire.JobStatusRes(
        min(progress.numerator, _NUMBER_MAX),
        min(progress.denominator, _NUMBER_MAX),
        min(left, _NUMBER_MAX),
    )


def _completion(job: Job | None, now: int) -> wire.JobCompleteRes:
    """Whether and how a job ended (A42, A44, A45)."""
    if job is None:
        return _UNKNOWN_JOB
    if job.state not in FINISHED:
        return _UNFINISHED
    assert job.finished_at is not None
    kept_ms = job.terms.result_ms
    if kept_ms is None:
        kept_ms = job.terms.defaults.result_ms
    if kept_ms is not None and now >= job.finished_at + kept_ms:
        return _UNKNOWN_JOB
    return _ending(job)


def _ending(job: Job) -> wire.JobCompleteRes:
    """How a job ended (A38, A43)."""
    elapsed_ms = 0
    if job.attempts:
        elapsed_ms = job.attempts[-1].ended_at - job.attempts[-1].claimed_at
    seconds = min(max(1, -(-elapsed_ms // 1000)), _NUMBER_MAX)
    if job.state is State.COMPLETED:
        return wire.JobCompleteRes(seconds, 0, job.result or b"")
    failure = job.failure
    data = b"" if failure is None else failure.as_bytes()
    return wire.JobCompleteRes(seconds, _code(job), data)


def _code(job: Job) -> int:
    """The result code of a job that did not succeed."""
    code = CODES.get(job.reason)
    if code is not None:
        return code
    if job.state is State.CANCELLED:  # by an earlier version, in free text
        return CANCELLED
    failure = job.failure
    said = failure.code if failure is not None else ""
    if said == LOST_CODE:
        return LOST
    number = said.removeprefix("code ")
    if number != said and number.isascii() and number.isdigit() and len(number) <= 3:
        return min(max(int(number), 1), _WORKER_CODE_MAX)
    return 1


def _waits_its_turn(message: wire.Message) -> bool:
    """Whether a request is answered only after the job that the application waits for (A35)."""
    if type(message) is wire.Fault:
        return not message.closes
    return type(message) in _APPLICATION_PACKETS


def _size(message: wire.Message) -> int:
    """The approximate memory taken by a waiting request."""
    match message:
        case wire.JobCreateReq():
            size = len(message.name) + len(message.dupkey) + len(message.args)
        case wire.JobStatusReq() | wire.JobCompleteReq():
            size = len(message.handle)
        case _:
            size = 0
    return size + _HELD_BACK_EACH_BYTES


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

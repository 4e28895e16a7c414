"""Gearman as shipped: one connection of a client, a worker, or both.

Clause numbers in comments (G…) are those of ``docs/protocols/gearman.md``.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from manyhands.dispatch.session import Peer, Settle
from manyhands.model import limits
from manyhands.model.commands import (
    ByConnection,
    Claim,
    ClaimOrder,
    Complete,
    Depart,
    Detach,
    Fail,
    LiftTerms,
    Look,
    LookByKey,
    NewJob,
    Release,
    Report,
    SendPartial,
    Submit,
)
from manyhands.model.events import Signal
from manyhands.model.job import (
    FINISHED,
    EndReason,
    Failure,
    Holder,
    Job,
    Origin,
    State,
    failure_from_bytes,
)
from manyhands.model.plain import PlainLeased, PlainReady
from manyhands.model.reasons import LOST_CODE, Outcome
from manyhands.model.replies import Claimed, Found, Refusal, Reply, Submitted, SubmittedMany, Why
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman.admin import UNKNOWN_TOKEN, Admin, Hall, is_listing, shown_unique
from manyhands.protocols.gearman.names import NAME_SENTENCE, queue_of, unescaped
from manyhands.protocols.gearman.words import ERROR_CODES
from manyhands.protocols.replies import Replies, Slot

_IN_TURNS: Final = ClaimOrder.PRIORITY_IN_TURNS
_HIGH: Final = 10.0
_NORMAL: Final = 0.0
_LOW: Final = -10.0
_CLIENT_ID_BYTES_MAX: Final = 127
_UNIQUE_BYTES_MAX: Final = 64
_HANDLE_BYTES_MAX: Final = 63
# Jobs whose exception was reported, and whose failure may follow.
_EXCEPTED_COUNT_MAX: Final = 64
# Stands for the id in a handle without one; it is no valid id, so it matches no job.
_NO_ID: Final = "of that handle"
# Digits that are read of a number; longer ones have no meaning here.
_DIGITS_MAX: Final = 18
_FOREVER_MS: Final = limits.TIME_MS_MAX
# As in gearmand. Many libraries and users take the number for seconds: no job should be taken from
# its worker after a few milliseconds.
_TIMEOUT_MS_MIN: Final = 1_000
# Pending answers of a peer; above this, nothing more is read from it.
AWAITED_COUNT_MAX: Final = 10_000


def error_packet(refusal: Refusal) -> bytes:
    """A refusal as an ERROR packet."""
    return wire.encode_response(wire.ERROR, ERROR_CODES[refusal.why], _sentence(refusal))


def _sentence(refusal: Refusal) -> bytes:
    return refusal.sentence.encode("utf-8", "replace")


class GearmanSession:
    """One connection."""

    def __init__(self, peer: Peer, hall: Hall, *, payload_bytes_max: int) -> None:
        self.peer = peer
        self.hall = hall
        self.client_id = b""
        self.abilities: dict[str, int | None] = {}  # queue -> timeout in ms
        self._terms = hall.terms
        self._decoder = wire.Decoder(payload_bytes_max)
        self._replies = Replies(peer.send)
        self._queues: tuple[str, ...] = ()
        self._terms_ms: tuple[int | None, ...] = ()
        self._turn = 0
        self._has_timed = False  # it may hold jobs with a timeout
        self._was_refused = False  # a report of it, since it last fell asleep
        # The last of each: the next is nearly always the same and can be reused.
        self._function, self._queue = b"", ""
        self._handle, self._handed_out = b"", _NO_ID
        self._undone: list[wire.Message] = []  # received, waiting for the next turn
        self._after_listing = False  # and for all pending answers
        self._wants_exceptions = hall.exceptions
        self._excepted: dict[bytes, None] = {}
        self._proof = ByConnection(peer.connection)
        self._holder = Holder("gearman", peer.connection, peer.address)
        self._origin = Origin("gearman", "", peer.address)
        self._closed = False
        hall.enter(self)

    # The listener's side.

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        messages = self._decoder.feed(data)
        count = len(messages)
        if self._undone or count > 2:
            self._take_turn(messages)
        elif count == 2:
            (kind, args), (next_kind, next_args) = messages
            if kind == wire.WORK_COMPLETE and next_kind in _GRABS:  # as workers send, mostly
                self.on_work_complete(kind, args)
                self.on_grab(next_kind, next_args)
            else:
                self._take_turn(messages)
        elif count:
            kind, args = messages[0]
            _ACTIONS[kind](self, kind, args)

    def _take_turn(self, messages: list[wire.Message]) -> None:
        """Handles as many messages as other peers can wait for; the rest follows in a later turn. A
        listing may be very long, so everything behind it waits until it has been answered.
        """
        if self._undone:
            messages = self._undone + messages
            self._undone = []
        self._after_listing = False
        actions, peer = _ACTIONS, self.peer
        owed_max = peer.owed_bytes + limits.TURN_BYTES_OWED_MAX
        count, last = 0, len(messages)
        turn_end = min(last, limits.TURN_REQUESTS_MAX)
        while count < turn_end:
            kind, args = messages[count]
            count += 1
            is_over = False
            if kind in _BACKGROUND:
                start = count - 1
                while count < turn_end and messages[count][0] in _BACKGROUND:
                    count += 1
                self._submit_run(messages[start:count])
            else:
                actions[kind](self, kind, args)
                if kind == wire.ADMIN_LINE:
                    self._after_listing = is_over = is_listing(args[0])
                elif count < last and kind in _GRABS:
                    is_over = peer.owed_bytes > owed_max
            if is_over and count < last:
                break
        if count < last:
            self._undone = messages[count:]
            peer.come_back()

    def is_overwhelmed(self) -> bool:
        """Whether so many answers are pending that no more requests should be read."""
        awaited_count = self._replies.awaited_count
        return awaited_count > AWAITED_COUNT_MAX or (
            awaited_count > 0 and self._after_listing and bool(self._undone)
        )

    def held_bytes(self) -> int:
        """Bytes held of an incomplete packet."""
        return self._decoder.held_bytes()

    def is_amid_packet(self) -> bool:
        """Whether a packet has begun to arrive."""
        return self._decoder.is_amid_packet()

    def ended(self) -> None:
        """The peer closed its side: it gets its answers, then the connection is closed."""
        self._replies.when_sent(self.peer.close)

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone: its jobs go back, and its waiters are removed."""
        if self._closed:
            return
        self._closed = True
        self.hall.leave(self)
        ask, connection = self.peer.ask, self.peer.connection
        ask(Detach(connection))
        reason = EndReason.RELEASED if blameless else EndReason.LOST
        depart = Depart(connection=connection, reason=reason)
        if self._replies.awaited_count:
            # Jobs on their way to the worker are given back first: it never saw them.
            ask(LookByKey(b"", ""), lambda _: ask(depart))
        else:
            ask(depart)

    def notify(self, signal: Signal) -> None:
        """News of a job that a client on this connection waits for."""
        job, what = signal.job, signal.what
        send = self._replies.say  # never before the JOB_CREATED of its job
        handle = self.hall.handle_of(job)
        if what == "ended":
            send(self._ending(job, handle))
        elif what == "partial":
            send(wire.encode_response(wire.WORK_DATA, handle, signal.payload))
        elif what == "warning":
            send(wire.encode_response(wire.WORK_WARNING, handle, signal.payload))
        elif what == "progress":
            progress = job.progress
            assert progress is not None
            numbers = signal.payload or b"%d\0%d" % (progress.numerator, progress.denominator)
            send(wire.encode_response(wire.WORK_STATUS, handle, numbers))

    def _ending(self, job: Job, handle: bytes) -> bytes:
        if job.state is State.COMPLETED:
            return wire.encode_work_complete(handle, job.result or b"")
        if self._wants_exceptions and job.failure is not None and _was_reported(job):
            text = job.failure.as_bytes()
            if text or job.failure.code == "exception":
                return wire.encode_response(wire.WORK_EXCEPTION, handle, text)
        return wire.encode_response(wire.WORK_FAIL, handle)

    # Clients and workers.

    def on_fault(self, kind: int, args: list[bytes]) -> None:
        self.hall.faults_count += 1
        self.hall.complain(self.peer, *args)
        if kind == wire.LINE_TOO_LONG:
            self._replies.say(wire.encode_refusal(*args))
        else:
            self._replies.say(wire.encode_response(wire.ERROR, *args))
        if kind != wire.FAULT:
            self._replies.when_sent(self.peer.close)

    def on_unsupported(self, kind: int, args: list[bytes]) -> None:
        sentence = f"{wire.packet_name(kind)} is not supported".encode()
        self.on_fault(wire.FAULT, [b"INVALID_COMMAND", sentence])

    def on_echo(self, kind: int, args: list[bytes]) -> None:
        self._replies.say(wire.encode_response(wire.ECHO_RES, args[0]))

    def on_option(self, kind: int, args: list[bytes]) -> None:
        if args[0].lower() == b"exceptions":
            self._wants_exceptions = True
            self._replies.say(wire.encode_response(wire.OPTION_RES, args[0]))
        elif args[0][:6].lower() == b"token:":
            self._log_in(args[0][6:])
        else:
            sentence = b"the only options are exceptions and token:SECRET"
            self.hall.complain(self.peer, b"UNKNOWN_OPTION", sentence)
            self._replies.say(wire.encode_response(wire.ERROR, b"UNKNOWN_OPTION", sentence))

    def _log_in(self, token: bytes) -> None:
        slot = self._replies.reserve()

        def then(is_known: bool) -> None:  # noqa: FBT001 - a callback
            if is_known:
                answer = wire.encode_response(wire.OPTION_RES, b"token")
            else:
                answer = wire.encode_response(wire.ERROR, b"NOT_ALLOWED", UNKNOWN_TOKEN)
                self.hall.complain(self.peer, b"NOT_ALLOWED", UNKNOWN_TOKEN)
            self._replies.fill(slot, answer)

        self.peer.log_in(token.decode("utf-8", "surrogateescape"), then)

    def on_admin_line(self, kind: int, args: list[bytes]) -> None:
        Admin(self.peer, self.hall, self._replies).answer(args[0])

    # Clients.

    def on_submit(self, kind: int, args: list[bytes]) -> None:
        if kind in _BACKGROUND:
            self._submit_run([(kind, args)])
            return
        item = self._item(args[0], args[1], args[2], _SUBMITS[kind][0], background=False)
        if item is not None:
            self._submit([item], early=True)

    def _submit_run(self, run: list[wire.Message]) -> None:
        """Background jobs of one queue that arrived together are submitted together: one command,
        one answer. Not of several queues: a caller may be allowed to use one and not the other.
        """
        items: list[NewJob] = []
        for kind, args in run:
            item = self._item(args[0], args[1], args[2], _SUBMITS[kind][0], behind=items)
            if item is not None:
                if items and items[0].queue != item.queue:
                    self._submit_first(items)
                items.append(item)
        self._submit(items)

    def on_submit_epoch(self, kind: int, args: list[bytes]) -> None:
        # A past or non-numeric time means now.
        seconds = _number(args[2])
        run_at = None if seconds is None else seconds * 1000
        item = self._item(args[0], args[1], args[3], run_at=run_at)
        if item is not None:
            self._submit([item])

    def on_submit_reduce(self, kind: int, args: list[bytes]) -> None:
        background = kind == wire.SUBMIT_REDUCE_JOB_BACKGROUND
        reducer = msgspec.json.encode({"reducer": args[2]})
        item = self._item(args[0], args[1], args[3], background=background, metadata=reducer)
        if item is not None:
            self._submit([item], early=not background)

    def _item(
        self,
        function: bytes,
        unique: bytes,
        data: bytes,
        priority: float = _NORMAL,
        *,
        background: bool = True,
        run_at: int | None = None,
        metadata: bytes = b"",
        behind: list[NewJob] | None = None,
    ) -> NewJob | None:
        """The job of a packet; None if the packet was answered with an error, behind the answers to
        the jobs before it.
        """
        if function != self._function:
            queue = queue_of(function)
            if queue is None:
                self._submit_first(behind)
                self.on_fault(wire.FAULT, [b"INVALID_FUNCTION_NAME", NAME_SENTENCE])
                return None
            self._function, self._queue = function, queue
        if len(unique) > _UNIQUE_BYTES_MAX:
            self._submit_first(behind)
            sentence = b"a unique id has at most %d bytes" % _UNIQUE_BYTES_MAX
            self.on_fault(wire.FAULT, [b"ARGUMENT_TOO_LARGE", sentence])
            return None
        peer = self.peer
        return NewJob(
            job_id=peer.job_id(),
            queue=self._queue,
            payload=data,
            terms=self._terms,
            origin=self._origin,
            priority=priority,
            run_at=run_at,
            unique_key=unique_key(function, unique, data) if len(unique) < 2 else unique,
            durable_interest=background,
            waiter=None if background else peer.connection,
            metadata=metadata,
        )

    def _submit_first(self, items: list[NewJob] | None) -> None:
        if items:
            self._submit(items)
            items.clear()

    def _submit(self, items: list[NewJob], *, early: bool = False) -> None:
        if items:
            count = len(items)
            settle = partial(self._created, self._replies.reserve(count))
            if not self.peer.shortcut.submit_at_once(items, settle, early=early):
                command = Submit(tuple(items), early=early, requests_count=count)
                self.peer.ask(command, settle)

    def _created(self, slot: Slot, reply: Reply | list[str]) -> None:
        if type(reply) is list:
            created = self.hall.job_created
            packets = [created(job_id) for job_id in reply]
            self._replies.fill(slot, packets[0] if len(packets) == 1 else b"".join(packets))
            return
        assert not isinstance(reply, list)
        answers = reply.items if type(reply) is SubmittedMany else (reply,) * slot.count
        packets = []
        for answer in answers:
            if type(answer) is Submitted:
                packets.append(self.hall.job_created(answer.job.job_id))
            else:
                assert isinstance(answer, Refusal)
                packets.append(self._error(answer))
        self._replies.fill(slot, packets[0] if len(packets) == 1 else b"".join(packets))

    def on_get_status(self, kind: int, args: list[bytes]) -> None:
        handle = args[0]
        job_id = self.hall.job_id_of(handle) if len(handle) <= _HANDLE_BYTES_MAX else None
        if job_id is None:
            self._replies.say(wire.encode_response(wire.STATUS_RES, handle, *_UNKNOWN))
            return
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            if _is_forbidden(reply):
                self._refused(slot, reply)
                return
            known = _standing(reply)
            self._replies.fill(slot, wire.encode_response(wire.STATUS_RES, handle, *known))

        self.peer.ask(Look(job_id, brief=True), settle)

    def on_get_status_unique(self, kind: int, args: list[bytes]) -> None:
        unique = args[0]
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            if _is_forbidden(reply):
                self._refused(slot, reply)
                return
            job = reply.job if type(reply) is Found else None
            clients = b"%d" % (len(job.waiters) if job is not None else 0)
            known = _standing(reply)
            packet = wire.encode_response(wire.STATUS_RES_UNIQUE, unique, *known, clients)
            self._replies.fill(slot, packet)

        self.peer.ask(LookByKey(unique), settle)

    # Workers.

    def on_can_do(self, kind: int, args: list[bytes]) -> None:
        queue = queue_of(args[0])
        if queue is None:
            self.on_fault(wire.FAULT, [b"INVALID_FUNCTION_NAME", NAME_SENTENCE])
            return
        abilities = self.abilities
        if queue not in abilities and len(abilities) >= limits.CLAIM_QUEUES_MAX:
            sentence = b"a worker can do at most %d functions" % limits.CLAIM_QUEUES_MAX
            self.on_fault(wire.FAULT, [b"TOO_MANY_FUNCTIONS", sentence])
            return
        refusal = self.peer.refusal_to_work(queue)
        if refusal is not None:
            self._replies.say(self._error(refusal))
            return
        timeout_ms = None
        if kind == wire.CAN_DO_TIMEOUT:
            timeout_ms = _timeout_ms(args[1])
        abilities[queue] = timeout_ms
        self.hall.learn(queue)
        self._abilities_changed()

    def on_cant_do(self, kind: int, args: list[bytes]) -> None:
        # It may finish the jobs it holds.
        if self.abilities.pop(queue_of(args[0]) or "", 0) != 0:
            self._abilities_changed()

    def on_reset_abilities(self, kind: int, args: list[bytes]) -> None:
        self.abilities.clear()
        self._abilities_changed()

    def _abilities_changed(self) -> None:
        self._queues = tuple(self.abilities)
        timed = any(timeout is not None for timeout in self.abilities.values())
        self._terms_ms = tuple(self.abilities.values()) if timed else ()
        self._has_timed |= timed
        if self.peer.is_asleep():
            self.peer.sleep(self._queues, self._wake, self._holder)

    def on_set_client_id(self, kind: int, args: list[bytes]) -> None:
        self.client_id = args[0][:_CLIENT_ID_BYTES_MAX]
        name = self.client_id.decode("utf-8", "replace") or self.peer.connection
        self._holder = Holder("gearman", name, self.peer.address)
        self._origin = Origin("gearman", name, self.peer.address)

    def on_pre_sleep(self, kind: int, args: list[bytes]) -> None:
        if self._has_timed:
            # A worker that sleeps is not stuck in its job: it works on it elsewhere, or will begin
            # later.
            self.peer.ask(LiftTerms(self.peer.connection))
        # After an error libgearman takes each answer for that of an earlier request. It may have a
        # job among what it has received, and only looks when more arrives.
        is_out_of_step, self._was_refused = self._was_refused, False
        if is_out_of_step or self.peer.has_work(self._queues):
            self.peer.stay_awake()
            self._replies.say(wire.NOOP_PACKET)
        else:
            self.peer.sleep(self._queues, self._wake, self._holder)

    def _wake(self) -> None:
        self._replies.say(wire.NOOP_PACKET)

    def on_grab(self, kind: int, args: list[bytes]) -> None:
        peer = self.peer
        peer.stay_awake()
        queues = self._queues
        if not queues:
            self._replies.say(wire.NO_JOB_PACKET)
            return
        self._turn += 1
        if len(queues) == 1 and not self._terms_ms:
            job = peer.shortcut.claim_at_once(
                queues[0], self._holder, peer.token(), peer.connection
            )
            if job is not None:
                self._replies.say(
                    self._assignment(kind, job.ready if isinstance(job, PlainLeased) else job)
                )
                return
        claim = Claim(
            queues=queues,
            holder=self._holder,
            tokens=(peer.token(),),
            order=_IN_TURNS,
            turn=self._turn % len(queues),
            terms_ms=self._terms_ms,
            connection=peer.connection,
            early=True,
        )
        peer.ask(claim, partial(self._granted, self._replies.reserve(), kind))

    def _granted(self, slot: Slot, kind: int, reply: Reply) -> None:
        if type(reply) is not Claimed or not reply.jobs:
            if _is_forbidden(reply):
                self._refused(slot, reply)
            else:
                self._replies.fill(slot, wire.NO_JOB_PACKET)
            return
        job = reply.jobs[0]
        if self._closed:
            self.peer.ask(Release(job_id=job.job_id, proof=self._proof))  # rule 8: never delivered
            return
        self._replies.fill(slot, self._assignment(kind, job))

    def _assignment(self, kind: int, job: Job | PlainReady) -> bytes:
        """The packet that hands a job out."""
        self._handed_out = job.job_id
        self._handle = handle = self.hall.handle_of(job)
        function = job.queue.encode()
        if 92 in function:  # a backslash
            function = unescaped(function)
        if kind == wire.GRAB_JOB:
            return wire.encode_job_assign(handle, function, job.payload)
        unique = shown_unique(job)
        reducer = b""
        if kind == wire.GRAB_JOB_ALL and isinstance(job, Job) and job.metadata:
            reducer = _reducer(job)
        if reducer:
            return wire.encode_response(
                wire.JOB_ASSIGN_ALL, handle, function, unique, reducer, job.payload
            )
        return wire.encode_job_assign_uniq(handle, function, unique, job.payload)

    def _refuse(self) -> Settle:
        """Only a refused report gets an answer; it is sent in its turn."""
        return partial(self._refused, self._replies.reserve())

    def _refused(self, slot: Slot, reply: Reply) -> None:
        assert isinstance(reply, Refusal)
        self._was_refused = True
        self._replies.fill(slot, self._error(reply))

    def _error(self, refusal: Refusal) -> bytes:
        self.hall.complain(self.peer, ERROR_CODES[refusal.why], _sentence(refusal))
        return error_packet(refusal)

    def _job_id(self, handle: bytes) -> str:
        """The job of a handle; an invalid handle gets the answer for an unknown job."""
        if handle == self._handle:
            return self._handed_out
        return self.hall.job_id_of(handle) or _NO_ID

    def on_work_complete(self, kind: int, args: list[bytes]) -> None:
        job_id, result = self._job_id(args[0]), args[1]
        if self.peer.shortcut.complete_at_once(job_id, self._proof, result):
            return
        command = Complete(job_id=job_id, proof=self._proof, result=result)
        self.peer.ask(command, None, self._refuse)

    def on_work_fail(self, kind: int, args: list[bytes]) -> None:
        handle = args[0]
        failure = Failure("failed")  # the packet has no room for a reason
        command = Fail(job_id=self._job_id(handle), proof=self._proof, failure=failure)
        if handle in self._excepted:
            # Perl workers report an exception and then a failure, and die of a refusal: the first
            # one counted, unless the job was handed out here again since.
            del self._excepted[handle]
            self.peer.ask(command)
        else:
            self.peer.ask(command, None, self._refuse)

    def on_work_exception(self, kind: int, args: list[bytes]) -> None:
        handle, data = args[0], args[1]
        failure = failure_from_bytes("exception", data)
        if len(self._excepted) >= _EXCEPTED_COUNT_MAX:
            del self._excepted[next(iter(self._excepted))]
        self._excepted[handle] = None
        command = Fail(job_id=self._job_id(handle), proof=self._proof, failure=failure)
        self.peer.ask(command, None, self._refuse)

    def on_work_status(self, kind: int, args: list[bytes]) -> None:
        command = Report(
            job_id=self._job_id(args[0]),
            proof=self._proof,
            numerator=_leading_number(args[1]),
            denominator=_leading_number(args[2]),
            payload=args[1] + b"\0" + args[2],
        )
        self.peer.ask(command, None, self._refuse)

    def on_report_too_large(self, kind: int, args: list[bytes]) -> None:
        """The report exceeds the allowed size. The next worker would send as much, so the job fails
        for good.
        """
        handle, sentence = args
        self.hall.faults_count += 1
        failure = Failure("result_too_large", sentence.decode("utf-8", "replace"))
        command = Fail(job_id=self._job_id(handle), proof=self._proof, failure=failure)
        self.peer.ask(command, partial(self._cut_off, self._replies.reserve(), sentence))

    def _cut_off(self, slot: Slot, sentence: bytes, reply: Reply) -> None:
        if isinstance(reply, Refusal):
            self._refused(slot, reply)
            return
        self.hall.complain(self.peer, b"ARGUMENT_TOO_LARGE", sentence)
        packet = wire.encode_response(wire.ERROR, b"ARGUMENT_TOO_LARGE", sentence)
        self._replies.fill(slot, packet)

    def on_work_data(self, kind: int, args: list[bytes]) -> None:
        command = SendPartial(
            job_id=self._job_id(args[0]),
            proof=self._proof,
            payload=args[1],
            warning=kind == wire.WORK_WARNING,
        )
        self.peer.ask(command, None, self._refuse)


def unique_key(function: bytes, unique: bytes, data: bytes) -> bytes | None:
    """The key that jobs are joined by. ``-`` compares the data itself; empty compares nothing."""
    if not unique:
        return None
    if unique != b"-":
        return unique
    if not data:
        return None
    # One byte longer than any unique that a client can send, so the two never collide.
    return b"-" + hashlib.blake2b(function + b"\0" + data, digest_size=64).digest()


def _is_forbidden(reply: Reply) -> bool:
    return type(reply) is Refusal and reply.why is Why.NOT_ALLOWED


def _was_reported(job: Job) -> bool:
    """Whether the failure was reported by a worker, not by the server."""
    assert job.failure is not None
    match job.reason.outcome:
        case Outcome.FAILED:
            return job.state is State.FAILED
        case Outcome.FAILED_OR_LOST:
            return job.failure.code != LOST_CODE
        case Outcome.LOST | Outcome.ADVANCED | Outcome.NONE:
            return False


def _reducer(job: Job) -> bytes:
    try:
        kept = msgspec.json.decode(job.metadata, type=dict[str, bytes])
    except msgspec.DecodeError:
        return b""  # metadata of another protocol
    return kept.get("reducer", b"")


_UNKNOWN: Final = (b"0", b"0", b"0", b"0")


def _standing(reply: Reply) -> tuple[bytes, bytes, bytes, bytes]:
    """Known, running, numerator, denominator. Nothing is known of a finished job."""
    job = reply.job if type(reply) is Found else None
    if job is None or job.state in FINISHED:
        return _UNKNOWN
    leased = b"1" if job.state is State.LEASED else b"0"
    if job.progress is None:
        return b"1", leased, b"0", b"0"
    return b"1", leased, b"%d" % job.progress.numerator, b"%d" % job.progress.denominator


def _number(text: bytes) -> int | None:
    """A whole number, or None for anything else. A long one counts as the longest."""
    return int(text[:_DIGITS_MAX]) if text.isdigit() else None


def _timeout_ms(text: bytes) -> int | None:
    """Milliseconds, at least a second; None for 0 or a word."""
    given = _number(text)
    return min(max(given, _TIMEOUT_MS_MIN), _FOREVER_MS) if given else None


def _leading_number(text: bytes) -> int:
    """As C's atoi reads it, but never negative and never huge."""
    digits = len(text) - len(text.lstrip(b"0123456789"))
    return int(text[: min(digits, _DIGITS_MAX)] or b"0")


_SUBMITS: Final[dict[int, tuple[float, bool]]] = {
    wire.SUBMIT_JOB: (_NORMAL, False),
    wire.SUBMIT_JOB_BG: (_NORMAL, True),
    wire.SUBMIT_JOB_HIGH: (_HIGH, False),
    wire.SUBMIT_JOB_HIGH_BG: (_HIGH, True),
    wire.SUBMIT_JOB_LOW: (_LOW, False),
    wire.SUBMIT_JOB_LOW_BG: (_LOW, True),
}

_BACKGROUND: Final = frozenset(kind for kind, (_, background) in _SUBMITS.items() if background)
_GRABS: Final = frozenset((wire.GRAB_JOB, wire.GRAB_JOB_UNIQ, wire.GRAB_JOB_ALL))

_Action = Callable[[GearmanSession, int, list[bytes]], None]
_S: Final = GearmanSession

_ACTIONS: Final[dict[int, _Action]] = {
    wire.FAULT: _S.on_fault,
    wire.FATAL: _S.on_fault,
    wire.LINE_TOO_LONG: _S.on_fault,
    wire.REPORT_TOO_LARGE: _S.on_report_too_large,
    wire.ADMIN_LINE: _S.on_admin_line,
    wire.CAN_DO: _S.on_can_do,
    wire.CAN_DO_TIMEOUT: _S.on_can_do,
    wire.CANT_DO: _S.on_cant_do,
    wire.RESET_ABILITIES: _S.on_reset_abilities,
    wire.PRE_SLEEP: _S.on_pre_sleep,
    wire.GRAB_JOB: _S.on_grab,
    wire.GRAB_JOB_UNIQ: _S.on_grab,
    wire.GRAB_JOB_ALL: _S.on_grab,
    wire.WORK_COMPLETE: _S.on_work_complete,
    wire.WORK_FAIL: _S.on_work_fail,
    wire.WORK_EXCEPTION: _S.on_work_exception,
    wire.WORK_STATUS: _S.on_work_status,
    wire.WORK_DATA: _S.on_work_data,
    wire.WORK_WARNING: _S.on_work_data,
    wire.GET_STATUS: _S.on_get_status,
    wire.GET_STATUS_UNIQUE: _S.on_get_status_unique,
    wire.ECHO_REQ: _S.on_echo,
    wire.OPTION_REQ: _S.on_option,
    wire.SET_CLIENT_ID: _S.on_set_client_id,
    wire.SUBMIT_JOB_EPOCH: _S.on_submit_epoch,
    wire.SUBMIT_REDUCE_JOB: _S.on_submit_reduce,
    wire.SUBMIT_REDUCE_JOB_BACKGROUND: _S.on_submit_reduce,
    wire.SUBMIT_JOB_SCHED: _S.on_unsupported,
    wire.ALL_YOURS: _S.on_unsupported,
    **dict.fromkeys(_SUBMITS, _S.on_submit),
}

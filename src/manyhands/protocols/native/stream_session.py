"""One stream: the notes of a client or worker become commands, and replies become notes.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from manyhands.dispatch.session import Peer, Settle
from manyhands.model import commands, limits
from manyhands.model.commands import ByToken, ClaimOrder, Conclude, NewJob
from manyhands.model.events import Signal
from manyhands.model.job import FINISHED, EndReason, Failure, Holder, Job, Origin
from manyhands.model.payload import Encoding
from manyhands.model.reasons import as_detail, in_words
from manyhands.model.replies import (
    Accepted,
    ChangedMany,
    Concluded,
    Refusal,
    Reply,
    SubmittedMany,
    Why,
)
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.bodies import REALM, JobOptions
from manyhands.protocols.native.decoder import read_id, read_ids
from manyhands.protocols.native.refusals import spelt
from manyhands.protocols.native.stream_hub import Hub, Socket
from manyhands.protocols.native.stream_worker import CLAIM_COUNT_MAX, CREDIT_MAX, WorkerSide
from manyhands.protocols.replies import Replies

VERSION: Final = 1
SUBPROTOCOL: Final = "manyhands.1"
ITEMS_COUNT_MAX: Final = 500
WATCHES_COUNT_MAX: Final = 50_000
_AWAITED_COUNT_MAX: Final = 10_000  # ST6
_LOOK_BYTES_MAX: Final = 16 * 1024 * 1024
# The notes of a turn are sent before they exceed this size.
_MESSAGE_BYTES_HIGH: Final = 4 * 1024 * 1024
_PROTOCOL_ERROR: Final = 1002
_GOODBYES: Final = 500  # leases given back by one command
_RENEWALS: Final = 250  # per turn

_read_options: Final = msgspec.msgpack.Decoder(JobOptions).decode
_check_json: Final = msgspec.json.Decoder(Raw).decode
_PLAIN: Final = JobOptions()
_NIL: Final = bytes(wire.NIL)
Slot = list[bytes | None]
Operate = Callable[[commands.Command, Settle], None]  # asks, and audits


class _RefusedError(Exception):
    """A refused note."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class StreamSession:
    """The ``Conversation`` of one WebSocket."""

    def __init__(
        self, peer: Peer, socket: Socket, hub: Hub, operate: Operate, address: str
    ) -> None:
        self._peer = peer
        self._socket = socket
        self._hub = hub
        self._operate = operate
        self._worker = WorkerSide(peer, socket, hub, self._say)
        self._worker.address = address
        self._origin = Origin(REALM, "", address)
        self._replies = Replies(self._say)
        self._notes: list[bytes] = []  # to send at the end of this turn
        self._notes_bytes = 0
        self._undone: deque[Raw] = deque()  # received, waiting for the next turn
        self._undone_bytes = 0
        self._options: tuple[bytes, JobOptions] = (b"", _PLAIN)  # the last: many are equal
        self._watched: dict[str, None] = {}
        self._unseen: deque[str] = deque()  # finished while the peer did not read
        self._is_greeted = False
        self._is_over = False

    # The connection's side.

    def receive(self, messages: list[bytes]) -> None:
        """Messages arrived, or the rest of earlier ones has its turn."""
        try:
            for message in messages:
                self._undone.extend(wire.read_message(message))
                self._undone_bytes += len(message)
            self._take_turn()
        except wire.MalformedError as error:
            self._break_off(str(error))

    def _take_turn(self) -> None:
        """ST7: handles as many notes as other peers can wait for; the rest follows in a
        later turn.
        """
        peer, undone = self._peer, self._undone
        owed_max = peer.owed_bytes + limits.TURN_BYTES_OWED_MAX
        weight = 0
        while undone and not self._is_over:
            weight += self._do(undone.popleft())
            if undone and (weight >= limits.TURN_REQUESTS_MAX or peer.owed_bytes > owed_max):
                peer.come_back()
                return
        self._undone_bytes = 0

    def ended(self) -> None:
        """The peer closed its side: it still gets its answers."""
        self._replies.when_sent(self._leave)

    def _leave(self) -> None:
        self._flush()
        self._socket.close()

    def _break_off(self, sentence: str) -> None:
        self._is_over = True
        self._undone.clear()
        self._flush()
        self._socket.close(_PROTOCOL_ERROR, sentence)

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone."""
        self._is_over = True
        self._undone.clear()
        self._worker.lost()
        for job_id in self._watched:
            self._hub.unwatch(self, job_id)
        self._watched.clear()
        self._hub.leave(self)

    def notify(self, signal: Signal) -> None:
        """Nothing here is bound to the connection."""

    def is_overwhelmed(self) -> bool:
        """ST6: whether so many answers are pending that no more notes should be read."""
        return self._replies.awaited_count > _AWAITED_COUNT_MAX

    def held_bytes(self) -> int:
        """Bytes of messages not yet handled."""
        return self._undone_bytes

    def go_on(self) -> None:
        """The peer reads again."""
        self._worker.take()
        self._show_ends()

    def announce_stop(self, seconds: int) -> None:
        """The server is about to stop."""
        self._say(wire.closing(seconds))
        self._flush()  # there may be no further turn

    # Sending.

    def _say(self, note: bytes) -> None:
        if not self._notes:
            self._socket.soon(self._flush)
        self._notes.append(note)
        self._notes_bytes += len(note)
        if self._notes_bytes > _MESSAGE_BYTES_HIGH:
            self._flush()

    def _flush(self) -> None:
        """ST4: all notes of a turn leave in one message."""
        if self._notes:
            notes, self._notes, self._notes_bytes = self._notes, [], 0
            self._socket.send(wire.write_message(notes))

    def _reserve(self, number: int) -> Slot | None:
        """Reserves a place among the answers; None for a note without a number."""
        return self._replies.reserve() if number else None

    def _settle(self, slot: Slot | None, number: int, result: object = None) -> None:
        if slot is not None:
            self._replies.fill(slot, wire.answer(number, None, result))

    def _refuse(self, slot: Slot | None, number: int, error: tuple[str, str]) -> None:
        data = wire.answer(number, error)
        if slot is not None:
            self._replies.fill(slot, data)
        else:
            self._replies.say(data)

    # Notes.

    def _do(self, raw: Raw) -> int:
        """Handles a note; returns how much work it was."""
        try:
            note = wire.read_note(raw)
        except wire.BadNoteError as error:
            if not self._is_greeted:
                raise wire.MalformedError(error.sentence) from None
            self._refuse(None, error.number, (error.code, error.sentence))
            return 1
        if not (self._is_greeted or isinstance(note, wire.Hello)):
            raise wire.MalformedError("the first note is a hello")
        try:
            return self._act(note)
        except _RefusedError as refused:
            self._refuse(None, note.number, (refused.code, str(refused)))
            return 1

    def _act(self, note: wire.Note) -> int:
        match note:
            case wire.Work():
                return self._on_work(note)
            case wire.Submit():
                return self._on_submit(note)
            case wire.Want():
                self._on_want(note)
            case wire.News():
                return self._on_news(note)
            case wire.Watch():
                return self._on_watch(note)
            case wire.Look():
                return self._on_look(note)
            case wire.Cancel():
                return self._on_cancel(note)
            case wire.Vouch():
                self._on_vouch(note)
            case wire.Depart():
                return self._on_depart(note)
            case wire.Hello():
                self._on_hello(note)
        return 1

    def _on_hello(self, note: wire.Hello) -> None:
        if self._is_greeted:
            raise _RefusedError("invalid_note", "there is one hello, the first note")
        if note.version != VERSION:
            raise wire.MalformedError(f"the only version here is {VERSION}")
        name = note.worker
        if name is not None and not is_name(name):
            limit = limits.HOLDER_NAME_BYTES_MAX
            sentence = f"a worker's name has 1 to {limit} bytes and no control characters"
            raise wire.MalformedError(sentence)
        _check_count(len(note.held), CREDIT_MAX)
        self._is_greeted = True
        self._worker.name = name
        gone, unnamed = self._worker.resume(note.held)
        bounds = self._hub.bounds
        result = {
            "server": self._hub.version,
            "incarnation": self._hub.incarnation,
            "gone": gone,
            "limits": {
                "items": ITEMS_COUNT_MAX,
                "items_together": limits.BATCH_COUNT_MAX,
                "message_bytes": bounds.message_bytes,
                "payload_bytes": bounds.payload_bytes,
                "unanswered": _AWAITED_COUNT_MAX,
                "watches": WATCHES_COUNT_MAX,
                "credit": CREDIT_MAX,
                "jobs": CLAIM_COUNT_MAX,
            },
        }
        releases = [
            commands.Release(job_id=job.job_id, proof=ByToken(job.lease.token))
            for job in unnamed
            if job.lease is not None
        ]
        slot = self._reserve(note.number)
        self._ask_all(releases, lambda _: self._settle(slot, note.number, result))

    def _ask_all(
        self, asked: Sequence[commands.Command], finish: Callable[[list[Reply]], None]
    ) -> None:
        """One reply for each command, in order, all together when the last one may leave."""
        replies: list[Reply] = []
        if not asked:
            finish(replies)

        def settle(reply: Reply) -> None:
            replies.append(reply)  # replies arrive in the order of their commands
            if len(replies) == len(asked):
                finish(replies)

        for command in asked:
            self._peer.ask(command, settle)

    # Clients.

    def _on_submit(self, note: wire.Submit) -> int:
        count = len(note.items)
        _check_count(count, limits.BATCH_COUNT_MAX if note.all_or_nothing else ITEMS_COUNT_MAX)
        if note.watch:
            _check_watches(len(self._watched) + count)
        new = tuple(self._new_job(index, item) for index, item in enumerate(note.items))
        slot = self._reserve(note.number)
        command = commands.Submit(new, note.all_or_nothing)
        self._peer.ask(command, partial(self._submitted, slot, note, new))
        return count

    def _new_job(self, index: int, item: wire.Item) -> NewJob:
        encoding = self._checked(item.payload, item.encoding, f"item {index}: ")
        return self._options_of(index, item.options).job(
            item.id.lower(), item.queue, (item.payload, encoding), self._origin, id_chosen=True
        )

    def _options_of(self, index: int, raw: Raw) -> JobOptions:
        data = bytes(raw)
        if data == _NIL:
            return _PLAIN
        if self._options[0] != data:
            try:
                self._options = (data, _read_options(data))
            except (msgspec.MsgspecError, RecursionError) as error:
                sentence = str(error).replace(" - at `$.", " at `").replace(" - at `$", " at `")
                raise _RefusedError("invalid_note", f"item {index}: {sentence}") from None
        return self._options[1]

    def _checked(self, data: bytes, name: str, where: str) -> Encoding:
        """The encoding of a payload or result, after checking that it has it."""
        bytes_max = self._hub.bounds.payload_bytes
        if len(data) > bytes_max:
            sentence = f"{where}{len(data)} bytes are more than the {bytes_max} allowed"
            raise _RefusedError("payload_too_large", sentence)
        try:
            encoding = Encoding(name)
            if encoding is Encoding.JSON:
                data.decode()
                _check_json(data)
            elif encoding is Encoding.TEXT:
                data.decode()
        except (ValueError, RecursionError) as error:  # also the message about bad JSON
            raise _RefusedError("invalid_note", f"{where}{error}") from None
        return encoding

    def _submitted(
        self, slot: Slot | None, note: wire.Submit, new: tuple[NewJob, ...], reply: Reply
    ) -> None:
        if isinstance(reply, Refusal):
            self._refuse(slot, note.number, _error(reply))
            return
        assert isinstance(reply, SubmittedMany)
        others: list[tuple[Any, ...]] = []
        watched: list[str] = []
        for index, item in enumerate(reply.items):
            if isinstance(item, Refusal):
                others.append((index, *_error(item)))
                continue
            if not item.created:
                others.append((index, None, None, item.job.job_id, item.job.state.value))
            watched.append(item.job.job_id)
        self._settle(slot, note.number, others)
        if note.watch and not self._is_over:
            for job_id in watched:
                self._watch(job_id)

    def _on_watch(self, note: wire.Watch) -> int:
        count = len(note.ids)
        _check_count(count, ITEMS_COUNT_MAX)
        if note.on:
            _check_watches(len(self._watched) + count)
        self._settle(self._reserve(note.number), note.number)
        for job_id in read_ids(tuple(note.ids)):
            if note.on:
                self._watch(job_id)
            elif job_id in self._watched:
                del self._watched[job_id]
                self._hub.unwatch(self, job_id)
        return count

    def _watch(self, job_id: str) -> None:
        if job_id not in self._watched:
            self._watched[job_id] = None
            self._hub.watch(self, job_id)

    def see_end(self, job_id: str, job: Job | None) -> None:
        """A watched job has finished. A peer that does not read gets this once it does."""
        if job_id not in self._watched:
            return
        del self._watched[job_id]
        if self._socket.is_behind:
            self._unseen.append(job_id)
        else:
            self._replies.say(wire.ended(_view(job_id, job)))

    def _show_ends(self) -> None:
        if self._unseen and not self._socket.is_behind and not self._is_over:
            job_id = self._unseen.popleft()
            self._hub.look((job_id,), _LOOK_BYTES_MAX, partial(self._show_end, job_id))

    def _show_end(self, job_id: str, jobs: list[Job | None]) -> None:
        if not self._is_over:
            for job in jobs:
                self._replies.say(wire.ended(_view(job_id, job)))
            self._show_ends()

    def _on_look(self, note: wire.Look) -> int:
        _check_count(len(note.ids), ITEMS_COUNT_MAX)
        slot = self._reserve(note.number)

        def found(jobs: list[Job | None]) -> None:
            views = [_view(name, job) for name, job in zip(note.ids, jobs, strict=False)]
            self._settle(slot, note.number, views)

        self._hub.look(read_ids(tuple(note.ids)), _LOOK_BYTES_MAX, found)
        return len(note.ids)

    def _on_cancel(self, note: wire.Cancel) -> int:
        _check_count(len(note.ids), ITEMS_COUNT_MAX)
        slot = self._reserve(note.number)

        def settle(reply: Reply) -> None:
            if isinstance(reply, Refusal):
                self._refuse(slot, note.number, _error(spelt(reply, note.ids)))
            else:
                assert isinstance(reply, ChangedMany)
                states = [(job.job_id, job.state.value) for job in reply.jobs]
                self._settle(slot, note.number, states)

        command = commands.Cancel(
            job_ids=read_ids(tuple(note.ids)),
            with_dependants=note.with_dependants,
            detail=as_detail(note.reason),
        )
        self._operate(command, settle)
        return len(note.ids)

    # Workers.

    def _on_want(self, note: wire.Want) -> None:
        if len(note.queues) > limits.CLAIM_QUEUES_MAX:
            sentence = f"a want names at most {limits.CLAIM_QUEUES_MAX} queues"
            raise _RefusedError("bad_count", sentence)
        try:
            order = ClaimOrder(note.order)
        except ValueError as error:
            raise _RefusedError("invalid_note", str(error)) from None
        if note.term_ms is not None and not 0 <= note.term_ms <= limits.TIME_MS_MAX:
            sentence = "term_ms must be between 0 and a hundred years; 0 is no expiry"
            raise _RefusedError("bad_time", sentence)
        self._worker.want(note.queues, order, note.term_ms)
        self._settle(self._reserve(note.number), note.number)

    def _on_work(self, note: wire.Work) -> int:
        count = len(note.done) + len(note.failed) + len(note.released) + len(note.renewed)
        _check_count(count, ITEMS_COUNT_MAX)
        ends: tuple[commands.Complete | commands.Fail, ...] = (
            *map(self._completion, note.done),
            *map(_failure, note.failed),
        )
        credit = note.credit
        if credit is not None and (credit.slots < 0 or credit.ahead < 0):
            raise _RefusedError("bad_count", "credit is two numbers of 0 or more")
        asked: list[commands.Command] = [Conclude(ends)] if ends else []
        for job_id, token in note.released:
            asked.append(commands.Release(job_id=read_id(job_id), proof=ByToken(token)))
        for job_id, token in note.renewed:
            asked.append(commands.Renew(job_id=read_id(job_id), proof=ByToken(token)))
        # Before the commands: a worker needs no notice of what it ends itself.
        let_go = self._worker.let_go
        for end in ends:
            let_go(end.job_id)
        for job_id, _ in note.released:
            let_go(read_id(job_id))
        slot = self._reserve(note.number)
        self._ask_all(asked, partial(self._worked, slot, note))
        if credit is not None:
            self._worker.give(credit.slots, credit.ahead)
        return count

    def _completion(self, done: wire.Done) -> commands.Complete:
        encoding = Encoding.BINARY
        if done.result is not None:
            encoding = self._checked(done.result, done.encoding, f"job {done.id}: ")
        return commands.Complete(
            job_id=read_id(done.id),
            proof=ByToken(done.token),
            result=done.result,
            encoding=encoding,
        )

    def _worked(self, slot: Slot | None, note: wire.Work, replies: list[Reply]) -> None:
        refusals: list[tuple[Any, ...]] = []
        kinds = (
            ("done", len(note.done)),
            ("failed", len(note.failed)),
            ("released", len(note.released)),
            ("renewed", len(note.renewed)),
        )
        places = ((kind, index) for kind, count in kinds for index in range(count))
        each = _each(replies, len(note.done) + len(note.failed))
        for (kind, index), reply in zip(places, each, strict=True):
            if isinstance(reply, Refusal):
                refusals.append((kind, index, *_error(reply)))
        self._settle(slot, note.number, refusals)

    def _on_news(self, note: wire.News) -> int:
        _check_count(len(note.pieces), ITEMS_COUNT_MAX)
        for piece in note.pieces:
            job_id, proof = read_id(piece.id), ByToken(piece.token)
            if piece.progress is not None:
                numerator, denominator = piece.progress
                report = commands.Report(
                    job_id=job_id, proof=proof, numerator=numerator, denominator=denominator
                )
                self._peer.ask(report)
            if piece.partial is not None:
                partial_ = commands.SendPartial(job_id=job_id, proof=proof, payload=piece.partial)
                self._peer.ask(partial_)
        self._settle(self._reserve(note.number), note.number)
        return len(note.pieces)

    def _on_vouch(self, note: wire.Vouch) -> None:
        """ST16. One slice of renewals per turn: a supervisor may have many workers."""
        _check_count(len(note.workers), ITEMS_COUNT_MAX)
        slot = self._reserve(note.number)
        due = [held for name in note.workers for held in self._worker.past_a_third(name)]

        def go_on(start: int) -> None:
            stop = start + _RENEWALS
            asked = [
                commands.Renew(job_id=job_id, proof=ByToken(token))
                for job_id, token in due[start:stop]
            ]
            if stop < len(due):
                self._ask_all(asked, lambda _: None)
                self._socket.soon(partial(go_on, stop))
            else:
                self._ask_all(asked, lambda _: self._settle(slot, note.number))

        go_on(0)

    def _on_depart(self, note: wire.Depart) -> int:
        """ST16. Running jobs are charged, by policy; the others are given back."""
        _check_count(len(note.running), ITEMS_COUNT_MAX)
        if not is_name(note.worker):
            raise _RefusedError("invalid_note", "a departure names a worker")
        died = Failure("worker_died", note.reason)
        ends = tuple(
            commands.Fail(job_id=read_id(job_id), proof=ByToken(token), failure=died, retry=True)
            for job_id, token in note.running
        )
        slot = self._reserve(note.number)
        depart = commands.Depart(
            holder=Holder(REALM, note.worker),
            reason=EndReason.GOODBYE,
            count_max=_GOODBYES,
        )

        def settle(reply: Reply) -> None:
            if isinstance(reply, Accepted) and reply.count == _GOODBYES:
                self._peer.ask(depart, settle)  # there may be more
            else:
                self._settle(slot, note.number)

        if ends:
            self._peer.ask(Conclude(ends))
        self._peer.ask(depart, settle)
        return 1 + len(ends)


def _failure(failed: wire.Failed) -> commands.Fail:
    return commands.Fail(
        job_id=read_id(failed.id),
        proof=ByToken(failed.token),
        failure=Failure(failed.code, failed.message, failed.details),
        retry=failed.retry,
        delay_ms=failed.delay_ms,
    )


def _each(replies: Iterable[Reply], ends_count: int) -> Iterable[Reply]:
    """One reply per item, where one command may stand for several."""
    for reply in replies:
        if isinstance(reply, Concluded):
            yield from reply.items
        elif ends_count:  # all refused together
            yield from (reply,) * ends_count
        else:
            yield reply
        ends_count = 0


def _check_count(count: int, count_max: int) -> None:
    if count > count_max:
        sentence = f"a note has at most {count_max} items"
        raise _RefusedError(Why.BATCH_TOO_LARGE.value, sentence)


def _check_watches(count: int) -> None:
    if count > WATCHES_COUNT_MAX:
        sentence = f"a stream watches at most {WATCHES_COUNT_MAX} jobs"
        raise _RefusedError(Why.BATCH_TOO_LARGE.value, sentence)


def _error(refusal: Refusal) -> tuple[str, str]:
    return refusal.why.value, refusal.sentence


def _view(name: str, job: Job | None) -> tuple[Any, ...]:
    """A job, as waiting clients need it."""
    if job is None:
        return (name, "unknown", None, None, None, None)
    failure = job.failure
    is_finished = job.state in FINISHED
    return (
        name,
        job.state.value,
        job.result if is_finished else None,
        job.result_encoding.value,
        None if failure is None else (failure.code, failure.message, failure.payload),
        in_words(job.reason, job.detail) or None,
    )


def is_name(text: str) -> bool:
    """Whether this is a valid name of a worker."""
    return 0 < len(text.encode()) <= limits.HOLDER_NAME_BYTES_MAX and text.isprintable()

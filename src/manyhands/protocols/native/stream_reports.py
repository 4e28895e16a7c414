"""What workers and their supervisors report over a stream.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from manyhands.dispatch.session import Peer
from manyhands.model import commands
from manyhands.model.commands import ByToken, Conclude
from manyhands.model.job import Failure, Holder
from manyhands.model.payload import Encoding
from manyhands.model.replies import Accepted, Concluded, Refusal, Reply, Reported
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.bodies import GOODBYES_COUNT_MAX, REALM, departure
from manyhands.protocols.native.decoder import read_id
from manyhands.protocols.native.stream_hub import ITEMS_COUNT_MAX, Hub
from manyhands.protocols.native.stream_outbox import Outbox
from manyhands.protocols.native.stream_refusals import (
    NoteRefusedError,
    check_count,
    checked_encoding,
    error_of,
    is_name,
)
from manyhands.protocols.native.stream_worker import WorkerSide, ask_all
from manyhands.protocols.replies import Slot

_RENEWALS: Final = 250  # leases renewed by one command


class Reports:
    """Each method named after a note handles it, and returns how much work that was."""

    def __init__(self, peer: Peer, hub: Hub, outbox: Outbox, worker: WorkerSide) -> None:
        self._peer = peer
        self._bytes_max = hub.bounds.payload_bytes
        self._outbox = outbox
        self._worker = worker

    def work(self, note: wire.Work) -> int:
        """Reports on jobs, and credit for more."""
        count = len(note.done) + len(note.failed) + len(note.released) + len(note.renewed)
        check_count(count, ITEMS_COUNT_MAX)
        ends: tuple[commands.Complete | commands.Fail, ...] = (
            *map(self._completion, note.done),
            *map(_failure, note.failed),
        )
        credit = note.credit
        if credit is not None and (credit.slots < 0 or credit.ahead < 0):
            raise NoteRefusedError("bad_count", "credit is two numbers of 0 or more")
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
        slot = self._outbox.reserve(note.number)
        ask_all(self._peer, asked, partial(self._worked, slot, note))
        if credit is not None:
            self._worker.give(credit.slots, credit.ahead)
        return count

    def _completion(self, done: wire.Done) -> commands.Complete:
        encoding = Encoding.BINARY
        if done.result is not None:
            try:
                encoding = checked_encoding(done.result, done.encoding, self._bytes_max)
            except NoteRefusedError as refused:
                raise NoteRefusedError(refused.code, f"job {done.id}: {refused}") from None
        return commands.Complete(
            job_id=read_id(done.id),
            proof=ByToken(done.token),
            result=done.result,
            encoding=encoding,
        )

    def _worked(self, slot: Slot | None, note: wire.Work, replies: list[Reply]) -> None:
        if all(map(_is_carried_out, replies)):
            self._outbox.settle(slot, note.number, ())
            return
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
                refusals.append((kind, index, *error_of(reply)))
        self._outbox.settle(slot, note.number, refusals)

    def news(self, note: wire.News) -> int:
        """Progress, partial results and lines of logs."""
        check_count(len(note.pieces), ITEMS_COUNT_MAX)
        for piece in note.pieces:
            job_id, proof = read_id(piece.id), ByToken(piece.token)
            if piece.progress is not None:
                report = commands.Report(
                    job_id=job_id,
                    proof=proof,
                    numerator=piece.progress.done,
                    denominator=piece.progress.all,
                    seconds_left=piece.progress.seconds_left,
                )
                self._peer.ask(report)
            if piece.partial is not None:
                partial_ = commands.SendPartial(job_id=job_id, proof=proof, payload=piece.partial)
                self._peer.ask(partial_)
            if piece.line is not None:
                line = commands.SendPartial(
                    job_id=job_id,
                    proof=proof,
                    payload=piece.line.encode("utf-8", "replace"),
                    warning=piece.warning,
                    is_log=True,
                )
                self._peer.ask(line)
        self._outbox.settle(self._outbox.reserve(note.number), note.number)
        return len(note.pieces)

    def vouch(self, note: wire.Vouch) -> int:
        """ST16. In slices, with turns of others between them: a supervisor may have many workers,
        and these many jobs.
        """
        check_count(len(note.workers), ITEMS_COUNT_MAX)
        slot = self._outbox.reserve(note.number)
        holders = tuple(Holder(REALM, name) for name in note.workers)
        renew = commands.RenewHeld(holders, _RENEWALS)

        def settle(reply: Reply) -> None:
            if isinstance(reply, Accepted) and reply.count == _RENEWALS:
                self._peer.ask(renew, settle)  # there may be more
            elif isinstance(reply, Refusal):
                self._outbox.refuse(slot, note.number, error_of(reply))
            else:
                self._outbox.settle(slot, note.number)

        self._peer.ask(renew, settle)
        return 1

    def depart(self, note: wire.Depart) -> int:
        """ST16. Running jobs are charged, by policy; the others are given back."""
        check_count(len(note.running), ITEMS_COUNT_MAX)
        if not is_name(note.worker):
            raise NoteRefusedError("invalid_note", "a departure names a worker")
        slot = self._outbox.reserve(note.number)
        running = [(read_id(job_id), token) for job_id, token in note.running]
        first = departure(note.worker, note.reason, running)
        more = departure(note.worker, note.reason, ())

        def settle(reply: Reply) -> None:
            if isinstance(reply, Accepted) and reply.count == GOODBYES_COUNT_MAX:
                self._peer.ask(more, settle)
            elif isinstance(reply, Refusal):
                self._outbox.refuse(slot, note.number, error_of(reply))
            else:
                self._outbox.settle(slot, note.number)

        self._worker.depart(note.worker)
        self._peer.ask(first, settle)
        return 1 + len(running)


def _failure(failed: wire.Failed) -> commands.Fail:
    return commands.Fail(
        job_id=read_id(failed.id),
        proof=ByToken(failed.token),
        failure=Failure(failed.code, failed.message, failed.details),
        retry=failed.retry,
        delay_ms=failed.delay_ms,
    )


def _is_carried_out(reply: Reply) -> bool:
    """Whether nothing of it was refused."""
    if isinstance(reply, Concluded):
        return Refusal not in map(type, reply.items)
    return not isinstance(reply, Refusal)


def _each(replies: Iterable[Reply], ends_count: int) -> Iterable[Reply | Reported]:
    """One reply per item, where one command may stand for several."""
    for reply in replies:
        if isinstance(reply, Concluded):
            yield from reply.items
        elif ends_count:  # all refused together
            yield from (reply,) * ends_count
        else:
            yield reply
        ends_count = 0

"""The client's side of a stream: jobs submitted, watched, looked up and cancelled.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from manyhands.dispatch.session import Peer, Settle
from manyhands.model import commands, limits
from manyhands.model.commands import NewJob
from manyhands.model.job import FINISHED, Job, Origin
from manyhands.model.reasons import as_detail, in_words
from manyhands.model.replies import ChangedMany, Refusal, Reply, SubmittedMany, Why
from manyhands.model.roles import may_pass_on
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.bodies import REALM, JobOptions
from manyhands.protocols.native.decoder import read_ids
from manyhands.protocols.native.refusals import spelt
from manyhands.protocols.native.stream_hub import ITEMS_COUNT_MAX, Hub, Piece, Socket
from manyhands.protocols.native.stream_news import News
from manyhands.protocols.native.stream_outbox import Outbox
from manyhands.protocols.native.stream_refusals import (
    NoteRefusedError,
    check_count,
    checked_encoding,
    error_of,
)
from manyhands.protocols.replies import Slot

WATCHES_COUNT_MAX: Final = 50_000
_LOOK_BYTES_MAX: Final = 16 * 1024 * 1024

_read_options: Final = msgspec.msgpack.Decoder(JobOptions).decode
_PLAIN: Final = JobOptions()
_NIL: Final = bytes(wire.NIL)
_NONE: Final[dict[str, set[str]]] = {}
Operate = Callable[[commands.Command, Settle], None]  # asks, and audits


class ClientSide:
    """Each method named after a note handles it, and returns how much work that was."""

    def __init__(
        self,
        peer: Peer,
        socket: Socket,
        hub: Hub,
        outbox: Outbox,
        operate: Operate,
        address: str,
        held: Callable[[], Iterable[str]],
    ) -> None:
        self._peer = peer
        self._socket = socket
        self._hub = hub
        self._outbox = outbox
        self._operate = operate
        self._held = held  # the jobs that the peer works on
        self._origin = Origin(REALM, "", address)
        # The last options, and what follows from them: many are equal.
        self._options_data = b""
        self._fields: dict[str, Any] = {}
        self._watched: dict[str, None] = {}
        self._unseen: deque[str] = deque()  # finished while the peer did not read
        self._news = News(socket, hub, self, outbox.say_in_turn, self._show_later)
        self._is_over = False

    def leave(self) -> None:
        """The stream is over: its watches end."""
        self._is_over = True
        for job_id in self._watched:
            self._hub.unwatch(self, job_id)
        self._watched.clear()
        self._news.forget_all()

    def submit(self, note: wire.Submit) -> int:
        """Submits jobs, and watches them if asked to."""
        count = len(note.items)
        check_count(count, limits.BATCH_COUNT_MAX if note.all_or_nothing else ITEMS_COUNT_MAX)
        if note.watch:
            _check_watches(len(self._watched) + count)
        new = tuple(map(self._new_job, itertools.count(), note.items))
        slot = self._outbox.reserve(note.number)
        command = commands.Submit(new, note.all_or_nothing)
        self._peer.ask(command, partial(self._submitted, slot, note, new))
        return count

    def _new_job(self, index: int, item: wire.Item) -> NewJob:
        payload = item.payload
        try:
            encoding = checked_encoding(payload, item.encoding, self._hub.bounds.payload_bytes)
            fields = self._fields_of(bytes(item.options))
        except NoteRefusedError as refused:
            raise NoteRefusedError(refused.code, f"item {index}: {refused}") from None
        if item.headers:
            fields = {**fields, "headers": {**fields.get("headers", {}), **item.headers}}
        return NewJob(
            job_id=item.id.lower(),
            id_chosen=True,
            queue=item.queue,
            payload=payload,
            encoding=encoding,
            origin=self._origin,
            **fields,
        )

    def _fields_of(self, data: bytes) -> dict[str, Any]:
        if self._options_data != data:
            try:
                options = _PLAIN if data == _NIL else _read_options(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                sentence = str(error).replace(" - at `$.", " at `").replace(" - at `$", " at `")
                raise NoteRefusedError("invalid_note", sentence) from None
            self._fields = options.fields()
            self._options_data = data
        return self._fields

    def _submitted(
        self, slot: Slot | None, note: wire.Submit, new: tuple[NewJob, ...], reply: Reply
    ) -> None:
        if isinstance(reply, Refusal):
            self._outbox.refuse(slot, note.number, error_of(reply))
            return
        assert isinstance(reply, SubmittedMany)
        others: list[tuple[Any, ...]] = []
        watched: list[str] = []
        for index, item in enumerate(reply.items):
            if isinstance(item, Refusal):
                others.append((index, *error_of(item)))
                continue
            if not item.created:
                others.append((index, None, None, item.job.job_id, item.job.state.value))
            watched.append(item.job.job_id)
        self._outbox.settle(slot, note.number, others)
        if note.watch and not self._is_over:
            for job_id in watched:
                self._watch(job_id)

    def watch(self, note: wire.Watch) -> int:
        """Watches jobs, or stops to."""
        count = len(note.ids)
        check_count(count, ITEMS_COUNT_MAX)
        if note.on:
            _check_watches(len(self._watched) + count)
        self._outbox.settle(self._outbox.reserve(note.number), note.number)
        for job_id in read_ids(tuple(note.ids)):
            if note.on:
                if note.news:
                    self._news.follow(job_id)
                self._watch(job_id)
            else:
                self._unwatch(job_id)
        return count

    def _unwatch(self, job_id: str) -> None:
        self._news.forget(job_id)
        if self._watched.pop(job_id, self) is None:
            self._hub.unwatch(self, job_id)

    def _watch(self, job_id: str) -> None:
        if job_id not in self._watched:
            self._watched[job_id] = None
            self._hub.watch(self, job_id)

    def see_end(self, job_id: str, job: Job | None) -> None:
        """A watched job has finished. A peer that does not read gets this once it does."""
        if job_id not in self._watched:
            return
        del self._watched[job_id]
        if not self._news.ends(job_id):
            return
        if self._socket.is_behind:
            self._unseen.append(job_id)
        else:
            self._outbox.say_in_turn(wire.ended(self._view(job_id, job)))

    def see_news(self, job: Job, pieces: Iterable[Piece]) -> None:
        """A job it follows changed, or there are new pieces of its result."""
        if self._peer.sees(job):
            self._news.hear(job, pieces)

    def go_on(self) -> None:
        """The peer reads again."""
        self._news.go_on()
        self._show_ends()

    def _show_later(self, job_id: str) -> None:
        self._unseen.append(job_id)
        self._show_ends()

    def _show_ends(self) -> None:
        if self._unseen and not self._socket.is_behind and not self._is_over:
            job_id = self._unseen.popleft()
            self._hub.look((job_id,), _LOOK_BYTES_MAX, partial(self._show_end, job_id))

    def _show_end(self, job_id: str, jobs: list[Job | None]) -> None:
        if not self._is_over:
            for job in jobs:
                self._outbox.say_in_turn(wire.ended(self._view(job_id, job)))
            self._show_ends()

    def look(self, note: wire.Look) -> int:
        """Shows jobs."""
        check_count(len(note.ids), ITEMS_COUNT_MAX)
        slot = self._outbox.reserve(note.number)

        def found(jobs: list[Job | None]) -> None:
            inputs: dict[str, set[str]] = {}
            if any(job is not None and not self._peer.sees(job) for job in jobs):
                inputs = self._hub.inputs(self._held())
            named = zip(note.ids, jobs, strict=False)
            views = [self._view(name, job, inputs) for name, job in named]
            self._outbox.settle(slot, note.number, views)

        self._hub.look(read_ids(tuple(note.ids)), _LOOK_BYTES_MAX, found)
        return len(note.ids)

    def cancel(self, note: wire.Cancel) -> int:
        """Cancels jobs, as an operator does."""
        check_count(len(note.ids), ITEMS_COUNT_MAX)
        slot = self._outbox.reserve(note.number)

        def settle(reply: Reply) -> None:
            if isinstance(reply, Refusal):
                self._outbox.refuse(slot, note.number, error_of(spelt(reply, note.ids)))
            else:
                assert isinstance(reply, ChangedMany)
                states = [(job.job_id, job.state.value) for job in reply.jobs]
                self._outbox.settle(slot, note.number, states)

        command = commands.Cancel(
            job_ids=read_ids(tuple(note.ids)),
            with_dependants=note.with_dependants,
            detail=as_detail(note.reason),
        )
        self._operate(command, settle)
        return len(note.ids)

    def _view(
        self, name: str, job: Job | None, inputs: Mapping[str, Iterable[str]] = _NONE
    ) -> tuple[Any, ...]:
        """A job, as waiting clients need it. One that the peer may not look at is unknown, unless
        its result is an input of a job that the peer works on.
        """
        if job is None or not (self._peer.sees(job) or _is_given(job, inputs)):
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


def _is_given(job: Job, inputs: Mapping[str, Iterable[str]]) -> bool:
    return any(may_pass_on(each, job.origin.name) for each in inputs.get(job.job_id, ()))


def _check_watches(count: int) -> None:
    if count > WATCHES_COUNT_MAX:
        sentence = f"a stream watches at most {WATCHES_COUNT_MAX} jobs"
        raise NoteRefusedError(Why.BATCH_TOO_LARGE.value, sentence)

"""The companion commands: SUBMIT, FETCH and CLOSE, each answered by a REPLY (W44 to W49)."""

import math
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from manyhands.dispatch.session import only_item
from manyhands.model import limits
from manyhands.model.commands import Cancel, Look, NewJob, Submit
from manyhands.model.job import FINISHED, Job, Origin, State
from manyhands.model.policy import TERMS, Terms
from manyhands.model.reasons import in_words
from manyhands.model.receipts import Once
from manyhands.model.replies import Found, Refusal, Repeated, Reply, Why
from manyhands.protocols.wmp.codec import (
    ECHO_BYTES_MAX,
    Command,
    Control,
    Malformation,
    Path,
    Property,
    WireError,
)
from manyhands.protocols.wmp.codec import decimal as in_decimal
from manyhands.protocols.wmp.codec import encode as encode_control
from manyhands.protocols.wmp.hub import Hub, way_back
from manyhands.protocols.wmp.words import CODES, NOT_YET, OK, REFUSED

# FETCHes that wait for the end of a job.
WATCHES_COUNT_MAX: Final = 50_000
WAIT_MS_MAX: Final = 10 * 60 * 1000
_NAME_BYTES_MAX: Final = 4 * 1024


class _Kept(Struct, frozen=True, omit_defaults=True):
    """Fields sent by a submitter that are not part of a job."""

    name: str = ""


_encode_kept = msgspec.json.Encoder().encode
_decode_kept = msgspec.json.Decoder(_Kept).decode


def name_of(job: Job) -> bytes:
    """The job's name as sent to workers: that of a task, or the one sent with SUBMIT."""
    if job.name is not None:
        return job.name.encode()[:_NAME_BYTES_MAX]
    if not job.metadata or job.origin.realm != "wmp":
        return b""
    try:
        return _decode_kept(job.metadata).name.encode()
    except msgspec.DecodeError:
        return b""


class _Watch:
    """A FETCH that waits."""

    __slots__ = ("answer", "call_off", "job_id")

    def __init__(self, job_id: str, answer: Callable[[Job | None], None]) -> None:
        self.job_id = job_id
        self.answer = answer
        self.call_off: Callable[[], None] = _nothing


def _nothing() -> None:
    """There is no timer."""


class Submitting:
    """The submitters of one socket."""

    def __init__(self, hub: Hub, payload_bytes_max: int) -> None:
        self.awaited_count = 0
        self.watches_count = 0
        self._hub = hub
        self._bytes_max = payload_bytes_max
        self._watches: dict[str, dict[_Watch, None]] = {}
        self._terms: dict[int, Terms] = {}

    def receive(self, path: Path, control: Control, payload: bytes | None) -> None:
        """Handles a request. Errors are answered if the request can be identified."""
        request = control.need(b"request", ECHO_BYTES_MAX)
        try:
            self._actions[control.command](self, path, request, control, payload)
        except WireError as error:
            self._reply(path, request, REFUSED, reason=str(error))

    def _reply(
        self,
        path: Path,
        request: bytes,
        code: bytes,
        *properties: Property,
        reason: str = "",
        payload: bytes | None = None,
    ) -> None:
        if reason:
            properties = (*properties, (b"reason", reason.encode()[:_NAME_BYTES_MAX]))
        control = encode_control(Command.REPLY, (b"request", request), (b"code", code), *properties)
        if payload is None:
            self._hub.send(way_back(path), control, None)
        else:
            self._hub.send((*way_back(path), control), payload, None)

    def _refuse(self, path: Path, request: bytes, refusal: Refusal) -> None:
        self._reply(path, request, CODES[refusal.why], reason=refusal.sentence)

    # SUBMIT.

    def _on_submit(
        self, path: Path, request: bytes, control: Control, payload: bytes | None
    ) -> None:
        item = self._new_job(control, payload or b"")

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            if isinstance(reply, Repeated):
                before = reply.receipt.items[0]
                state = (b"state", before.state.encode())
                self._reply(path, request, OK, (b"job", before.job_id.encode()), state)
                return
            first = only_item(reply)
            if isinstance(first, Refusal):
                self._refuse(path, request, first)
            else:
                job = first.job
                self._reply(path, request, OK, (b"job", job.job_id.encode()), _state(job))

        self.awaited_count += 1
        key = item.unique_key
        once = Once(f"wmp/{item.queue}/{key.hex()}") if key is not None else None
        self._hub.ask(Submit((item,), once=once), settle)

    def _new_job(self, control: Control, payload: bytes) -> NewJob:
        if len(payload) > self._bytes_max:
            sentence = f"{len(payload)} bytes are more than the {self._bytes_max} allowed"
            raise WireError(Malformation.VALUE, sentence)
        control.need(b"role")
        name = control.text(b"name") or ""
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise WireError(Malformation.VALUE, f"a name has at most {_NAME_BYTES_MAX} bytes")
        identity = control.text(b"identity") or ""
        if len(identity.encode()) > limits.HOLDER_NAME_BYTES_MAX:
            raise WireError(Malformation.VALUE, "the identity is too long")
        attempts = control.number(b"attempts", 0, limits.ATTEMPTS_MAX) or None
        deadline = control.number(b"deadline", 0, limits.TIME_MS_MAX)
        hub = self._hub
        return NewJob(
            job_id=hub.job_id(),
            queue=control.text(b"role") or "",
            payload=payload,
            terms=self._terms_of(attempts),
            origin=Origin("wmp", identity),
            priority=_priority(control.get(b"priority")),
            delay_ms=control.number(b"delay", 0, limits.TIME_MS_MAX),
            deadline_at=hub.now() + deadline if deadline else None,
            unique_key=control.get(b"key"),
            metadata=_encode_kept(_Kept(name)) if name else b"",
        )

    def _terms_of(self, attempts: int | None) -> Terms:
        """Equal terms share one object, since many jobs have them."""
        if attempts is None:
            return TERMS["wmp"]
        found = self._terms.get(attempts)
        if found is None:
            if len(self._terms) >= _TERMS_COUNT_MAX:
                self._terms.clear()
            found = Terms(TERMS["wmp"].defaults, attempts_max=attempts)
            self._terms[attempts] = found
        return found

    # FETCH.

    def _on_fetch(
        self, path: Path, request: bytes, control: Control, payload: bytes | None
    ) -> None:
        job_id = _job_id(control)
        until = self._hub.now() + control.number(b"wait", 0, WAIT_MS_MAX)

        def answer(job: Job | None) -> None:
            if job is None:
                self._refuse(path, request, _unknown(job_id))
            elif job.state in FINISHED:
                self._send_end(path, request, job)
            else:
                self._send_progress(path, request, job)

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            job = reply.job if type(reply) is Found else None
            if isinstance(reply, Refusal) and reply.why is not Why.UNKNOWN_JOB:
                self._refuse(path, request, reply)
            elif job is None or job.state in FINISHED or not self._watch(job, until, answer):
                answer(job)

        self.awaited_count += 1
        self._hub.ask(Look(job_id, brief=True), settle)

    def _send_end(self, path: Path, request: bytes, job: Job) -> None:
        properties = [(b"job", job.job_id.encode()), _state(job)]
        if job.state is State.COMPLETED:
            self._reply(path, request, OK, *properties, payload=job.result)
            return
        failure = job.failure
        reason = in_words(job.reason, job.detail) or job.state.value
        if failure is not None:
            reason = failure.message or failure.code
        data = failure.payload if failure is not None and failure.payload else None
        if data is None and len(reason.encode()) > _NAME_BYTES_MAX:
            data = reason.encode()  # all of it
        self._reply(path, request, OK, *properties, reason=reason, payload=data)

    def _send_progress(self, path: Path, request: bytes, job: Job) -> None:
        properties = [(b"job", job.job_id.encode()), _state(job)]
        if job.progress is not None:
            text = f"{job.progress.numerator}/{job.progress.denominator}"
            properties.append((b"progress", text.encode()))
        if job.lease_number:
            properties.append((b"attempt", in_decimal(job.lease_number)))
        self._reply(path, request, NOT_YET, *properties)

    def _watch(self, job: Job, until: int, answer: Callable[[Job | None], None]) -> bool:
        """Answers when the job ends or the time is up; returns False if there is nothing to wait
        for.
        """
        hub = self._hub
        left_ms = until - hub.now()
        if left_ms <= 0 or hub.draining or self.watches_count >= WATCHES_COUNT_MAX:
            return False
        watch = _Watch(job.job_id, answer)
        self._watches.setdefault(job.job_id, {})[watch] = None
        self.watches_count += 1
        watch.call_off = hub.later(left_ms / 1000, lambda: self._look(watch))
        return True

    def _look(self, watch: _Watch) -> None:
        """The job has ended or the time is up: answers with its current state."""
        others = self._watches.get(watch.job_id, {})
        if others.pop(watch, _MISSING) is _MISSING:
            return
        self.watches_count -= 1
        if not others:
            del self._watches[watch.job_id]
        watch.call_off()

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            watch.answer(reply.job if type(reply) is Found else None)

        self.awaited_count += 1
        self._hub.ask(Look(watch.job_id, brief=True), settle)

    def ended(self, job_id: str) -> None:
        """A job has finished, according to a commit."""
        for watch in list(self._watches.get(job_id, ())):
            self._look(watch)

    def let_all_go(self) -> None:
        """The server is about to stop: answers all waiting FETCHes."""
        for job_id in list(self._watches):
            self.ended(job_id)

    # CLOSE.

    def _on_close(
        self, path: Path, request: bytes, control: Control, payload: bytes | None
    ) -> None:
        job_id = _job_id(control)

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            if isinstance(reply, Refusal) and reply.why not in _ENDED:
                self._refuse(path, request, reply)
            else:
                self._reply(path, request, OK, (b"job", job_id.encode()))

        self.awaited_count += 1
        command = Cancel(job_ids=(job_id,), only_unfinished=True)
        self._hub.operate(command, settle, path[0])

    _actions: Final[
        dict[Command, Callable[["Submitting", Path, bytes, Control, bytes | None], None]]
    ] = {
        Command.SUBMIT: _on_submit,
        Command.FETCH: _on_fetch,
        Command.CLOSE: _on_close,
    }


_MISSING: Final = object()
_TERMS_COUNT_MAX: Final = 1_000
_ENDED: Final = frozenset({Why.ALREADY_COMPLETED, Why.ALREADY_FAILED, Why.ALREADY_CANCELLED})


def _unknown(job_id: str) -> Refusal:
    return Refusal(Why.UNKNOWN_JOB, f"there is no job {job_id[:200]}")


def _job_id(control: Control) -> str:
    return control.need(b"job").decode("ascii", "replace")


def _state(job: Job) -> Property:
    return (b"state", job.state.value.encode())


def _priority(given: bytes | None) -> float:
    if given is None:
        return 0.0
    try:
        priority = float(given)
    except ValueError:
        priority = math.nan
    if not math.isfinite(priority):
        raise WireError(Malformation.VALUE, "the priority is no number")
    return priority

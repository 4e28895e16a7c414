"""DONE and STATUS: reports of a lease's holder about its job (W32 to W37)."""

from collections.abc import Callable
from typing import Final

from manyhands.model.commands import (
    ByToken,
    Complete,
    Fail,
    Release,
    Renew,
    Report,
    SendPartial,
)
from manyhands.model.commands import Command as EngineCommand
from manyhands.model.job import EndReason, Job, failure_from_bytes
from manyhands.model.replies import Changed, Refusal, Reply
from manyhands.protocols.wmp.codec import Control, Malformation, Path, WireError
from manyhands.protocols.wmp.holdings import Holdings
from manyhands.protocols.wmp.hub import Hub
from manyhands.protocols.wmp.words import FOR_NOW, LOST, REASONS

# The longest term that a worker may ask for.
_TERM_MS_MAX: Final = 7 * 24 * 3600 * 1000
_NUMBER_MAX: Final = 2**53
_REPORTED: Final = frozenset({EndReason.COMPLETED, EndReason.FAILED, EndReason.RELEASED})


class Reporting:
    """Reports of one socket's workers."""

    def __init__(self, hub: Hub, holdings: Holdings, payload_bytes_max: int) -> None:
        self.awaited_count = 0
        self._bytes_max = payload_bytes_max
        self._hub = hub
        self._holdings = holdings

    def done(self, path: Path, control: Control, payload: bytes | None) -> None:
        """The end of an attempt, acknowledged on request once it is on disk."""
        job_id, lease = _job_id(control), control.need(b"lease")
        control.need(b"manager")
        make = _ENDS.get(control.get(b"status") or b"ok")
        if make is None:
            raise WireError(Malformation.VALUE, "the status must be ok, error, fail or refused")
        proof = ByToken(lease.hex())
        if payload is not None and len(payload) > self._bytes_max:
            # The next attempt would yield too large a result again.
            sentence = f"a result of {len(payload)} bytes; {self._bytes_max} are allowed"
            make, payload = _fail, sentence.encode()
        command = make(job_id, proof, payload)
        self._holdings.reported(job_id, lease)

        def refused(reply: Reply) -> None:
            assert isinstance(reply, Refusal)
            if reply.why in FOR_NOW:
                return  # the worker keeps it until it is acknowledged, and sends it again
            reason = REASONS.get(reply.why, LOST)
            if _was_reported(reply.job, lease.hex()):
                reason = b"recorded"
            self._holdings.cancel(path, job_id, lease, reason)

        if control.number(b"ack", 0, 1) == 0:
            self._hub.ask(command, None, lambda: refused)
            return

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            if isinstance(reply, Refusal):
                refused(reply)
            else:
                self._holdings.cancel(path, job_id, lease, b"recorded")

        self.awaited_count += 1
        self._hub.ask(command, settle)

    def status(self, path: Path, control: Control, payload: bytes | None) -> None:
        """A sign of life: renews the lease, and may report progress."""
        job_id, lease = _job_id(control), control.need(b"lease")
        control.need(b"manager")
        if payload is not None and len(payload) > self._bytes_max:
            raise WireError(Malformation.PAYLOAD, f"more than {self._bytes_max} bytes of payload")
        proof = ByToken(lease.hex())
        term_ms = control.number(b"timeout", 0, _TERM_MS_MAX) or None
        commands: list[EngineCommand] = []
        progress = control.get(b"progress")
        if progress is not None:
            numerator, denominator = _progress(progress)
            commands.append(
                Report(
                    job_id=job_id,
                    proof=proof,
                    numerator=numerator,
                    denominator=denominator,
                    renew=term_ms is None,
                )
            )
        if progress is None or term_ms is not None:
            commands.append(Renew(job_id=job_id, proof=proof, term_ms=term_ms))
        if payload is not None:
            commands.append(SendPartial(job_id=job_id, proof=proof, payload=payload))

        def refused(reply: Reply) -> None:
            assert isinstance(reply, Refusal)
            if reply.why not in FOR_NOW:
                self._holdings.cancel(path, job_id, lease, REASONS.get(reply.why, LOST))

        def settle(reply: Reply) -> None:
            self.awaited_count -= 1
            job = reply.job if type(reply) is Changed else None
            self._holdings.learn(job, lease, path)
            if job is None:
                refused(reply)

        first, *others = commands
        if self._holdings.is_at(job_id, path):
            self._hub.ask(first, None, lambda: refused)
        else:
            self.awaited_count += 1
            self._holdings.begin_learning(lease)
            self._hub.ask(first, settle)
        for other in others:
            self._hub.ask(other)


def _job_id(control: Control) -> str:
    # Text that is not ASCII names no job, and the answer says so.
    return control.need(b"job").decode("ascii", "replace")


def _progress(value: bytes) -> tuple[int, int]:
    numerator, slash, denominator = value.partition(b"/")
    if not slash or not (numerator.isdigit() and denominator.isdigit()) or len(value) > 36:
        raise WireError(Malformation.VALUE, "progress is two numbers with a slash between them")
    return min(int(numerator), _NUMBER_MAX), min(int(denominator), _NUMBER_MAX)


def _was_reported(job: Job | None, token: str) -> bool:
    """Whether this very lease ended by a report, so that this one is a repetition."""
    return job is not None and any(
        attempt.token == token and attempt.reason in _REPORTED for attempt in job.attempts
    )


def _complete(job_id: str, proof: ByToken, payload: bytes | None) -> EngineCommand:
    return Complete(job_id=job_id, proof=proof, result=payload)


def _error(job_id: str, proof: ByToken, payload: bytes | None) -> EngineCommand:
    return Fail(
        job_id=job_id, proof=proof, failure=failure_from_bytes("error", payload or b""), retry=True
    )


def _fail(job_id: str, proof: ByToken, payload: bytes | None) -> EngineCommand:
    return Fail(job_id=job_id, proof=proof, failure=failure_from_bytes("failed", payload or b""))


def _refuse(job_id: str, proof: ByToken, _payload: bytes | None) -> EngineCommand:
    return Release(job_id=job_id, proof=proof)


_ENDS: Final[dict[bytes, Callable[[str, ByToken, bytes | None], EngineCommand]]] = {
    b"ok": _complete,
    b"error": _error,
    b"fail": _fail,
    b"refused": _refuse,
}

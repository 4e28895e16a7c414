"""Jobs, terms and events as they are stored, whatever the database.

A job has columns for what is searched and for what never changes, and for payload and result; the
rest is one JSON record, read with unknown or missing fields. Events are stored many to a row,
because a row each would cost more than the events themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from manyhands.model.events import Event
from manyhands.model.job import UNKNOWN_ORIGIN, Attempt, Holder, Job, Lease, Origin, State
from manyhands.model.payload import Encoding
from manyhands.model.plain import (
    Plain,
    PlainCompleted,
    PlainLeased,
    PlainReady,
    attempts_max_of,
    completing_attempt,
)
from manyhands.model.policy import TERMS, Terms
from manyhands.model.reasons import Reason, read_reason
from manyhands.store.records.frames import PlainRow

_DEFAULT_TERMS: Final = TERMS["native"]
_EVENTS_A_ROW: Final = 128
_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(Job).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_terms = msgspec.json.Decoder(Terms).decode
_split = msgspec.msgpack.Decoder(list[Raw]).decode


def encode_record(job: Job) -> bytes:
    """Everything about a job that has no column of its own."""
    kept = replace(
        job,
        job_id="",
        serial=0,
        queue="",
        payload=b"",
        terms=_DEFAULT_TERMS,
        origin=UNKNOWN_ORIGIN,
        submitted_at=0,
        finished_at=None,
        unique_key=None,
        result=None,
        stored_bytes=0,
    )
    return _encode(kept)


class _PlainRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """The record of a plain job: those fields of a `Job`, in its order, that may have a value. They
    are given by position, which takes a fifth less time.
    """

    job_id: str
    queue: str
    state: State
    encoding: Encoding = Encoding.BINARY
    priority: float = -1.0  # always written, as that of a job is
    position: int = 0
    entered_at: int = 0
    lease_number: int = 0
    lease: Lease | None = None
    attempts: tuple[Attempt, ...] = ()
    durable_interest: bool = True
    waiters: tuple[str, ...] = ()
    result_encoding: Encoding = Encoding.BINARY


def plain_record(row: PlainRow) -> tuple[State, int | None, bytes]:
    """The state of a plain job, when it finished, and its record."""
    lease, end = row.lease, row.end
    if lease is None:
        state, entered_at, number = State.READY, row.submitted_at, 0
    else:
        state, entered_at, number = State.LEASED, lease.claimed_at, 1
    waiters, finished_at, result_encoding = row.waiters, None, Encoding.BINARY
    attempts: tuple[Attempt, ...] = ()
    if end is not None:
        assert lease is not None
        state, entered_at, finished_at = State.COMPLETED, end.at, end.at
        attempts = (completing_attempt(lease, end.at),)
        waiters, lease, result_encoding = (), None, end.result_encoding
    record = _PlainRecord(
        "",
        "",
        state,
        row.encoding,
        row.priority,
        row.position,
        entered_at,
        number,
        lease,
        attempts,
        row.durable_interest,
        waiters,
        result_encoding,
    )
    return state, finished_at, _encode(record)


def decode_job(record: bytes | str) -> Job:
    """Decodes the record of a job."""
    try:
        return _decode_stored(record)
    except msgspec.ValidationError:
        return _decode_stored(_encode(with_reason(msgspec.json.decode(record))))


def with_reason(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job as stored by an earlier version, which had the text of a cancellation in
    place of a reason.
    """
    cancelled = fields.get("state") == State.CANCELLED
    reason, detail = read_reason(fields.get("reason", ""), cancelled=cancelled)
    return {**fields, "reason": reason, "detail": detail}


def encode_terms(terms: Terms) -> bytes:
    """Encodes terms, which are stored once for all jobs that share them."""
    return _encode(terms)


def decode_terms(record: bytes) -> Terms:
    """Decodes terms."""
    return _decode_terms(record)


def join_events(seq: int, bodies: Sequence[Raw]) -> Iterator[tuple[int, int, bytes]]:
    """Rows of the events after this number: the number of the last one, their count, and their
    bodies.
    """
    for start in range(0, len(bodies), _EVENTS_A_ROW):
        some = bodies[start : start + _EVENTS_A_ROW]
        yield seq + start + len(some), len(some), b"".join(some)


def split_events(count: int, bodies: bytes) -> list[Raw]:
    """The events of a row, one by one."""
    return _split(b"\xdd" + count.to_bytes(4) + bodies)  # after the head of an array


def plain_event(value: Plain) -> tuple[Any, ...]:
    """What is stored of an event of a plain job: what its kind does not imply."""
    if type(value) is PlainReady:
        return (
            _SUBMITTED,
            value.at,
            value.job_id,
            value.queue,
            attempts_max_of(value.terms),
            value.priority,
            value.submitted_at,
            value.origin,
        )
    if type(value) is PlainLeased:
        ready, kind, expires_at = value.ready, _CLAIMED, value.lease.expires_at
    else:
        assert isinstance(value, PlainCompleted)
        ready, kind, expires_at = value.leased.ready, _COMPLETED, None
    return (
        kind,
        value.at,
        ready.job_id,
        ready.queue,
        attempts_max_of(ready.terms),
        ready.priority,
        ready.submitted_at,
        ready.origin,
        value.lasted_ms,
        value.holder,
        expires_at,
    )


class _PlainEvent(Struct, frozen=True, gc=False, array_like=True):
    kind: int
    at: int
    job_id: str
    queue: str
    attempts_max: int
    priority: float
    submitted_at: int
    origin: Origin
    lasted_ms: int = 0
    holder: Holder | None = None
    expires_at: int | None = None

    def event(self) -> Event:
        state = _STATES[self.kind]
        return Event(
            self.at,
            state,
            self.job_id,
            self.queue,
            Reason.NONE,
            0,
            0 if state is State.READY else 1,
            0,
            self.attempts_max,
            self.holder,
            self.expires_at,
            self.priority,
            self.submitted_at,
            None,
            self.origin,
            self.lasted_ms,
        )


_SUBMITTED: Final = 0
_CLAIMED: Final = 1
_COMPLETED: Final = 2
_STATES: Final = (State.READY, State.LEASED, State.COMPLETED)
# The head of an array of up to 15 values; an `Event` has more.
_SHORT_ARRAY_MAX: Final = 0x9F
_decode_plain_event = msgspec.msgpack.Decoder(_PlainEvent).decode


def decode_event(body: Raw) -> Event:
    """Decodes an event."""
    if memoryview(body)[0] <= _SHORT_ARRAY_MAX:
        return _decode_plain_event(body).event()
    try:
        return _decode_event(body)
    except msgspec.ValidationError:
        values = msgspec.msgpack.decode(body)  # of an earlier version, like `with_reason`
        cancelled = values[1] == State.CANCELLED
        values[4], detail = read_reason(values[4], cancelled=cancelled)
        return replace(_decode_event(msgspec.msgpack.encode(values)), detail=detail)

"""Jobs, terms and events as they are stored, whatever the database.

A job has columns for what is searched and for what never changes, and for payload and result; the
rest is one JSON record, read with unknown or missing fields. Events are stored many to a row,
because a row each would cost more than the events themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.model.events import Event
from manyhands.model.job import UNKNOWN_ORIGIN, Job, State
from manyhands.model.policy import TERMS, Terms
from manyhands.model.reasons import read_reason

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


def decode_event(body: Raw) -> Event:
    """Decodes an event."""
    try:
        return _decode_event(body)
    except msgspec.ValidationError:
        values = msgspec.msgpack.decode(body)  # of an earlier version, like `with_reason`
        cancelled = values[1] == State.CANCELLED
        values[4], detail = read_reason(values[4], cancelled=cancelled)
        return replace(_decode_event(msgspec.msgpack.encode(values)), detail=detail)

"""Jobs and events as rows of the database.

A job has columns for what is searched, for what never changes, and for payload and result; the rest
is one JSON record, read with unknown or missing fields. Events are stored many to a row, because a
row each would cost more than the events themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.model.events import Event
from manyhands.model.job import UNKNOWN_ORIGIN, Job, Origin, State
from manyhands.model.policy import TERMS, Terms
from manyhands.model.reasons import read_reason
from manyhands.store.sqlite.checksums import RecordDamagedError, checksum

_DEFAULT_TERMS: Final = TERMS["native"]
PAYLOAD: Final = (
    "coalesce(jobs.payload, (SELECT payload FROM payloads WHERE payloads.serial = jobs.serial))"
)
# The size of a payload, which SQLite knows without reading it.
PAYLOAD_BYTES: Final = (
    "coalesce(length(jobs.payload),"
    " (SELECT length(payload) FROM payloads WHERE payloads.serial = jobs.serial), 0)"
)
WEIGHT: Final = f"{PAYLOAD_BYTES} + coalesce(length(result), 0)"  # of payload and result
# The columns of a job, in the order that `decode_row` expects.
_RECORD_COLUMNS: Final = (
    "serial, jobs.job_id, jobs.queue, finished_at, terms_id, submitted_at, unique_key, realm,"
    " submitter, address, CAST(record AS BLOB), changing_sum"
)
_NOT_READ: Final = -1
COLUMNS: Final = f"{_RECORD_COLUMNS}, kept_sum, {PAYLOAD}, result, result_sum"
COLUMNS_COUNT: Final = 16
# The same without payload and result.
BRIEF_COLUMNS: Final = f"{_RECORD_COLUMNS}, {_NOT_READ}, x'', NULL, NULL"
# The same, followed by the size of the payload.
WEIGHED_COLUMNS: Final = f"{BRIEF_COLUMNS}, {PAYLOAD_BYTES}"
_EVENTS_A_ROW: Final = 128
_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(Job).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_terms = msgspec.json.Decoder(Terms).decode
_split = msgspec.msgpack.Decoder(list[Raw]).decode


def columns_with(payload: str) -> str:
    """The same with part of the payload, which cannot be verified."""
    return f"{_RECORD_COLUMNS}, {_NOT_READ}, {payload}, NULL, NULL"


def sums_of(row: Sequence[Any], payload: bytes) -> tuple[int, int, int | None]:
    """The checksums of a whole row of ``jobs``, given its payload, which may be in another
    table.
    """
    serial = row[0]
    kept = checksum(serial, row[1], *row[9:15], payload)
    return kept, changing_sum(serial, row[3], row[5], row[15]), result_sum(serial, row[17])


def changing_sum(serial: int, queue: str, finished_at: int | None, record: bytes) -> int:
    """The checksum of what changes in the life of a job."""
    return checksum(serial, queue, finished_at, record)


def result_sum(serial: int, result: bytes | None) -> int | None:
    """The checksum of a result, if there is one."""
    return None if result is None else checksum(serial, result)


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


def decode_row(row: Sequence[Any], terms: Mapping[int, Terms]) -> Job:
    """The job of a row of ``COLUMNS``, given all terms by number. Raises RecordDamagedError if a
    checksum does not match.
    """
    (
        serial,
        job_id,
        queue,
        finished_at,
        terms_id,
        submitted_at,
        unique_key,
        realm,
        submitter,
        address,
        record,
        changing,
        kept,
        payload,
        result,
        of_result,
    ) = row
    if changing != changing_sum(serial, queue, finished_at, record):
        raise _damaged("record", job_id)
    if kept != _NOT_READ:
        constant = (serial, job_id, terms_id, submitted_at, unique_key, realm, submitter, address)
        if kept != checksum(*constant, payload):
            raise _damaged("payload", job_id)
        if of_result != result_sum(serial, result):
            raise _damaged("result", job_id)
    return replace(
        decode_job(record),
        job_id=job_id,
        serial=serial,
        queue=queue,
        payload=payload,
        terms=terms[terms_id],
        origin=Origin(realm, submitter, address),
        submitted_at=submitted_at,
        finished_at=finished_at,
        unique_key=unique_key,
        result=result,
    )


def _damaged(what: str, job_id: str) -> RecordDamagedError:
    return RecordDamagedError(f"the {what} of job {job_id} does not match its checksum")


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

"""A job as a row: columns for what is searched, for what never changes, for payload and result;
and the rest as one JSON record that tolerates fields it does not know and fields it lacks.

Events: many in a row, one behind the other, since rows of their own would cost more than they do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.model.job import UNKNOWN_ORIGIN, Job, Origin
from manyhands.model.policy import TERMS, Terms
from manyhands.model.stored import StoredJob, restored, stored

_DEFAULT_TERMS: Final = TERMS["native"]
PAYLOAD: Final = (
    "coalesce(jobs.payload, (SELECT payload FROM payloads WHERE payloads.serial = jobs.serial))"
)
# What makes a job, in the order in which `decode_row` takes it.
RECORD_COLUMNS: Final = (
    "serial, jobs.job_id, jobs.queue, finished_at, terms_id, submitted_at, unique_key, realm,"
    " submitter, address, record"
)
COLUMNS: Final = f"{RECORD_COLUMNS}, {PAYLOAD}, result"
_EVENTS_A_ROW: Final = 128
_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(StoredJob).decode
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
    )
    return _encode(stored(kept))


def decode_job(record: bytes | str) -> Job:
    """What such a record tells of a job."""
    return restored(_decode_stored(record))


def decode_row(row: Sequence[Any], terms: Mapping[int, Terms]) -> Job:
    """The job of a row of ``COLUMNS``, given all terms by their numbers."""
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
        payload,
        result,
    ) = row
    job = replace(
        _decode_stored(record),
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
    return restored(job)


def encode_terms(terms: Terms) -> bytes:
    """Terms, stored once for all jobs that share them."""
    return _encode(terms)


def decode_terms(record: bytes) -> Terms:
    """Terms of a row."""
    return _decode_terms(record)


def join_events(seq: int, bodies: Sequence[Raw]) -> Iterator[tuple[int, int, bytes]]:
    """Rows of the events that follow this number: the last one's number, how many, and all of
    them as they came.
    """
    for start in range(0, len(bodies), _EVENTS_A_ROW):
        some = bodies[start : start + _EVENTS_A_ROW]
        yield seq + start + len(some), len(some), b"".join(some)


def split_events(count: int, bodies: bytes) -> list[Raw]:
    """The events of a row, each by itself."""
    return _split(b"\xdd" + count.to_bytes(4) + bodies)  # with the head of an array in front

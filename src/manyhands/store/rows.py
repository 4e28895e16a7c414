"""A job as a row: the columns that are searched, payload and result by themselves, and the rest
as one JSON record that tolerates fields it does not know and fields it lacks. Events: many in a
row, one behind the other, since the row itself would cost more than they do.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.model.job import Job
from manyhands.model.policy import TERMS, Terms

_DEFAULT_TERMS: Final = TERMS["native"]
_EVENTS_A_ROW: Final = 128
_encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
_decode_terms = msgspec.json.Decoder(Terms).decode
_split = msgspec.msgpack.Decoder(list[Raw]).decode


def encode_record(job: Job) -> bytes:
    """Everything about a job that has no column of its own."""
    return _encode(replace(job, payload=b"", result=None, terms=_DEFAULT_TERMS))


def decode_record(record: bytes | str, payload: bytes, result: bytes | None, terms: Terms) -> Job:
    """The job of a row."""
    return replace(decode_job(record), payload=payload, result=result, terms=terms)


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

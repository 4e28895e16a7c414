"""A job as a row: the columns that are searched, payload and result by themselves, and the rest
as one JSON record that tolerates fields it does not know and fields it lacks.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from manyhands.model.job import Job
from manyhands.model.policy import TERMS, Terms

_DEFAULT_TERMS: Final = TERMS["native"]
_encode = msgspec.json.Encoder().encode
decode_job = msgspec.json.Decoder(Job).decode
_decode_terms = msgspec.json.Decoder(Terms).decode


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

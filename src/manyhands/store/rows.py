"""A job as a row: columns for what is searched, for what never changes, for payload and result;
and the rest as one JSON record that tolerates fields it does not know and fields it lacks.

Events: many in a row, one behind the other, since rows of their own would cost more than they do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple

from manyhands.model.job import (
    UNKNOWN_ORIGIN,
    Attempt,
    Failure,
    HistoryEntry,
    Job,
    Lease,
    Origin,
    Progress,
    State,
)
from manyhands.model.payload import Encoding
from manyhands.model.policy import TERMS, Terms

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


class _Record(Struct, frozen=True, gc=False, omit_defaults=True):
    """What of a job has no column of its own."""

    state: State
    encoding: Encoding = Encoding.BINARY
    priority: float = 0.0
    position: int = 0
    entered_at: int = 0
    run_at: int | None = None
    deadline_at: int | None = None
    incarnation: int = 0
    attempts_used: int = 0
    lease_number: int = 0
    lease: Lease | None = None
    attempts: tuple[Attempt, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    namespace: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    durable_interest: bool = True
    waiters: tuple[str, ...] = ()
    progress: Progress | None = None
    partials_count: int = 0
    result_encoding: Encoding = Encoding.BINARY
    failure: Failure | None = None
    reason: str = ""
    schedule: str | None = None
    metadata: bytes = b""


class WholeRecord(_Record, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """All of a job but its payload and result: in an export, and in files before version 6."""

    job_id: str
    queue: str
    terms: Terms = TERMS["native"]
    origin: Origin = UNKNOWN_ORIGIN
    submitted_at: int = 0
    finished_at: int | None = None
    unique_key: bytes | None = None


_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(_Record).decode
decode_whole_record = msgspec.json.Decoder(WholeRecord).decode
_decode_terms = msgspec.json.Decoder(Terms).decode
_split = msgspec.msgpack.Decoder(list[Raw]).decode


def encode_record(job: Job) -> bytes:
    """Everything about a job that has no column of its own."""
    return _encode(_record(job))


def _record(job: Job) -> _Record:
    return _Record(
        job.state,
        job.encoding,
        job.priority,
        job.position,
        job.entered_at,
        job.run_at,
        job.deadline_at,
        job.incarnation,
        job.attempts_used,
        job.lease_number,
        job.lease,
        job.attempts,
        job.history,
        job.namespace,
        job.name,
        job.tags,
        job.limits,
        job.depends_on,
        job.waits_for,
        job.durable_interest,
        job.waiters,
        job.progress,
        job.partials_count,
        job.result_encoding,
        job.failure,
        job.reason,
        job.schedule,
        job.metadata,
    )


def whole_record(job: Job) -> WholeRecord:
    """A job as a record that stands by itself."""
    return WholeRecord(
        *astuple(_record(job)),
        job_id=job.job_id,
        queue=job.queue,
        terms=job.terms,
        origin=job.origin,
        submitted_at=job.submitted_at,
        finished_at=job.finished_at,
        unique_key=job.unique_key,
    )


def _job_of(kept: _Record, **columns: Any) -> Job:  # noqa: ANN401 - fields of Job
    return Job(
        state=kept.state,
        encoding=kept.encoding,
        priority=kept.priority,
        position=kept.position,
        entered_at=kept.entered_at,
        run_at=kept.run_at,
        deadline_at=kept.deadline_at,
        incarnation=kept.incarnation,
        attempts_used=kept.attempts_used,
        lease_number=kept.lease_number,
        lease=kept.lease,
        attempts=kept.attempts,
        history=kept.history,
        namespace=kept.namespace,
        name=kept.name,
        tags=kept.tags,
        limits=kept.limits,
        depends_on=kept.depends_on,
        waits_for=kept.waits_for,
        durable_interest=kept.durable_interest,
        waiters=kept.waiters,
        progress=kept.progress,
        partials_count=kept.partials_count,
        result_encoding=kept.result_encoding,
        failure=kept.failure,
        reason=kept.reason,
        schedule=kept.schedule,
        metadata=kept.metadata,
        **columns,
    )


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
    return _job_of(
        _decode_record(record),
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


def whole_job(kept: WholeRecord, payload: bytes = b"", result: bytes | None = None) -> Job:
    """The job of a record that stands by itself; it gets its place in a store there."""
    return _job_of(
        kept,
        job_id=kept.job_id,
        queue=kept.queue,
        payload=payload,
        terms=kept.terms,
        origin=kept.origin,
        submitted_at=kept.submitted_at,
        finished_at=kept.finished_at,
        unique_key=kept.unique_key,
        result=result,
    )


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

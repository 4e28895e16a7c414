"""Jobs as rows of the file: their columns, and the checksums that every reader verifies."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from manyhands.model.job import Job, Origin
from manyhands.model.policy import Terms
from manyhands.store.records.queries import PAYLOAD, fits, fits_values
from manyhands.store.records.reading import Dialect
from manyhands.store.records.rows import decode_job
from manyhands.store.sqlite.checksums import RecordDamagedError, checksum

# The size of a payload, which SQLite knows without reading it.
PAYLOAD_BYTES: Final = (
    "coalesce(length(jobs.payload),"
    " (SELECT length(payload) FROM payloads WHERE payloads.serial = jobs.serial), 0)"
)
WEIGHT: Final = f"{PAYLOAD_BYTES} + coalesce(length(result), 0)"  # of payload and result
# The columns of a job, in the order that `decode_row` expects.
_RECORD_COLUMNS: Final = (
    "jobs.serial, jobs.job_id, jobs.queue, finished_at, terms_id, submitted_at, unique_key, realm,"
    " submitter, address, CAST(record AS BLOB), changing_sum"
)
_NOT_READ: Final = -1
COLUMNS: Final = f"{_RECORD_COLUMNS}, kept_sum, {PAYLOAD}, result, result_sum"
COLUMNS_COUNT: Final = 16
# The same without payload and result.
BRIEF_COLUMNS: Final = f"{_RECORD_COLUMNS}, {_NOT_READ}, x'', NULL, NULL"
# The same, followed by the size of the payload.
WEIGHED_COLUMNS: Final = f"{BRIEF_COLUMNS}, {PAYLOAD_BYTES}"


def columns_with(payload: str) -> str:
    """The same with part of the payload, which cannot be verified."""
    return f"{_RECORD_COLUMNS}, {_NOT_READ}, {payload}, NULL, NULL"


def _cut(length: int) -> str:
    # For SQLite, a part of an empty value is NULL.
    return columns_with(f"coalesce(substr({PAYLOAD}, 1, {length}), x'')")


DIALECT: Final = Dialect(
    columns=COLUMNS,
    weighed_columns=WEIGHED_COLUMNS,
    cut=_cut,
    weight=WEIGHT,
    fits=fits,
    fits_values=fits_values,
    places="json_each(?) AS place",
    place_columns=("place.value ->> 0", "place.value ->> 1"),
    place_values=lambda places: (json.dumps(places),),
)


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

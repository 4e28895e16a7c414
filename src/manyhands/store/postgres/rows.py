"""Jobs as rows of the tables, and how PostgreSQL says what a filter means."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from manyhands.model.identity import is_job_id
from manyhands.model.job import Job, Origin
from manyhands.model.policy import Terms
from manyhands.model.roles import Caller, Right
from manyhands.store.records.reading import Dialect
from manyhands.store.records.rows import decode_job

_KEPT: Final = (
    "jobs.serial, jobs.job_id, jobs.queue, finished_at, terms_id, submitted_at, unique_key, realm,"
    " submitter, address, record"
)
COLUMNS: Final = f"{_KEPT}, payload, result"
COLUMNS_COUNT: Final = 13
_SIZE: Final = "octet_length(payload)"
_WEIGHT: Final = f"{_SIZE} + coalesce(octet_length(result), 0)"
_TAIL_DIGITS_MIN: Final = 8  # of the end of an id, to look for it

_encode = msgspec.json.Encoder().encode


def decode_row(row: Sequence[Any], terms: Mapping[int, Terms]) -> Job:
    """The job of a row of ``COLUMNS``, given all terms by number."""
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
    return replace(
        decode_job(record),
        job_id=job_id,
        serial=serial,
        queue=queue.decode(),
        payload=payload,
        terms=terms[terms_id],
        origin=Origin(realm, submitter.decode(), address.decode()),
        submitted_at=submitted_at,
        finished_at=finished_at,
        unique_key=unique_key,
        result=result,
    )


def _name(text: Any) -> Any:  # noqa: ANN401 - None stays None
    return text.encode() if isinstance(text, str) else text


def _text(value: bytes) -> str:
    return bytes(value).decode()


def _encoded(text: str) -> tuple[bytes]:
    return (text.encode(),)


def _quoted(text: str) -> str:
    """A text as it stands in our JSON."""
    return _encode(text).decode()


def _cut(length: int) -> str:
    return f"{_KEPT}, substring(payload FROM 1 FOR {length}), NULL::bytea"


# The record with its zeros replaced by a private character, because jsonb refuses them.
_RECORD: Final = r"replace(record, '\u0000', '\uf8ff')::jsonb"


def _json(text: str) -> str:
    """A text to compare with one from the record."""
    return text.replace("\0", "\uf8ff")


def _tail_of(text: str) -> tuple[str, str, str]:
    is_tail = len(text) >= _TAIL_DIGITS_MIN and is_job_id(text.lower())
    return (text.lower() if is_tail else "",) * 3


def fits(column: str) -> str:
    """Whether a queue fits one of some patterns."""
    return f"{column} LIKE ANY(?::bytea[])"


def fits_values(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    """The patterns for it."""
    return ([_like(pattern).encode() for pattern in patterns],)


def _seen_by(caller: Caller) -> tuple[Any, ...]:
    mark = caller.signed("") if caller.has(Right.SUBMIT) else "\0"
    start = f"{mark} ".encode()
    patterns = fits_values(caller.queues or ("*",))
    return *patterns, caller.has(Right.LOOK), mark.encode(), start, start


def _like(pattern: str) -> str:
    """The pattern in the words of LIKE."""
    return re.sub(r"[\\%_]", r"\\\g<0>", pattern).replace("*", "%")


_FAILURE: Final = "position('\"failure\":{' in record) > 0"
_CONDITIONS: Final[Mapping[str, tuple[str, Callable[[Any], tuple[Any, ...]]]]] = {
    "tag": ("", _encoded),
    "failure": ("", lambda group_id: (group_id,)),
    "failure_code": ("", _encoded),
    "queue": ("jobs.queue = ?", _encoded),
    "states": ("jobs.state = ANY(?)", lambda states: ([str(state) for state in states],)),
    "seen_by": (
        f"{fits('jobs.queue')} AND (?::boolean OR jobs.submitter = ?::bytea"
        " OR substring(jobs.submitter FROM 1 FOR length(?::bytea)) = ?::bytea)",
        _seen_by,
    ),
    "name": ("jobs.name = ?", _encoded),
    "id_tail": ("right(jobs.job_id, length(?::text)) = ?", lambda tail: (tail, tail)),
    "worker": (
        # A plain search first: it is quick, and passes only records with the worker's name.
        f"CASE WHEN position(? in record) > 0 THEN {_RECORD} #>> '{{lease,holder,name}}' = ?::text"
        f" OR EXISTS (SELECT 1 FROM jsonb_array_elements(coalesce({_RECORD} -> 'attempts', '[]'))"
        " AS attempt WHERE attempt #>> '{holder,name}' = ?::text) ELSE FALSE END",
        lambda name: ('"name":' + _quoted(name), _json(name), _json(name)),
    ),
    "header": (
        f"CASE WHEN position(? in record) > 0 THEN {_RECORD} -> 'headers' ->> ?::text = ?::text"
        " ELSE FALSE END",
        lambda header: (
            _encode(dict([header]))[1:-1].decode(),
            _json(header[0]),
            _json(header[1]),
        ),
    ),
    "text": (
        "position(? in payload) > 0 OR position(? in coalesce(jobs.name, '')) > 0"
        f" OR CASE WHEN {_FAILURE} THEN"
        f" position(?::text in coalesce({_RECORD} #>> '{{failure,code}}', '')) > 0 OR"
        f" position(?::text in coalesce({_RECORD} #>> '{{failure,message}}', '')) > 0"
        " ELSE FALSE END OR (?::text <> '' AND right(jobs.job_id, length(?::text)) = ?::text)",
        lambda text: (
            *(text.encode(), text.encode(), _json(text), _json(text)),
            *_tail_of(text),
        ),
    ),
    "retrying": (
        f"(jobs.state NOT IN ('completed', 'failed', 'cancelled') AND {_FAILURE}) = ?",
        lambda retrying: (bool(retrying),),
    ),
}


def dialect(schema: str) -> Dialect:
    """For the tables of one schema."""
    return Dialect(
        columns=COLUMNS,
        weighed_columns=f"{_KEPT}, ''::bytea, NULL::bytea, {_SIZE}",
        cut=_cut,
        weight=_WEIGHT,
        conditions=_CONDITIONS,
        name=_name,
        text=_text,
        fits=fits,
        fits_values=fits_values,
        places="unnest(?::bytea[], ?::text[]) AS place(queue, state)",
        place_columns=("place.queue", "place.state"),
        place_values=lambda places: (
            [queue.encode() for queue, _ in places],
            [str(state) for _, state in places],
        ),
        prefix=f"{schema}.",
    )

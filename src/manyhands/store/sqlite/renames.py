"""Renames what schema 7 stored under other words, in every row that has them.

The realm of the qless API was "http", which is also the name of a listener that other APIs share.
A row that matches its checksum gets a new one; a damaged row keeps the old one, so that the damage
is still noticed.
"""

from typing import Any, Final

import apsw
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.model.job import Holder, Job, Origin
from manyhands.store.records.queries import PAYLOAD
from manyhands.store.records.rows import split_events
from manyhands.store.sqlite.checksums import checksum

OLD_REALM: Final = "http"
NEW_REALM: Final = "qless"
# In our JSON this is always a field: the quotes of a text inside of it would be escaped.
_OLD_FIELD: Final = f'"realm":"{OLD_REALM}"'
_NEW_FIELD: Final = f'"realm":"{NEW_REALM}"'
_RECORD: Final = f"replace(record, '{_OLD_FIELD}', '{_NEW_FIELD}')"
_HAS_FIELD: Final = f"instr(record, '{_OLD_FIELD}')"
# In an event this may also be elsewhere, so it only shows which events to decode.
_OLD_BYTES: Final = msgspec.msgpack.encode({"realm": OLD_REALM})[1:]
_EVENT_HOLDER: Final = 9  # the positions of these fields
_EVENT_ORIGIN: Final = 14
# Prefixes of names among the cursors.
_PREFIXES: Final = {f"receipt:{OLD_REALM}/": f"receipt:{NEW_REALM}/", "untold:": "unnotified:"}


def renamed_job(job: Job) -> Job:
    """The same for a job of an earlier export."""
    origin, lease = job.origin, job.lease
    return replace(
        job,
        origin=Origin(_renamed_realm(origin.realm), origin.name, origin.address),
        lease=None if lease is None else replace(lease, holder=_renamed_holder(lease.holder)),
        attempts=tuple(
            replace(attempt, holder=_renamed_holder(attempt.holder)) for attempt in job.attempts
        ),
    )


def _renamed_holder(holder: Holder) -> Holder:
    return Holder(_renamed_realm(holder.realm), holder.name, holder.address)


def _renamed_realm(realm: str) -> str:
    return NEW_REALM if realm == OLD_REALM else realm


def rename(connection: apsw.Connection) -> None:
    """Renames in all tables."""
    connection.create_scalar_function("checksum", checksum, deterministic=True)
    _rename_in_jobs(connection)
    connection.execute(
        f"UPDATE bulks SET record = {_RECORD},"  # noqa: S608 - our own words, here and below
        f" {_sum_again('checksum', 'name, record', f'name, {_RECORD}')} WHERE {_HAS_FIELD}"
    )
    for old, new in _PREFIXES.items():
        name = f"'{new}' || substr(name, {len(old) + 1})"
        record = f'replace(record, \'"name":"{old}\', \'"name":"{new}\')'
        connection.execute(
            f"UPDATE cursors SET name = {name}, record = {record},"  # noqa: S608
            f" {_sum_again('checksum', 'name, record', f'{name}, {record}')}"
            f" WHERE substr(name, 1, {len(old)}) = '{old}'"
        )
    _rename_in_events(connection)


def _sum_again(column: str, before: str, after: str) -> str:
    return (
        f"{column} = CASE WHEN {column} = checksum({before}) THEN checksum({after}) ELSE {column}"
        " END"
    )


def _rename_in_jobs(connection: apsw.Connection) -> None:
    constant = (
        "serial, job_id, terms_id, submitted_at, unique_key, {}, submitter, address, " + PAYLOAD
    )
    sums = _sum_again("kept_sum", constant.format("realm"), constant.format(f"'{NEW_REALM}'"))
    connection.execute(
        f"UPDATE jobs SET realm = '{NEW_REALM}', {sums} WHERE realm = '{OLD_REALM}'"  # noqa: S608
    )
    changing = "serial, queue, finished_at, CAST({} AS BLOB)"
    sums = _sum_again("changing_sum", changing.format("record"), changing.format(_RECORD))
    connection.execute(f"UPDATE jobs SET record = {_RECORD}, {sums} WHERE {_HAS_FIELD}")  # noqa: S608


def _rename_in_events(connection: apsw.Connection) -> None:
    found = connection.execute("SELECT * FROM events WHERE instr(bodies, ?)", (_OLD_BYTES,))
    for last_seq, count, bodies, sum_found in found:
        if sum_found != checksum(last_seq, count, bodies):
            continue
        renamed = b"".join(_renamed_event(body) for body in split_events(count, bodies))
        connection.execute(
            "UPDATE events SET bodies = ?, checksum = ? WHERE last_seq = ?",
            (renamed, checksum(last_seq, count, renamed), last_seq),
        )


def _renamed_event(body: Raw) -> bytes:
    if _OLD_BYTES not in bytes(body):
        return bytes(body)
    values: list[Any] = msgspec.msgpack.decode(body)
    for part in (values[_EVENT_HOLDER], values[_EVENT_ORIGIN]):
        if part is not None:
            part["realm"] = _renamed_realm(part["realm"])
    return msgspec.msgpack.encode(values)

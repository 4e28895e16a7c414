"""Files as older versions wrote them, made out of those of this version."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from manyhands.model.job import Job
from manyhands.model.policy import TERMS, Terms
from manyhands.store.records.packer import TermsBook
from manyhands.store.records.rows import split_events
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.checksums import SUMMED, checksum
from manyhands.store.sqlite.rows import PAYLOAD, changing_sum, decode_row, result_sum


def make_older(file: Path, version: int) -> None:
    """Take away what later versions added."""
    connection = apsw.Connection(str(file))
    for number in sorted(_TAKEN_AWAY, reverse=True):
        if number > version:
            _TAKEN_AWAY[number](connection)
    connection.pragma("user_version", version)
    connection.close()


# As they were before rows had checksums.
_COLUMNS = (
    "serial, jobs.job_id, jobs.queue, finished_at, terms_id, submitted_at, unique_key, realm,"
    f" submitter, address, CAST(record AS BLOB), {PAYLOAD}, result"
)


def _decode_row(row: Sequence[Any], terms: Mapping[int, Terms]) -> Job:
    serial, job_id, queue, finished_at, *others, record, payload, result = row
    changing = changing_sum(serial, queue, finished_at, record)
    kept = checksum(serial, job_id, *others, payload)
    return decode_row(
        (*row[:-2], changing, kept, payload, result, result_sum(serial, result)), terms
    )


def _spread(connection: apsw.Connection) -> None:
    """Whole records of jobs, and a row for each event."""
    terms = TermsBook()
    for number, record in connection.execute("SELECT terms_id, record FROM terms"):
        terms.learn(number, record)
    found = connection.execute("SELECT * FROM jobs ORDER BY serial").fetchall()
    jobs = connection.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY serial").fetchall()
    blocks = connection.execute("SELECT * FROM events ORDER BY last_seq").fetchall()
    connection.execute("DROP TABLE jobs; DROP TABLE events")
    for statement in schema._FIRST.split(";"):
        if " jobs" in statement or " events" in statement:
            connection.execute(statement)
    for row, columns in zip(found, jobs, strict=True):
        job = _decode_row(columns, terms.by_number)
        kept = replace(job, payload=b"", result=None, terms=TERMS["native"])
        record = msgspec.json.encode(kept).decode()
        values = (*row[:10], record, *row[-2:])
        connection.execute(f"INSERT INTO jobs VALUES({', '.join('?' * 13)})", values)
    for last_seq, count, bodies in blocks:
        for seq, body in enumerate(split_events(count, bodies), last_seq - count + 1):
            connection.execute("INSERT INTO events VALUES(?, ?)", (seq, bytes(body)))


def _drop(statements: str):
    def run(connection: apsw.Connection) -> None:
        connection.execute(statements)

    return run


def _drop_sums(connection: apsw.Connection) -> None:
    for column in ("kept_sum", "changing_sum", "result_sum"):
        connection.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
    for table in SUMMED:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")


def _call_http(connection: apsw.Connection) -> None:
    """The words that were other ones: the realm of qless, and what was kept among the cursors."""
    columns = "serial, job_id, terms_id, submitted_at, unique_key, realm, submitter, address"
    for *kept, queue, finished_at, record, payload in connection.execute(
        f"SELECT {columns}, queue, finished_at, record, {PAYLOAD} FROM jobs"
    ).fetchall():
        kept[5] = "http" if kept[5] == "qless" else kept[5]
        older = record.replace('"realm":"qless"', '"realm":"http"')
        changing = changing_sum(kept[0], queue, finished_at, older.encode())
        connection.execute(
            "UPDATE jobs SET realm = ?, kept_sum = ?, record = ?, changing_sum = ? WHERE serial=?",
            (kept[5], checksum(*kept, payload), older, changing, kept[0]),
        )
    for last_seq, count, bodies, _ in connection.execute("SELECT * FROM events").fetchall():
        older = bodies.replace(b"\xa5realm\xa5qless", b"\xa5realm\xa4http")
        connection.execute(
            "UPDATE events SET bodies = ?, checksum = ? WHERE last_seq = ?",
            (older, checksum(last_seq, count, older), last_seq),
        )
    for table in ("bulks", "cursors"):
        for name, record, _ in connection.execute(f"SELECT * FROM {table}").fetchall():
            connection.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
            row = [
                text.replace('"realm":"qless"', '"realm":"http"')
                .replace("receipt:qless/", "receipt:http/")
                .replace("unnotified:", "untold:")
                for text in (name, record)
            ]
            connection.execute(f"INSERT INTO {table} VALUES(?, ?, ?)", (*row, checksum(*row)))


_TAKEN_AWAY = {
    8: _call_http,
    7: _drop_sums,
    6: _spread,
    5: _drop("DELETE FROM facts WHERE key = 'journal'"),
    4: _drop("DROP TABLE bulks; DROP TABLE audit"),
    3: _drop("DROP TABLE failures; DROP TABLE failure_groups"),
    2: _drop("DROP TABLE history"),
}

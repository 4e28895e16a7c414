"""Files as older versions wrote them, made out of those of this version."""

from pathlib import Path

import apsw
import msgspec

from manyhands.model.policy import TERMS
from manyhands.model.stored import stored
from manyhands.store import schema
from manyhands.store.packing import TermsBook
from manyhands.store.rows import COLUMNS, decode_row, split_events
from tests.copies import replace


def make_older(file: Path, version: int) -> None:
    """Take away what later versions added."""
    connection = apsw.Connection(str(file))
    for number in sorted(_TAKEN_AWAY, reverse=True):
        if number > version:
            _TAKEN_AWAY[number](connection)
    connection.pragma("user_version", version)
    connection.close()


def _spread(connection: apsw.Connection) -> None:
    """Whole records of jobs, and a row for each event."""
    terms = TermsBook()
    for number, record in connection.execute("SELECT terms_id, record FROM terms"):
        terms.learn(number, record)
    found = connection.execute("SELECT * FROM jobs ORDER BY serial").fetchall()
    jobs = connection.execute(f"SELECT {COLUMNS} FROM jobs ORDER BY serial").fetchall()
    blocks = connection.execute("SELECT * FROM events ORDER BY last_seq").fetchall()
    connection.execute("DROP TABLE jobs; DROP TABLE events")
    for statement in schema._FIRST.split(";"):
        if " jobs" in statement or " events" in statement:
            connection.execute(statement)
    for row, columns in zip(found, jobs, strict=True):
        job = decode_row(columns, terms.by_number)
        kept = replace(job, payload=b"", result=None, terms=TERMS["native"])
        record = msgspec.json.encode(stored(kept)).decode()
        values = (*row[:10], record, *row[-2:])
        connection.execute(f"INSERT INTO jobs VALUES({', '.join('?' * 13)})", values)
    for last_seq, count, bodies in blocks:
        for seq, body in enumerate(split_events(count, bodies), last_seq - count + 1):
            connection.execute("INSERT INTO events VALUES(?, ?)", (seq, bytes(body)))


def _drop(statements: str):
    def run(connection: apsw.Connection) -> None:
        connection.execute(statements)

    return run


_TAKEN_AWAY = {
    6: _spread,
    5: _drop("DELETE FROM facts WHERE key = 'journal'"),
    4: _drop("DROP TABLE bulks; DROP TABLE audit"),
    3: _drop("DROP TABLE failures; DROP TABLE failure_groups"),
    2: _drop("DROP TABLE history"),
}

"""Writes a window of folded frames to the tables, in one transaction that also stores how far the
journal is applied: so each record is applied exactly once, whatever happens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from psycopg import pq

from manyhands.store.contract import StoreFencedError
from manyhands.store.postgres.packing import array, copied
from manyhands.store.postgres.sessions import (
    RefusedError,
    copy_in,
    int8,
    read_int8,
    run,
)
from manyhands.store.records.fold import Changes, Window
from manyhands.store.records.frames import cut, decode_frame
from manyhands.store.records.rows import join_events, split_events
from manyhands.store.records.tables import OF_JOB, TABLES, Table

# The type of each column, in whichever table it is.
_KINDS: Final = {
    **dict.fromkeys(("name", "queue", "tag", "code", "line", "sample", "payload"), "bytea"),
    **dict.fromkeys(("record", "group_id"), "text"),
    **dict.fromkeys(("seq", "step_ms", "at", "terms_id", "serial", "number", "warning"), "bigint"),
}
# A payload of any size is in the row of its job.
_STORED: Final = {name: table for name, table in TABLES.items() if name != "payloads"}
_REMOVED_BY: Final = {
    "audit": "seq <= $1",
    "history": "step_ms = $1 AND at < $2",
    "partials": "serial = $1 AND (number >= $2 OR number < $3)",
}
_UPDATED: Final = (
    ("serial", "bigint"),
    ("queue", "bytea"),
    ("state", "text"),
    ("finished_at", "bigint"),
    ("result_until", "bigint"),
    ("record", "text"),
    ("result", "bytea"),
)


class Progress:
    """How far the journal of a tenure is applied: its records, and the batches in them."""

    __slots__ = ("applied", "batch")

    def __init__(self, applied: int = 0, batch: int = 0) -> None:
        self.applied = applied
        self.batch = batch


class Windows:
    """Writes windows through one connection."""

    def __init__(
        self, connection: pq.abc.PGconn, schema: str, tenure: int, incarnation: str
    ) -> None:
        self._connection = connection
        self._tenure = tenure
        # In a database that was restored, another server may have been given the same number.
        self._life = [int8(tenure), incarnation.encode()]
        self._statements = _statements(schema)

    def progress(self, *, closing: bool = False) -> Progress:
        """How far the tables are. Raises StoreFencedError if the tenure has ended; whoever takes it
        over applies the rest (``closing``).
        """
        result = run(self._connection, self._statements["progress"], self._life)
        if not result.ntuples:
            # It is another one, or has gone back. The server finds out, and says so with numbers.
            raise RefusedError("", f"the database does not know tenure {self._tenure} any more")
        state = (result.get_value(0, 2) or b"").decode()
        if state == "closed" or (state == "closing" and not closing):
            raise StoreFencedError("another server has taken over")
        return Progress(read_int8(result.get_value(0, 0)), read_int8(result.get_value(0, 1)))

    def apply(self, bodies: Sequence[bytes], before: int, *, closing: bool = False) -> Progress:
        """Applies the records after this number; returns where the tables are then. Raises
        RefusedError.
        """
        at = Progress(before)
        window = Window()
        for number, body in enumerate(bodies, before + 1):
            view = memoryview(body)
            spans, _ = cut(view)
            for position, (batch, start, end) in enumerate(spans, 1):
                window.fold(decode_frame(view[start:end]))
                if window.is_closed() and position < len(spans):
                    # A record is applied as a whole or not at all, so both windows commit together.
                    self._transact(
                        [window, _rest(view, spans[position:])],
                        at,
                        number,
                        spans[-1][0],
                        closing=closing,
                    )
                    at, window = Progress(number, spans[-1][0]), Window()
                    break
                at.batch = batch
            else:
                if window.is_closed():
                    self._transact([window], at, number, at.batch, closing=closing)
                    at, window = Progress(number, at.batch), Window()
        last = before + len(bodies)
        if window.counters:
            self._transact([window], at, last, at.batch, closing=closing)
        return Progress(last, at.batch)

    def _transact(
        self, windows: Sequence[Window], at: Progress, record: int, batch: int, *, closing: bool
    ) -> None:
        connection = self._connection
        run(connection, b"BEGIN")
        try:
            found = self.progress(closing=closing)
            if found.applied != at.applied:
                raise StoreFencedError(
                    f"the tables are at record {found.applied}, not at {at.applied} as expected"
                )
            for window in windows:
                self._write(window)
            last = windows[-1]
            run(
                connection,
                self._statements["advance"],
                [int8(self._tenure), int8(record), int8(batch), last.counters.encode()],
            )
            # Last, because others wait for this row until the commit.
            for window in windows:
                self._write_events(window)
            run(connection, b"COMMIT")
        except BaseException:
            if connection.status == pq.ConnStatus.OK:
                connection.exec_(b"ROLLBACK")
            raise

    def _write(self, window: Window) -> None:
        """All rows but events; removals first, so that ids are free for new rows."""
        connection, words = self._connection, self._statements
        with_rows = list(window.dropped | window.replaced)
        for name, serials in (
            ("drop jobs", with_rows),
            *(
                (f"drop {t.name}", with_rows if t.is_of_row else list(window.dropped))
                for t in OF_JOB
            ),
            ("drop results", list(window.dropped_results)),
        ):
            if serials and name in words:
                run(connection, words[name], [array("bigint", serials)])
        for name in _STORED:
            if not TABLES[name].removed_last:
                self._remove(window.tables[name])
        if window.inserted:
            copy_in(connection, words["copy jobs"], copied(_inserted(window)))
        if window.updated:
            columns = list(zip(*window.updated.values(), strict=True))
            values = [
                array(kind, column) for (_, kind), column in zip(_UPDATED, columns, strict=True)
            ]
            run(connection, words["update jobs"], values)
        for name in _STORED:
            self._upsert(window.tables[name])
        for name in _STORED:
            if TABLES[name].removed_last and window.tables[name].removed:
                run(connection, words[f"remove {name}"])

    def _remove(self, changes: Changes) -> None:
        if not changes.removed:
            return
        table = changes.table
        statement = self._statements[f"remove {table.name}"]
        if table.name in _REMOVED_BY:
            for removal in changes.removed:
                run(self._connection, statement, [int8(number) for number in removal])
        else:
            keys = [key[0] for key in changes.removed]
            kind = "bigint" if table.removed_by == "serial = ?" else _KINDS[table.key[0]]
            run(self._connection, statement, [array(kind, keys)])

    def _upsert(self, changes: Changes) -> None:
        rows = list(changes.rows())
        if not rows:
            return
        table = changes.table
        columns = list(zip(*rows, strict=True))
        kinds = [_KINDS[column] for column in (*table.key, *table.columns)]
        values = [array(kind, column) for kind, column in zip(kinds, columns, strict=True)]
        run(self._connection, self._statements[f"upsert {table.name}"], values)

    def _write_events(self, window: Window) -> None:
        if window.events_dropped_to:
            self._drop_events(window.events_dropped_to)
        if not window.events:
            return
        count = len(window.events)
        result = run(self._connection, self._statements["count events"], [int8(count)])
        if read_int8(result.get_value(0, 0)) != window.events_after + count:
            raise RefusedError("XX000", "events were numbered by another server")
        bodies = window.events[max(0, window.events_dropped_to - window.events_after) :]
        after = max(window.events_after, window.events_dropped_to)
        rows = list(join_events(after, bodies))
        if rows:
            seqs, counts, packed = zip(*rows, strict=True)
            run(
                self._connection,
                self._statements["add events"],
                [
                    int8(self._tenure),
                    array("bigint", seqs),
                    array("bigint", counts),
                    array("bytea", packed),
                ],
            )

    def _drop_events(self, seq: int) -> None:
        """Drops all events up to this one: whole rows, and the beginning of the next row."""
        connection, words = self._connection, self._statements
        run(connection, words["drop events"], [int8(seq)])
        result = run(connection, words["first events"])
        if not result.ntuples:
            return
        last_seq, count = read_int8(result.get_value(0, 0)), read_int8(result.get_value(0, 1))
        if last_seq - count < seq:
            kept = split_events(count, result.get_value(0, 2) or b"")[seq - last_seq :]
            values = [int8(last_seq), int8(len(kept)), b"".join(kept)]
            run(connection, words["shorten events"], values)


def _rest(view: memoryview, spans: Sequence[tuple[int, int, int]]) -> Window:
    """The frames after one that closed its window."""
    window = Window()
    for _, start, end in spans:
        window.fold(decode_frame(view[start:end]))
    return window


def _inserted(window: Window) -> Iterator[Sequence[Any]]:
    return iter(window.inserted.values())


def _statements(schema: str) -> dict[str, bytes]:
    """Everything that a window runs, by what it is for."""
    names = ", ".join(column for column, _ in _UPDATED)
    kinds = ", ".join(f"${n}::{kind}[]" for n, (_, kind) in enumerate(_UPDATED, 1))
    sets = ", ".join(f"{column} = changed.{column}" for column, _ in _UPDATED[1:])
    found = {
        "progress": (
            f"SELECT applied, batch, state FROM {schema}.progress JOIN {schema}.tenures"
            " USING(tenure) WHERE tenure = $1 AND incarnation = $2 FOR UPDATE OF progress"
        ),
        "advance": (
            f"UPDATE {schema}.progress SET applied = $2, batch = $3, counters = $4"
            " WHERE tenure = $1"
        ),
        "copy jobs": f"COPY {schema}.jobs FROM STDIN (FORMAT binary)",
        "update jobs": (
            f"UPDATE {schema}.jobs SET {sets} FROM unnest({kinds}) AS changed({names})"
            " WHERE jobs.serial = changed.serial"
        ),
        "drop jobs": f"DELETE FROM {schema}.jobs WHERE serial = ANY($1::bigint[])",
        "drop results": (
            f"UPDATE {schema}.jobs SET result = NULL, result_until = NULL"
            " WHERE serial = ANY($1::bigint[])"
        ),
        "count events": f"UPDATE {schema}.event_counter SET seq = seq + $1 RETURNING seq",
        "add events": (
            f"INSERT INTO {schema}.events SELECT seq, count::integer, $1, bodies"
            " FROM unnest($2::bigint[], $3::bigint[], $4::bytea[]) AS e(seq, count, bodies)"
        ),
        "drop events": f"DELETE FROM {schema}.events WHERE last_seq <= $1",
        "first events": (
            f"SELECT last_seq, count::bigint, bodies FROM {schema}.events ORDER BY last_seq LIMIT 1"
        ),
        "shorten events": (
            f"UPDATE {schema}.events SET count = $2::bigint::integer, bodies = $3"
            " WHERE last_seq = $1"
        ),
    }
    for table in _STORED.values():
        found |= _statements_of(table, schema)
    return {name: text.encode() for name, text in found.items()}


def _statements_of(table: Table, schema: str) -> dict[str, str]:
    name = f"{schema}.{table.name}"
    columns = (*table.key, *table.columns)
    arrays = ", ".join(f"${n}::{_KINDS[column]}[]" for n, column in enumerate(columns, 1))
    sets = ", ".join(f"{column} = EXCLUDED.{column}" for column in table.columns)
    keeps = table.keeps_first or not table.columns or table.name == "terms"
    then = "NOTHING" if keeps else f"UPDATE SET {sets}"
    if table.removed_last:
        condition = (
            f"NOT EXISTS (SELECT 1 FROM {schema}.failures WHERE failures.group_id ="
            " failure_groups.group_id)"
        )
    elif table.name in _REMOVED_BY:
        condition = _REMOVED_BY[table.name]
    else:
        column = table.removed_by.removesuffix(" = ?")
        condition = f"{column} = ANY($1::{_KINDS[column]}[])"
    found = {
        f"upsert {table.name}": (
            f"INSERT INTO {name}({', '.join(columns)}) SELECT * FROM unnest({arrays})"
            f" ON CONFLICT ({', '.join(table.key)}) DO {then}"
        ),
        f"remove {table.name}": f"DELETE FROM {name} WHERE {condition}",
    }
    if table.is_of_job:
        found[f"drop {table.name}"] = f"DELETE FROM {name} WHERE serial = ANY($1::bigint[])"
    return found

"""A window of frames leaves the same database as the frames one after the other."""

from random import Random

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.store.records.fold import Window
from manyhands.store.records.frames import Frame, cut, decode_frame, pack
from manyhands.store.records.rows import split_events
from manyhands.store.records.tables import TABLES as DECLARED
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.writer.apply import Applier

SETTINGS = ("queues", "limits", "schedules", "cursors", "bulks")
TABLES = (
    "jobs",
    "payloads",
    "tags",
    "partials",
    "terms",
    "events",
    "failures",
    "failure_groups",
    "bulks",
    "audit",
    "history",
    "queues",
    "limits",
    "schedules",
    "cursors",
    "facts",
)
SERIALS = range(1, 7)
NAMES = ("a", "b", "c")
STATES = ("ready", "leased", "completed")


def some(random, words, chance=0.4):
    return [word for word in words if random.random() < chance]


def ending(random):
    """Of an update or a row: finished_at, result_until."""
    return random.choice((None, 1, 9)), random.choice((None, 2, 8))


def job_row(random, serial):
    """A new or replaced job; ids are shared by serials that are never there together."""
    return (
        serial,
        random.choice((f"id{serial}", f"id{serial % 3}")),
        None,
        random.choice(NAMES),
        random.choice(STATES),
        *ending(random),
        None,
        None,
        1,
        5,
        None,
        "realm",
        "",
        "address",
        b"record %f" % random.random(),
        b"p",
        random.choice((None, b"result")),
    )


def update(random, serial):
    return (
        serial,
        random.choice(NAMES),
        random.choice(STATES),
        *ending(random),
        b"record %f" % random.random(),
        random.choice((None, b"", b"result")),
    )


def frames(random):
    """Frames as a server may send them: what is there is known from those before, so that no two
    jobs have one id at the same time; all else is random.
    """
    made = []
    held: dict[int, str] = {}  # serial -> id
    seq = 0
    for number in range(1, random.randrange(2, 10)):
        dropped = some(random, list(held), 0.2)
        for serial in dropped:
            del held[serial]
        replaced = some(random, list(held), 0.2)
        inserted = []
        for serial in replaced:
            row = job_row(random, serial)
            inserted.append((serial, held[serial], *row[2:]))
        for serial in some(random, SERIALS):
            row = job_row(random, serial)
            if serial not in held and row[1] not in held.values():
                held[serial] = row[1]
                inserted.append(row)
        written = [row[0] for row in inserted]
        pieces = [(random.choice(SERIALS), random.randrange(1, 6)) for _ in range(3)]
        seq_before = seq
        events = [{"n": number} for _ in range(random.randrange(4))]
        seq += len(events)
        gone = [
            *(("jobs", (serial,), None) for serial in dropped),
            *(("results", (serial,), None) for serial in some(random, SERIALS, 0.2)),
            *(("events", (n,), None) for n in some(random, (seq, max(0, seq - 2)), 0.2)),
            *(("replaced", (serial,), None) for serial in replaced),
        ]
        others = other_rows(random, number, written, held)
        random.shuffle(others)
        for serial, piece in pieces:
            others.append(("partials", (serial, piece, piece - 2), None))
            others.append(("partials", (serial, piece), (0, 0, b"x")))
        others += random.choice(([], [], [("failure_groups", (), None)]))
        frame = Frame(
            number=number,
            counters=f'"{number}"',
            inserted=inserted,
            # Also of jobs that are not there: then it changes nothing.
            updated=[update(random, serial) for serial in some(random, SERIALS)],
            events_after=seq_before,
            events=events,
            rows=by_table([*gone, *others]) if dropped or replaced or random.random() < 0.8 else {},
        )
        made.append(frame)
    return made


def by_table(rows):
    """Those of one table together, as a server sends them: groups of failures behind failures."""
    found = {}
    for table, key, record in sorted(rows, key=lambda row: row[0] == "failure_groups"):
        found.setdefault(table, []).append((key, record))
    return found


def rows_in(frame):
    return [(table, *row) for table, found in frame.rows.items() for row in found]


def other_rows(random, number, written, held):
    """Rows whose order does not matter to a server: they are written and removed in any."""
    rows = [("terms", (number,), ("t",))]
    rows += [("terms", (n,), None) for n in some(random, range(1, number), 0.1)]
    rows += [("payloads", (s,), (random.randbytes(3),)) for s in some(random, written)]
    rows += [("tags", (tag, s), ()) for s in written for tag in some(random, NAMES)]
    rows += [
        (table, (s,), None) for table in ("payloads", "tags") for s in some(random, SERIALS, 0.05)
    ]
    for queue in some(random, NAMES):
        for step in some(random, (1, 2)):
            rows.append(("history", (queue, step, random.randrange(6)), (random.randbytes(3),)))
    rows += [("history", (step, random.randrange(6)), None) for step in some(random, (1, 2), 0.2)]
    rows += [("failures", (serial,), None) for serial in some(random, SERIALS, 0.2)]
    for serial in some(random, held, 0.3):
        rows.append(("failures", (serial,), (random.choice(NAMES), "c", "q", number)))
    for name in some(random, NAMES):
        rows.append(("failure_groups", (name,), ("c", f"line {random.random()}")))
    rows += [("audit", (n,), (f"entry {random.random()}",)) for n in some(random, range(1, 9), 0.2)]
    rows += [("audit", (n,), None) for n in some(random, range(1, 9), 0.05)]
    for table in SETTINGS:
        rows += [(table, (name,), (f"{random.random()}",)) for name in some(random, NAMES)]
        rows += [(table, (name,), None) for name in some(random, NAMES)]
    return rows


def database():
    connection = apsw.Connection(":memory:")
    schema._run(connection, schema.MIGRATIONS)
    return connection


def packed(made):
    for frame in made:
        data = bytes(pack(frame))
        ((number, start, end),) = cut(data)[0]
        yield number, memoryview(data)[start:end]


def apply(connection, windows):
    applier = Applier(connection, "00")
    for window in windows:
        for _ in applier.apply(window):
            pass


# What a row means, statement by statement: what it writes, and what goes without a record.
UPSERTS = {
    "terms": "INSERT INTO terms VALUES(?, ?, NULL)",
    "payloads": "INSERT INTO payloads VALUES(?, ?)",
    "tags": "INSERT INTO tags VALUES(?, ?)",
    "partials": "INSERT INTO partials VALUES(?, ?, ?, ?, ?, NULL)",
    "failures": "INSERT OR REPLACE INTO failures VALUES(?, ?, ?, ?, ?)",
    "failure_groups": "INSERT OR IGNORE INTO failure_groups VALUES(?, ?, ?)",
    "history": "INSERT OR REPLACE INTO history VALUES(?, ?, ?, ?, NULL)",
    "audit": "INSERT OR REPLACE INTO audit VALUES(?, ?, NULL)",
    **{table: f"INSERT OR REPLACE INTO {table} VALUES(?, ?, NULL)" for table in SETTINGS},
}
REMOVALS = {
    "jobs": [
        f"DELETE FROM {table} WHERE serial = ?"
        for table in ("jobs", "tags", "partials", "payloads", "failures")
    ],
    "replaced": [f"DELETE FROM {table} WHERE serial = ?" for table in ("jobs", "tags", "payloads")],
    "results": ["UPDATE jobs SET result = NULL, result_until = NULL WHERE serial = ?"],
    "terms": ["DELETE FROM terms WHERE terms_id = ?"],
    "payloads": ["DELETE FROM payloads WHERE serial = ?"],
    "tags": ["DELETE FROM tags WHERE serial = ?"],
    "partials": ["DELETE FROM partials WHERE serial = ? AND (number >= ? OR number < ?)"],
    "failures": ["DELETE FROM failures WHERE serial = ?"],
    "failure_groups": [
        "DELETE FROM failure_groups WHERE NOT EXISTS"
        " (SELECT 1 FROM failures WHERE failures.group_id = failure_groups.group_id)"
    ],
    "history": ["DELETE FROM history WHERE step_ms = ? AND at < ?"],
    "audit": ["DELETE FROM audit WHERE seq <= ?"],
    **{table: [f"DELETE FROM {table} WHERE name = ?"] for table in SETTINGS},
}
INSERT_JOB = f"INSERT INTO jobs VALUES({'?, ' * 15}CAST(? AS TEXT), ?, ?, NULL, NULL, NULL)"
UPDATE_JOB = (
    "UPDATE jobs SET queue = ?2, state = ?3, finished_at = ?4, result_until = ?5,"
    " record = CAST(?6 AS TEXT), result = ?7 WHERE serial = ?1"
)


def apply_singly(connection, every):
    for number, packed_frame in every:
        frame = decode_frame(packed_frame)
        events_dropped_to = 0
        for table, key, record in rows_in(frame):
            if table == "events":
                events_dropped_to = max(events_dropped_to, key[0])
            elif record is None:
                for statement in REMOVALS[table]:
                    connection.execute(statement, key)
            else:
                connection.execute(UPSERTS[table], (*key, *record))
        connection.executemany(INSERT_JOB, frame.inserted)
        connection.executemany(UPDATE_JOB, frame.updated)
        for seq, body in enumerate(frame.events, frame.events_after + 1):
            connection.execute("INSERT INTO events VALUES(?, 1, ?, NULL)", (seq, bytes(body)))
        connection.execute("DELETE FROM events WHERE last_seq <= ?", (events_dropped_to,))
        mark = f'{{"epoch":"00","applied":{number}}}'
        facts = (("counters", frame.counters), ("journal", mark))
        connection.executemany("INSERT OR REPLACE INTO facts VALUES(?, ?, NULL)", facts)
    schema.sum_up(connection)


def rows(connection):
    found = {
        table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
        for table in TABLES
    }
    # However many are in a row.
    found["events"] = [
        (last_seq - count + n, bytes(body))
        for last_seq, count, bodies, _ in found["events"]
        for n, body in enumerate(split_events(count, bodies), 1)
    ]
    verdict = connection.execute("PRAGMA integrity_check").get
    connection.close()
    return verdict, found


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_folded_frames_leave_what_single_ones_leave(seed, size):
    every = list(packed(frames(Random(seed))))
    singly, together, in_parts = database(), database(), database()

    apply_singly(singly, every)
    apply(together, [every])
    apply(in_parts, [every[i : i + size] for i in range(0, len(every), size)])

    expected = rows(singly)
    assert expected[0] == "ok"
    assert rows(together) == expected
    assert rows(in_parts) == expected


def test_every_table_is_written_and_emptied_by_some_of_the_frames_above():
    made = [frame for seed in range(30) for frame in frames(Random(seed))]

    rows = [row for frame in made for row in rows_in(frame)]
    assert {table for table, _, record in rows if record is not None} == set(DECLARED)
    removed = {table for table, _, record in rows if record is None}
    assert removed == {*DECLARED, "jobs", "replaced", "results", "events"}


def test_a_job_that_comes_and_goes_in_a_window_is_one_row():
    kept = [None, None, 1, 5, b"key", "gearman", "", "::1"]
    row = [1, "id", None, "q", "ready", None, None, *kept, b"r1", b"p", None]
    window = Window()
    for frame in (
        Frame(number=1, counters="", inserted=[row]),
        Frame(number=2, counters="", updated=[[1, "q", "leased", None, None, b"r2", None]]),
        Frame(number=3, counters="", updated=[[1, "q", "completed", 5, 9, b"r3", b"result"]]),
    ):
        window.fold(decode_frame(bytes(pack(frame))[16:]))

    final = [1, "id", None, "q", "completed", 5, 9, *kept, b"r3", b"p", b"result"]
    assert list(window.inserted.values()) == [final]
    assert not window.updated


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("field", ["payload", "result", "later result"])
def test_large_values_are_written_beside_whatever_else_there_is_to_do(field, size):
    large = bytes(size)
    row = list(job_row(Random(1), 1))
    row[16:18] = large if field == "payload" else b"p", large if field == "result" else None
    changed = [1, "q", "completed", 5, 9, b"record", large]
    frame = Frame(
        number=1,
        counters="{}",
        inserted=[row],
        updated=[changed] if field == "later result" else [],
    )
    beside = []

    def work_beside(work):
        beside.append(work)
        work()

    for _ in Applier(database(), "00", work_beside).apply(list(packed([frame]))):
        pass

    assert len(beside) == (2 if size == 100_000 else 1)  # the commit always is

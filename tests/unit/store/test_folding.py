"""A window of frames leaves the same database as the frames one after the other."""

from random import Random

import apsw
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.store import schema
from manyhands.store.applying import Applier
from manyhands.store.folding import SETTINGS, Window
from manyhands.store.frames import Frame, Rarities, cut, decode_frame, pack
from manyhands.store.rows import split_events

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
        fields = {}
        for table in SETTINGS:
            fields[table] = [(name, f"{table} {random.random()}") for name in some(random, NAMES)]
            fields[f"removed_{table}"] = [(name,) for name in some(random, NAMES)]
        rarities = Rarities(
            dropped_jobs=[(serial,) for serial in dropped],
            dropped_results=[(serial,) for serial in some(random, SERIALS, 0.2)],
            events_dropped_to=random.choice((0, 0, seq, max(0, seq - 2))),
            terms=[(number, "t")],
            replaced=[(serial,) for serial in replaced],
            payloads=[(s, random.randbytes(3)) for s in some(random, written)],
            tagged=[(tag, s) for s in written for tag in some(random, NAMES)],
            partials=[(s, n, n - 2, 0, 0, b"x") for s, n in pieces],
            samples=[
                (queue, step, random.randrange(6), random.randbytes(3))
                for queue in some(random, NAMES)
                for step in some(random, (1, 2))
            ],
            dropped_samples=[(step, random.randrange(6)) for step in some(random, (1, 2), 0.2)],
            mended=[(serial,) for serial in some(random, SERIALS, 0.2)],
            failures=[(s, random.choice(NAMES), "c", "q", number) for s in some(random, held, 0.3)],
            failure_groups=[(name, "c", f"line {random.random()}") for name in some(random, NAMES)],
            audit=[(n, f"entry {random.random()}") for n in some(random, range(1, 9), 0.2)],
            audit_dropped_to=[(n,) for n in some(random, range(1, 9), 0.05)],
            dropped_terms=[(n,) for n in some(random, range(1, number), 0.1)],
            dropped_groups=random.choice(([], [], [()])),
            **fields,
        )
        frame = Frame(
            number=number,
            counters=f'"{number}"',
            inserted=inserted,
            # Also of jobs that are not there: then it changes nothing.
            updated=[update(random, serial) for serial in some(random, SERIALS)],
            events_after=seq_before,
            events=events,
            rarities=rarities if dropped or replaced or random.random() < 0.8 else None,
        )
        made.append(frame)
    return made


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


# What a frame means, statement by statement: first what it drops, then what it writes.
STATEMENTS = (
    ("dropped_jobs", "DELETE FROM jobs WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM tags WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM partials WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM payloads WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM failures WHERE serial = ?"),
    ("dropped_results", "UPDATE jobs SET result = NULL, result_until = NULL WHERE serial = ?"),
    ("terms", "INSERT INTO terms VALUES(?, ?)"),
    ("replaced", "DELETE FROM jobs WHERE serial = ?"),
    ("replaced", "DELETE FROM tags WHERE serial = ?"),
    ("replaced", "DELETE FROM payloads WHERE serial = ?"),
    ("inserted", f"INSERT INTO jobs VALUES({', '.join('?' * 15)}, CAST(? AS TEXT), ?, ?)"),
    ("payloads", "INSERT INTO payloads VALUES(?, ?)"),
    (
        "updated",
        "UPDATE jobs SET queue = ?2, state = ?3, finished_at = ?4, result_until = ?5,"
        " record = CAST(?6 AS TEXT), result = ?7 WHERE serial = ?1",
    ),
    ("mended", "DELETE FROM failures WHERE serial = ?"),
    ("failures", "INSERT OR REPLACE INTO failures VALUES(?, ?, ?, ?, ?)"),
    ("failure_groups", "INSERT OR IGNORE INTO failure_groups VALUES(?, ?, ?)"),
    ("tagged", "INSERT INTO tags VALUES(?, ?)"),
    ("samples", "INSERT OR REPLACE INTO history VALUES(?, ?, ?, ?)"),
    ("dropped_samples", "DELETE FROM history WHERE step_ms = ? AND at < ?"),
    *(
        statement
        for table in SETTINGS
        for statement in (
            (table, f"INSERT OR REPLACE INTO {table} VALUES(?, ?)"),
            (f"removed_{table}", f"DELETE FROM {table} WHERE name = ?"),
        )
    ),
    ("audit", "INSERT OR REPLACE INTO audit VALUES(?, ?)"),
    ("audit_dropped_to", "DELETE FROM audit WHERE seq <= ?"),
    ("dropped_terms", "DELETE FROM terms WHERE terms_id = ?"),
    (
        "dropped_groups",
        "DELETE FROM failure_groups WHERE NOT EXISTS"
        " (SELECT 1 FROM failures WHERE failures.group_id = failure_groups.group_id)",
    ),
)


def apply_singly(connection, every):
    for number, packed_frame in every:
        frame = decode_frame(packed_frame)
        rarities = frame.rarities or Rarities()
        for field, statement in STATEMENTS:
            part = frame if field in ("inserted", "updated") else rarities
            connection.executemany(statement, getattr(part, field))
        for serial, piece, oldest, at, warning, payload in rarities.partials:
            connection.execute(
                "DELETE FROM partials WHERE serial = ? AND (number >= ? OR number < ?)",
                (serial, piece, oldest),
            )
            values = (serial, piece, at, warning, payload)
            connection.execute("INSERT INTO partials VALUES(?, ?, ?, ?, ?)", values)
        for seq, body in enumerate(frame.events, frame.events_after + 1):
            connection.execute("INSERT INTO events VALUES(?, 1, ?)", (seq, bytes(body)))
        connection.execute("DELETE FROM events WHERE last_seq <= ?", (rarities.events_dropped_to,))
        mark = f'{{"epoch":"00","applied":{number}}}'
        facts = (("counters", frame.counters), ("journal", mark))
        connection.executemany("INSERT OR REPLACE INTO facts VALUES(?, ?)", facts)


def rows(connection):
    found = {
        table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
        for table in TABLES
    }
    # However many are in a row.
    found["events"] = [
        (last_seq - count + n, bytes(body))
        for last_seq, count, bodies in found["events"]
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


def test_every_field_of_a_frame_is_in_some_of_the_frames_above():
    made = [frame for seed in range(30) for frame in frames(Random(seed))]

    unused = [
        field.name
        for parts in (made, [frame.rarities for frame in made if frame.rarities is not None])
        for field in msgspec.structs.fields(parts[0])
        if not any(getattr(part, field.name) for part in parts)
    ]

    assert unused == []


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

"""The journal on a real PostgreSQL: an append happens once, whatever breaks, up to the fence."""

import select
import threading

import pytest

from manyhands.config.database import read_address
from manyhands.store.contract import StoreFailedError, StoreFencedError
from manyhands.store.postgres import schema, tenure
from manyhands.store.postgres.append import Appender
from manyhands.store.postgres.sessions import connect
from tests.databases import database

SECONDS_MAX = 60.0


class Journal:
    """A tenure of its own, and what was acknowledged of it."""

    def __init__(self, url: str) -> None:
        self.address = read_address(url)
        with connect(self.address) as connection:
            schema.migrate(connection, self.address)
            joined = tenure.join(
                connection,
                self.address.schema,
                server="a",
                address="here",
                incarnation=f"{id(self)}",
                beside=tenure.others(connection, self.address.schema),
            )
            assert joined is not None
            self.tenure = joined.number
            self.joined = joined
            row = connection.execute(
                f"SELECT value FROM {self.address.schema}.facts WHERE key = 'cluster'"
            ).fetchone()
        self.poll = select.epoll()
        self.acknowledged: list[int] = []
        self.batch = 0
        self.appender = Appender(
            self.address,
            row[0],
            self.joined,
            self.poll,
            lambda record: self.acknowledged.append(record.number),
        )

    def append(self, body: bytes = b"frame") -> None:
        self.batch += 1
        self.appender.send(body, self.batch)

    def settle(self) -> None:
        """Works until everything is durable."""
        while self.appender.has_unsettled():
            assert self.poll.poll(SECONDS_MAX), "nothing happened"
            self.appender.work()

    def records(self) -> list[tuple[int, int, bytes]]:
        with connect(self.address) as connection:
            rows = connection.execute(
                f"SELECT record, kind, body FROM {self.address.schema}.journal"
                " WHERE tenure = %s ORDER BY record",
                (self.tenure,),
            ).fetchall()
        return [(record, kind, bytes(body)) for record, kind, body in rows]

    def run(self, sql: str, *values: object) -> None:
        with connect(self.address) as connection:
            connection.execute(sql.format(s=self.address.schema), values)

    def close(self) -> None:
        self.appender.close()
        self.poll.close()


@pytest.fixture
def journal(postgresql):
    one = Journal(postgresql.url(postgresql.new_schema()))
    yield one
    one.close()


def test_frames_that_gather_during_an_append_are_one_record(journal):
    """S4."""
    for number in range(5):
        journal.append(b"%d" % number)
    journal.settle()

    assert journal.records() == [(1, 0, b"0"), (2, 0, b"1234")]
    assert journal.acknowledged == [1, 2]


def test_a_large_frame_is_a_record_of_its_own(journal):
    """S4."""
    large = b"x" * (5 * 1024 * 1024)
    for body in (b"a", b"b", large, b"c"):
        journal.append(body)
    journal.settle()

    assert [body for _, _, body in journal.records()] == [b"a", b"b", large, b"c"]


def test_a_cut_connection_is_made_again_and_nothing_is_lost_or_doubled(journal, postgresql):
    """S6."""
    for number in range(20):
        journal.append(b"%d," % number)
        postgresql.terminate()
        journal.append(b"%d;" % number)
        journal.settle()

    records = journal.records()
    assert [record for record, _, _ in records] == list(range(1, len(records) + 1))
    assert journal.acknowledged == [record for record, _, _ in records]
    bodies = b"".join(body for _, _, body in records)
    assert bodies == b"".join(b"%d,%d;" % (number, number) for number in range(20))
    assert journal.appender.counts.reconnects >= 20


def test_an_append_in_doubt_that_had_happened_counts_as_durable(journal, postgresql):
    """S6."""
    journal.append(b"first")
    journal.settle()
    journal.run("INSERT INTO {s}.journal VALUES(%s, 2, 0, 'second')", journal.tenure)
    postgresql.terminate()
    journal.append(b"second")
    journal.settle()

    assert journal.acknowledged == [1, 2]
    assert journal.records()[1:] == [(2, 0, b"second")]


def test_a_closing_record_ends_the_journal_for_good(journal):
    """S8."""
    journal.append(b"mine")
    journal.settle()
    with connect(journal.address) as connection:
        end = tenure.close_journal(connection, journal.address.schema, journal.tenure)
    journal.append(b"late")

    with pytest.raises(StoreFencedError):
        journal.settle()
    assert end == 2
    assert journal.acknowledged == [1]
    assert journal.records() == [(1, 0, b"mine"), (2, 1, b"")]


def test_a_server_that_slept_through_its_takeover_is_fenced_also_later(journal):
    """S9."""
    journal.append(b"mine")
    journal.settle()
    with connect(journal.address) as connection:
        (dead,) = tenure.others(connection, journal.address.schema)
        assert tenure.begin_closing(connection, journal.address.schema, dead, 99)
        tenure.close_journal(connection, journal.address.schema, journal.tenure)
        tenure.finish_closing(connection, journal.address.schema, journal.tenure, None)
    journal.append(b"late")

    with pytest.raises(StoreFencedError):
        journal.settle()
    assert journal.records() == [(2, 1, b"")]


def test_a_fenced_server_notices_when_it_connects_again(journal, postgresql):
    """S8."""
    with connect(journal.address) as connection:
        (dead,) = tenure.others(connection, journal.address.schema)
        assert tenure.begin_closing(connection, journal.address.schema, dead, 99)
    postgresql.terminate()
    journal.append(b"late")

    with pytest.raises(StoreFencedError):
        journal.settle()
    assert journal.records() == []


def test_a_database_that_lost_its_tail_gets_it_again(journal, postgresql):
    """S11 and S55."""
    for number in range(3):
        journal.append(b"%d" % number)
        journal.settle()
    journal.run("DELETE FROM {s}.journal WHERE record > 1")
    postgresql.terminate()
    journal.append(b"3")
    journal.settle()

    assert journal.records() == [(1, 0, b"0"), (2, 0, b"1"), (3, 0, b"2"), (4, 0, b"3")]
    assert journal.appender.counts.rewritten == 2


def test_a_database_that_went_back_beyond_what_is_kept_ends_the_server(journal, postgresql):
    """S55."""
    for number in range(3):
        journal.append(b"%d" % number)
        journal.settle()
    journal.appender._kept.popleft()
    journal.run("DELETE FROM {s}.journal")
    postgresql.terminate()
    journal.append(b"3")

    with pytest.raises(StoreFailedError, match=r"it ends at record 0, and 3 was acknowledged"):
        journal.settle()


def test_a_restored_backup_that_does_not_know_the_server_ends_it(journal, postgresql):
    """S55 and S77."""
    journal.run("DELETE FROM {s}.tenures")
    postgresql.terminate()
    journal.append(b"late")

    with pytest.raises(StoreFailedError, match="restored from a backup"):
        journal.settle()


def test_a_database_that_says_that_another_server_decides_has_gone_back(journal, postgresql):
    """Nobody has taken over, and the number of changes is no smaller."""
    journal.append(b"first")
    journal.settle()
    journal.appender.decides = True
    journal.run("UPDATE {s}.families SET tenure = 99")
    postgresql.terminate()
    journal.append(b"late")

    with pytest.raises(StoreFailedError, match="tenure 99 decides there"):
        journal.settle()
    assert journal.records() == [(1, 0, b"first")]


def test_everything_acknowledged_survives_immediate_restarts():
    """S79."""
    with database(durable=True) as one:
        journal = Journal(one.url())
        for number in range(3):
            restart = threading.Thread(target=one.restart)
            restart.start()
            for part in range(50):
                journal.append(b"%d.%d " % (number, part))
                journal.appender.work()
            restart.join()
            journal.settle()
        records = journal.records()
        journal.close()

    assert [record for record, _, _ in records] == list(range(1, len(records) + 1))
    assert journal.acknowledged == [record for record, _, _ in records]
    expected = b"".join(b"%d.%d " % (n, part) for n in range(3) for part in range(50))
    assert b"".join(body for _, _, body in records) == expected


def test_a_full_database_is_tried_again_and_says_so(journal):
    """S57."""
    journal.appender._lose("no room", is_full=True)
    assert journal.appender.is_full
    journal.append(b"later")
    journal.settle()

    assert not journal.appender.is_full
    assert journal.acknowledged == [1]

"""A journal that was not applied when the server ended is applied once, or refused."""

import errno
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from manyhands.model.commands import ByToken, Complete, SendPartial, SetTags
from manyhands.model.filter import Filter
from manyhands.model.job import State
from manyhands.store.contract import StoreError, StoreFailedError
from manyhands.store.sqlite import recovery, schema
from manyhands.store.sqlite.store import SqliteStore
from manyhands.store.sqlite.writer import journal, link
from manyhands.store.sqlite.writer.journal import (
    HEADER_BYTES,
    Header,
    decode_header,
    encode_header,
    next_start,
)
from tests.captured_logs import capture_logs
from tests.conformance.stores.older import make_older
from tests.conformance.stores.opened import ids
from tests.e2e.serving import run
from tests.e2e.test_sqlite_faults import FAULTY_WRITER, Disk


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def open_behind(data) -> Disk:
    """A store whose file holds nothing of what it is told, until somebody asks for it."""
    data.mkdir(mode=0o700, exist_ok=True)
    (data / "manyhands.db-behind").touch()
    return Disk(data, FAULTY_WRITER)


def kill(disk) -> None:
    os.kill(disk.writer_pid(), signal.SIGKILL)
    disk.close()


def rows_in_file(data) -> int:
    connection = apsw.Connection(str(data / schema.FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute("SELECT count(*) FROM jobs").get
    finally:
        connection.close()


@pytest.fixture
def left(data):
    """What a killed store leaves: ten jobs in ten records of the journal, none in the file."""
    disk = open_behind(data)
    acknowledged = disk.submit_and_commit(10)
    kill(disk)
    return acknowledged


def records(path) -> list[int]:
    """Where the records of a file begin."""
    content = path.read_bytes()
    starts = [0]
    while (header := decode_header(content, starts[-1])) is not None:
        starts.append(next_start(starts[-1] + HEADER_BYTES + header.length))
    return starts[:-1]


def damage(path, start, count=4):
    with path.open("r+b") as stream:
        stream.seek(start)
        stream.write(b"\xa5" * count)


def digests(data):
    files = [data / schema.FILE_NAME, *journal.segments(data)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(data) -> str:
    before = digests(data)
    with pytest.raises(StoreError) as caught:
        SqliteStore(data)
    assert digests(data) == before
    return str(caught.value)


def test_a_journal_is_applied_at_the_next_start_and_gone_after_the_next_stop(left, data):
    assert rows_in_file(data) == 0

    disk = Disk(data)
    assert disk.ready() == left
    assert disk.store.last_seq() == 10
    disk.close()

    assert journal.segments(data) == []
    assert not (data / "manyhands.db-wal").exists()
    assert rows_in_file(data) == 10


def test_a_large_journal_with_all_kinds_of_changes_is_applied_whole(data):
    disk = open_behind(data)
    for n in range(1_500):
        job = disk.submit(payload=os.urandom(3_000), tags=("t",), unique_key=b"%d" % n)
        if n % 3 == 0:
            (claimed,) = disk.claim()
            proof = ByToken(claimed.lease.token)
            disk.ask(SendPartial(job_id=claimed.job_id, proof=proof, payload=b"%d" % n))
            disk.commit()
            disk.ask(Complete(job_id=claimed.job_id, proof=proof, result=b"r%d" % n))
        elif n % 3 == 1:
            disk.commit()
            disk.ask(SetTags(job.job_id, add=("late",)))
        disk.commit()
    expected = dict(disk.store.live.jobs)
    events = disk.store.events_after(0, 1 << 20)
    assert sum(path.stat().st_size for path in journal.segments(data)) > 4_000_000
    assert len(journal.segments(data)) >= 3
    kill(disk)
    assert rows_in_file(data) == 0

    disk = Disk(data)
    assert {job.job_id: disk.job(job.job_id) for job in expected.values()} == expected
    assert disk.store.events_after(0, 1 << 20) == events
    assert disk.store.live.counts_of("q")[State.COMPLETED] == 500
    assert len(disk.store.search(Filter(tag="late", count_max=1_000)).jobs) == 500
    done = disk.store.search(Filter(states=(State.COMPLETED,), count_max=1_000)).jobs
    assert all(disk.store.partials(job.job_id)[0].payload in job.result for job in done)
    disk.close()


def test_a_crash_while_the_journal_is_applied_at_the_start_changes_nothing(left, data):
    # The first start got as far as a commit, and died before it removed the journal.
    kept = {path: path.read_bytes() for path in journal.segments(data)}
    Disk(data).close()
    connection = apsw.Connection(str(data / schema.FILE_NAME))
    assert json.loads(connection.execute("SELECT value FROM facts WHERE key='journal'").get) == {
        "epoch": decode_header(next(iter(kept.values())), 0).epoch.hex(),
        "applied": 10,
    }
    connection.close()
    for path, content in kept.items():
        path.write_bytes(content)

    disk = Disk(data)
    assert disk.ready() == left
    assert disk.store.last_seq() == 10
    disk.close()


@pytest.mark.parametrize("place", [0, HEADER_BYTES + 30])
def test_a_last_record_that_is_torn_was_never_acknowledged(left, data, place):
    (path,) = journal.segments(data)
    damage(path, records(path)[-1] + place)

    with capture_logs() as lines:
        disk = Disk(data)
    assert [line["batches"] for line in lines] == ([1] if place else [])  # else nothing is there
    assert disk.ready() == left[:-1]
    assert disk.submit_and_commit(1)[0] in disk.ready()
    disk.close()


@pytest.mark.parametrize("place", [0, 20, HEADER_BYTES + 30])
@pytest.mark.parametrize("number", [0, 5, 8])
@pytest.mark.usefixtures("left")
def test_a_record_that_is_damaged_before_others_is_refused(data, number, place):
    (path,) = journal.segments(data)
    damage(path, records(path)[number] + place)

    sentence = refused(data)

    assert f"{path} is damaged: frame {number + 1} of the journal is missing" in sentence
    assert "backup" in sentence


@pytest.mark.parametrize("place", [0, 100, -1])
@pytest.mark.usefixtures("left")
def test_a_file_that_is_shorter_than_it_was_made_is_refused(data, place):
    (path,) = journal.segments(data)
    os.truncate(path, records(path)[5] + place)

    sentence = refused(data)

    assert f"{path} is damaged: it ends after" in sentence
    assert "what was acknowledged may be missing" in sentence


def test_a_file_of_one_large_record_that_was_cut_off_is_refused(data):
    disk = open_behind(data)
    disk.submit(payload=bytes(5_000_000))
    disk.commit()
    kill(disk)
    path = journal.segments(data)[-1]
    os.truncate(path, path.stat().st_size - 100)

    assert f"{path} is damaged: it ends after" in refused(data)


def test_a_crash_while_a_file_of_the_journal_is_made_leaves_nothing_to_refuse(left, data):
    (data / "manyhands.new-journal").write_bytes(bytes(1_000))

    disk = Disk(data)
    assert disk.ready() == left
    disk.close()
    assert not (data / "manyhands.new-journal").exists()


def test_a_missing_file_between_others_is_refused(data):
    disk = open_behind(data)
    for _ in range(60):
        disk.submit(payload=bytes(100_000))
        disk.commit()
    kill(disk)
    found = journal.segments(data)
    assert len(found) >= 3
    found[1].unlink()

    assert "is missing" in refused(data)


@pytest.mark.usefixtures("left")
def test_a_frame_that_is_missing_within_a_record_is_refused(data):
    (path,) = journal.segments(data)
    content = path.read_bytes()
    starts = records(path)
    epoch = decode_header(content, 0).epoch
    frames = [
        content[start + HEADER_BYTES :][: decode_header(content, start).length] for start in starts
    ]
    body = b"".join((*frames[:2], *frames[3:]))
    header = encode_header(Header(epoch, 1, len(frames), len(body), zlib.crc32(body)))
    path.write_bytes((header + body).ljust(len(content), b"\0"))

    assert "frame 3 of the journal is missing" in refused(data)


def test_a_batch_that_never_reached_the_writer_is_not_passed_over(data):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(2)
    disk.submit()
    disk.store._collector.batch.number += 1  # as if another one had been before it

    with pytest.raises(StoreFailedError, match="batch 3 did not reach the process that writes"):
        disk.commit()

    disk.close()
    again = Disk(data)
    assert again.ready() == acknowledged
    again.close()


@pytest.mark.usefixtures("left")
def test_a_database_in_the_place_of_the_journals_own_is_refused(data, tmp_path):
    Disk(tmp_path / "other").close()
    (data / "manyhands.db-wal").unlink()
    (tmp_path / "other" / schema.FILE_NAME).replace(data / schema.FILE_NAME)

    sentence = refused(data)

    assert "the journal of another database" in sentence
    assert "move the journal's files away" in sentence


@pytest.mark.usefixtures("left")
def test_a_journal_without_its_database_is_refused(data):
    (data / schema.FILE_NAME).rename(data / "moved")
    (data / "manyhands.db-wal").unlink(missing_ok=True)

    with pytest.raises(StoreError, match="the journal of another database"):
        SqliteStore(data)

    assert not (data / schema.FILE_NAME).exists()


@pytest.mark.usefixtures("left")
def test_a_journal_of_a_much_older_version_is_left_to_that_version(data):
    connection = apsw.Connection(str(data / schema.FILE_NAME))
    connection.pragma("user_version", schema.OLDEST_REPLAYED - 1)
    connection.close()

    assert "an older version" in refused(data)


def test_a_copy_put_where_a_journal_lies_is_not_mistaken_for_its_database(data, tmp_path):
    disk = open_behind(data)
    disk.submit_and_commit(3)
    for _ in disk.store.backup(str(tmp_path / "copy.db")):
        pass
    disk.submit_and_commit(3)
    kill(disk)
    (data / "manyhands.db-wal").unlink()
    (tmp_path / "copy.db").replace(data / schema.FILE_NAME)

    assert "the journal of another database" in refused(data)
    for path in journal.segments(data):
        path.unlink()
    disk = Disk(data)
    assert len(disk.ready()) == 3
    disk.close()


def test_an_older_file_without_a_journal_is_opened(data):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(3)
    disk.close()
    make_older(data / schema.FILE_NAME, schema.MIGRATIONS.index(schema._JOURNAL))

    disk = Disk(data)
    assert disk.ready() == acknowledged
    acknowledged += disk.submit_and_commit(1)
    disk.close()
    disk = Disk(data)
    assert disk.ready() == acknowledged
    disk.close()


@pytest.mark.parametrize("running", [True, False])
def test_export_and_backup_tell_what_is_only_in_the_journal(data, tmp_path, running):
    disk = Disk(data) if running else open_behind(data)
    acknowledged = disk.submit_and_commit(10)
    if not running:
        os.kill(disk.writer_pid(), signal.SIGKILL)
        disk.close()

    exported = run("export", "--data", str(data))
    copied = run("backup", "--data", str(data), str(tmp_path / "copy.db"))

    assert exported.returncode == 0, exported.stderr
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [line["job"]["job_id"] for line in lines if line["kind"] == "job"] == acknowledged
    assert copied.returncode == 0, copied.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy.db").rename(tmp_path / "elsewhere" / schema.FILE_NAME)
    copy = Disk(tmp_path / "elsewhere")
    assert copy.ready() == acknowledged
    copy.close()
    if running:
        disk.close()


def test_readers_are_shown_what_is_only_in_the_journal(data):
    disk = open_behind(data)
    job = disk.submit(tags=("t",), job_id="c0ffee", id_chosen=True)
    disk.commit()
    (claimed,) = disk.claim()
    proof = ByToken(claimed.lease.token)
    disk.ask(SendPartial(job_id=job.job_id, proof=proof, payload=b"piece"))
    disk.ask(Complete(job_id=job.job_id, proof=proof, result=b"r"))
    disk.commit()
    disk.submit()  # and this is not committed

    assert rows_in_file(data) == 0
    store = disk.store
    assert store.find("c0ffee").state is State.COMPLETED
    assert store.find("0" * 32) is None
    assert not store.is_unsaved("c0ffee")
    assert [stored.seq for stored in store.events_after(0, 10)] == [1, 2, 3]
    assert [stored.seq for stored in store.events_after(1, 1)] == [2]
    assert [piece.payload for piece in store.partials("c0ffee")] == [b"piece"]  # asks for it
    assert rows_in_file(data) == 1
    assert ids(store.search(Filter(tag="t")).jobs) == ["c0ffee"]
    disk.settle()
    assert store.live.live_job("c0ffee") is None
    assert [stored.seq for stored in store.events_after(0, 10)] == [1, 2, 3, 4]
    assert [stored.seq for stored in store.events_after(3, 10)] == [4]
    disk.close()


def test_a_database_that_is_slow_to_commit_keeps_nobody_waiting(data):
    disk = Disk(data, FAULTY_WRITER)
    acknowledged = disk.submit_and_commit(1)
    disk.settle()
    held = data / "manyhands.db-hold-sync"
    held.touch()
    acknowledged += disk.submit_and_commit(1)
    disk.store._link.hurry()  # it is at it, or will be

    acknowledged += disk.submit_and_commit(30)
    assert rows_in_file(data) == 1
    held.unlink()
    disk.settle()

    assert rows_in_file(data) == 32
    assert disk.ready() == acknowledged
    disk.close()


def test_files_of_the_journal_are_used_again(data):
    disk = Disk(data)
    seen = set()
    for _ in range(40):
        for _ in range(10):
            disk.submit(payload=bytes(200_000))
        disk.commit()
        disk.settle()
        seen.update(path.name for path in journal.segments(data))
        assert len(journal.segments(data)) <= 4

    assert len(seen) >= 6
    kill(disk)
    disk = Disk(data)
    assert len(disk.ready()) == 400
    disk.close()


def test_a_write_of_which_the_system_takes_only_a_part_is_finished(data, monkeypatch):
    disk = Disk(data)
    disk.submit_and_commit(1)
    write = os.pwritev

    def write_some(descriptor, buffers, offset):
        some = b"".join(bytes(buffer) for buffer in buffers)[:7]
        return write(descriptor, (some,), offset)

    monkeypatch.setattr(journal.os, "pwritev", write_some)
    submit_at_once(disk)
    monkeypatch.undo()
    kill(disk)

    disk = Disk(data)
    assert len(disk.ready()) == 2
    disk.close()


def test_a_record_larger_than_a_piece_is_applied_at_the_next_start(data, monkeypatch):
    monkeypatch.setattr(recovery, "_PIECE_BYTES", 4 * journal.SECTOR_BYTES)
    disk = open_behind(data)
    made = [disk.submit(payload=os.urandom(20_000)) for _ in range(3)]
    disk.commit()
    kill(disk)

    disk = Disk(data)
    assert [disk.job(job.job_id).payload for job in made] == [job.payload for job in made]
    disk.close()


def test_a_stop_at_any_moment_after_a_commit_leaves_neither_journal_nor_log(data):
    for n in range(25):
        disk = Disk(data)
        disk.submit_and_commit(3)
        time.sleep(n / 1000)  # so that it falls before, into and after the writer's own answer
        disk.close()

        assert journal.segments(data) == []
        assert not (data / "manyhands.db-wal").exists()
    assert rows_in_file(data) == 75


# What the server makes durable itself, when few wait and the writer has nothing to do.


@pytest.fixture
def patient(monkeypatch):
    """However long a sync takes: the machine may be busy."""
    monkeypatch.setattr(link, "_SYNC_SECONDS_MAX", 3600.0)


def submit_at_once(disk, count=1) -> list[str]:
    """Ids of jobs that were durable when their commit was begun."""
    kept = []
    for _ in range(count):
        job = disk.submit(payload=os.urandom(200))
        assert disk.commit(at_once=True).is_durable
        kept.append(job.job_id)
    return kept


@pytest.mark.usefixtures("patient")
def test_the_server_and_its_writer_write_one_journal_by_turns(data):
    disk = open_behind(data)
    acknowledged = disk.submit_and_commit(2)
    acknowledged += submit_at_once(disk, 3)
    acknowledged += disk.submit_and_commit(2)
    acknowledged += submit_at_once(disk, 2)
    (path,) = journal.segments(data)
    assert len(records(path)) == 9
    kill(disk)
    assert rows_in_file(data) == 0

    disk = Disk(data)
    assert disk.ready() == acknowledged
    disk.close()


@pytest.mark.usefixtures("patient")
def test_what_the_server_made_durable_can_be_read_like_all_else(data):
    disk = open_behind(data)
    disk.submit_and_commit(1)
    submit_at_once(disk, 3)

    assert len(disk.store.search(Filter()).jobs) == 4
    disk.close()
    assert rows_in_file(data) == 4


@pytest.mark.usefixtures("patient")
def test_the_first_commit_and_one_without_room_are_left_to_the_writer(data):
    disk = Disk(data)
    for payload in (b"", bytes(100_000)):
        disk.submit(payload=payload)
        assert not disk.commit(at_once=True).is_durable
    # When a file is full, somebody has to make the next one.
    durable = []
    for _ in range(600):
        disk.submit(payload=bytes(8_000))
        durable.append(disk.commit(at_once=True).is_durable)
    assert durable.count(False) >= 1
    assert durable.count(True) >= 1  # how many depends on how quick the disk is
    count = len(disk.ready())
    disk.close()
    assert rows_in_file(data) == count


def test_a_server_that_dies_before_it_tells_the_writer_loses_nothing(data, monkeypatch):
    disk = Disk(data)
    disk.submit_and_commit(1)
    monkeypatch.setattr(disk.store._link, "send_more", lambda: None)

    submit_at_once(disk)
    disk.die()

    assert journal.segments(data) == []
    assert rows_in_file(data) == 2


def test_a_record_that_the_server_did_not_finish_is_no_record(data, monkeypatch):
    disk = Disk(data)
    disk.submit_and_commit(1)
    monkeypatch.setattr(disk.store._link, "send_more", lambda: None)
    submit_at_once(disk)
    (path,) = journal.segments(data)
    start = records(path)[1]
    damage(path, start + HEADER_BYTES + 40)

    disk.die()

    assert rows_in_file(data) == 1


@pytest.mark.usefixtures("patient")
def test_a_server_that_has_too_many_files_open_leaves_the_journal_to_the_writer(data, monkeypatch):
    disk = Disk(data)

    def fail(path, *_arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        for _ in range(3):
            disk.submit()
            assert not disk.commit(at_once=True).is_durable
    disk.submit()
    disk.commit()  # there are files again, and the writer says where the end is

    submit_at_once(disk)
    assert len(disk.ready()) == 5
    disk.close()


def test_a_disk_that_is_slow_to_sync_does_not_hold_up_the_server(data, monkeypatch):
    monkeypatch.setattr(link, "_SYNC_SECONDS_MAX", 0.0)
    monkeypatch.setattr(link, "_SYNC_SHARE", 1e-9)
    disk = Disk(data)
    disk.submit_and_commit(1)
    submit_at_once(disk)

    disk.submit()
    assert not disk.commit(at_once=True).is_durable
    disk.close()


class Seconds(list):
    """Some, and the clock that they pass on."""


@pytest.fixture
def syncs(monkeypatch):
    """How long each sync of the server's own is to take, by its clock."""
    seconds = Seconds()
    clock = seconds.clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    sync = os.fdatasync

    def slow(descriptor):
        sync(descriptor)
        clock.now += seconds.pop(0)

    monkeypatch.setattr(link, "time", clock)
    monkeypatch.setattr(os, "fdatasync", slow)
    return seconds


def kept_at_once(disk, count):
    found = []
    for _ in range(count):
        disk.submit()
        found.append(disk.commit(at_once=True).is_durable)
    return found


def test_a_disk_that_stumbles_once_is_not_taken_for_a_slow_one(data, syncs):
    disk = Disk(data)
    disk.submit_and_commit(1)

    syncs += [0.0002] * 10 + [0.05] + [0.0002] * 10
    assert kept_at_once(disk, 21) == [True] * 21
    disk.close()


def test_a_slow_disk_is_known_after_a_few_syncs(data, syncs):
    disk = Disk(data)
    disk.submit_and_commit(1)

    syncs += [0.02] * 3
    assert kept_at_once(disk, 6) == [True] * 3 + [False] * 3
    disk.close()


def test_a_disk_that_made_the_server_stand_still_does_so_once(data, syncs):
    disk = Disk(data)
    disk.submit_and_commit(1)

    syncs += [0.0002, 2.0]
    assert kept_at_once(disk, 12) == [True, True] + [False] * 10

    syncs.clock.now += 190.0  # the standstill is to be no more than a hundredth of the time
    assert kept_at_once(disk, 2) == [False, False]
    syncs.clock.now += 10.0
    disk.submit()
    batch = disk.store.begin_commit(disk.now)
    syncs.clock.now += 1.0  # the writer's sync takes its time as well
    while disk.store.finish_commits() < batch.number:
        select.select([disk.store.fileno()], [], [], 10)
    assert kept_at_once(disk, 1) == [False]

    syncs += [0.0002] * 3
    assert kept_at_once(disk, 3) == [True] * 3  # by now it was quick
    disk.close()


def test_what_had_no_hurry_reaches_the_writer_whole_whatever_room_there_is(data, syncs):
    disk = Disk(data)
    disk.submit_and_commit(1)
    store = disk.store
    store._link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
    syncs += [0.0] * 100
    for n in range(100):
        disk.submit(payload=bytes(n * 100))
        assert store.begin_commit(disk.now, at_once=True).is_durable
        assert store.finish_commits() == n + 2

    os.kill(disk.writer_pid(), signal.SIGSTOP)
    store.send_more()
    assert store.has_unsent()  # there was room for a part
    os.kill(disk.writer_pid(), signal.SIGCONT)
    while store.has_unsent():
        select.select([], [store.fileno()], [], 10)
        store.send_more()

    jobs = store.search(Filter(count_max=200)).jobs
    assert sorted(len(job.payload) for job in jobs) == sorted([200, *range(0, 10_000, 100)])
    disk.close()


def test_a_sync_of_the_servers_own_that_fails_ends_all_acknowledgement(data, monkeypatch):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(2)

    def fail(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        disk.submit()
        with pytest.raises(StoreFailedError, match="its journal failed: Input/output error"):
            disk.store.begin_commit(disk.now, at_once=True)
    with pytest.raises(StoreFailedError):
        disk.store.finish_commits()
    kill(disk)

    disk = Disk(data)
    # Whether the last one is there nobody knows: it was acknowledged to nobody.
    assert disk.ready()[:2] == acknowledged
    disk.close()


CHILD = """
import sys
import time
from pathlib import Path
from tests.e2e.test_journal import open_behind
disk = open_behind(Path(sys.argv[1]))
for job_id in disk.submit_and_commit(30):
    print(job_id, flush=True)
"""


def test_a_server_that_ends_without_a_word_has_its_journal_applied_by_its_writer(data):
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(data)],
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    disk = Disk(data)

    assert disk.ready() == ended.stdout.split()
    disk.close()

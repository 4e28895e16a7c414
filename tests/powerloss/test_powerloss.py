"""After a loss of power at any moment the store opens, and what was acknowledged is there."""

import os
import tempfile
from pathlib import Path
from random import Random

import apsw
import pytest
from msgspec.structs import replace

from manyhands.engine import plain
from manyhands.engine.effects import Effects
from manyhands.model.commands import ByToken, NewJob, Submit
from manyhands.model.job import Holder, Job, Lease, State
from manyhands.model.payload import Encoding
from manyhands.model.plain import PlainLeased, PlainReady
from manyhands.model.policy import Queue
from manyhands.store.collector import Collector
from manyhands.store.contract import StoreError
from manyhands.store.records.frames import Counters, FrameBuffer, mark_kept
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.sqlite import recovery, schema
from manyhands.store.sqlite.writer import apply, journal
from manyhands.store.sqlite.writer import process as writer
from manyhands.store.sqlite.writer.journal import Place, Tip
from manyhands.store.sqlite.writer.process import Writer
from tests.powerloss.disk import Disk, System, crashes

NOW = 1_700_000_000_000
BATCHES = 60
HOLDER = Holder("native", "w")


class Server:
    """The way of a batch from the index to the writer, in one process."""

    def __init__(self, file, random: Random, disk: Disk) -> None:
        self.random = random
        self.disk = disk
        self.collector = Collector(lambda _: None)
        self.packer = Packer(TermsBook(), None, 0)
        self.buffer = FrameBuffer()
        self.writer = Writer(file, check=False)
        self.writer.beside = self.beside
        self.tip = Tip(file.parent)
        self.kept_count = 0
        self.beside_count = 0
        self.applying = None
        # After each batch: job id -> state, and the last event.
        self.rows: list[dict[str, str]] = [{}]
        self.seqs = [0]

    def change(self) -> None:
        """New jobs of all sizes; some of the old ones go on."""
        index = self.collector.index
        effects = Effects(index, NOW)
        if index.queue("q") is None:
            effects.put_queue(Queue("q"))
        jobs = list(index.rare_jobs())
        for job in self.random.sample(jobs, min(5, len(jobs))):
            if job.state is State.READY:
                lease = Lease("token", 1, HOLDER, NOW)
                job = replace(job, state=State.LEASED, lease=lease)  # noqa: PLW2901
            else:
                job = replace(  # noqa: PLW2901
                    job, state=State.COMPLETED, lease=None, finished_at=NOW, result=b"r"
                )
            effects.enter(job, NOW)
        self.collector.write(effects)
        self.change_plainly()
        effects = Effects(index, NOW)
        for _ in range(self.random.randrange(1, 8)):
            job = Job(
                job_id=self.random.randbytes(16).hex(),
                queue="q",
                state=State.READY,
                payload=self.random.randbytes(self.random.choice((20, 200, 9_000))),
                position=index.take_position(),
            )
            effects.enter(job, NOW)
        self.collector.write(effects)

    def change_plainly(self) -> None:
        """The same with plain jobs, by the short way."""
        index = self.collector.index
        values = [value for value in index.values.values() if not isinstance(value, Job)]
        for value in self.random.sample(values, min(5, len(values))):
            if isinstance(value, PlainReady):
                change = plain.lease(value, HOLDER, "token", None, None, NOW)
            elif isinstance(value, PlainLeased):
                change, _ = plain.end(value, ByToken("token"), b"r", Encoding.BINARY, index, NOW)
            else:
                continue
            self.collector.write_plain((change,))
        items = [
            NewJob(
                job_id=self.random.randbytes(16).hex(),
                queue="q",
                payload=self.random.randbytes(self.random.choice((20, 200))),
            )
            for _ in range(self.random.randrange(4))
        ]
        for item in items:
            self.collector.write_plain(plain.submit(Submit((item,)), index, NOW))

    def beside(self, work) -> None:
        """While the database is at its commit, or its log is copied, the journal goes on."""
        meanwhile, self.disk.meanwhile = self.disk.meanwhile, self.go_on
        work()
        self.disk.meanwhile = meanwhile

    def go_on(self) -> None:
        if self.random.random() < 0.02:
            self.change()
            self.commit()
            self.beside_count += 1

    def commit(self) -> None:
        batch = self.collector.seal(NOW)
        index = self.collector.index
        counters = Counters(NOW, index.serial, self.collector.seq, index.position)
        packed = self.packer.pack(batch, counters, Removals())
        changed = {job.job_id: job.state.value for job in batch.jobs.values()}
        self.rows.append(self.rows[-1] | changed)
        self.seqs.append(self.collector.seq)
        if self.random.random() < 0.4:
            self.keep(batch.number, packed)
        self.writer.keep(*self.buffer.feed(bytes(packed)))
        self.disk.acknowledge(batch.number)
        self.collector.committed(batch.number)

    def keep(self, number: int, packed: bytearray) -> None:
        """The server makes a batch durable itself, if there is room for it."""
        told = self.writer.answer()
        if told.segment:
            self.tip.move(told.epoch, Place(told.segment, told.offset))
        if self.tip.has_room(len(packed)):
            self.tip.append(number, packed)
            mark_kept(packed)
            self.kept_count += 1

    def apply_some(self) -> None:
        """The database follows, some steps now and some after the next batch."""
        if self.applying is None and self.random.random() < 0.4:
            self.applying = self.writer.apply()
        for _ in range(self.random.randrange(30)):
            if self.applying is not None and next(self.applying, self) is self:
                self.applying = None
                self.collector.applied(self.writer.applied)
                self.writer.tidy(idle=True)


def record(tmp_path, monkeypatch, without=frozenset()):
    """What happened on the disk, what it held before, and what each batch makes of the jobs."""
    file = tmp_path / schema.FILE_NAME
    schema.create(file)
    content = {file.name: file.read_bytes()}
    # Many checkpoints, many files and many steps in a short time.
    monkeypatch.setattr(writer, "_LOG_FRAMES_IDLE", 20)
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 32 * 1024)
    monkeypatch.setattr(apply, "_STEP_ROWS", 3)
    disk = Disk()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(journal, "os", System(disk, frozenset(without)))
            server = Server(file, Random(1), disk)
            for _ in range(BATCHES):
                server.change()
                server.commit()
                server.apply_some()
            server.writer.connection.close()
    finally:
        disk.unregister()
    # Closing is no part of it: the power fails while the writer works.
    last = max(index for index, change in enumerate(disk.log) if change[0] == "acknowledged")
    return disk.log[: last + 1], content, server


def put(directory, files) -> Path:
    for old in directory.iterdir():
        old.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory / schema.FILE_NAME


def look_after(file) -> tuple[str, dict[str, str], list[int]]:
    """What is there once the journal is applied: whether it is whole, the jobs, the events."""
    try:
        recovery.recover(file)
    except StoreError as error:
        return str(error), {}, []
    connection = apsw.Connection(str(file))
    try:
        verdict = connection.execute("PRAGMA integrity_check").get
        if verdict != "ok":
            return verdict, {}, []
        rows = dict(connection.execute("SELECT job_id, state FROM jobs"))
        blocks = connection.execute("SELECT last_seq, count FROM events ORDER BY last_seq")
        events = [seq for last, count in blocks for seq in range(last - count + 1, last + 1)]
    except apsw.Error as error:
        return str(error), {}, []
    finally:
        connection.close()
    return verdict, rows, events


def fault(file, server, acknowledged) -> str | None:
    """What is wrong with what a loss of power has left."""
    verdict, kept, events = look_after(file)
    if verdict != "ok":
        return f"after batch {acknowledged}: {verdict}"
    # Exactly what was acknowledged, or one batch more, that was on its way; never half.
    for number in range(acknowledged, min(acknowledged + 2, len(server.rows))):
        if kept == server.rows[number] and events == [*range(1, server.seqs[number] + 1)]:
            return None
    return f"after batch {acknowledged}: {len(kept)} jobs, {len(events)} events"


def losses(directory, recorded, points) -> tuple[int, list[str]]:
    """How many states there were to look at, five for each point, and what was wrong with some."""
    log, content, server = recorded
    found = []
    count = 0
    for acknowledged, files in crashes(log, content, Random(2), points):
        count += 1
        if (what := fault(put(directory, files), server, acknowledged)) is not None:
            found.append(what)
    return count, found


@pytest.fixture
def scratch():
    """Thousands of small files are written: in memory, where there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="manyhands-", dir=place) as directory:
        yield Path(directory)


def happened(log, *what) -> int:
    return sum(change[: len(what)] == what for change in log)


@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_when_the_power_fails(tmp_path, scratch, monkeypatch):
    recorded = record(tmp_path, monkeypatch)
    log = recorded[0]

    count, found = losses(scratch, recorded, points=600)

    assert found == []
    assert count >= 3_000
    assert happened(log, "sync", schema.FILE_NAME) >= 5  # checkpoints
    assert happened(log, "rename") >= 3  # files of the journal that were used again
    assert recorded[2].kept_count >= 10
    assert recorded[2].beside_count >= 10


@pytest.mark.timeout(1800)
def test_a_second_loss_while_the_first_is_made_good_loses_nothing(tmp_path, scratch, monkeypatch):
    log, content, server = record(tmp_path, monkeypatch)
    (scratch / "first").mkdir()
    (scratch / "second").mkdir()
    count = 0
    found = []
    for acknowledged, files in crashes(log, content, Random(3), 12):
        file = put(scratch / "first", files)
        disk = Disk()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(journal, "os", System(disk))
                recovery.recover(file)
        finally:
            disk.unregister()
        for _, again in crashes(disk.log, files, Random(4), 8):
            count += 1
            if (what := fault(put(scratch / "second", again), server, acknowledged)) is not None:
                found.append(what)

    assert count >= 500
    assert found == []


@pytest.mark.parametrize("without", ["fdatasync", "sync of names"])
def test_the_same_disk_shows_the_losses_of_a_journal_that_does_not_sync(
    tmp_path, scratch, monkeypatch, without
):
    recorded = record(tmp_path, monkeypatch, {without})

    count, found = losses(scratch, recorded, points=60)

    assert count == 300
    assert len(found) > 50

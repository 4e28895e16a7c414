"""After a loss of power at any moment the file is whole, and what was acknowledged is there."""

import os
import tempfile
from pathlib import Path
from random import Random

import apsw
import pytest
from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.model.job import Holder, Job, Lease, State
from manyhands.model.policy import Queue
from manyhands.store import schema, writer
from manyhands.store.collect import Collector
from manyhands.store.frames import FrameBuffer, decode_frame
from manyhands.store.packing import Counters, Packer, Removals, TermsBook
from manyhands.store.writer import Writer
from tests.powerloss.disk import Disk, crashes

NOW = 1_700_000_000_000
BATCHES = 60
HOLDER = Holder("native", "w")


class Server:
    """The way of a batch from the index to the writer, in one process."""

    def __init__(self, file, random: Random) -> None:
        self.random = random
        self.collector = Collector(lambda _: None)
        self.packer = Packer(TermsBook(), None, 0)
        self.buffer = FrameBuffer()
        self.writer = Writer(file, check=False)
        self.rows: list[dict[str, str]] = [{}]  # job id -> state, after each batch

    def change(self) -> None:
        """New jobs of all sizes; some of the old ones go on."""
        index = self.collector.index
        effects = Effects(index, NOW)
        if index.queue("q") is None:
            effects.put_queue(Queue("q"))
        for job in self.random.sample(list(index.jobs.values()), min(5, len(index.jobs))):
            if job.state is State.READY:
                lease = Lease("token", 1, HOLDER, NOW)
                job = replace(job, state=State.LEASED, lease=lease)  # noqa: PLW2901
            else:
                job = replace(  # noqa: PLW2901
                    job, state=State.COMPLETED, lease=None, finished_at=NOW, result=b"r"
                )
            effects.enter(job, NOW)
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

    def commit(self, disk: Disk) -> None:
        batch = self.collector.seal(NOW)
        index = self.collector.index
        counters = Counters(NOW, index.serial, self.collector.seq, index.position)
        packed = self.packer.pack(batch, counters, Removals())
        frames = [decode_frame(message) for message in self.buffer.feed(bytes(packed))]
        changed = {job.job_id: job.state.value for job in batch.jobs.values()}
        self.rows.append(self.rows[-1] | changed)
        number = self.writer.commit(frames)
        disk.acknowledge(number)
        self.collector.committed(number)
        self.writer.tidy(idle=True)


def record(tmp_path, monkeypatch, synchronous):
    """What happened on the disk, what it held before, and what each batch makes of the jobs."""
    file = tmp_path / schema.FILE_NAME
    schema.create(file)
    content = {file.name: file.read_bytes()}
    monkeypatch.setattr(writer, "_LOG_FRAMES_IDLE", 40)  # many checkpoints in a short time
    disk = Disk()
    try:
        server = Server(file, Random(1))
        server.writer.connection.pragma("synchronous", synchronous)
        for _ in range(BATCHES):
            server.change()
            server.commit(disk)
        server.writer.connection.close()
    finally:
        disk.unregister()
    # Closing is no part of it: the power fails while the writer works.
    last = max(index for index, change in enumerate(disk.log) if change[0] == "acknowledged")
    return disk.log[: last + 1], content, server.rows


def look_after(directory, files) -> tuple[str, dict[str, str], int]:
    """What SQLite says of the files: whether they are whole, the jobs, the number of events."""
    for old in directory.iterdir():
        old.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    connection = apsw.Connection(str(directory / schema.FILE_NAME))
    try:
        verdict = connection.execute("PRAGMA integrity_check").get
        if verdict != "ok":
            return verdict, {}, 0
        rows = dict(connection.execute("SELECT job_id, state FROM jobs"))
        events = connection.execute("SELECT count(*) FROM events").get
    except apsw.Error as error:
        return str(error), {}, 0
    finally:
        connection.close()
    return verdict, rows, events


def losses(directory, recorded, points) -> tuple[int, list[str]]:
    """How many states there were to look at, five for each point, and what was wrong with some."""
    log, content, rows = recorded
    found = []
    count = 0
    for acknowledged, files in crashes(log, content, Random(2), points):
        count += 1
        verdict, kept, events = look_after(directory, files)
        if verdict != "ok":
            found.append(f"after batch {acknowledged}: {verdict}")
        elif kept not in rows[acknowledged : acknowledged + 2]:
            # Exactly what was acknowledged, or one batch more, that was on its way; never half.
            found.append(f"after batch {acknowledged}: {len(kept)} jobs")
        elif kept and not events:
            found.append(f"after batch {acknowledged}: jobs without events")
    return count, found


@pytest.fixture
def scratch():
    """Thousands of small files are written: in memory, where there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="manyhands-", dir=place) as directory:
        yield Path(directory)


def test_nothing_acknowledged_is_lost_when_the_power_fails(tmp_path, scratch, monkeypatch):
    recorded = record(tmp_path, monkeypatch, "FULL")
    checkpoints = sum(change[:2] == ("sync", schema.FILE_NAME) for change in recorded[0])

    count, found = losses(scratch, recorded, points=600)

    assert checkpoints >= 5
    assert count >= 2_000
    assert found == []


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_the_same_disk_shows_the_losses_of_a_store_that_does_not_sync(
    tmp_path, scratch, monkeypatch, synchronous
):
    recorded = record(tmp_path, monkeypatch, synchronous)

    count, found = losses(scratch, recorded, points=60)

    assert count == 300
    assert len(found) > 50

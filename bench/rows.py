"""Benchmark rows: CPU to pack batches into frames, and to apply frames to the database.

    python bench/rows.py
    python bench/rows.py --a-frame 5      life cycles in each frame
    python bench/rows.py --profile pack   or apply

Life cycles of plain jobs as Gearman has them. Submit, claim and completion of a job are in three
consecutive frames, as on a busy server, and each frame holds as many of each.
"""

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import msgspec

from manyhands.dispatch.ids import Ids
from manyhands.engine import plain
from manyhands.model.commands import ByConnection, Claim, Complete, NewJob
from manyhands.model.job import Holder, Origin
from manyhands.model.policy import TERMS, Queue
from manyhands.store.batch import Batch
from manyhands.store.collector import Collector
from manyhands.store.records.frames import Counters, Frame, cut
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.writer.apply import Applier, PackedFrame

NOW = 1_760_000_000_000
HOLDER = Holder("gearman", "127.0.0.1:50001", "127.0.0.1:50001")
ORIGIN = Origin("gearman", "", "127.0.0.1:50000")
PROOF = ByConnection("0a1b2c3d/17")
WINDOW_BYTES = 1024 * 1024  # as in `writer/process.py`
FRAME_HEAD_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode


class Source:
    """Batches of life cycles."""

    def __init__(self, a_frame: int) -> None:
        self.collector = Collector(lambda _: None)
        self._ids = Ids()
        self._a_frame = a_frame
        self._claimed: list[str] = []
        self._time = NOW
        self.collector.index.put_queue(Queue("resize"))

    def batches(self, count: int) -> Iterator[tuple[Batch, Counters]]:
        """Batches in order; the first ones are not full."""
        index = self.collector.index
        for number in range(count):
            self._time += 1
            for job_id in self._claimed:
                self._complete(job_id)
            self._claimed = []
            for _ in range(self._a_frame if number else 0):
                self._claim()
            for _ in range(self._a_frame):
                self._submit()
            batch = self.collector.seal(self._time)
            assert batch is not None
            yield batch, Counters(self._time, index.serial, self.collector.seq, index.position)
            self.collector.committed(batch.number)
            self.collector.applied(batch.number)

    def _claim(self) -> None:
        claim = Claim(
            queues=("resize",),
            holder=HOLDER,
            tokens=(self._ids.token(),),
            connection=PROOF.connection,
            early=True,
        )
        changes = plain.claim(claim, self.collector.index, self._time)
        assert changes is not None
        self.collector.write_plain(changes)
        self._claimed.append(plain.value_of(changes[0]).job_id)

    def _complete(self, job_id: str) -> None:
        command = Complete(job_id=job_id, proof=PROOF, result=b"y" * 20)
        ending = plain.complete(command, self.collector.index, self._time)
        assert ending is not None
        self.collector.write_plain((ending[0],))

    def _submit(self) -> None:
        item = NewJob(
            job_id=self._ids.job_id(self._time),
            queue="resize",
            payload=b"x" * 100,
            terms=TERMS["gearman"],
            origin=ORIGIN,
            unique_key=os.urandom(18).hex().encode(),
        )
        changes = plain.create((item,), self.collector.index, self._time)
        assert changes is not None
        self.collector.write_plain(changes)


def pack_all(made: Sequence[tuple[Batch, Counters]]) -> list[bytes]:
    packer = Packer(TermsBook(), None, 0)
    return [bytes(packer.pack(batch, counters, Removals())) for batch, counters in made]


def windows(frames: Sequence[bytes]) -> list[list[PackedFrame]]:
    """Frames grouped into windows, as the writer applies them."""
    made: list[list[PackedFrame]] = [[]]
    weight = 0
    for data in frames:
        ((number, start, end),) = cut(data)[0]
        made[-1].append((number, memoryview(data)[start:end]))
        weight += end - start
        if weight >= WINDOW_BYTES:
            made.append([])
            weight = 0
    return [window for window in made if window]


def apply_all(connection: apsw.Connection, every: Sequence[Sequence[PackedFrame]]) -> None:
    applier = Applier(connection, "00")
    for window in every:
        for _ in applier.apply(window):
            pass
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def cpu_us(step: Callable[[], object], jobs: int) -> float:
    started = time.process_time()
    step()
    return (time.process_time() - started) / jobs * 1e6


def sizes(frames: Sequence[bytes], jobs: int) -> dict[str, float]:
    """Bytes of frames per job, by field."""
    names = [field.name for field in msgspec.structs.fields(Frame)]
    found: dict[str, float] = {"frames": sum(map(len, frames)) / jobs}
    for data in frames:
        for name, value in zip(names, msgspec.msgpack.decode(data[FRAME_HEAD_BYTES:]), strict=True):
            length = len(_encode(value))
            if length > 1:
                found[name] = found.get(name, 0.0) + length / jobs
    return found


def round_of(
    directory: Path, a_frame: int, jobs: int, profile: str | None
) -> tuple[dict[str, float], list[bytes]]:
    made = list(Source(a_frame).batches(jobs // a_frame))
    frames: list[bytes] = []
    profiler = cProfile.Profile() if profile else None

    def pack() -> None:
        frames.extend(pack_all(made))

    if profiler is not None and profile == "pack":
        profiler.runcall(pack)
    pack_us = cpu_us(pack, jobs) if not frames else 0.0
    file = directory / schema.FILE_NAME
    schema.create(file)
    connection = apsw.Connection(str(file), statementcachesize=64)
    connection.pragma("synchronous", "FULL")
    connection.pragma("cache_size", -64 * 1024)
    connection.wal_autocheckpoint(0)
    every = windows(frames)

    def apply() -> None:
        apply_all(connection, every)

    apply_us = 0.0
    if profiler is not None and profile == "apply":
        profiler.runcall(apply)
    else:
        apply_us = cpu_us(apply, jobs)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(18)
    figures = {
        "pack_us": pack_us,
        "apply_us": apply_us,
        "file_bytes": file.stat().st_size / jobs,
        "windows": float(len(every)),
    }
    file.unlink()
    return figures, frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--a-frame", type=int, default=20, help="life cycles in a frame")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=("pack", "apply"))
    parser.add_argument("--directory", type=Path, help="where to write; a temporary one is made")
    options = parser.parse_args()
    # The best round is the least disturbed one; the work is the same in each.
    best: dict[str, float] = {}
    for _ in range(1 if options.profile else options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            figures, frames = round_of(
                Path(directory), options.a_frame, options.jobs, options.profile
            )
        best = {name: min(best.get(name, value), value) for name, value in figures.items()}
    best |= {f"{name}_bytes": size for name, size in sizes(frames, options.jobs).items()}
    print(json.dumps({name: round(value, 2) for name, value in best.items()}, indent=2))


if __name__ == "__main__":
    main()

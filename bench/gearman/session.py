"""Benchmark a Gearman life cycle in the server process without a socket: bytes to bytes.

    python bench/gearman/session.py

Submits and grabs go through the real session, dispatcher, engine, index and packing of rows; only
the network and the writer are left out. CPU time, so that a busy machine matters little.
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Callable

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.sleepers import Sleeper
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman.admin import Hall
from manyhands.protocols.gearman.shipped import GearmanSession
from manyhands.store.batch import Batch
from manyhands.store.collector import Collector
from manyhands.store.records.frames import Counters
from manyhands.store.records.packer import Packer, Removals, TermsBook

IN_FLIGHT = 32


class Store:
    """Packs each batch as the SQLite store does, and calls it durable and applied on request."""

    alive_at = None

    def __init__(self) -> None:
        self._collector = Collector(lambda _: None)
        self.live = self._collector.index
        self.write = self._collector.write
        self.write_plain = self._collector.write_plain
        self.is_unsaved = self._collector.is_unsaved
        self._packer = Packer(TermsBook(), None, 0)
        self._number = 0

    def load(self, _: object) -> object:
        return self.live

    def begin_commit(self, now: int, *, at_once: bool) -> Batch | None:  # noqa: ARG002
        batch = self._collector.seal(now)
        if batch is not None:
            counters = Counters(now, self.live.serial, self._collector.seq, self.live.position)
            self._packer.pack(batch, counters, Removals())
            self._number = batch.number
        return batch

    def fileno(self) -> int:
        return 0

    def has_unsent(self) -> bool:
        return False

    def last_seq(self) -> int:
        return 0

    def finish_commits(self) -> int:
        self._collector.committed(self._number)
        self._collector.applied(self._number)
        return self._number


class Loop:
    """Runs what is due on request."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.readable: Callable[[], None] = lambda: None

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, _: float, callback: Callable[[], None]) -> "Loop":
        self.soon.append(callback)
        return self

    def cancel(self) -> None:
        """Does nothing: timers run in the next turn here."""

    def add_reader(self, _: int, callback: Callable[[], None]) -> None:
        self.readable = callback

    def turn(self) -> None:
        while self.soon:
            self.soon.popleft()()
        self.readable()


class Peer:
    """A connection without a socket."""

    address = "127.0.0.1"

    def __init__(self, dispatcher: Dispatcher, ids: Ids, clock: Clock) -> None:
        self.connection = ids.connection()
        self.number = 1
        self.ask = dispatcher.ask
        self.shortcut = dispatcher
        self.token = ids.token
        self.sent: list[bytes] = []
        self.send = self.sent.append
        self._ids, self._clock, self._dispatcher = ids, clock, dispatcher
        self._sleeper: Sleeper | None = None

    def job_id(self) -> str:
        return self._ids.job_id(self._clock.now())

    @property
    def owed_bytes(self) -> int:
        return self._dispatcher.owed_bytes

    def stay_awake(self) -> None:
        """Does nothing: it never sleeps."""

    def is_asleep(self) -> bool:
        return False

    def refusal_to_work(self, _: str) -> None:
        """Does nothing: everybody may work on everything."""


def measure(count: int, submit: int) -> tuple[float, float]:
    """Microseconds of CPU for a submit with its answer, and for a completion with the next grab and
    the result to the waiter.
    """
    clock, ids, loop, store = Clock(), Ids(), Loop(), Store()
    dispatcher = Dispatcher(store, clock, loop)  # type: ignore[arg-type]
    hall = Hall("bench", "0", 1, "info")
    client, worker = Peer(dispatcher, ids, clock), Peer(dispatcher, ids, clock)
    submitting = GearmanSession(client, hall, payload_bytes_max=1 << 20)  # type: ignore[arg-type]
    working = GearmanSession(worker, hall, payload_bytes_max=1 << 20)  # type: ignore[arg-type]
    dispatcher.on_signal[client.connection] = submitting.notify
    working.receive(wire.encode_request(wire.CAN_DO, b"resize"))
    grab = wire.encode_request(wire.GRAB_JOB_UNIQ)
    submit_s = work_s = 0.0
    for turn in range(count // IN_FLIGHT):
        packets = b"".join(
            wire.encode_request(submit, b"resize", b"%036d" % (turn * IN_FLIGHT + i), b"x" * 100)
            for i in range(IN_FLIGHT)
        )
        began = time.process_time()
        submitting.receive(packets)
        loop.turn()
        submit_s += time.process_time() - began
        assert b"".join(client.sent).count(b"\0RES") == IN_FLIGHT
        client.sent.clear()
        began = time.process_time()
        working.receive(grab)
        for _ in range(IN_FLIGHT):
            handle = worker.sent.pop()[12:].partition(b"\0")[0]
            done = wire.encode_request(wire.WORK_COMPLETE, handle, b"y" * 20)
            working.receive(done + grab)
        loop.turn()
        work_s += time.process_time() - began
        assert len(client.sent) == (IN_FLIGHT if submit == wire.SUBMIT_JOB else 0)
        client.sent.clear()
        assert worker.sent == [wire.NO_JOB_PACKET]
        worker.sent.clear()
    return submit_s / count * 1e6, work_s / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {}
    for name, submit in (("background", wire.SUBMIT_JOB_BG), ("foreground", wire.SUBMIT_JOB)):
        rounds = [measure(options.jobs, submit) for _ in range(options.rounds)]
        submitting, working = (min(column) for column in zip(*rounds, strict=True))
        figures[f"{name}_submit_us"] = round(submitting, 2)
        figures[f"{name}_complete_and_grab_us"] = round(working, 2)
        figures[f"{name}_life_cycle_us"] = round(submitting + working, 2)
    if options.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:32} {figure:7.2f}")


if __name__ == "__main__":
    main()

"""A worker that only takes, decodes, counts and reports: the stream without the SDK around it."""

import asyncio
import json
import os
import urllib.request
import uuid

import msgspec
import tally
import uvloop
from peer import TEXT, main

from manyhands.client.address import places
from manyhands.client.notes import Job
from manyhands.client.stream import Stream
from manyhands.client.worker_stream import WorkerStream
from manyhands.protocols.native import stream_codec as wire

URL = os.environ["BENCH_URL"]
AHEAD = 500
GATHERED = 64
_read = msgspec.json.Decoder(dict[str, str]).decode


class Ignoring:
    """Takes no notice of anything."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: [] if name == "held" else None


def fill(count: int) -> None:
    async def submit() -> None:
        stream = Stream(places(URL), Ignoring())
        payload = msgspec.json.encode({"text": TEXT})
        under_way: set[asyncio.Future] = set()
        for _ in range(0, count, 500):
            items = [(uuid.uuid4().hex, "noop", payload, "json", None, None) for _ in range(500)]
            under_way.add(stream.ask(wire.SUBMIT, items).future)
            if len(under_way) >= 4:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        await asyncio.gather(*under_way)
        await stream.close()

    uvloop.run(submit())


class Worker:
    """Runs what it is given at once, and reports in groups."""

    def __init__(self, name: str) -> None:
        self.stream = WorkerStream(places(URL), self, name=name)
        self.stream.want(["noop"])
        self.add = tally.counter()
        self.done: list = []
        self.credit = 0

    def take(self, jobs: list[Job]) -> None:
        for job in jobs:
            _read(job.payload)
            self.add()
            self.done.append((job.id, job.token, b"null", "json"))
            if len(self.done) >= GATHERED:
                self.flush()
        if self.done:
            self.flush()

    def flush(self) -> None:
        count = len(self.done)
        self.stream.report(done=self.done)
        self.stream.give(0, count)
        self.done = []

    def resumed(self) -> None:
        self.stream.give(16, AHEAD)

    def told(self, *_: object) -> None: ...
    def lost(self, why: str) -> None: ...
    def closing(self, seconds: float) -> None: ...
    def refused(self, error: Exception) -> None: ...


def work() -> None:
    async def run() -> None:
        Worker(f"thin-{os.getpid()}")
        await asyncio.Event().wait()

    uvloop.run(run())


def left() -> int:
    with urllib.request.urlopen(f"{URL}/api/queues/noop") as answer:
        queue = json.load(answer)["results"]
    return sum(queue["counts"][state] for state in ("ready", "leased", "delayed"))


main(fill, work, left)

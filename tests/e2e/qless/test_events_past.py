"""Watchers of the past cost others little, and nothing once they have left."""

import asyncio
import collections

import httpx
import pytest
import uvloop

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.dispatch.ask import ask, settled
from manyhands.model.commands import NewJob, Submit
from manyhands.model.job import Origin
from manyhands.store.memory import MemoryStore
from tests.e2e.serving import SECONDS_MAX

_EVENTS = 12_000
_PAGE = 200
_WATCHERS = 20


class CountingStore(MemoryStore):
    """Knows in which turn of the loop events were read."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.reads: collections.Counter[int] = collections.Counter()

    def events_after(self, seq, count_max):
        self.reads[self.turn] += 1
        return super().events_after(seq, count_max)

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


class Room:
    """A server with a long log, none of it in the loop's memory, and watchers who want nothing of
    it.
    """

    def __init__(self, server: Server, store: CountingStore) -> None:
        self.server = server
        self.store = store
        self.watchers: list[asyncio.StreamWriter] = []
        host, _, port = (server.condition.addresses["http"] or "").rpartition(":")
        self.place = host, int(port)

    async def watch(self, topics: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self.place)
        path = f"/events?after=0&topics={topics}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"retry: 1000\n\n")
        self.watchers.append(writer)
        return reader

    def leave(self) -> None:
        for writer in self.watchers:
            writer.close()

    async def noticed(self) -> None:
        """The server knows that everybody left."""
        while self.server.traffic.sources["http"]().connections:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def _with_room(act) -> None:
    config = Config(http=Address("127.0.0.1", 0), gearman=None, dwork=None, wmp=None, amqp=None)
    store = CountingStore()
    earlier = Server(config, store, asyncio.get_running_loop())
    await earlier.start()
    jobs = [
        NewJob(queue="past", payload=b"", origin=Origin("native"), job_id=f"{number:032x}")
        for number in range(_EVENTS)
    ]
    for start in range(0, _EVENTS, 1_000):
        await ask(earlier.dispatcher, Submit(tuple(jobs[start : start + 1_000])))
    await settled(earlier.dispatcher)
    await earlier.drain()
    server = Server(config, store, asyncio.get_running_loop())
    await server.start()
    counting = asyncio.create_task(store.count_turns())
    room = Room(server, store)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await act(room)
    finally:
        counting.cancel()
        room.leave()
        await server.drain()


def in_a_room(act) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_with_room(act))


def test_the_work_of_a_watcher_ends_when_it_leaves():
    async def act(room: Room) -> None:
        async with room.server.past.turn():
            for _ in range(_WATCHERS):
                await room.watch("nothing.fits")
            room.leave()
            await room.noticed()
        turn = room.store.turn
        while room.store.turn < turn + 200:  # noqa: ASYNC110
            await asyncio.sleep(0)

        assert room.store.reads.total() == 0

    in_a_room(act)


def test_watchers_of_the_past_take_turns():
    """However many there are, others wait for one of them at most, and a page is read once."""

    async def act(room: Room) -> None:
        async with room.server.past.turn():
            readers = [
                await room.watch(f"*.*.{number:032x}.past")
                for number in (0, 1, 5_000, 7_000, *range(_EVENTS - _WATCHERS, _EVENTS))
            ]
        for reader in readers:
            await reader.readuntil(b"}\n\n")

        assert max(room.store.reads.values()) == 1
        assert room.store.reads.total() == _EVENTS // _PAGE

    in_a_room(act)


def test_a_server_that_stops_does_not_wait_for_a_watcher_that_leaves_meanwhile():
    async def act(room: Room) -> None:
        async with room.server.past.turn():
            await room.watch("nothing.fits")
            stopping = asyncio.create_task(room.server.drain())
            await asyncio.sleep(0)
            room.leave()
            await stopping

        assert room.server.traffic.sources["http"]().connections == 0

    in_a_room(act)


@pytest.mark.parametrize("after", [0, 1, 199, 200, 201, 11_998])
def test_nothing_of_the_past_is_missed_or_told_twice(after):
    async def act(room: Room) -> None:
        reader, writer = await asyncio.open_connection(*room.place)
        path = f"/events?after={after}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        ids: list[int] = []
        while not ids or ids[-1] < _EVENTS:
            line = await reader.readline()
            if line.startswith(b"id: "):
                ids.append(int(line[4:]))
        writer.close()

        assert ids == list(range(after + 1, _EVENTS + 1))

    in_a_room(act)


def test_questions_about_the_past_take_turns_with_watchers():
    async def act(room: Room) -> None:
        async with httpx.AsyncClient(
            base_url=f"http://{room.server.condition.addresses['http']}"
        ) as http:
            answers = await asyncio.gather(
                *(http.get("/api/events?after=0&count=1000", timeout=90) for _ in range(5))
            )

        assert [len(answer.json()["results"]) for answer in answers] == [1000] * 5
        assert max(room.store.reads.values()) <= 1

    in_a_room(act)

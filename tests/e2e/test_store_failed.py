"""What peers hear in the moment between a failure of the store and the end of the server."""

import asyncio

import httpx
import pytest

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.config.kinds import Endpoint, Endpoints
from manyhands.net.zmtp import GREETING
from manyhands.protocols.gearman import codec as gearman
from manyhands.store.memory import MemoryStore

LOCAL = Address("127.0.0.1", 0)
HELLO = GREETING + b"\1" + b"NULL".ljust(20, b"\0") + bytes(32)


class FailingStore(MemoryStore):
    """It fails when it is told to, with a batch in hand."""

    fails = False

    def begin_commit(self, now, *, at_once=False):
        if self.fails:
            raise MemoryError
        return super().begin_commit(now, at_once=at_once)


async def started() -> Server:
    config = Config(
        http=LOCAL, gearman=LOCAL, dwork=Endpoints((Endpoint("dwork", LOCAL),)), wmp=None, amqp=None
    )
    server = Server(config, FailingStore(), asyncio.get_running_loop())
    await server.start()
    return server


def fail(server: Server) -> None:
    server.store.fails = True
    server.dispatcher.touch()
    server.dispatcher._begin_commit()
    assert server.condition.failure is not None


async def connected(server: Server, listener: str):
    host, _, port = server.condition.addresses[listener].rpartition("=")[2].rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/submit", {"queue": "q"}),
        ("/api/claim", {"queues": ["q"]}),
        ("/add/q", {"data": [{"meta": 1}, {"meta": 2}]}),
        ("/complete/q", {"data": [{"id": "0" * 32, "meta": 1}]}),
    ],
)
def test_over_http_everything_is_refused_for_now(path, body):
    async def ask() -> httpx.Response:
        server = await started()
        async with httpx.AsyncClient(
            base_url=f"http://{server.condition.addresses['http']}"
        ) as http:
            fail(server)
            answer = await http.post(path, json=body, timeout=90)
        await server.drain()
        return answer

    answer = asyncio.run(ask())

    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"]
    assert "the store failed" in answer.json()["error"]["message"]


def test_gearman_peers_are_cut_off_and_hear_nothing():
    async def ask() -> tuple[bytes, bytes]:
        server = await started()
        reader, writer = await connected(server, "gearman")
        writer.write(gearman.encode_request(gearman.ECHO_REQ, b"before"))
        before = await reader.readexactly(18)
        fail(server)
        writer.write(gearman.encode_request(gearman.SUBMIT_JOB_BG, b"q", b"", b"x"))
        after = await asyncio.wait_for(_all_of(reader), 90)
        writer.close()
        await server.drain()
        return before, after

    before, after = asyncio.run(ask())

    assert before.endswith(b"before")
    assert after == b""


def test_a_failure_in_the_middle_of_a_turn_leaves_nothing_to_be_heard():
    async def ask() -> bytes:
        server = await started()
        reader, writer = await connected(server, "gearman")
        server.store.fails = True
        # As many as fill a batch, which is then sent on its way while the rest is looked at.
        submit = gearman.encode_request(gearman.SUBMIT_JOB_BG, b"q", b"", b"x")
        writer.write(submit * 200)
        after = await asyncio.wait_for(_all_of(reader), 90)
        writer.close()
        await server.drain()
        return after

    assert asyncio.run(ask()) == b""


def test_dwork_peers_are_cut_off_and_hear_nothing():
    async def ask() -> bytes:
        server = await started()
        reader, writer = await connected(server, "dwork")
        writer.write(HELLO)
        await reader.readexactly(64)
        _, length = await reader.readexactly(2)
        await reader.readexactly(length)  # READY
        fail(server)
        after = await asyncio.wait_for(_all_of(reader), 90)
        writer.close()
        await server.drain()
        return after

    assert asyncio.run(ask()) == b""


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    gathered = b""
    try:
        while data := await reader.read(1 << 16):
            gathered += data
    except ConnectionError:
        pass
    return gathered

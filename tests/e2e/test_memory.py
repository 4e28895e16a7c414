"""What the server holds in memory has a bound, and nobody else is harmed by those who reach it."""

import asyncio
import os
import signal
import socket
import struct
from pathlib import Path
from random import Random

import pytest

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.model import limits
from manyhands.net.tcp import Connection
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import listener as module
from manyhands.store.memory import MemoryStore
from tests.e2e.gearman_talk import GearmanTalk, address_of
from tests.e2e.serving import SECONDS_MAX, Api, serving, start, wait_until

MIB = 1024 * 1024
LEAST = 64 * MIB  # the smallest budget there is


@pytest.fixture
def memory():
    return "64MiB"


@pytest.fixture
def served(tmp_path, memory):
    with serving(tmp_path, "--gearman", "127.0.0.1:0", "--memory", memory) as server:
        yield server


@pytest.fixture
def api(served):
    api = Api(served)
    yield api
    api.http.close()


def held(api: Api) -> dict[str, int]:
    return api.get("about")["memory"]["held_bytes"]


def waiting(api: Api) -> int:
    return api.get("about")["memory"]["peers_waiting"]


def writer_of(served) -> int:
    tasks = Path(f"/proc/{served.process.pid}/task").glob("*/children")
    (pid,) = (int(word) for task in tasks for word in task.read_text().split())
    return pid


def send_some(peer: socket.socket, data: memoryview) -> memoryview:
    try:
        return data[peer.send(data) :]
    except BlockingIOError:
        return data


@pytest.mark.parametrize("memory", ["256MiB"])
def test_jobs_that_need_no_commit_wait_with_their_peer_while_the_disk_does_not_answer(served, api):
    packet = wire.encode_request(wire.SUBMIT_JOB, b"f", b"", bytes(100_000))
    with socket.create_connection(address_of(served), SECONDS_MAX) as peer:
        writer = writer_of(served)
        os.kill(writer, signal.SIGSTOP)
        try:
            peer.setblocking(False)
            rest = memoryview(packet * 800)
            while rest and not waiting(api):
                rest = send_some(peer, rest)
            assert rest, "all of it was taken"
            found = held(api)
            assert sum(found[kind] for kind in ("gathering", "frames", "recent")) < 32 * MIB
        finally:
            os.kill(writer, signal.SIGCONT)
        while rest:
            rest = send_some(peer, rest)
        wait_until(lambda: api.get("queues/f")["counts"]["ready"] == 800)
        wait_until(lambda: held(api)["recent"] == held(api)["gathering"] == 0)


def test_messages_that_are_not_complete_have_a_bound_and_others_are_served(served, api):
    head = b"\0REQ" + struct.pack(">II", wire.SUBMIT_JOB_BG, 20 * MIB) + b"f\0\0"
    peers = [socket.create_connection(address_of(served), SECONDS_MAX) for _ in range(8)]
    rests = {peer: memoryview(head + bytes(19 * MIB)) for peer in peers}
    for peer in peers:
        peer.setblocking(False)
    while waiting(api) < 3:
        rests = {peer: send_some(peer, rest) for peer, rest in rests.items()}
    assert held(api)["messages"] < LEAST

    with GearmanTalk(served) as other:
        other.submit(b"small", data=b"x")

    for peer in peers[1:]:
        peer.close()
    peers[0].setblocking(True)
    peers[0].sendall(rests[peers[0]])
    peers[0].sendall(bytes(MIB - 3))
    assert peers[0].recv(4) == wire.RESPONSE_MAGIC
    peers[0].close()
    wait_until(lambda: held(api)["messages"] == 0)


def test_submits_are_refused_while_jobs_take_up_their_part_and_taken_again_after(served, api):
    payload = bytes(60_000)  # larger ones are on disk only
    with GearmanTalk(served) as talk:
        count = 0
        while (answer := talk.tell(wire.SUBMIT_JOB_BG, b"f", b"", payload))[0] == wire.JOB_CREATED:
            count += 1
        assert answer == (wire.ERROR, [b"QUEUE_ERROR", answer[1][1]])
        assert b"--memory" in answer[1][1]
        assert count == LEAST // 2 // (len(payload) + limits.JOB_BYTES) + 1
        assert api.error("submit", queue="q") == (503, "store_full")

        talk.put(wire.CAN_DO, b"f")
        handle = talk.tell(wire.GRAB_JOB)[1][0]
        talk.put(wire.WORK_COMPLETE, handle, b"")
        api.results("submit", queue="q")


def grab_all(served, count: int) -> list[bytes]:
    with GearmanTalk(served) as worker:
        worker.put(wire.CAN_DO, b"f")
        return [worker.tell(wire.GRAB_JOB)[1][2] for _ in range(count)]


def test_large_payloads_are_handed_out_as_they_came_however_often_the_server_is_killed(tmp_path):
    payloads = [Random(number).randbytes(100_000) for number in range(30)]
    arguments = ("--gearman", "127.0.0.1:0")
    served = start(tmp_path, *arguments)
    with GearmanTalk(served) as talk:
        for payload in payloads:
            talk.submit(b"f", data=payload)
    served.process.kill()  # some are in the database, some in the journal only
    served.process.wait()

    for _ in range(2):
        with serving(tmp_path, *arguments) as served:
            api = Api(served)
            assert held(api)["jobs"] < 1_000_000
            api.http.close()
            grabbed = grab_all(served, 20)  # and given back, at the tail
            served.process.kill()
        assert len(set(grabbed) & set(payloads)) == 20
    with serving(tmp_path, *arguments) as served:
        assert sorted(grab_all(served, 30)) == sorted(payloads)


def test_what_counts_is_shown(api):
    api.results("submit", queue="q", payload="x" * 5_000)

    memory = api.get("about")["memory"]

    assert memory["limit_bytes"] == LEAST
    assert memory["held_bytes"]["jobs"] > 5_000
    assert memory["peers_waiting"] == 0
    page = api.http.get("/ui/about").text
    assert "unfinished jobs" in page
    metrics = api.http.get("/metrics").text
    assert "manyhands_memory_limit_bytes 6.7108864e+07" in metrics
    assert 'manyhands_memory_bytes{kind="jobs"}' in metrics


def was_heard(connection: Connection) -> bool:
    return connection.granted_at > 0


@pytest.mark.parametrize(
    ("first", "is_cut"),
    [
        (wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"data")[:-1], True),
        (b"\0RE", True),
        (wire.encode_request(wire.ECHO_REQ, b"x"), False),
        (b"stat", False),  # a person may be thinking
    ],
)
def test_a_gearman_peer_that_sits_on_half_a_packet_is_cut_off(first, is_cut):
    async def sit() -> bool:
        local = Address("127.0.0.1", 0)
        config = Config(http=None, gearman=local, dwork=None, wmp=None, amqp=None)
        server = Server(config, MemoryStore(), asyncio.get_running_loop())
        await server.start()
        (listener,) = server.listeners
        host, _, port = server.condition.addresses["gearman"].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        while not any(map(was_heard, listener.connections)):  # noqa: ASYNC110 - a few turns
            await asyncio.sleep(0)
        for _ in range(module._LOOKS_MAX):
            listener._look()
        assert listener.connections
        listener._look()
        await asyncio.sleep(0)
        found = not listener.connections
        writer.close()
        await server.drain()
        return found

    assert asyncio.run(sit()) is is_cut

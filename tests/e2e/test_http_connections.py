"""Connections that have ended leave nothing behind, and nothing in the log."""

import asyncio
import contextlib
import gc
import socket
import struct
import threading

import pytest
import uvloop

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.store.memory import MemoryStore
from tests.e2e.serving import SECONDS_MAX, connections_count, wait_until

_COUNT = 400
_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_SHORT = b"GET /get/q HTTP/1.1\r\nHost: localhost\r\n\r\n"
_WATCH = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)


def connect(place: tuple[str, int]) -> socket.socket:
    return socket.create_connection(place, SECONDS_MAX)


def reset(peer: socket.socket) -> None:
    """Closes it so that the other side hears of a broken connection."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    peer.close()


def ask_and_reset(place: tuple[str, int]) -> None:
    peer = connect(place)
    peer.sendall(_GET)
    assert peer.recv(50)
    reset(peer)


def keep_alive(place: tuple[str, int]) -> None:
    with connect(place) as peer:
        for _ in range(2):
            peer.sendall(_GET)
            assert peer.recv(9999).startswith(b"HTTP/1.1 200")


def short_way(place: tuple[str, int]) -> None:
    with connect(place) as peer:
        for _ in range(2):
            peer.sendall(_SHORT)
            assert peer.recv(9999).startswith(b"HTTP/1.1 200")


def short_way_and_reset(place: tuple[str, int]) -> None:
    peer = connect(place)
    peer.sendall(_SHORT)
    assert peer.recv(10)
    reset(peer)


def watch_events(place: tuple[str, int]) -> None:
    with connect(place) as peer:
        peer.sendall(_WATCH)
        received = b""
        while b"retry" not in received:
            received += peer.recv(9999)


def watch_events_and_reset(place: tuple[str, int]) -> None:
    peer = connect(place)
    peer.sendall(_WATCH)
    assert peer.recv(9999)
    reset(peer)


def half_a_request(place: tuple[str, int]) -> None:
    with connect(place) as peer:
        peer.sendall(
            b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )


def ask_in_advance(place: tuple[str, int]) -> None:
    peer = connect(place)
    peer.sendall(_GET * 20)
    assert peer.recv(50)
    reset(peer)


def nonsense(place: tuple[str, int]) -> None:
    with connect(place) as peer:
        peer.sendall(b"\x16\x03\x01nonsense\r\n\r\n")
        assert peer.recv(9999).startswith(b"HTTP/1.1 400")


async def _objects_left(visit) -> int:
    """How many more objects there are after many visits, with nobody collecting garbage."""
    config = Config(http=Address("127.0.0.1", 0), gearman=None, dwork=None, wmp=None, amqp=None)
    server = Server(config, MemoryStore(), asyncio.get_running_loop())
    await server.start()
    host, _, port = (server.condition.addresses["http"] or "").rpartition(":")
    place = (host, int(port))

    async def visit_often(count: int) -> None:
        await asyncio.to_thread(lambda: [visit(place) for _ in range(count)])
        while server.traffic.sources["http"]().connections:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    await visit_often(30)  # what is kept once is made now
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        await visit_often(_COUNT)
        left = len(gc.get_objects()) - before
    finally:
        gc.enable()
    await server.drain()
    return left


@pytest.mark.parametrize(
    "visit",
    [
        ask_and_reset,
        keep_alive,
        short_way,
        short_way_and_reset,
        watch_events,
        watch_events_and_reset,
        half_a_request,
        ask_in_advance,
        nonsense,
    ],
)
def test_a_connection_that_has_ended_is_let_go_of(visit):
    """At once: nothing of it waits for a search of the whole heap."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(_objects_left(visit))

    assert left < _COUNT


def test_peers_that_reset_while_they_are_answered_leave_no_errors_in_the_log(served, api):
    """Whatever of an answer cannot be delivered any more is nobody's mistake."""
    host, _, port = (served.addresses["http"] or "").rpartition(":")
    place = (host, int(port))
    job_id = api.results("submit", queue="resets", payload="x" * 500_000)["id"]
    paths = [
        "/healthz",
        f"/api/jobs/{job_id}",
        "/get/resets-none",
        "/events?after=0",
        "/ui/",
        "/nowhere",
    ]
    before = served.log()

    def attack() -> None:
        for number in range(150):
            with contextlib.suppress(OSError):
                peer = connect(place)
                path = paths[number % len(paths)]
                peer.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode() * 3)
                if number % 3:
                    peer.recv(10)
                reset(peer)

    threads = [threading.Thread(target=attack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: connections_count(served.addresses["http"] or "") <= 1)

    assert api.get("protocols")
    lines = served.log()[len(before) :]
    assert "Traceback" not in lines
    assert "request failed" not in lines
    assert "ASGI" not in lines

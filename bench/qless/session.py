"""Benchmark a qless request in the server process without a socket: bytes to bytes.

    python bench/qless/session.py
    python bench/qless/session.py --profile

Requests go through the real connection, parser, routes, dispatcher, engine, index and packing of
rows; only the network and the writer are left out. CPU time, so that a busy machine matters little.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.net.http import HttpConnection, HttpSession, Site
from manyhands.net.http_peer import Proxies
from manyhands.net.tcp import TcpListener
from manyhands.protocols.qless.routes import QlessRoutes
from manyhands.web.exchange import Defences
from manyhands.web.handout import HandingOut
from manyhands.web.naps import Naps

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.gearman import session as gearman
from bench.qless.run import OPERATIONS, Http


class Loop(gearman.Loop):
    """Also has the time, which connections read. Timers of a second never fire."""

    time = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], None]) -> gearman.Loop:
        return super().call_later(delay, callback) if delay < 1.0 else self


class Store(gearman.Store):
    """A store without records."""

    behind_ms = 0

    def samples(self, *_: object) -> tuple[()]:
        return ()

    def backlog_bytes(self) -> int:
        return 0

    def held_bytes(self) -> dict[str, int]:
        return {}


class Socket(asyncio.Transport):
    """Keeps what was written last."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 7700)})
        self.written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written = data

    def pause_reading(self) -> None:
        """Does nothing: the next request of a peer comes after the answer anyway."""

    def resume_reading(self) -> None:
        """Does nothing, see above."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: there is no buffer."""


class Desk:
    """A server whose peers have no sockets."""

    def __init__(self, connections: int) -> None:
        self.loop = Loop()
        server = self.server = Server(Config(), Store(), self.loop)  # type: ignore[arg-type]
        naps = Naps()
        routes = QlessRoutes(server.sources(), HandingOut(server.dispatcher, naps), naps)
        routes.answering.defences = Defences(("127.0.0.1",))
        short_way = routes.short_way()
        short_way.set_date(b"Thu, 01 Jan 1970 00:00:00 GMT")
        site = Site(short_way, Proxies(None), print, server.clock.monotonic_ms, 1 << 30)
        site.date = b"Thu, 01 Jan 1970 00:00:00 GMT"

        def make_session(connection: HttpConnection) -> HttpSession:
            return HttpSession(connection, site)

        asyncio.get_running_loop = lambda: self.loop  # type: ignore[assignment,return-value]
        listener = TcpListener(server.backplane, Address("127.0.0.1", 7700), "http", make_session)  # type: ignore[arg-type]
        self.peers = []
        for _ in range(connections):
            connection = HttpConnection(listener)
            socket = Socket()
            connection.connection_made(socket)
            self.peers.append((connection, socket))

    def talk(self, requests: list[bytes]) -> list[bytes]:
        """Sends a request from each peer; returns the answers."""
        for (connection, _), request in zip(self.peers, requests, strict=True):
            connection.data_received(request)
        while self.loop.soon:
            self.loop.turn()
        return [socket.written for _, socket in self.peers]


def measure(
    connections: int, batch: int, turns: int, profile: cProfile.Profile | None = None
) -> dict[str, float]:
    """Microseconds of CPU per job, by operation."""
    desk, http = Desk(connections), Http()
    used: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    for _ in range(turns):
        ids = [[""] * batch] * connections
        for operation in OPERATIONS:
            requests = [http.request(operation, some) for some in ids]
            if profile is not None:
                profile.enable()
            began = time.thread_time()
            answers = desk.talk(requests)
            used[operation].append(time.thread_time() - began)
            if profile is not None:
                profile.disable()
            ids = [http.ids(answer, batch) for answer in answers]
            assert all(len(some) == batch for some in ids)
    # A turn that the machine interrupted says nothing, so the tenth percentile is taken.
    return {
        name: round(sorted(each)[turns // 10] / (connections * batch) * 1e6, 2)
        for name, each in used.items()
    }


SHAPES = {"one at a time": (1, 1), "16 connections": (16, 1), "in hundreds": (1, 100)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300, help="of each kind of request")
    parser.add_argument("--profile", action="store_true", help="where it goes with 16 connections")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asyncio.set_event_loop(asyncio.new_event_loop())
    gc.set_threshold(50_000, 20, 1_000)  # as the server sets them
    if options.profile:
        profile = cProfile.Profile()
        measure(16, 1, options.turns, profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    found = {
        shape: measure(connections, batch, options.turns)
        for shape, (connections, batch) in SHAPES.items()
    }
    if options.json:
        print(json.dumps(found))
        return
    for shape, figures in found.items():
        print(f"{shape:16}" + "".join(f"{name:>10} {us:7.2f}" for name, us in figures.items()))


if __name__ == "__main__":
    main()

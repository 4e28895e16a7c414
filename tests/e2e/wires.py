"""Wires between servers that can be cut: each passes on what is sent to one address."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from tests.e2e.serving import SECONDS_MAX


class Wire:
    """Passes on connections from a port of its own to an address."""

    def __init__(self, wires: "Wires", target: str) -> None:
        self._wires = wires
        self._target = target
        self._connections: set[asyncio.StreamWriter] = set()
        self._ways = (asyncio.Event(), asyncio.Event())  # to the address, and back
        for way in self._ways:
            way.set()
        self._server = wires.do(asyncio.start_server(self._accept, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        self._wires.begin(self._pass_on(reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            there_reader, there = await asyncio.open_connection(host, int(port))
        except OSError:
            self._end(writer)
            return
        if writer.transport.is_closing():  # it broke meanwhile
            self._end(there)
            return
        self._connections.add(there)
        inward, outward = self._ways
        try:
            await asyncio.gather(
                self._pump(reader, there, inward), self._pump(there_reader, writer, outward)
            )
        finally:
            self._end(writer)
            self._end(there)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await way.wait()
                writer.write(data)
                await writer.drain()
        await way.wait()  # nobody hears of an end either
        self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._connections.discard(writer)
        writer.transport.abort()

    def snap(self) -> None:
        """All connections break."""

        async def work() -> None:
            for writer in list(self._connections):
                self._end(writer)

        self._wires.do(work())

    def cut(self, *ways: int) -> None:
        """Nothing arrives any more: 0 for what is sent to the address, 1 for what comes back."""
        for way in ways:
            self._wires.call(self._ways[way].clear)

    def mend(self) -> None:
        """What was on its way goes on."""
        for way in self._ways:
            self._wires.call(way.set)

    def close(self) -> None:
        """Whoever calls is refused."""
        self._wires.call(self._server.close)
        self.mend()
        self.snap()


class Wires:
    """All wires of a test, driven by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins something, in the thread."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs it in the thread, and gives its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def call(self, work: Any) -> None:
        """Calls it in the thread."""

        async def calling() -> None:
            work()

        self.do(calling())

    def to(self, target: str) -> Wire:
        """A wire to an address."""
        return Wire(self, target)

    def close(self) -> None:
        """Ends the thread, once all connections have ended: the wires are closed before."""

        async def finish() -> None:
            while self._tasks:
                await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # aborted connections end in the next turn

        self.do(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()

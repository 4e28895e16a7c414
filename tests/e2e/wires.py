"""Wires between servers that can be cut: each passes on what is sent to one address."""

import asyncio
import contextlib
import socket
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
        self._is_closed = False
        # Not asyncio's server: it loses what it accepts in the moment in which it is closed.
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        wires.call(lambda: wires.loop.add_reader(self._listening, self._accept))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # whoever called may be gone
            called, _ = self._listening.accept()
            self._wires.begin(self._pass_on(called))

    async def _pass_on(self, called: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=called)
        self._connections.add(writer)
        host, _, port = self._target.rpartition(":")
        try:
            there_reader, there = await asyncio.open_connection(host, int(port))
        except OSError:
            self._end(writer)
            return
        if self._is_closed or writer.transport.is_closing():  # it broke meanwhile
            self._end(writer)
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

        def stop() -> None:
            self._is_closed = True
            self._wires.loop.remove_reader(self._listening)
            self._listening.close()

        self._wires.call(stop)
        self.mend()
        self.snap()


class Wires:
    """All wires of a test, driven by one thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins something, in the thread."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs it in the thread, and gives its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS_MAX)

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
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS_MAX)
        self.loop.close()

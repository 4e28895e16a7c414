"""A server that answers as a test says, on a WebSocket of other people."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

HELLO, SUBMIT, WATCH, ANSWER, ENDED = 1, 2, 8, 20, 23
_LIMITS = {"items": 500, "items_together": 10_000, "message_bytes": 17 * 1024 * 1024}


class FakeServer:
    """Keeps the messages it gets. ``answer`` gives the notes to send for one, if any."""

    def __init__(self) -> None:
        self.messages: list[list[Any]] = []
        self.answer: Callable[[list[Any]], list[Any] | None] = self.accept
        self.arrived = threading.Condition()
        self.port = 0
        self.refusal: str | None = None  # what it closes streams with
        self.statuses: list[int] = []  # of a proxy before it, instead of the first streams

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self, note: list[Any]) -> list[Any] | None:
        """Everything is fine."""
        return [ANSWER, note[1], None, []] if note[1] else None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(condition, timeout=90)

    def notes(self, kind: int) -> list[list[Any]]:
        return [note for message in self.messages for note in message if note[0] == kind]

    def send(self, *notes: list[Any]) -> None:
        """To the last connection, by itself."""
        future = asyncio.run_coroutine_threadsafe(
            self._connection.send(msgspec.msgpack.encode(notes)), self._loop
        )
        future.result(90)

    async def _handle(self, connection: ServerConnection) -> None:
        self._connection = connection
        if self.refusal is not None:
            await connection.close(1002, self.refusal)
        with contextlib.suppress(ConnectionClosed):
            await self._talk(connection)

    def _pass_on(self, connection: ServerConnection, _request: object) -> Any:
        if not self.statuses:
            return None
        return connection.respond(HTTPStatus(self.statuses.pop(0)), "<html>nginx</html>")

    async def _talk(self, connection: ServerConnection) -> None:
        async for message in connection:
            notes = msgspec.msgpack.decode(message)
            answers = []
            for note in notes:
                if note[0] == HELLO:
                    result = {"server": "fake", "incarnation": "1", "gone": [], "limits": _LIMITS}
                    answers.append([ANSWER, note[1], None, result])
                else:
                    answers.append(self.answer(note))
            with self.arrived:
                self.messages.append(notes)
                self.arrived.notify_all()
            answers = [answer for answer in answers if answer is not None]
            if answers:
                await connection.send(msgspec.msgpack.encode(answers))

    async def run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        options = {"subprotocols": ["manyhands.1"], "compression": None, "max_size": None}
        options["process_request"] = self._pass_on
        async with serve(self._handle, "127.0.0.1", 0, **options) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self.stop.wait()


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run(ready)), daemon=True)
    thread.start()
    assert ready.wait(90)
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(server.stop.set)
        thread.join()

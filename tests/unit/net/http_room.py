"""One HTTP connection without a network, for tests to look at."""

import asyncio
import json
from types import SimpleNamespace

from manyhands.access.callers import Callers
from manyhands.net.http import HttpConnection, HttpSession, Site
from manyhands.net.http_peer import Proxies
from manyhands.net.http_short_way import Request, ShortWay
from manyhands.net.tcp import TcpListener
from tests.unit.net.transport import ample_budget


class Socket(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 5), "sockname": ("127.0.0.1", 7700)})
        self.written = b""
        self.closed = False
        self.reading = True
        self.unread_bytes = 0  # for tests to set

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close
    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Backplane:
    """What a connection needs."""

    class Ids:
        def connection(self) -> str:
            return "1/1"

        def token(self) -> str:
            return ""

    class Dispatcher:
        draining = False
        clock = None

        owed_bytes = 0
        failed = None

        def __init__(self) -> None:
            self.on_signal: dict[str, object] = {}
            self.ask = None

    ids = Ids()

    def __init__(self) -> None:
        self.dispatcher = self.Dispatcher()
        self.budget = ample_budget()
        self.logins = SimpleNamespace(callers=Callers())


class Room:
    """A connection whose short way leads to a list of requests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: 1_000.0  # it stands still, however long a test takes
        self.asked: list[Request] = []
        self.handled = []
        self.site = Site(
            ShortWay({b"add": self.asked.append}, 100),
            Proxies(None),
            self.handled.append,
            lambda: 0.0,
            1_000,
        )
        self.socket = Socket()
        self.loop.run_until_complete(self.connect())

    async def connect(self) -> None:
        listener = TcpListener(Backplane(), None, "http", self.make_session)
        self.connection = HttpConnection(listener)
        self.connection.connection_made(self.socket)
        self.session = self.connection.session

    def make_session(self, connection: HttpConnection) -> HttpSession:
        connection.session = HttpSession(connection, self.site)
        return connection.session

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.connection.flush()

    def turn(self) -> None:
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def written(self) -> bytes:
        self.connection.flush()
        return self.socket.written

    def answer(self) -> tuple[int, str]:
        head, _, body = self.written().partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"]["code"]

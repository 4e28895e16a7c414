"""An embedded server as clients see it: a place to connect to, which starts when it is needed."""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from socket import socket, socketpair
from types import TracebackType
from typing import TYPE_CHECKING

from manyhands.client.errors import Refused

if TYPE_CHECKING:
    from manyhands.embedding.thread import ServerThread


class EmbeddedError(Refused):
    """The embedded server cannot start or cannot be used here. The message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__("no_server", message)


def embedded(path: str | os.PathLike[str] | None = None, http: str | None = None) -> "Embedded":
    """A server in a thread of this process, for ``App(embedded("./jobs"))``.

    ``path`` is its data directory, as durable as that of ``manyhands serve``; without one, jobs are
    in memory and end with the process. ``http`` is an address, such as ``127.0.0.1:7700``, at which
    it also serves its pages and APIs; without one, nothing listens. It starts when it is first
    used.
    """
    return Embedded(None if path is None else Path(path), http)


class Embedded:
    """One embedded server. It can be closed, and starts again when it is used again."""

    host = "localhost"
    prefix = ""
    token: str | None = None

    def __init__(self, path: Path | None, http: str | None) -> None:
        if os.name != "posix":
            raise EmbeddedError(
                "an embedded server needs a POSIX system; run `manyhands serve` on one, and give"
                " App its address"
            )
        self._path = path
        self._http = http
        self._lock = threading.Lock()
        self._thread: ServerThread | None = None
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """What messages call it."""
        return "embedded server" if self._path is None else f"embedded server in {self._path}"

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __enter__(self) -> "Embedded":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str | None:
        """Where it serves HTTP, if it does."""
        return self.start().address

    def start(self) -> "ServerThread":
        """Starts the server, unless it runs. Raises EmbeddedError."""
        if os.getpid() != self._pid:
            raise EmbeddedError(
                f"the {self.name} belongs to process {self._pid}, from which this one was forked;"
                " for several processes run `manyhands serve`, and give App its address"
            )
        with self._lock:
            thread = self._thread
            if thread is None or not thread.is_alive():
                # Only now: importing a whole server takes its time.
                from manyhands.embedding.thread import ServerThread  # noqa: PLC0415

                thread = ServerThread(self._path, self._http)
                thread.begin()
                self._thread = thread
                atexit.register(self.close)
            return thread

    def close(self) -> None:
        """Stops the server in order. What was acknowledged is on disk either way."""
        atexit.unregister(self.close)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid:
            thread.stop()

    # Connections, as clients make them.

    def open(self) -> socket:
        """A connection to the server, which speaks HTTP."""
        ours, theirs = socketpair()
        try:
            self.start().take(theirs)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return ours

    async def connect(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol, socket]:
        """Opens a connection in the running loop. The socket is the one below the transport."""
        plain = await asyncio.to_thread(self.open)
        try:
            plain.setblocking(False)  # noqa: FBT003 - the socket's own signature
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(factory, sock=plain)
        except BaseException:
            plain.close()
            raise
        return transport, protocol, plain

    def http(self, timeout: float) -> HTTPConnection:
        """A connection for plain requests, from any thread."""
        return _PairConnection(self, timeout)


class _PairConnection(HTTPConnection):
    """HTTP over a socket pair."""

    def __init__(self, place: Embedded, timeout: float) -> None:
        super().__init__(place.host, timeout=timeout)
        self._place = place

    def connect(self) -> None:
        self.sock = self._place.open()
        self.sock.settimeout(self.timeout)

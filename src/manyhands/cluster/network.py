"""Links over TCP: the listener for other servers, and calls to them."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final, cast

from msgspec.structs import replace

from manyhands.cluster.contract import ANOTHER, REFUSED, Peer
from manyhands.cluster.link import Goodbye, Hello, Link, LinkError, Message, OtherServerError
from manyhands.config import Address
from manyhands.loggers import get_logger

_log = get_logger("manyhands.links")

_GREETING_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 2.0
# What a peer has not read: it is gone, or too slow to be of use. It may call again.
_UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
_STRANGERS_MAX: Final = 64  # connections that have not proved anything yet
_NONCE_BYTES: Final = 32

OnOpen = Callable[[Peer], None]
OnMessage = Callable[[Peer, Message], None]
OnLost = Callable[[Peer | None, str], None]


class Connection(asyncio.Protocol):
    """One TCP connection between two servers."""

    def __init__(self, link: Link, on_open: OnOpen, on_message: OnMessage, on_lost: OnLost) -> None:
        self.address = ""
        self._link = link
        self._on_open = on_open
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self._is_announced = False
        self._soon = False
        self._reason = "the connection ended"

    @property
    def hello(self) -> Hello:
        """Who the peer is."""
        assert self._link.peer is not None
        return self._link.peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        self._transport = transport
        self.address = str(transport.get_extra_info("peername"))
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greeting = self._loop.call_later(_GREETING_SECONDS, self._lose_patience)
        self._flush()

    def _lose_patience(self) -> None:
        self._refuse(f"it did not prove itself within {_GREETING_SECONDS:g} s")

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._link.feed(data)
        except OtherServerError:
            self._reason = ANOTHER
            self._end()
            return
        except LinkError as error:
            self._refuse(str(error))
            return
        self._flush()
        if self._link.is_open and not self._is_announced:
            self._is_announced = True
            if self._greeting is not None:
                self._greeting.cancel()
            self._on_open(self)
        for message in messages:
            self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        if exc is not None and not self._reason:
            self._reason = str(exc)
        self._on_lost(self if self._is_announced else None, self._reason)

    def send(self, message: Message) -> None:
        """Sends it with whatever else is sent in this turn."""
        self._link.send(message)
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._soon = False
        transport = self._transport
        data = self._link.take()
        if transport is None or transport.is_closing() or not data:
            return
        transport.write(data)
        if transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self._reason = f"it left more than {_UNSENT_BYTES_MAX} bytes unread"
            transport.abort()

    def _refuse(self, sentence: str) -> None:
        """The peer is not one of us, or talks nonsense."""
        self._reason = sentence
        _log.warning("a link was refused", address=self.address, reason=sentence)
        self.close(sentence)

    def close(self, sentence: str) -> None:
        """Says goodbye and closes."""
        if self._transport is not None and not self._transport.is_closing():
            self._link.send(Goodbye(sentence))
            self._flush()
        self._end()

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Network:
    """The links of this server: it listens for others, and calls them."""

    def __init__(self, me: Hello, secret: bytes) -> None:
        self._me = me
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused_count = 0

    def _link(self, *, calling: bool, wanted: str = "") -> Link:
        me = replace(self._me, nonce=os.urandom(_NONCE_BYTES), wanted=wanted)
        return Link(me, self._secret, calling=calling)

    async def listen(
        self, listening: socket.socket, on_open: OnOpen, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Takes calls on a socket that is bound already."""

        def made() -> Connection:
            def lost(peer: Peer | None, reason: str) -> None:
                self._connections.discard(connection)
                if peer is not None:
                    on_lost(peer, reason)
                else:
                    self.refused_count += 1

            connection = Connection(self._link(calling=False), on_open, on_message, lost)
            self._connections.add(connection)
            return connection

        self._server = await asyncio.get_running_loop().create_server(
            made, sock=listening, backlog=_STRANGERS_MAX
        )

    def call(
        self,
        address: str,
        incarnation: str,
        on_open: OnOpen,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        """Calls a server."""
        task = asyncio.get_running_loop().create_task(
            self._call(address, incarnation, on_open, on_message, on_lost)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(
        self,
        address: str,
        incarnation: str,
        on_open: OnOpen,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        host, _, port = address.rpartition(":")

        def lost(peer: Peer | None, reason: str) -> None:
            self._connections.discard(connection)
            on_lost(peer, reason)

        connection = Connection(
            self._link(calling=True, wanted=incarnation), on_open, on_message, lost
        )
        try:
            connecting = asyncio.get_running_loop().create_connection(
                lambda: connection, host.strip("[]"), int(port)
            )
            await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        except ConnectionRefusedError:
            on_lost(None, REFUSED)
        except (OSError, TimeoutError, ValueError) as error:
            on_lost(None, str(error) or "it did not answer")
        else:
            self._connections.add(connection)

    async def close(self) -> None:
        """Closes everything, with a goodbye."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.close("this server stops")


def bind(address: Address) -> socket.socket:
    """Binds the listener. It is bound before the server joins, because others call it at once."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.setblocking(False)  # noqa: FBT003
    except OSError:
        listening.close()
        raise
    return listening

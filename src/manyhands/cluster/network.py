"""Links over TCP, with TLS or without: the listener for other servers, and calls to them."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from msgspec.structs import replace

from manyhands.cluster.contract import ANOTHER, REFUSED, Peer
from manyhands.cluster.link import (
    Goodbye,
    Hello,
    Link,
    LinkError,
    Message,
    OtherServerError,
    Sent,
)
from manyhands.config import Address

_GREETING_SECONDS: Final = 2.0  # for TLS, and once more for the proof
_CONNECT_SECONDS: Final = 2.0
_SHUTDOWN_SECONDS: Final = 2.0
# What a peer has not read: it is gone, or too slow to be of use. It may call again. A message that
# is larger by itself may still be sent.
_UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
# Connections that have not proved anything yet. If there are more, the oldest ends: a server of
# ours takes milliseconds.
_STRANGERS_MAX: Final = 64
_ACCEPTS_MAX: Final = 32  # in one turn of the loop
_PAUSE_SECONDS: Final = 1.0  # before accepting again when no more files can be opened
_NONCE_BYTES: Final = 32

OnOpen = Callable[[Peer], None]
OnMessage = Callable[[Peer, Message], None]
OnLost = Callable[[Peer | None, str], None]


class Warn(Protocol):
    """Logs a warning that a peer may cause again and again."""

    def __call__(self, sentence: str, peer: str, **facts: Any) -> None:  # noqa: ANN401
        """``peer`` is its address, without the port."""


class Encryption(Protocol):
    """TLS on links: both ends show a certificate of the same authority."""

    @property
    def context(self) -> ssl.SSLContext:
        """Of the end that is called."""

    @property
    def calling(self) -> ssl.SSLContext:
        """Of the end that calls."""

    def reason_of(self, error: OSError) -> str:
        """Why a handshake failed, in words."""


class Connection(asyncio.Protocol):
    """One TCP connection between two servers."""

    def __init__(
        self, link: Link, on_open: OnOpen, on_message: OnMessage, on_lost: OnLost, warn: Warn
    ) -> None:
        self.host = ""
        self.is_proved = False
        self._link = link
        self._on_open = on_open
        self._on_message = on_message
        self._on_lost = on_lost
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None
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
        self.host = str((transport.get_extra_info("peername") or ("?",))[0])
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
        if self._link.is_open and not self.is_proved:
            self.is_proved = True
            if self._greeting is not None:
                self._greeting.cancel()
            self._on_open(self)
        for message in messages:
            self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        if exc is not None:
            self._reason = str(exc) or self._reason
        self._on_lost(self if self.is_proved else None, self._reason)

    def send(self, message: Sent) -> None:
        """Sends it with whatever else is sent in this turn. Raises LinkError if it is too large."""
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
        if transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self._reason = f"it left more than {_UNSENT_BYTES_MAX} bytes unread"
            transport.abort()
            return
        transport.write(data)

    def _refuse(self, sentence: str) -> None:
        """The peer is not one of us, or talks nonsense."""
        self._reason = sentence
        self._warn("a link was refused", self.host, reason=sentence)
        self.close(sentence)

    def drop(self) -> None:
        """Ends at once, without a word: others have more right to be here."""
        self._reason = "others were waiting"
        if self._transport is not None:
            self._transport.abort()

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

    def __init__(
        self, me: Hello, secret: bytes, warn: Warn, encryption: Encryption | None = None
    ) -> None:
        self._me = me
        self._secret = secret
        self._warn = warn
        self._encryption = encryption
        self._listening: socket.socket | None = None
        self._connections: set[Connection] = set()
        # The oldest first; None: the handshake of TLS is not complete.
        self._strangers: dict[asyncio.Task[None], Connection | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused_count = 0

    def _link(self, *, calling: bool, wanted: str = "") -> Link:
        me = replace(self._me, nonce=os.urandom(_NONCE_BYTES), wanted=wanted)
        return Link(me, self._secret, calling=calling)

    def _tls(self, *, calling: bool) -> dict[str, Any]:
        encryption = self._encryption
        if encryption is None:
            return {}
        return {
            "ssl": encryption.calling if calling else encryption.context,
            "ssl_handshake_timeout": _GREETING_SECONDS,
            "ssl_shutdown_timeout": _SHUTDOWN_SECONDS,
        }

    # Called.

    def listen(
        self, listening: socket.socket, on_open: OnOpen, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Takes calls on a socket that is bound already."""
        self._listening = listening
        self._heard = (on_open, on_message, on_lost)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept)

    def _accept(self) -> None:
        listening = self._listening
        if listening is None:
            return
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_MAX):
            try:
                peer, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn("no servers can be accepted", "", reason=error.strerror)
                loop.remove_reader(listening.fileno())
                loop.call_later(_PAUSE_SECONDS, self._accept_again)
                return
            peer.setblocking(False)  # noqa: FBT003 - the socket's own signature
            if len(self._strangers) >= _STRANGERS_MAX:
                self._drop_oldest()
            task = loop.create_task(self._receive(peer, str(address[0])))
            self._strangers[task] = None

    def _accept_again(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def _drop_oldest(self) -> None:
        task, connection = next(iter(self._strangers.items()))
        del self._strangers[task]
        if connection is not None:
            connection.drop()
        else:
            task.cancel()
        self.refused_count += 1

    async def _receive(self, peer: socket.socket, host: str) -> None:
        on_open, on_message, on_lost = self._heard
        task = asyncio.current_task()
        assert task is not None

        def opened(proved: Peer) -> None:
            self._strangers.pop(task, None)
            on_open(proved)

        def lost(known: Peer | None, reason: str) -> None:
            self._connections.discard(connection)
            if known is not None:
                on_lost(known, reason)
            elif self._strangers.pop(task, None) is not None:
                self.refused_count += 1

        connection = Connection(self._link(calling=False), opened, on_message, lost, self._warn)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, peer, **self._tls(calling=False)
            )
        except asyncio.CancelledError:
            peer.close()
        except OSError as error:
            peer.close()
            self._strangers.pop(task, None)
            self.refused_count += 1
            self._warn("a link was refused", host, reason=self._words_of(error))
        else:
            if not connection.is_proved and task in self._strangers:
                self._strangers[task] = connection
            self._connections.add(connection)

    def _words_of(self, error: OSError) -> str:
        if self._encryption is not None:
            return self._encryption.reason_of(error)
        return error.strerror or str(error) or "it did not answer"

    # Calling.

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

        link = self._link(calling=True, wanted=incarnation)
        connection = Connection(link, on_open, on_message, lost, self._warn)
        loop = asyncio.get_running_loop()
        plain: socket.socket | None = None
        try:
            plain = await asyncio.wait_for(_connect(host.strip("[]"), int(port)), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            on_lost(None, REFUSED)
            return
        except (OSError, TimeoutError, ValueError) as error:
            on_lost(None, str(error) or "it did not answer")
            return
        try:
            tls = self._tls(calling=True)
            if tls:
                tls["server_hostname"] = (
                    ""  # the authority vouches for servers, whatever their name
                )
            await loop.create_connection(lambda: connection, sock=plain, **tls)
        except OSError as error:
            plain.close()
            reason = self._words_of(error)
            self._warn("a link was refused", host, reason=reason)
            on_lost(None, reason)
        else:
            self._connections.add(connection)

    async def close(self) -> None:
        """Closes everything, with a goodbye."""
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()
        for task in (*self._tasks, *self._strangers):
            task.cancel()
        for connection in list(self._connections):
            connection.close("this server stops")


async def _connect(host: str, port: int) -> socket.socket:
    """A connected socket. It is made before any TLS, so that "refused" is not something else."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError("no such host")
    for family, kind, protocol, _, where in found:
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)  # noqa: FBT003 - the socket's own signature
        try:
            await loop.sock_connect(made, where)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


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

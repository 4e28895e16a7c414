"""Where a server is: addresses, how to reach them, and what to say first."""

import asyncio
import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from manyhands.client.trust import Trust

URL: Final = "http://127.0.0.1:7700"
NOT_HTTP: Final = "what answers there does not speak HTTP, so it is no Manyhands server"
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_CONNECT_SECONDS: Final = 10.0


class Place(Protocol):
    """A server that a client can connect to."""

    @property
    def name(self) -> str:
        """What messages call it; never with a token."""

    @property
    def host(self) -> str:
        """The ``Host`` header of requests."""

    @property
    def prefix(self) -> str:
        """What all paths begin with."""

    @property
    def token(self) -> str | None:
        """The server's own token, if the address brings one."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol, socket.socket]:
        """Opens a connection in the running loop. The socket is the one below the transport."""

    def http(self, timeout: float) -> http.client.HTTPConnection:
        """A connection for plain requests, from any thread."""


class Url:
    """A server at a host and a port."""

    def __init__(self, url: str, trust: Trust | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in _PORTS or not parts.hostname:
            sentence = f"{url!r} is no address of a server; an example of one is {URL}"
            raise ValueError(sentence)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "the address of a server has no user, password, query or fragment; "
                "pass a token as token=…, or in MANYHANDS_TOKEN"
            )
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            raise ValueError(f"{url!r} has no valid port") from None
        self._hostname = parts.hostname
        self._port = port
        self._is_secure = parts.scheme in ("https", "wss")
        self.trust = trust or Trust()
        self.host = parts.netloc
        self.prefix = parts.path.rstrip("/")
        self.token = None
        scheme = "https" if self._is_secure else "http"
        self.name = f"{scheme}://{parts.netloc}{self.prefix}"

    def __repr__(self) -> str:
        return self.name

    async def connect(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol, socket.socket]:
        """Tries the addresses of the host one after the other."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_SECONDS):
            plain = await self._socket(loop)
            try:
                transport, protocol = await loop.create_connection(
                    factory,
                    sock=plain,
                    ssl=self._context(),
                    server_hostname=self._hostname if self._is_secure else None,
                )
            except BaseException:
                plain.close()
                raise
        return transport, protocol, plain

    async def _socket(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        try:
            found = await loop.getaddrinfo(self._hostname, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{self._hostname!r} is no name of a host: {error}") from None
        problem: OSError = OSError(f"{self._hostname} has no address")
        for family, kind, protocol, _, address in found:
            made = socket.socket(family, kind, protocol)
            made.setblocking(False)  # noqa: FBT003 - the socket's own signature
            try:
                await loop.sock_connect(made, address)
            except OSError as error:
                made.close()
                problem = error
            except BaseException:
                made.close()
                raise
            else:
                with contextlib.suppress(OSError):
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
        raise problem

    def http(self, timeout: float) -> http.client.HTTPConnection:
        """For plain requests."""
        if self._is_secure:
            return http.client.HTTPSConnection(
                self._hostname, self._port, timeout=timeout, context=self._context()
            )
        return http.client.HTTPConnection(self._hostname, self._port, timeout=timeout)

    def _context(self) -> ssl.SSLContext | None:
        return self.trust.context() if self._is_secure else None


def places(server: "str | Place | None", trust: Trust | None = None) -> Sequence[Place]:
    """Where the servers are; several addresses are separated by commas."""
    if server is None:
        server = os.environ.get("MANYHANDS_URL") or URL
    if not isinstance(server, str):
        return (server,)
    found = tuple(Url(url.strip(), trust) for url in server.split(",") if url.strip())
    if not found:
        raise ValueError(f"the address of a server is missing; an example of one is {URL}")
    return found


def why_not(error: Exception) -> str:
    """Why a server could not be asked, and what to look at."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens there (start `manyhands serve`, or give its address)"
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted: {error.verify_message}; pass ca=…"
        case ssl.SSLError():
            return f"there is no TLS at this address ({error.reason}): try http instead of https"
        case TimeoutError():
            return "it does not answer"
        case http.client.BadStatusLine():
            return NOT_HTTP
        case _:
            return str(error) or type(error).__name__


def token_of(token: str | None) -> str | None:
    """The given token, or that of the environment."""
    found = token if token is not None else os.environ.get("MANYHANDS_TOKEN") or None
    if found is not None and not (found.isascii() and found.isprintable() and found):
        raise ValueError("a token consists of printable ASCII characters")  # never show it
    return found

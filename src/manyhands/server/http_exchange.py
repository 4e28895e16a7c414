"""One request and its answer, in the envelope; and the defences that every request passes."""

import ipaddress
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from manyhands.config import Address
from manyhands.protocols.http_envelope import Problem, bare_error, envelope, error_envelope
from manyhands.server.access import ANYBODY
from manyhands.server.clock import Clock
from manyhands.server.http_connection import Connection

_JSON_HEADERS: Final = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
]
_SAFE_SITES: Final = (b"same-origin", b"none")
_HOSTS_KNOWN_MAX: Final = 1_000
# Basic first: that is what browsers ask people for.
_WHO: Final = (
    (b"www-authenticate", b'Basic realm="manyhands", charset="UTF-8"'),
    (b"www-authenticate", b'Bearer realm="manyhands"'),
)
_BARE: Final = "/0.2.0/"  # below it is an API that has no envelope
_RETRY_AFTER: Final = {429: b"1", 503: b"5"}


class HungUpError(Exception):
    """The peer is gone; nobody is there to be answered."""


class Exchange:
    """A request that is being answered."""

    __slots__ = (
        "_clock",
        "_receive",
        "_send",
        "_started_ms",
        "body_bytes_max",
        "caller",
        "connection",
        "headers",
        "method",
        "path",
        "scope",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, clock: Clock, body_bytes_max: int
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.connection: Connection = scope["state"]["connection"]
        self._receive = receive
        self._send = send
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        self.body_bytes_max = body_bytes_max
        self.caller = ANYBODY  # until it is known better

    @property
    def address(self) -> str:
        """Who asks."""
        return self.connection.peer.address(self.headers)

    async def body(self) -> bytes:
        """The whole body of a request that carries JSON."""
        if not is_json(self.headers.get(b"content-type")):
            sentence = "the content type must be application/json"
            raise Problem(415, "unsupported_media_type", sentence)
        length = self.headers.get(b"content-length")
        if length is not None and int(length) > self.body_bytes_max:
            raise self._too_large()
        message = await self._receive()
        if message["type"] == "http.request" and not message["more_body"]:
            found: bytes = message["body"]
            if len(found) > self.body_bytes_max:
                raise self._too_large()
            return found
        gathered = bytearray()
        while message["type"] == "http.request":
            gathered += message["body"]
            if len(gathered) > self.body_bytes_max:
                raise self._too_large()
            if not message["more_body"]:
                return bytes(gathered)
            message = await self._receive()
        raise HungUpError

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, of whatever kind it is."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise HungUpError
            if message["body"]:
                yield message["body"]
            if not message["more_body"]:
                return

    def _too_large(self) -> Problem:
        sentence = f"a body may have at most {self.body_bytes_max} bytes"
        return Problem(413, "too_large", sentence)

    def elapsed_ms(self) -> float:
        """Since the request came."""
        return self._clock.monotonic_ms() - self._started_ms

    async def answer(
        self, results: object, beside: dict[str, Any] | None = None, status: int = 200
    ) -> None:
        """Success, or what looks like it to a machine that only asks whether we live."""
        await self.send_bytes(status, _JSON_HEADERS, envelope(results, self.elapsed_ms(), beside))

    async def fail(
        self,
        problem: Problem,
        allow: str | None = None,
        more: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """The sentence that says why not."""
        headers = [*_JSON_HEADERS, *more]
        if allow is not None:
            headers.append((b"allow", allow.encode()))
        headers += headers_of(problem.status)
        if self.connection.has_unread_body:
            headers.append((b"connection", b"close"))
        if self.path.startswith(_BARE):
            body = bare_error(problem)
        else:
            body = error_envelope(problem, self.elapsed_ms())
        await self.send_bytes(problem.status, headers, body)

    async def send_bytes(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """A whole answer."""
        self.connection.errors.note(status)
        length = (b"content-length", b"%d" % len(body))
        cork = self.connection.cork
        cork.cork()
        try:
            await self._send(
                {"type": "http.response.start", "status": status, "headers": [*headers, length]}
            )
            await self._send({"type": "http.response.body", "body": body})
        finally:
            cork.uncork()

    async def begin_stream(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """An answer whose end is not known yet."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_piece(self, piece: bytes) -> None:
        """Part of it, once there is room on the way to the peer."""
        if self.connection.is_gone:
            raise HungUpError
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self) -> None:
        """That was all."""
        await self._send({"type": "http.response.body", "body": b""})


def is_json(content_type: bytes | None) -> bool:
    """Whether a body says of itself that it is JSON. Saying nothing does not count: any web page
    can make a browser send such a body.
    """
    if content_type == b"application/json":
        return True
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def headers_of(status: int) -> Iterable[tuple[bytes, bytes]]:
    """When to come back, for a status that passes; how to say who one is, where that is missing."""
    if status == 401:
        return _WHO
    return [(b"retry-after", _RETRY_AFTER[status])] if status in _RETRY_AFTER else ()


class Defences:
    """Against web pages that make a browser talk to us: whose name was asked for, who asks."""

    def __init__(self, bound: Address, names: tuple[str, ...]) -> None:
        self._names = {name.lower() for name in (*names, "localhost", bound.host)}
        self._any_address = _is_wildcard(bound.host)
        self._known: set[bytes] = set()

    def check(
        self, headers: dict[bytes, bytes], *, host_needed: bool, linked: bool = False
    ) -> None:
        """Raises a problem if the request must not be listened to. ``linked``: a page of another
        site may lead a person here, though it may not fetch, frame or embed what is here.
        """
        host = headers.get(b"host")
        if host is None:
            if host_needed:
                raise Problem(400, "invalid_request", "the request has no Host header")
        elif host not in self._known:
            self._look_at(host)
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _SAFE_SITES and not (linked and _navigates(headers)):
            raise _cross_site("another site's page may not use this server")
        if b"sec-purpose" in headers:
            raise _cross_site("prefetching is not welcome here")
        origin = headers.get(b"origin")
        if origin is not None and _place(origin) != host:
            raise _cross_site("a page of another origin may not use this server")

    def _look_at(self, host: bytes) -> None:
        if not self._allows(host):
            sentence = "this server does not answer to that name; see the Host header"
            raise Problem(421, "unknown_host", sentence)
        if len(self._known) < _HOSTS_KNOWN_MAX:
            self._known.add(host)

    def _allows(self, host: bytes) -> bool:
        if b"@" in host:
            return False  # a user's name before it would hide which host it is
        try:
            name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
        except ValueError:
            return False
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


def _navigates(headers: dict[bytes, bytes]) -> bool:
    """Whether somebody followed a link: the answer is shown in a window of its own."""
    mode = headers.get(b"sec-fetch-mode")
    return mode == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"


def _cross_site(sentence: str) -> Problem:
    return Problem(403, "cross_site", sentence)


def _place(origin: bytes) -> bytes:
    scheme, _, place = origin.partition(b"://")
    return place if scheme in (b"http", b"https") else b""


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False

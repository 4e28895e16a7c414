"""One request and its answer, in the envelope; and the checks against hostile web pages that every
request passes.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from httptools import parse_url

from manyhands.model.roles import ANYBODY
from manyhands.web.envelope import Problem, bare_error, envelope, error_envelope

if TYPE_CHECKING:
    from manyhands.net.http import HttpSession, Speaker

Headers = Sequence[tuple[bytes, bytes]]

_JSON_HEADERS: Final = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
]
# The names that browsers have used for it over the years.
_PREFETCHING: Final = frozenset({b"sec-purpose", b"purpose", b"x-purpose", b"x-moz"})
# Headers that a foreign page cannot send without a preflight, or that prove our own origin.
_NEVER_OF_PAGES: Final = frozenset({b"x-qless-host", b"origin"})
_SAFE_SITES: Final = (b"same-origin", b"none")
_HOSTS_KNOWN_MAX: Final = 1_000
# Basic first, so that browsers ask for a password.
_WHO: Final = (
    (b"www-authenticate", b'Basic realm="manyhands", charset="UTF-8"'),
    (b"www-authenticate", b'Bearer realm="manyhands"'),
)
_UPGRADE: Final = (
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-version", b"13"),
)
_BARE: Final = "/0.2.0/"  # the prefix of an API without an envelope
_RETRY_AFTER: Final = {429: b"1", 503: b"5"}
_BODILESS: Final = (204, 304)
# Pieces of an answer are written together, up to this size.
_PIECES_BYTES_MAX: Final = 256 * 1024
# An answer of this size is not copied more often than necessary, and waits while peers have too
# much unread.
_LARGE_BYTES: Final = 1024 * 1024
_LINES: Final = {
    int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _LINES[status]


class HungUpError(Exception):
    """The peer is gone, so there is nothing to answer."""


class Exchange:
    """A request with a task of its own, and its answer."""

    __slots__ = (
        "_body",
        "_continue",
        "_gathered_bytes",
        "_has_length",
        "_is_chunked",
        "_is_gone",
        "_old",
        "_started_ms",
        "_streaming",
        "_unwritten_bytes",
        "_waiter",
        "body_bytes",
        "body_bytes_max",
        "caller",
        "connection",
        "headers",
        "is_whole",
        "keep_alive",
        "method",
        "params",
        "path",
        "query_string",
        "raw_path",
    )

    def __init__(
        self,
        session: "HttpSession",
        method: str,
        url: bytes,
        headers: dict[bytes, bytes],
        *,
        keep_alive: bool,
        old: bool,
    ) -> None:
        self.connection = session
        self.method = method
        self.headers = headers
        self.keep_alive = keep_alive
        self.raw_path, self.query_string = _split(url)
        path = self.raw_path.decode("latin-1")
        self.path = unquote(path) if "%" in path else path
        self.params: dict[str, str] = {}  # the parameters of the path, in order
        self.caller = ANYBODY  # until access was checked
        self.body_bytes_max = session.site.body_bytes_max
        self.is_whole = False
        self.body_bytes = 0
        self._body: list[bytes] = []
        self._gathered_bytes = 0  # taken, and kept until the body is complete
        self._waiter: asyncio.Future[None] | None = None
        self._old = old  # HTTP/1.0, which has no chunks
        self._continue = headers.get(b"expect", b"").lower() == b"100-continue" and not old
        self._streaming = False  # the head of the answer was written
        self._is_chunked = self._has_length = False
        self._unwritten_bytes = 0
        self._is_gone = False
        self._started_ms = session.site.monotonic_ms()

    # Called by the session.

    def begin(self) -> None:
        """Called when it is this request's turn."""
        self.connection.site.handle(self)

    def receive(self, piece: bytes) -> None:
        """Takes a piece of the body."""
        self._body.append(piece)
        self.body_bytes += len(piece)
        self._wake()

    def end_of_body(self) -> None:
        """Called when the body is complete."""
        self._wake()

    def held_bytes(self) -> int:
        """Bytes of the body that are kept until it is complete."""
        return self.body_bytes + self._gathered_bytes

    def has_begun_answer(self) -> bool:
        """Whether part of the answer was written."""
        return self._streaming

    def lost(self) -> None:
        """Called when the peer is gone or was disconnected."""
        self._is_gone = True
        self._body.clear()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _news(self) -> None:
        """Waits until the session reports something."""
        self._waiter = self.connection.loop.create_future()
        await self._waiter

    # The request.

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.connection.peer.address(self.headers)

    @property
    def is_old(self) -> bool:
        """Whether it is HTTP/1.0, where a Host header is optional."""
        return self._old

    def has_body(self) -> bool:
        """Whether the request announces a body."""
        length = self.headers.get(b"content-length", b"0")
        return length.strip(b"0") != b"" or b"transfer-encoding" in self.headers

    async def body(self) -> bytes:
        """The whole body of a request with JSON."""
        check_json(self.headers)
        length = self.headers.get(b"content-length")
        if length is not None and int(length) > self.body_bytes_max:
            raise self._too_large()
        gathered: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > self.body_bytes_max:
                raise self._too_large()
            gathered.append(piece)
            self._gathered_bytes = size
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, of any type."""
        if self._continue:
            self._continue = False
            if not (self._body or self.is_whole):
                self.connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            if self._is_gone:
                raise HungUpError
            if self._body:
                body, self._body, self.body_bytes = self._body, [], 0
                self.connection.read_on()
                for piece in body:
                    yield piece
            elif self.is_whole:
                return
            else:
                await self._news()

    def _too_large(self) -> Problem:
        sentence = f"a body may have at most {self.body_bytes_max} bytes"
        return Problem(413, "too_large", sentence)

    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return self.connection.site.monotonic_ms() - self._started_ms

    # The answer.

    async def answer(
        self,
        results: object,
        beside: object = None,
        status: int = 200,
        more: Headers = (),
    ) -> None:
        """Answers with results, in the envelope."""
        headers = [*_JSON_HEADERS, *more]
        await self.send_bytes(status, headers, envelope(results, self.elapsed_ms(), beside))

    async def fail(
        self,
        problem: Problem,
        allow: str | None = None,
        more: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Answers with an error."""
        if self._streaming:  # too late for another answer: the peer sees that this one is cut off
            self.connection.connection.close()
            return
        if self.method == "OPTIONS" and allow is not None:
            await self.answer_options(allow)
            return
        headers = [*_JSON_HEADERS, *more]
        if allow is not None:
            headers.append((b"allow", allow.encode()))
        headers += headers_of(problem.status)
        if self.path.startswith(_BARE):
            body = bare_error(problem)
        else:
            body = error_envelope(problem, self.elapsed_ms())
        await self.send_bytes(problem.status, headers, body)

    async def answer_options(self, allow: str, more: Headers = ()) -> None:
        """Answers which methods are possible."""
        await self.send_bytes(204, [(b"allow", f"{allow}, OPTIONS".encode()), *more], b"")

    async def send_bytes(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a complete answer."""
        self.connection.site.errors.note(status)
        if status not in _BODILESS:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        head = self._head(status, headers)
        if self._is_mute(status):
            self.connection.send(head)
        elif len(body) < _LARGE_BYTES:
            self.connection.send(head + body)
        else:
            self.connection.send(head)
            self.connection.send_large(body)
        self._streaming = True
        self.connection.answered(self)

    async def room_for(self, count: int) -> bool:
        """Waits for room for an answer of this size; returns whether it had to wait."""
        budget = self.connection.connection.listener.backplane.budget
        if count < _LARGE_BYTES or budget.has_room_for_answer():
            return False
        await budget.room_for_answer()
        if self.connection.is_gone:
            budget.relieve()  # the next one need not wait for this answer
            raise HungUpError
        return True

    async def begin_stream(self, status: int, headers: Headers) -> None:
        """Begins an answer of unknown length."""
        self._has_length = any(name == b"content-length" for name, _ in headers)
        if not (self._has_length or status in _BODILESS):
            if self._old:
                self.keep_alive = False
            else:
                self._is_chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
        self.connection.send(self._head(status, headers))
        self._streaming = True

    async def send_piece(self, piece: bytes) -> None:
        """Sends part of the answer, once the connection has room for it."""
        session = self.connection
        if session.is_gone:
            raise HungUpError
        if not piece or self.method == "HEAD":
            return
        session.send(b"%x\r\n%s\r\n" % (len(piece), piece) if self._is_chunked else piece)
        self._unwritten_bytes += len(piece)
        if self._unwritten_bytes >= _PIECES_BYTES_MAX:
            self._unwritten_bytes = 0
            session.connection.flush()
        while session.connection.writing_paused and not session.is_gone:
            session.connection.on_writable = self._wake
            await self._news()
            session.connection.on_writable = None

    async def end_stream(self) -> None:
        """Ends the answer."""
        if self._is_chunked and self.method != "HEAD":
            self.connection.send(b"0\r\n\r\n")
        self.connection.answered(self)

    def upgrade(self, headers: Headers, speaker: "Speaker") -> None:
        """Switches to another protocol, if the session may hand over."""
        if self.connection.is_gone:
            raise HungUpError
        self._streaming = True
        if not self.connection.hand_over(self._head(101, headers), speaker):
            raise HungUpError

    def _head(self, status: int, headers: Headers) -> bytes:
        if not self.is_whole:
            self.keep_alive = False  # the rest of its body is not a request
        site = self.connection.site
        parts = [status_line(status), b"date: ", site.date, b"\r\n"]
        if site.cors.origins:
            headers = [*headers, *site.cors.headers(self.headers.get(b"origin"))]
        for name, value in headers:
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise ValueError(f"a header must be one line: {name!r}")
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _is_mute(self, status: int) -> bool:
        return self.method == "HEAD" or status in _BODILESS


def _split(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a URL, in any form that a request may have."""
    if url.startswith(b"/"):
        path, _, query = url.partition(b"#")[0].partition(b"?")
        return path, query
    if url == b"*":
        return url, b""
    parsed = parse_url(url)
    return parsed.path or b"/", parsed.query or b""


def check_json(headers: dict[bytes, bytes]) -> None:
    """Raises a Problem unless the content type is JSON and there is no encoding."""
    if not is_json(headers.get(b"content-type")):
        sentence = "the content type must be application/json"
        raise Problem(415, "unsupported_media_type", sentence)
    coding = headers.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        sentence = "a body must not be compressed: this server knows no Content-Encoding"
        raise Problem(415, "unsupported_media_type", sentence)


def is_json(content_type: bytes | None) -> bool:
    """Whether a body is declared as JSON. A missing type does not count: any web page can make a
    browser send such a body.
    """
    if content_type == b"application/json":
        return True
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def headers_of(status: int) -> Iterable[tuple[bytes, bytes]]:
    """Headers that a status needs: when to retry, how to authenticate, or which protocol to use."""
    if status == 401:
        return _WHO
    if status == 426:
        return _UPGRADE
    return [(b"retry-after", _RETRY_AFTER[status])] if status in _RETRY_AFTER else ()


class Defences:
    """Checks against web pages that make a browser call this server: the host and the origin."""

    def __init__(self, names: Iterable[str], origins: frozenset[bytes] = frozenset()) -> None:
        """``names`` are those of this server: addresses that it is bound to, and names such as
        ``*.example.com``.
        """
        self._names = {name.lower() for name in (*names, "localhost")}
        self._any_address = any(map(_is_wildcard, self._names))
        self._origins = origins  # foreign origins whose pages may use the APIs
        self._known: set[bytes] = set()

    def check(
        self,
        headers: dict[bytes, bytes],
        *,
        host_needed: bool,
        linked: bool = False,
        is_api: bool = True,
    ) -> None:
        """Raises a Problem if the request must not be served. With ``linked``, a page of another
        site may link here, though it may not fetch, frame or embed. With ``is_api``, pages of
        configured origins may use it.
        """
        host = headers.get(b"host")
        if host is None:
            if host_needed:
                raise Problem(400, "invalid_request", "the request has no Host header")
        elif host not in self._known:
            self._look_at(host)
        origin = headers.get(b"origin")
        if is_api and origin in self._origins:
            return
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _SAFE_SITES and not (linked and _navigates(headers)):
            raise _cross_site("another site's page may not use this server")
        if not _PREFETCHING.isdisjoint(headers) and _prefetches(headers):
            raise _cross_site("prefetching is not welcome here")
        if origin is not None and _place(origin) != host:
            raise _cross_site("a page of another origin may not use this server")

    def check_taking(self, headers: dict[bytes, bytes]) -> None:
        """Checks a GET that takes work. A page of another site can cause one, for example as an
        image, and browsers say where it comes from only if the server is on their own machine or
        uses TLS. So a request from a browser needs something that no page can add to it.
        """
        if b"mozilla" not in headers.get(b"user-agent", b"").lower():
            return  # a program: every browser sends this word, whatever a page does
        host = headers.get(b"host", b"")
        if b"sec-fetch-site" in headers or _is_own_machine(host):
            return
        if not _NEVER_OF_PAGES.isdisjoint(headers):
            return
        if headers.get(b"authorization", b"")[:7].lower() == b"bearer ":
            return
        if _place(headers.get(b"referer", b"")).partition(b"/")[0] != host:
            raise _cross_site(
                "a browser that takes work with GET must send X-Qless-Host, a Bearer token, or a"
                " Referer or Origin of this server: else any web page could have it taken"
            )

    def _look_at(self, host: bytes) -> None:
        if not self._allows(host):
            sentence = "this server does not answer to that name; see the Host header"
            raise Problem(421, "unknown_host", sentence)
        if len(self._known) < _HOSTS_KNOWN_MAX:
            self._known.add(host)

    def _allows(self, host: bytes) -> bool:
        if b"@" in host:
            return False  # a user name in front would hide the host
        try:
            name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
        except ValueError:
            return False
        any_of_domain = f"*.{name.partition('.')[2]}"
        if name in self._names or any_of_domain in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


def _is_own_machine(host: bytes) -> bool:
    """Whether browsers know that a host is their own machine."""
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    return ipaddress.ip_address(name).is_loopback


def _prefetches(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser prefetches a page that may never be shown."""
    return b"sec-purpose" in headers or any(
        headers.get(name, b"").lower() in (b"prefetch", b"preview") for name in _PREFETCHING
    )


def _navigates(headers: dict[bytes, bytes]) -> bool:
    """Whether the user followed a link, so that the answer is shown as a page of its own."""
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

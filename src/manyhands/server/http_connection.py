"""One HTTP connection: uvicorn's, with bounds on what a peer may send before it is listened to, and
a short way for routes that are asked for all the time.

The short way: no task, no ASGI messages; the whole request is handed over once its body is there,
and the answer is one write. Whatever is unusual about a request takes the long way.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from manyhands.protocols.http_envelope import Problem, error_envelope
from manyhands.server.http_peer import Peer, Proxies

_HEAD_BYTES_MAX: Final = 64 * 1024
_URL_BYTES_MAX: Final = 16 * 1024
_HEADERS_COUNT_MAX: Final = 100
# A head has this long, and so has a body, plus a second for each 64 KiB that did arrive.
_PATIENCE_SECONDS: Final = 30.0
_BYTES_A_SECOND: Final = 64 * 1024
# A connection that breaks this soon after an answer broke because of it.
_RECEIPT_SECONDS: Final = 1.0


_JSON_HEAD: Final = b"content-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
Headers = tuple[tuple[bytes, bytes], ...]


class Request:
    """A whole request, and where its answer goes: a status, a JSON body, further headers."""

    __slots__ = (
        "body",
        "connection",
        "headers",
        "method",
        "notes",
        "path",
        "query",
        "send",
        "started_ms",
    )

    def __init__(
        self,
        connection: "Connection",
        method: str,
        url: tuple[bytes, bytes],
        headers: dict[bytes, bytes],
        send: Callable[[int, bytes, Headers], None],
    ) -> None:
        self.connection = connection
        self.method = method
        self.path, self.query = url
        self.headers = headers
        self.body = b""
        self.send = send
        self.notes: Headers = ()  # headers that go with any answer
        self.started_ms = 0.0


class ShortWay:
    """Which first segments of a path have one, up to which size of a body."""

    def __init__(
        self, routes: Mapping[bytes, Callable[[Request], None]], body_bytes_max: int
    ) -> None:
        self.routes = routes
        self.body_bytes_max = body_bytes_max

    def allows(self, headers: dict[bytes, bytes]) -> bool:
        """Whether nothing about the head is unusual."""
        length = headers.get(b"content-length", b"0")
        return (
            b"host" in headers
            and b"expect" not in headers
            and b"upgrade" not in headers
            and length.isdigit()
            and int(length) <= self.body_bytes_max
        )


class ErrorCount:
    """How many answers of a listener were errors."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, status: int) -> None:
        """An answer with this status leaves."""
        if status >= 400:
            self.count += 1


class _Ignored:
    """Stands where uvicorn's own requests have an event for those who read a body piecemeal."""

    def set(self) -> None:
        """Nobody waits."""


class _ShortCycle:
    """A request on the short way, as far as uvicorn's connection needs to know it."""

    message_event = _Ignored()

    def __init__(
        self, connection: "Connection", serve: Callable[[Request], None], *, keep_alive: bool
    ) -> None:
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.keep_alive = keep_alive
        self.serve = serve
        self.request: Request | None = None
        self._connection = connection

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        """The answer, in one write."""
        connection = self._connection
        if self.response_complete or connection.is_gone:
            return
        self.response_complete = True
        connection.errors.note(status)
        parts = [STATUS_LINE[status]]
        for name, value in (*connection.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (_JSON_HEAD, b"content-length: %d\r\n\r\n" % len(body), body)
        connection.transport.write(b"".join(parts))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


class _RefusedError(Exception):
    """Ends the parser's work on a request that was refused."""


class _Cork(asyncio.Transport):
    """Holds back the head of an answer until its body is there: one packet instead of two."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: list[bytes] | None = None

    def cork(self) -> None:
        """Gather from now on."""
        self._held = []

    def uncork(self) -> None:
        """Send what was gathered."""
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held is not None:
            self._held.append(bytes(data))
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.uncork()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()


class Connection(HttpToolsProtocol):
    """Knows since when it waits for its peer, and tells when the peer is gone."""

    def __init__(
        self,
        *,
        short_way: ShortWay,
        proxies: Proxies,
        errors: ErrorCount,
        **given: Any,  # noqa: ANN401 - uvicorn's
    ) -> None:
        super().__init__(**given)
        self._short_way = short_way
        self._proxies = proxies
        self.errors = errors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer is there."""
        super().connection_made(transport)
        self.peer = Peer(self.client[0] if self.client is not None else "", self._proxies)
        self.transport = self.cork = _Cork(transport)
        self.lost = False
        self.lost_by_error = False
        self.on_lost: Callable[[], None] | None = None
        self._on_broken: Callable[[], None] | None = None
        self._answered_at = 0.0
        self._waits_since: float | None = self.loop.time()
        self._in_head = True
        self._got_bytes = 0
        self._problem: Problem | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, or was sent away."""
        self.lost = True
        self.lost_by_error = exc is not None
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
        broken, self._on_broken = self._on_broken, None
        in_time = self.loop.time() - self._answered_at < _RECEIPT_SECONDS
        if broken is not None and exc is not None and in_time:
            broken()

    def expect_receipt(self, on_broken: Callable[[], None]) -> None:
        """An answer was written that the peer must not miss: call back if the connection breaks
        before the peer can have read it.
        """
        self._on_broken = on_broken
        self._answered_at = self.loop.time()

    @property
    def is_gone(self) -> bool:
        """Whether nothing that is written now can arrive."""
        return self.lost or self.transport.is_closing()

    @property
    def has_unread_body(self) -> bool:
        """Whether the peer is still sending what was not asked for."""
        return self._waits_since is not None and not self._in_head

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        self._got_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._got_bytes > _HEAD_BYTES_MAX and self._waits_since is not None:
            self.refuse(Problem(431, "too_large", "the request's head is too long"))

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._waits_since = self.loop.time()
        self._in_head = True
        self._on_broken = None  # who asks again has read the last answer
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there: the request is handled from here on."""
        if len(self.url) > _URL_BYTES_MAX:
            self._problem = Problem(414, "too_large", "the request's address is too long")
            raise _RefusedError
        if len(self.headers) > _HEADERS_COUNT_MAX:
            self._problem = Problem(431, "too_large", "the request has too many headers")
            raise _RefusedError
        self._in_head = False
        self._got_bytes = 0
        self.scope["state"]["connection"] = self
        if not self._takes_short_way():
            super().on_headers_complete()

    def _takes_short_way(self) -> bool:
        url = self.url
        serve = self._short_way.routes.get(url[1 : max(url.find(b"/", 1), 1)])
        earlier: object = self.cycle  # none yet, whatever uvicorn's annotation says
        if serve is None or (earlier is not None and not self.cycle.response_complete):
            return False
        method = self.parser.get_method()
        headers = dict(self.headers)
        if method not in (b"GET", b"POST") or not self._short_way.allows(headers):
            return False
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        cycle = _ShortCycle(self, serve, keep_alive=keep_alive)
        path, _, query = url.partition(b"#")[0].partition(b"?")
        cycle.request = Request(self, method.decode(), (path, query), headers, cycle.send)
        self.cycle = cycle  # type: ignore[assignment]
        return True

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        cycle: object = self.cycle
        if type(cycle) is not _ShortCycle:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > self._short_way.body_bytes_max:
                cycle.response_complete = True
                limit = self._short_way.body_bytes_max
                self.refuse(Problem(413, "too_large", f"a body may have at most {limit} bytes"))

    def on_message_complete(self) -> None:
        """The body is there, too."""
        self._waits_since = None
        self._got_bytes = 0
        cycle: object = self.cycle
        if type(cycle) is not _ShortCycle:
            super().on_message_complete()
        elif not cycle.response_complete and cycle.request is not None:
            cycle.request.body = bytes(cycle.body)
            cycle.serve(cycle.request)

    def send_400_response(self, msg: str) -> None:
        """What the parser could not make sense of, or what was refused while it parsed."""
        self.refuse(self._problem or Problem(400, "invalid_request", msg))

    def refuse(self, problem: Problem) -> None:
        """Answer what never became a request, and hang up."""
        if self.is_gone:
            return
        self.errors.note(problem.status)
        body = error_envelope(problem, 0.0)
        head = (
            b"content-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(STATUS_LINE[problem.status] + head + body)
        self.transport.close()

    def lose_patience(self, now: float) -> None:
        """Hang up on a peer that is too slow to be real."""
        since = self._waits_since
        if since is None:
            return
        allowed = _PATIENCE_SECONDS
        if not self._in_head:
            allowed += self._got_bytes / _BYTES_A_SECOND
        if now - since > allowed:
            status = HTTPStatus.REQUEST_TIMEOUT
            self.refuse(Problem(status, "too_slow", "the request took too long to arrive"))

"""One HTTP connection: uvicorn's, with bounds on what a peer may send before it is listened to, and
a short way for routes that are asked for all the time. Whatever is unusual about a request takes
the long way.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from manyhands.protocols.http_envelope import Problem, error_envelope
from manyhands.server.http_peer import Peer, Proxies
from manyhands.server.http_short_way import Head, KnownHead, ShortCycle, ShortWay

_HEAD_BYTES_MAX: Final = 64 * 1024
_URL_BYTES_MAX: Final = 16 * 1024
_HEADERS_COUNT_MAX: Final = 100
# A head has this long, and so has a body, plus a second for each 64 KiB that did arrive.
_PATIENCE_SECONDS: Final = 30.0
_BYTES_A_SECOND: Final = 64 * 1024
# What of its bytes is looked at before others get their turn: some hundred requests. A body is
# taken as it comes.
TURN_BYTES: Final = 8 * 1024
# A connection that breaks this soon after an answer broke because of it.
_RECEIPT_SECONDS: Final = 1.0


_VERSIONS: Final = ("1.1", "1.0")
_SHORT_METHODS: Final = {b"GET": "GET", b"POST": "POST"}


class ErrorCount:
    """How many answers of a listener were errors."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, status: int) -> None:
        """An answer with this status leaves."""
        if status >= 400:
            self.count += 1


def _has_two_hosts(headers: list[tuple[bytes, bytes]]) -> bool:
    return sum(name == b"host" for name, _ in headers) > 1


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


class _Gate(asyncio.Transport):
    """What uvicorn is given to have the peer wait, and go on."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection

    def pause_reading(self) -> None:
        self._connection.hold()

    def resume_reading(self) -> None:
        self._connection.go_on_soon()


class Connection(HttpToolsProtocol):
    """Knows since when it waits for its peer, and tells when the peer is gone. Of a peer that asks
    without waiting for answers, no more is read than one turn's worth.
    """

    def __init__(
        self,
        *,
        short_way: ShortWay,
        proxies: Proxies,
        errors: ErrorCount,
        **given: Any,  # noqa: ANN401 - uvicorn's
    ) -> None:
        super().__init__(**given)
        self.short_way = short_way
        self._proxies = proxies
        self.errors = errors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer is there."""
        super().connection_made(transport)
        self.peer = Peer(self.client[0] if self.client is not None else "", self._proxies)
        self.direct = transport
        self.transport = self.cork = _Cork(transport)
        self.flow = FlowControl(_Gate(self))
        self._unread = b""  # came, and waits for our next turn
        self._holding = False  # nothing is read meanwhile
        self._going_on = False  # that turn is on its way
        self.lost = False
        self.lost_by_error = False
        self.on_lost: Callable[[], None] | None = None
        self._on_broken: list[Callable[[], None]] = []
        self._answered_at = 0.0
        self._rests_since: float | None = None
        self._waits_since: float | None = self.loop.time()
        self._in_head = True
        self._is_between = True  # nothing of the next request is there yet
        self._arrived: bytes | None = None  # what is being read, from the start of a request on
        self._got_bytes = 0
        self._problem: Problem | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, or was sent away."""
        self.lost = True
        self.lost_by_error = exc is not None
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
        if exc is not None and self.loop.time() - self._answered_at < _RECEIPT_SECONDS:
            for broken in self._on_broken:
                broken()
        self._on_broken.clear()

    def expect_receipt(self, on_broken: Callable[[], None]) -> None:
        """An answer was written that the peer must not miss: call back if the connection breaks
        before the peer can have read it.
        """
        self._on_broken.append(on_broken)
        self._answered_at = self.loop.time()

    @property
    def is_gone(self) -> bool:
        """Whether nothing that is written now can arrive."""
        return self.lost or self.direct.is_closing()

    @property
    def has_unread_body(self) -> bool:
        """Whether the peer is still sending what was not asked for."""
        return self._waits_since is not None and not self._in_head

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        if self._is_between:
            known = self.short_way.known(data)
            if known is not None and self._is_free() and not (self._unread or self.is_gone):
                self._take_known_way(*known)
                return
        if self._unread:
            self._unread += data
            return
        if len(data) > TURN_BYTES and (self._is_between or self._in_head):
            self._unread = data[TURN_BYTES:]
            data = data[:TURN_BYTES]
        if self._is_between:
            self._arrived = data
        self._got_bytes += len(data)
        super().data_received(data)
        self._arrived = None
        if self._in_head and self._got_bytes > _HEAD_BYTES_MAX and self._waits_since is not None:
            self.refuse(Problem(431, "too_large", "the request's head is too long"))
        if self._unread:
            self.hold()
            self.go_on_soon()

    def hold(self) -> None:
        """Read nothing more for now."""
        if not self._holding:
            self._holding = True
            self.direct.pause_reading()

    def go_on_soon(self) -> None:
        """Look at what came, or read on, if there is no reason any more not to."""
        if self._holding and not self._going_on:
            self._going_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self.flow.read_paused or self.pipeline:
            return  # until the requests that came are answered
        unread, self._unread = self._unread, b""
        if self.is_gone:
            return
        if unread:
            self.data_received(unread)
        self._read_on()

    def _read_on(self) -> None:
        if not (self._unread or self.flow.read_paused or self.is_gone):
            self._holding = False
            self.direct.resume_reading()

    def on_response_complete(self) -> None:
        """The next one of those that came meanwhile is begun."""
        super().on_response_complete()
        self.go_on_soon()

    def _is_free(self) -> bool:
        earlier: object = self.cycle  # none yet, whatever uvicorn's annotation says
        return earlier is None or self.cycle.response_complete

    def _take_known_way(self, known: KnownHead, body: bytes) -> None:
        """A request that the parser need not see."""
        self._waits_since = self._rests_since = None
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._on_broken:
            self._on_broken.clear()  # who asks again has read the last answer
        cycle = ShortCycle(self, known.head, known.serve, keep_alive=True)
        self.cycle = cycle  # type: ignore[assignment]
        cycle.body = body
        known.serve(cycle)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._is_between = False
        self._waits_since = self.loop.time()
        self._in_head = True
        self._rests_since = None
        if self._on_broken:
            self._on_broken.clear()  # who asks again has read the last answer
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One line of the head. What comes after a body is not part of it, and not kept."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there: the request is handled from here on."""
        if len(self.url) > _URL_BYTES_MAX:
            self._problem = Problem(414, "too_large", "the request's address is too long")
            raise _RefusedError
        if len(self.headers) > _HEADERS_COUNT_MAX:
            self._problem = Problem(431, "too_large", "the request has too many headers")
            raise _RefusedError
        if self.parser.get_http_version() not in _VERSIONS:
            self._problem = Problem(400, "invalid_request", "this server speaks HTTP/1.1")
            raise _RefusedError
        headers = dict(self.headers)
        if len(headers) < len(self.headers) and _has_two_hosts(self.headers):
            self._problem = Problem(400, "invalid_request", "the request has two Host headers")
            raise _RefusedError
        self._in_head = False
        self._got_bytes = 0
        if not self._takes_short_way(headers):
            self._take_long_way()

    def _takes_short_way(self, headers: dict[bytes, bytes]) -> bool:
        url = self.url
        serve = self.short_way.routes.get(url[1 : max(url.find(b"/", 1), 1)])
        if serve is None or not self._is_free():
            return False
        method = _SHORT_METHODS.get(self.parser.get_method())
        if method is None or not self.short_way.allows(headers):
            return False
        path, _, query = url.partition(b"#")[0].partition(b"?")
        parser = self.parser
        keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        head = Head(method, (path, query), headers)
        cycle = ShortCycle(self, head, serve, keep_alive=keep_alive)
        self.cycle = cycle  # type: ignore[assignment]
        return True

    def _take_long_way(self) -> None:
        """As uvicorn does it, which makes a scope for each request at its first byte."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        self.scope["state"]["connection"] = self
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        cycle: object = self.cycle
        if type(cycle) is not ShortCycle:
            super().on_body(body)
        elif not cycle.response_complete:
            limit = self.short_way.body_bytes_max
            if cycle.gather(body) > limit:
                cycle.response_complete = True
                self.refuse(Problem(413, "too_large", f"a body may have at most {limit} bytes"))

    def on_message_complete(self) -> None:
        """The body is there, too."""
        self._is_between = True
        self._waits_since = None
        self._got_bytes = 0
        cycle: object = self.cycle
        if type(cycle) is not ShortCycle:
            super().on_message_complete()
        elif not (cycle.response_complete or self.is_gone):
            if cycle.further is not None:
                cycle.body += cycle.further
            elif self._arrived is not None:
                self.short_way.learn(self._arrived, cycle)
            cycle.serve(cycle)

    def rest(self) -> None:
        """The answer to a request on the short way was written. A look once a second ends those
        that rest for too long: a timer for each request costs more than the rest of its way.
        """
        if self.pipeline or self._holding:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._rests_since = self.loop.time()

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
            rests = self._rests_since
            if rests is not None and now - rests > self.timeout_keep_alive:
                self.transport.close()
            return
        allowed = _PATIENCE_SECONDS
        if not self._in_head:
            allowed += self._got_bytes / _BYTES_A_SECOND
        if now - since > allowed:
            status = HTTPStatus.REQUEST_TIMEOUT
            self.refuse(Problem(status, "too_slow", "the request took too long to arrive"))

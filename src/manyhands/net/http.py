"""One HTTP/1.1 connection: bytes become requests, answered one at a time and in order.

There are two paths for a request. Hot routes are served at once, without a task, when the body has
arrived (``http_short_way.py``); every other request is an ``Exchange`` with a task of its own,
which may read its body and write its answer piece by piece.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from manyhands.access.credentials import Credentials
from manyhands.model.events import Signal
from manyhands.net.http_peer import Peer, Proxies
from manyhands.net.http_short_way import Head, KnownHead, ShortRequest, ShortWay
from manyhands.net.tcp import Connection, Session
from manyhands.net.uptake import Uptake
from manyhands.net.websocket import asks_for_websocket
from manyhands.web.cors import Cors
from manyhands.web.envelope import Problem, error_envelope
from manyhands.web.exchange import Exchange, status_line

if TYPE_CHECKING:
    from manyhands.net.tcp import TcpListener

_HEAD_BYTES_MAX: Final = 64 * 1024
_URL_BYTES_MAX: Final = 16 * 1024
_HEADERS_COUNT_MAX: Final = 100
# Time for a head to arrive. A body has as long, plus a second for each 64 KiB that did arrive.
_PATIENCE_SECONDS: Final = 30.0
_BYTES_A_SECOND: Final = 64 * 1024
SWEEP_SECONDS: Final = 1.0  # between checks for slow peers
_KEEP_ALIVE_SECONDS: Final = 75.0
# About a hundred requests without a body; other peers get their turn before more are read.
HEADS_TURN_BYTES: Final = 8 * 1024
# A body is read as it arrives, until this much of it waits for its handler.
_BODY_TURN_BYTES: Final = 1024 * 1024
_BODY_BYTES_HIGH: Final = 256 * 1024
# If a connection breaks this soon after an answer, the peer may not have read the answer.
_RECEIPT_SECONDS: Final = 1.0
_VERSIONS: Final = ("1.1", "1.0")
_SHORT_METHODS: Final = {b"GET": "GET", b"POST": "POST"}
_FRAMING: Final = (b"content-length", b"transfer-encoding")


class Request(Protocol):
    """A request whose head, at least, has arrived."""

    keep_alive: bool
    is_whole: bool  # its body is complete
    body_bytes: int  # received, but not taken by its handler

    def begin(self) -> None:
        """Called when all requests before this one are answered."""

    def receive(self, piece: bytes) -> None:
        """Takes a piece of the body."""

    def end_of_body(self) -> None:
        """Called when the body is complete."""

    def held_bytes(self) -> int:
        """Bytes of the body that are kept until it is complete."""

    def has_begun_answer(self) -> bool:
        """Whether part of the answer was written."""

    def lost(self) -> None:
        """Called when the peer is gone or will not be answered."""


class ErrorCount:
    """How many answers of a listener were errors."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, status: int) -> None:
        """Counts an answer with this status."""
        if status >= 400:
            self.count += 1


class Site:
    """What the connections of one listener share."""

    def __init__(
        self,
        short_way: ShortWay,
        proxies: Proxies,
        handle: Callable[[Exchange], None],
        monotonic_ms: Callable[[], float],
        body_bytes_max: int,
        cors: Cors | None = None,
    ) -> None:
        self.short_way = short_way
        self.cors = cors or Cors()
        self.proxies = proxies
        self.handle = handle
        self.monotonic_ms = monotonic_ms
        self.body_bytes_max = body_bytes_max
        self.errors = ErrorCount()
        self.date = b""  # of all answers, updated every second
        self.on_answered: Callable[[], None] | None = None  # while the server stops


class _RefusedError(Exception):
    """Stops the parser: the request was refused."""


class _Refused:
    """Stands in the queue for a request that is answered with an error and a hang-up."""

    def __init__(self, session: "HttpSession", problem: Problem) -> None:
        self.keep_alive = False
        self.is_whole = True
        self.body_bytes = 0
        self._session = session
        self._problem = problem

    def begin(self) -> None:
        session, problem = self._session, self._problem
        session.site.errors.note(problem.status)
        body = error_envelope(problem, 0.0)
        session.send(
            b"%scontent-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (status_line(problem.status), len(body), body)
        )
        session.answered(self)

    def receive(self, piece: bytes) -> None:
        """Does nothing: it has no body."""

    def end_of_body(self) -> None:
        """Does nothing: it has no body."""

    def held_bytes(self) -> int:
        return 0

    def has_begun_answer(self) -> bool:
        return False

    def lost(self) -> None:
        """Does nothing: no handler waits for it."""


class Speaker(Session, Protocol):
    """What serves a peer of an HTTP listener: HTTP, or the protocol that a request upgraded to."""

    @property
    def is_busy(self) -> bool:
        """Whether a stopping server has to wait for it."""

    def lose_patience(self, now: float) -> None:
        """Called once a second: hangs up on a peer that is too slow."""


class HttpConnection(Connection):
    """A TCP connection that also reports to its session why it ended and when it is writable."""

    def __init__(self, listener: "TcpListener") -> None:
        super().__init__(listener)
        self.turn_bytes = HEADS_TURN_BYTES
        self.session: Speaker | None = None
        self.lost_by_error = False
        self.farewell = b""  # sent to a peer that is connected when the server stops
        self.on_writable: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_by_error = exc is not None
        super().connection_lost(exc)
        self.session = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def hang_up(self) -> None:
        if self.farewell and not self.is_closing():
            self.send(self.farewell)
        super().hang_up()


class HttpSession:
    """Reads requests, queues them, and hands each over when the ones before it are answered."""

    def __init__(self, connection: HttpConnection, site: Site) -> None:
        self.connection = connection
        self.site = site
        self.peer = Peer(connection.address, site.proxies)
        self.loop = connection.listener.loop
        self.on_lost: Callable[[], None] | None = None
        self.is_lost = False
        self.is_endless = False  # the answer ends only when its peer leaves
        self._parser = HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._is_replayed = False  # the parser reads a head again, only for its framing
        self._reading: Request | None = None  # the request whose body is arriving
        self._answering: Request | None = None
        self._queue: deque[Request] = deque()  # requests after it
        self._is_last = False  # no request follows; what else arrives is dropped
        self._arrived: bytes | None = None  # the bytes being parsed, if a request starts there
        self._got_bytes = 0
        self._waits_since: float | None = self.loop.time()
        self._rests_since: float | None = None
        self._problem: Problem | None = None
        self._on_broken: list[Callable[[], None]] = []
        self._answered_at = 0.0
        self._uptake = Uptake(connection)
        self._behind: bytes | None = None  # arrived after a request that may end HTTP here

    def credentials(self, headers: dict[bytes, bytes]) -> Credentials:
        """What the connection shows of its peer. Behind a trusted proxy, the address is that of the
        client.
        """
        return Credentials(
            address=self.peer.address(headers), certificate=self.connection.certificate
        )

    # Called by the connection.

    def receive(self, data: bytes) -> None:
        """Takes the bytes of one or more requests."""
        if self._behind is not None:
            self._behind += data
            return
        if self._is_last and self._reading is None:
            return
        if self._reading is None and not self._in_head:
            if self._answering is None:
                known = self.site.short_way.known(data)
                if known is not None:
                    self._serve_known(*known)
                    return
            self._arrived = data
        self._got_bytes += len(data)
        try:
            self._parse(data)
        except HttpParserError as error:
            # After a request that closes the connection, the parser accepts no further byte.
            if self._problem is not None or self._reading is not None or not self._is_last:
                self.refuse(self._problem or Problem(400, "invalid_request", str(error)))
        self._arrived = None
        if self._in_head and self._got_bytes > _HEAD_BYTES_MAX:
            self.refuse(Problem(431, "too_large", "the request's head is too long"))

    def ended(self) -> None:
        """The peer sends nothing more. A request that only waits for news ends with it."""
        self._is_last = True
        waits = self.is_endless or self.on_lost is not None
        if self._answering is None or waits or self._reading is not None:
            self.connection.close()

    def lost(self, *, blameless: bool = False) -> None:  # noqa: ARG002 - leases are free here
        """The connection is gone."""
        self.is_lost = True
        broken, self._on_broken = self._on_broken, []
        if (
            self.connection.lost_by_error
            and self.loop.time() - self._answered_at < _RECEIPT_SECONDS
        ):
            for callback in broken:
                callback()
        answering, self._answering, self._reading = self._answering, None, None
        self._queue.clear()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()
        if answering is not None:
            answering.lost()
        # The parser holds this session's methods; without this, the two would keep each other
        # alive.
        del self._parser
        self.connection.on_writable = None
        if self.site.on_answered is not None:  # a stopping server need not wait for it
            self.site.on_answered()

    def notify(self, signal: Signal) -> None:
        """Does nothing: no job is bound to an HTTP connection."""

    def is_overwhelmed(self) -> bool:
        """Whether to stop reading, because requests or a body wait for a handler."""
        reading = self._reading
        return (
            bool(self._queue)
            or self._behind is not None
            or (reading is not None and reading.body_bytes > _BODY_BYTES_HIGH)
        )

    def held_bytes(self) -> int:
        """Bytes of requests that are incomplete or wait for their turn."""
        count = sum(request.held_bytes() for request in self._queue) + len(self._behind or b"")
        reading = self._reading
        if reading is not None and not (self._queue and reading is self._queue[-1]):
            count += reading.held_bytes()
        return count

    # Reading.

    def _parse(self, data: bytes) -> None:
        """Parses received bytes. An upgrade is mostly declined, as the standard allows, and the
        request is served as if it had not asked for one. But the parser takes everything after such
        a head for another protocol, so a new parser is given the head's framing and reads the body.
        Only what follows a request for WebSocket waits until it is known which of the two it is.
        """
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parser = HttpRequestParser(self)
                if self._reading is None:
                    if self._may_end_http():
                        self._behind = data
                        return
                    continue
                self._is_replayed = True
                framing = [pair for pair in self._headers if pair[0] in _FRAMING]
                head = b"".join(b"%s: %s\r\n" % pair for pair in framing)
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % head)
            else:
                return

    def _may_end_http(self) -> bool:
        request = self._queue[-1] if self._queue else self._answering
        return (
            isinstance(request, Exchange)
            and request.method == "GET"
            and asks_for_websocket(request.headers)
        )

    def on_message_begin(self) -> None:
        """Called at the first byte of a request."""
        if self._is_replayed:
            return
        self._in_head = True
        self._waits_since = self.loop.time()
        self._rests_since = None
        if self._on_broken:
            self._on_broken.clear()  # the peer has read the last answer
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Takes a piece of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header. Trailers, which follow a body, are dropped."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called when the head is complete: queues the request, or serves it if it is first."""
        if self._is_replayed:
            return
        headers = dict(self._headers)
        problem = self._check(headers)
        if problem is not None:
            self._problem = problem
            raise _RefusedError
        self._in_head = False
        self._got_bytes = 0
        request = self._request(headers)
        self._reading = request
        self.connection.turn_bytes = _BODY_TURN_BYTES
        if self._answering is None:
            self._answering = request
            request.begin()
        else:
            self._queue.append(request)

    def _check(self, headers: dict[bytes, bytes]) -> Problem | None:
        if len(self._url) > _URL_BYTES_MAX:
            return Problem(414, "too_large", "the request's address is too long")
        if len(self._headers) > _HEADERS_COUNT_MAX:
            return Problem(431, "too_large", "the request has too many headers")
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            return _invalid("this server speaks HTTP/1.1")
        if self._parser.get_method() == b"CONNECT":
            return Problem(405, "method_not_allowed", "this server is not a proxy")
        if _authority_of(self._url) not in (None, headers.get(b"host")):
            return _invalid("the address and Host name different hosts")
        if len(headers) < len(self._headers):
            hosts = sum(name == b"host" for name, _ in self._headers)
            if hosts > 1:
                return _invalid("the request has two Host headers")
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if version == "1.0":
                return _invalid("HTTP/1.0 has no Transfer-Encoding")
            if coding.strip().lower() != b"chunked":
                return Problem(501, "not_implemented", "the only Transfer-Encoding here is chunked")
        return None

    def _request(self, headers: dict[bytes, bytes]) -> Request:
        parser = self._parser
        old = parser.get_http_version() == "1.0"
        keep_alive = parser.should_keep_alive() and not old
        if not keep_alive:
            self._is_last = True
        raw = parser.get_method()
        short_way = self.site.short_way
        url = self._url
        serve = short_way.routes.get(url[1 : max(url.find(b"/", 1), 1)])
        method = _SHORT_METHODS.get(raw)
        if serve is not None and method is not None and not old and short_way.allows(headers):
            path, _, query = url.partition(b"#")[0].partition(b"?")
            head = Head(method, (path, query), headers)
            return ShortRequest(self, head, serve, keep_alive=keep_alive)
        return Exchange(self, raw.decode("latin-1"), url, headers, keep_alive=keep_alive, old=old)

    def _serve_known(self, known: KnownHead, body: bytes) -> None:
        """Serves a complete request with a head that was parsed before."""
        self._waits_since = self._rests_since = None
        if self._on_broken:
            self._on_broken.clear()
        request = ShortRequest(self, known.head, known.serve, keep_alive=True)
        request.body = body
        request.is_whole = True
        self._answering = request
        known.serve(request)

    def on_body(self, piece: bytes) -> None:
        """Takes a piece of the body."""
        if self._reading is not None:
            self._reading.receive(piece)

    def on_message_complete(self) -> None:
        """The body is complete; or the parser has met an upgrade, and the body is still to come."""
        if not self._is_replayed and self._parser.should_upgrade() and self._has_body():
            return
        self._is_replayed = False
        self._waits_since = None
        self._got_bytes = 0
        self.connection.turn_bytes = HEADS_TURN_BYTES
        request, self._reading = self._reading, None
        if request is None:
            return
        request.is_whole = True
        if type(request) is ShortRequest and self._arrived is not None:
            self.site.short_way.learn(self._arrived, request)
        request.end_of_body()

    def _has_body(self) -> bool:
        return any(name in _FRAMING for name, _ in self._headers)

    # Answering.

    def answered(self, request: Request) -> None:
        """Called when all of the answer is written: the next request has its turn."""
        if self._answering is not request:
            return
        self._answering = None
        self.is_endless = False
        if self.site.on_answered is not None:
            self.site.on_answered()
        if not request.keep_alive or not request.is_whole:
            self._is_last = True
            self._reading = None
            self._queue.clear()
            self.connection.close()
            return
        if self._behind is not None and not self._queue:  # it was declined: more HTTP follows
            behind, self._behind = self._behind, None
            self.connection.give_back(behind)
        if self._queue:
            if self.connection.writing_paused:  # wait until the peer reads
                self.connection.on_writable = self._begin_next
            else:
                self._begin_next()
        else:
            if self._is_last:
                self.connection.close()
                return
            # A sweep closes idle connections; a timer per request would cost too much.
            self._rests_since = self.loop.time()

    def _begin_next(self) -> None:
        self.connection.on_writable = None
        if self._queue and self._answering is None:
            following = self._answering = self._queue.popleft()
            following.begin()
            self.connection.resume_reading()

    def may_hand_over(self, request: Request) -> bool:
        """Whether the request asks for another protocol, and nothing after it was read as HTTP."""
        return self._behind is not None and self._answering is request and not self._queue

    def hand_over(self, head: bytes, speaker: Speaker) -> bool:
        """Writes the last answer of HTTP; what the peer sent after its request goes to the speaker.
        Returns False if the peer is about to leave.
        """
        connection = self.connection
        behind, self._behind, self._answering = self._behind, None, None
        if self._is_last:  # it has closed its half
            connection.close()
            return False
        connection.send(head)
        connection.session = speaker
        connection.take_session(speaker)
        connection.give_back(behind or b"")
        del self._parser  # see `lost`
        if self.site.on_answered is not None:
            self.site.on_answered()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._answering is not None or bool(self._queue)

    def is_answering(self, request: Request) -> bool:
        """Whether it is this request's turn."""
        return self._answering is request

    def unsent_bytes(self) -> int:
        """Writes what is due; returns how many bytes of it the kernel has not taken."""
        self.connection.flush()
        return self.connection.unread_bytes()

    def send(self, data: bytes) -> None:
        """Writes, together with everything else in this turn of the loop."""
        if not self.is_gone:
            self.connection.send(data)

    def send_large(self, data: bytes) -> None:
        """Writes at once, after what is due in this turn."""
        if not self.is_gone:
            self.connection.send_large(data)

    def read_on(self) -> None:
        """Called when a handler has taken what there was of a body."""
        self.connection.resume_reading()

    def expect_receipt(self, on_broken: Callable[[], None]) -> None:
        """Asks to be called if the connection breaks before the peer can have read the answer just
        written, which must not get lost.
        """
        self._on_broken.append(on_broken)
        self._answered_at = self.loop.time()

    @property
    def is_gone(self) -> bool:
        """Whether nothing that is written now can arrive."""
        return self.is_lost or self.connection.is_closing()

    @property
    def has_unread_body(self) -> bool:
        """Whether the peer is still sending the body of the request that is being answered."""
        return self._answering is not None and not self._answering.is_whole

    @property
    def lost_by_error(self) -> bool:
        """Whether the connection broke, rather than being closed."""
        return self.is_lost and self.connection.lost_by_error

    def refuse(self, problem: Problem) -> None:
        """Answers an incomplete or invalid request with an error, after those before it, and hangs
        up.
        """
        if self.is_gone:
            return
        self._is_last = True
        reading, self._reading = self._reading, None
        refused = _Refused(self, problem)
        if self._answering is None:
            self._answering = refused
            refused.begin()
        elif self._answering is reading:
            # Its handler may be waiting for the rest of the body, or have begun to answer.
            self._answering = refused
            if reading.has_begun_answer():
                self.connection.close()
            else:
                refused.begin()
            reading.lost()
        else:
            if reading is not None and self._queue:
                self._queue.pop()
            self._queue.append(refused)

    def lose_patience(self, now: float) -> None:
        """Hangs up on a peer that is too slow."""
        if self._uptake.leaves_unread(now):
            return
        since = self._waits_since
        if since is not None and self.connection.waits_for_room:
            self._waits_since = since + SWEEP_SECONDS  # the wait is not the peer's fault
        elif since is None:
            rests = self._rests_since
            if rests is not None and now - rests > _KEEP_ALIVE_SECONDS:
                self.connection.close()
        else:
            allowed = _PATIENCE_SECONDS
            if self._reading is not None:
                allowed += self._got_bytes / _BYTES_A_SECOND
            if now - since > allowed and not self.is_overwhelmed():
                self._waits_since = None
                self.refuse(Problem(408, "too_slow", "the request took too long to arrive"))


def _authority_of(url: bytes) -> bytes | None:
    """The host and port in a request's URL; None if it has only a path."""
    if url.startswith(b"/") or url == b"*":
        return None
    return url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]


def _invalid(sentence: str) -> Problem:
    return Problem(400, "invalid_request", sentence)

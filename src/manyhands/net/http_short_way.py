"""The short way for hot routes: no task; the request is handed over once its body is complete, and
the answer is one write.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from manyhands.access.gate import Guard
from manyhands.model.roles import ANYBODY, Caller
from manyhands.web.envelope import Problem
from manyhands.web.exchange import status_line

if TYPE_CHECKING:
    from manyhands.net.http import HttpSession

_JSON_HEAD: Final = b"content-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
# Clients send the same heads again and again, so they are parsed once. This many are kept, of at
# most this many bytes; beyond that, all are forgotten.
_HEADS_COUNT_MAX: Final = 1_000
_HEAD_BYTES_MAX: Final = 1_024
_END_OF_HEAD: Final = b"\r\n\r\n"
Headers = tuple[tuple[bytes, bytes], ...]


class Head:
    """The head of a request. Requests with the same head share it."""

    __slots__ = ("caller", "guard", "headers", "is_allowed", "method", "path", "peer", "query")

    def __init__(self, method: str, url: tuple[bytes, bytes], headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.path, self.query = url
        self.headers = headers
        self.is_allowed = False  # until it was checked
        self.caller: Caller = ANYBODY  # once it was checked
        self.guard: Guard | None = None  # what its commands have to pass, if they come
        self.peer = ""  # from this address


class Request:
    """A complete request, and how to answer it: a status, a JSON body, further headers."""

    __slots__ = ("body", "connection", "head", "notes", "started_ms")

    def __init__(self, connection: "HttpSession", head: Head) -> None:
        self.connection = connection
        self.head = head
        self.body = b""
        self.notes: Headers = ()  # headers that go with any answer
        self.started_ms = 0.0

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        """Sends the answer."""
        raise NotImplementedError


# Headers of heads that are not kept: the body has another framing, or the head is used once.
_NOT_LEARNT: Final = frozenset({b"transfer-encoding", b"idempotency-key"})


class ShortWay:
    """The routes on the short way, by the first segment of their paths, and their limit on
    bodies.
    """

    def __init__(
        self, routes: Mapping[bytes, Callable[[Request], None]], body_bytes_max: int
    ) -> None:
        self.routes = routes
        self.body_bytes_max = body_bytes_max
        self.foreign_origins: frozenset[bytes] = frozenset()  # whose pages may ask
        self._known: dict[bytes, KnownHead] = {}
        self.forget = self._known.clear  # callers have changed
        self.good_head = status_line(200) + _JSON_HEAD  # the head of most answers

    def set_date(self, date: bytes) -> None:
        """Sets the date of all answers until the next call."""
        self.good_head = b"%sdate: %s\r\n%s" % (status_line(200), date, _JSON_HEAD)

    def known(self, data: bytes) -> tuple["KnownHead", bytes] | None:
        """The head and the body, if this is one complete request with a known head."""
        body_at = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        found = self._known.get(data[:body_at])
        if found is None or body_at + found.body_bytes != len(data):
            return None
        return found, data[body_at:]

    def learn(self, data: bytes, request: "ShortRequest") -> None:
        """Remembers the head of a request that the parser read from these bytes."""
        body_at = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        whole = body_at + len(request.body) == len(data)
        headers = request.head.headers
        plain = request.keep_alive and _NOT_LEARNT.isdisjoint(headers)
        if whole and plain and body_at <= _HEAD_BYTES_MAX:
            if len(self._known) >= _HEADS_COUNT_MAX:
                self._known.clear()
            self._known[data[:body_at]] = KnownHead(request.head, request.serve, len(request.body))

    def allows(self, headers: dict[bytes, bytes]) -> bool:
        """Whether nothing about the head is unusual."""
        length = headers.get(b"content-length", b"0")
        return (
            b"host" in headers
            and b"expect" not in headers
            and b"upgrade" not in headers
            and headers.get(b"origin") not in self.foreign_origins
            and length.isdigit()
            and int(length) <= self.body_bytes_max
        )


class KnownHead(NamedTuple):
    """A head that was parsed before, its handler, and the size of its bodies."""

    head: Head
    serve: Callable[[Request], None]
    body_bytes: int


class ShortRequest(Request):
    """A request on the short way."""

    __slots__ = ("_pieces", "_size", "body_bytes", "has_answer", "is_whole", "keep_alive", "serve")

    def __init__(
        self,
        session: "HttpSession",
        head: Head,
        serve: Callable[[Request], None],
        *,
        keep_alive: bool,
    ) -> None:
        super().__init__(session, head)
        self.serve = serve
        self.keep_alive = keep_alive
        self.is_whole = False
        self.body_bytes = 0  # nothing waits for a handler: the limit is on the whole body
        self.has_answer = False
        self._size = 0
        self._pieces: list[bytes] | None = None  # of a body that arrives in several

    def begin(self) -> None:
        """Called in its turn; it is served only when its body is complete."""
        if self.is_whole:
            self.serve(self)

    def receive(self, piece: bytes) -> None:
        """Takes part of the body, which is nearly always all of it."""
        self._size += len(piece)
        bytes_max = self.connection.site.short_way.body_bytes_max
        if self._size > bytes_max:
            self.connection.refuse(
                Problem(413, "too_large", f"a body may have at most {bytes_max} bytes")
            )
        elif self._pieces is not None:
            self._pieces.append(piece)
        elif self.body:
            self._pieces = [self.body, piece]
            self.body = b""
        else:
            self.body = piece

    def end_of_body(self) -> None:
        """The body is complete."""
        if self._pieces is not None:
            self.body = b"".join(self._pieces)
            self._pieces = None
        if self.connection.is_answering(self):
            self.serve(self)

    def held_bytes(self) -> int:
        """Bytes of the body that have arrived."""
        return self._size

    def has_begun_answer(self) -> bool:
        """Whether the answer was written."""
        return self.has_answer

    def lost(self) -> None:
        """Does nothing: there is no peer to answer."""
        self.has_answer = True

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        """Sends the answer, in one write."""
        if self.has_answer:
            return
        self.has_answer = True
        session = self.connection
        site = session.site
        if status == 200 and self.keep_alive and not headers:
            head = site.short_way.good_head
            session.connection.send_alone(
                b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)
            )
            session.answered(self)
            return
        site.errors.note(status)
        parts = [status_line(status), b"date: ", site.date, b"\r\n"]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (_JSON_HEAD, b"content-length: %d\r\n\r\n" % len(body), body)
        session.send(b"".join(parts))
        session.answered(self)

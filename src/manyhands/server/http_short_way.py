"""The short way of requests that come all the time: no task, no ASGI messages; the whole request is
handed over once its body is there, and the answer is one write.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from manyhands.server.http_connection import Connection

_JSON_HEAD: Final = b"content-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
# Clients say the same again and again: the heads of their requests are read once. So many are
# kept, of so many bytes; when there are more, all are forgotten.
_HEADS_COUNT_MAX: Final = 1_000
_HEAD_BYTES_MAX: Final = 1_024
_END_OF_HEAD: Final = b"\r\n\r\n"
Headers = tuple[tuple[bytes, bytes], ...]


class Head:
    """What a request says before its body. Requests that say the same share it."""

    __slots__ = ("headers", "is_allowed", "method", "path", "query")

    def __init__(self, method: str, url: tuple[bytes, bytes], headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.path, self.query = url
        self.headers = headers
        self.is_allowed = False  # until somebody has looked


class Request:
    """A whole request, and where its answer goes: a status, a JSON body, further headers."""

    __slots__ = ("body", "connection", "head", "notes", "started_ms")

    def __init__(self, connection: "Connection", head: Head) -> None:
        self.connection = connection
        self.head = head
        self.body = b""
        self.notes: Headers = ()  # headers that go with any answer
        self.started_ms = 0.0

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        """The answer."""
        raise NotImplementedError


class ShortWay:
    """Which first segments of a path have one, up to which size of a body."""

    def __init__(
        self, routes: Mapping[bytes, Callable[[Request], None]], body_bytes_max: int
    ) -> None:
        self.routes = routes
        self.body_bytes_max = body_bytes_max
        self._known: dict[bytes, KnownHead] = {}
        self.good_head = STATUS_LINE[200] + _JSON_HEAD  # of most answers

    def set_date(self, date: bytes) -> None:
        """The date of all answers until the next one is set."""
        self.good_head = b"%sdate: %s\r\n%s" % (STATUS_LINE[200], date, _JSON_HEAD)

    def known(self, data: bytes) -> tuple["KnownHead", bytes] | None:
        """The head and the body, if this is one whole request whose head was seen before."""
        body_at = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        found = self._known.get(data[:body_at])
        if found is None or body_at + found.body_bytes != len(data):
            return None
        return found, data[body_at:]

    def learn(self, data: bytes, cycle: "ShortCycle") -> None:
        """The parser made this request of these bytes, and will of the same ones again."""
        body_at = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        whole = body_at + len(cycle.body) == len(data)
        plain = cycle.keep_alive and b"transfer-encoding" not in cycle.head.headers
        if whole and plain and body_at <= _HEAD_BYTES_MAX:
            if len(self._known) >= _HEADS_COUNT_MAX:
                self._known.clear()
            self._known[data[:body_at]] = KnownHead(cycle.head, cycle.serve, len(cycle.body))

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


class KnownHead(NamedTuple):
    """A head that was read before, who serves such requests, and what their bodies measure."""

    head: Head
    serve: Callable[[Request], None]
    body_bytes: int


class _Ignored:
    """Stands where uvicorn's own requests have an event for those who read a body piecemeal."""

    def set(self) -> None:
        """Nobody waits."""


class ShortCycle(Request):
    """A request on the short way, with what uvicorn's connection needs to know of it."""

    __slots__ = ("disconnected", "further", "keep_alive", "response_complete", "serve")

    message_event = _Ignored()

    def __init__(
        self,
        connection: "Connection",
        head: Head,
        serve: Callable[[Request], None],
        *,
        keep_alive: bool,
    ) -> None:
        super().__init__(connection, head)
        self.serve = serve
        self.further: bytearray | None = None  # what follows the first piece of the body
        self.disconnected = False
        self.response_complete = False
        self.keep_alive = keep_alive

    def gather(self, piece: bytes) -> int:
        """Part of the body; nearly always it is all of it. Gives the bytes so far."""
        if not self.body:
            self.body = piece
            return len(piece)
        if self.further is None:
            self.further = bytearray()
        self.further += piece
        return len(self.body) + len(self.further)

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        """The answer, in one write."""
        connection = self.connection
        if self.response_complete or connection.is_gone:
            return
        self.response_complete = True
        if status == 200 and self.keep_alive and not headers:
            head = connection.short_way.good_head
            connection.direct.write(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
            connection.rest()
            return
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

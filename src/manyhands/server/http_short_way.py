"""The short way of requests that come all the time: no task, no ASGI messages; the whole request is
handed over once its body is there, and the answer is one write.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from manyhands.server.http_connection import Connection

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
        "started_ms",
    )

    def __init__(
        self,
        connection: "Connection",
        method: str,
        url: tuple[bytes, bytes],
        headers: dict[bytes, bytes],
    ) -> None:
        self.connection = connection
        self.method = method
        self.path, self.query = url
        self.headers = headers
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
        self.good_head = STATUS_LINE[200] + _JSON_HEAD  # of most answers

    def set_date(self, date: bytes) -> None:
        """The date of all answers until the next one is set."""
        self.good_head = b"%sdate: %s\r\n%s" % (STATUS_LINE[200], date, _JSON_HEAD)

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


class _Ignored:
    """Stands where uvicorn's own requests have an event for those who read a body piecemeal."""

    def set(self) -> None:
        """Nobody waits."""


class ShortCycle(Request):
    """A request on the short way, with what uvicorn's connection needs to know of it."""

    __slots__ = ("disconnected", "further", "keep_alive", "more_body", "response_complete", "serve")

    message_event = _Ignored()

    def __init__(
        self,
        connection: "Connection",
        method: str,
        url: tuple[bytes, bytes],
        headers: dict[bytes, bytes],
        serve: Callable[[Request], None],
    ) -> None:
        super().__init__(connection, method, url, headers)
        self.serve = serve
        self.further: bytearray | None = None  # what follows the first piece of the body
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        parser = connection.parser
        self.keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"

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

"""One HTTP connection: uvicorn's, with bounds on what a peer may send before it is listened to."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from manyhands.protocols.native.answers import error_envelope
from manyhands.protocols.native.refusals import Problem

_HEAD_BYTES_MAX: Final = 64 * 1024
_URL_BYTES_MAX: Final = 16 * 1024
_HEADERS_COUNT_MAX: Final = 100
# A head has this long, and so has a body, plus a second for each 64 KiB that did arrive.
_PATIENCE_SECONDS: Final = 30.0
_BYTES_A_SECOND: Final = 64 * 1024


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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer is there."""
        super().connection_made(transport)
        self.transport = self.cork = _Cork(transport)
        self.lost = False
        self.lost_by_error = False
        self.on_lost: Callable[[], None] | None = None
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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is there, too."""
        self._waits_since = None
        self._got_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser could not make sense of, or what was refused while it parsed."""
        self.refuse(self._problem or Problem(400, "invalid_request", msg))

    def refuse(self, problem: Problem) -> None:
        """Answer what never became a request, and hang up."""
        if self.is_gone:
            return
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

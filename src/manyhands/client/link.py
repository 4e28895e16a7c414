"""One WebSocket to a server, from the request to the close frame."""

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Callable
from typing import Final, cast

import msgspec

from manyhands.client.address import NOT_HTTP, Place
from manyhands.client.errors import Problem, Refused, problem_of
from manyhands.net import websocket
from manyhands.protocols.native.stream_codec import MalformedError

SUBPROTOCOL: Final = "manyhands.1"
_HEAD_BYTES_MAX: Final = 64 * 1024
# Before the greeting tells the server's own bound; messages are no longer than this by far.
_MESSAGE_BYTES_MAX: Final = 1024 * 1024 * 1024
_PING_SECONDS: Final = 10.0
_SILENCE_SECONDS: Final = 30.0
_read_problem: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_problem: Final = msgspec.json.Decoder(Problem).decode
# Statuses of servers and of proxies before them that pass with time.
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class LinkLostError(Exception):
    """The connection is gone, or could not be made, and why."""


class Link(asyncio.Protocol):
    """A connection that sends and receives whole messages."""

    def __init__(self, place: Place, token: str | None, receive: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.is_paused = False
        self.resumed: Callable[[], None] = lambda: None
        self._place = place
        self._token = token
        self._receive = receive
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._key = base64.b64encode(secrets.token_bytes(16))
        self._head: bytes | None = b""  # of the response, until it is complete
        self._decoder = websocket.Decoder(_MESSAGE_BYTES_MAX, of_server=True)
        self.received_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._why = "the server closed the connection"

    # Sending.

    def send(self, message: bytes) -> None:
        """One binary message."""
        self._write(websocket.frame_head(len(message)) + message)

    def close(self) -> None:
        """Sends what is written, then closes."""
        if self._transport is not None and not self._transport.is_closing():
            if self._head is None:
                self._write(websocket.close_frame(websocket.NORMAL))
            self._transport.close()

    def abort(self, why: str) -> None:
        """Breaks the connection."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(websocket.masked(frame, secrets.token_bytes(4)))

    # The loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the stream."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request())
        self._watch_silence()

    def _request(self) -> bytes:
        lines = [
            f"GET {self._place.prefix}/api/stream HTTP/1.1",
            f"Host: {self._place.host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        ]
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def data_received(self, data: bytes) -> None:
        """Frames, or the response before them."""
        self.received_at = self._loop.time()
        if self._head is not None:
            self._head += data
            if b"\r\n\r\n" not in self._head:
                if len(self._head) > _HEAD_BYTES_MAX:
                    self._refuse(LinkLostError("the server's response has no end"))
                return
            data = self._take_head(self._head)
            if self._head is not None:
                return
        for event in self._decoder.feed(data):
            self._on_event(event)

    def _take_head(self, received: bytes) -> bytes:
        """Checks the response; gives the bytes that follow it."""
        head, _, rest = received.partition(b"\r\n\r\n")
        status, headers = _read_head(head)
        if status != 101:
            length = headers.get(b"content-length", b"")
            if length.isdigit() and len(rest) < min(int(length), _HEAD_BYTES_MAX):
                return b""  # the sentence is still on its way
            self._refuse(_problem_of(status, rest))
        elif headers.get(b"sec-websocket-accept") != websocket.accept_of(self._key):
            self._refuse(LinkLostError("the server's response does not match the request"))
        else:
            self._head = None
            if not self.opened.done():
                self.opened.set_result(None)
            return rest
        return b""

    def _refuse(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        self.abort(str(error))

    def _on_event(self, event: websocket.Event) -> None:
        match event:
            case websocket.Message(is_text=False):
                try:
                    self._receive(event.data)
                except MalformedError as error:
                    self.abort(f"the server sent what is no message: {error}")
            case websocket.Message():
                self.abort("the server sent a text message")
            case websocket.Ping():
                self._write(websocket.pong_frame(event.data))
            case websocket.Pong():
                pass
            case websocket.Close():
                self._why = f"the server closed the stream: {event.reason or event.code}"
                self.close()
            case websocket.Fault():
                self.abort(f"the server broke a rule of WebSocket: {event.sentence}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if self._timer is not None:
            self._timer.cancel()
        why = f"the connection broke: {exc}" if exc is not None else self._why
        if not self.opened.done():
            self.opened.set_exception(LinkLostError(why))
        if not self.lost.done():
            self.lost.set_result(why)

    def pause_writing(self) -> None:
        """The server does not read as fast as we write."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_paused = False
        self.resumed()

    # Silence.

    def _watch_silence(self) -> None:
        """P30: a ping after 10 s of silence; after 30 s the server is taken for dead."""
        now = self._loop.time()
        silent = now - self.received_at
        if silent >= _SILENCE_SECONDS:
            self.abort(f"the server was silent for {silent:.0f} s")
            return
        if silent >= _PING_SECONDS and self._head is None:
            self._write(websocket.ping_frame())
        due = now + _PING_SECONDS / 2
        self._timer = self._loop.call_at(due, self._on_timer, due)

    def _on_timer(self, due: float) -> None:
        if self._loop.time() - due > _PING_SECONDS / 2:
            # This program itself stood still. What has arrived meanwhile is read first.
            self.received_at = self._loop.time()
        self._watch_silence()


def _read_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    parts = first.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        return 0, {}
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


def _problem_of(status: int, body: bytes) -> Exception:
    """What a response other than 101 means: an error for good, or one that passes."""
    if status == 0:
        return LinkLostError(NOT_HTTP)
    given: Problem | None = None
    with contextlib.suppress(msgspec.MsgspecError, KeyError, RecursionError):
        given = _as_problem(_read_problem(body)["error"])
    problem = problem_of(status, given)
    if status in _PASSING:
        return LinkLostError(problem.message)
    if status == 404:
        sentence = "there is no stream at this address: it is no Manyhands server, or an old one"
        return Refused("not_found", sentence)
    return Refused(problem.code, problem.message, problem.detail)

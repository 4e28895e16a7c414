"""WebSocket (RFC 6455) as bytes: the opening handshake, frames and messages.

There are no extensions. If a peer breaks a rule the decoder returns a ``Fault``, after which
nothing is read.
"""

import base64
import binascii
import hashlib
from typing import Final

from msgspec import Struct

from manyhands.web.envelope import Problem

VERSION: Final = b"13"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES: Final = 16

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_CODE: Final = 1005  # a close frame without a code; never sent
BAD_TEXT: Final = 1007
TOO_LARGE: Final = 1009

_CONTINUATION: Final = 0
_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
_OPCODES: Final = frozenset({_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG})

_CONTROL_BYTES_MAX: Final = 125
_NO_MASK: Final = b"\0\0\0\0"
# Fragments of one message. An honest peer splits at some kilobytes; one that sends empty fragments
# without end would be read for ever.
_FRAGMENTS_COUNT_MAX: Final = 10_000


# The handshake.


class Offer(Struct, frozen=True):
    """What a client asks for."""

    key: bytes
    subprotocols: tuple[str, ...]


def asks_for_websocket(headers: dict[bytes, bytes]) -> bool:
    """Whether a request asks to upgrade to WebSocket."""
    return b"websocket" in _tokens(headers.get(b"upgrade", b""))


def read_offer(headers: dict[bytes, bytes]) -> Offer:
    """Raises a Problem unless the headers are those of a WebSocket client."""
    version = headers.get(b"sec-websocket-version", b"").strip()
    if version != VERSION:
        raise not_websocket("the only Sec-WebSocket-Version here is 13")
    key = headers.get(b"sec-websocket-key", b"").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        is_key = False
    if not is_key:
        sentence = "Sec-WebSocket-Key must be 16 bytes in base64"
        raise Problem(400, "invalid_request", sentence)
    named = headers.get(b"sec-websocket-protocol", b"").decode("latin-1")
    return Offer(key, tuple(name.strip() for name in named.split(",") if name.strip()))


def not_websocket(sentence: str) -> Problem:
    """The answer to a request that is not WebSocket, where only WebSocket is served."""
    return Problem(426, "upgrade_required", sentence)


def answer_headers(offer: Offer, subprotocol: str) -> list[tuple[bytes, bytes]]:
    """The headers of the answer, with status 101."""
    return [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept_of(offer.key)),
        (b"sec-websocket-protocol", subprotocol.encode()),
    ]


def accept_of(key: bytes) -> bytes:
    """The proof that a server has read the key of a request."""
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest)


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip() for token in value.lower().split(b",")]


# Received from a peer.


class Message(Struct, frozen=True):
    """A complete message."""

    data: bytes
    is_text: bool = False


class Ping(Struct, frozen=True):
    """A ping, to be answered with a pong of the same data."""

    data: bytes


class Pong(Struct, frozen=True):
    """The answer to a ping, or an unsolicited sign of life."""

    data: bytes


class Close(Struct, frozen=True):
    """A close frame: the peer sends nothing more."""

    code: int
    reason: str


class Fault(Struct, frozen=True):
    """The peer broke a rule: the code and the sentence to close with."""

    code: int
    sentence: str


Event = Message | Ping | Pong | Close | Fault


class _FaultError(Exception):
    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = Fault(code, sentence)


class Decoder:
    """Reads what one peer sends: clients mask their frames, servers do not. Payloads are unmasked
    as they arrive, so that the last piece of a large message is no more work than the others.
    """

    def __init__(self, message_bytes_max: int, *, of_server: bool = False) -> None:
        self._message_bytes_max = message_bytes_max
        self._of_server = of_server
        self._head = b""  # the beginning of a frame with an incomplete head
        self._opcode = 0
        self._is_final = False
        self._mask = b""
        self._frame = bytearray()  # the part of an incomplete frame that has arrived
        self._missing_bytes = 0  # of that frame
        self._message = bytearray()  # fragments of an incomplete message
        self._message_opcode = 0  # 0: no message has begun
        self._fragments_count = 0
        self._is_over = False

    @property
    def missing_bytes(self) -> int:
        """Bytes missing of the frame that is being received."""
        return self._missing_bytes

    def held_bytes(self) -> int:
        """Bytes that have arrived of an incomplete message."""
        return len(self._head) + len(self._frame) + len(self._message)

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Nothing follows a ``Close`` or a ``Fault``."""
        events: list[Event] = []
        if self._is_over:
            return events
        if self._head:
            data = self._head + data
            self._head = b""
        try:
            self._read(data, events)
        except _FaultError as error:
            self._is_over = True
            self._frame, self._message = bytearray(), bytearray()
            events.append(error.fault)
        return events

    def _read(self, data: bytes, events: list[Event]) -> None:
        at, end = 0, len(data)
        while not self._is_over:
            if not self._missing_bytes:
                start = self._read_head(data, at)
                if start is None:
                    self._head = data[at:]
                    return
                at = start
            count = min(self._missing_bytes, end - at)
            piece = _unmasked(data[at : at + count], self._mask)
            at += count
            self._missing_bytes -= count
            if self._missing_bytes:
                self._frame += piece
                self._mask = self._mask[count % 4 :] + self._mask[: count % 4]
                return
            if self._frame:
                self._frame += piece
                piece = bytes(self._frame)
                self._frame = bytearray()
            event = self._whole_frame(piece)
            if event is not None:
                events.append(event)

    def _read_head(self, data: bytes, at: int) -> int | None:
        """Where the payload begins, or None if the head is incomplete."""
        available = len(data) - at
        if available < 2:
            return None
        first, second = data[at], data[at + 1]
        opcode, length = first & 0x0F, second & 0x7F
        self._check_head(first, opcode, length, is_masked=bool(second & 0x80))
        start = at + 2
        if length > _CONTROL_BYTES_MAX:
            size = 2 if length == 126 else 8
            if available < 2 + size:
                return None
            length = int.from_bytes(data[start : start + size], "big")
            start += size
            if length < (126 if size == 2 else 65_536):
                raise _FaultError(PROTOCOL_ERROR, "a length is written longer than it has to be")
        if opcode < _CLOSE and len(self._message) + length > self._message_bytes_max:
            sentence = f"a message has at most {self._message_bytes_max} bytes"
            raise _FaultError(TOO_LARGE, sentence)
        if self._of_server:
            self._mask = _NO_MASK
        elif len(data) - start < 4:
            return None
        else:
            self._mask = data[start : start + 4]
            start += 4
        self._opcode, self._is_final = opcode, bool(first & 0x80)
        self._missing_bytes = length
        return start

    def _check_head(self, first: int, opcode: int, length: int, *, is_masked: bool) -> None:
        if first & 0x70:
            raise _FaultError(PROTOCOL_ERROR, "reserved bits are set, and no extension was agreed")
        if opcode not in _OPCODES:
            raise _FaultError(PROTOCOL_ERROR, f"there is no opcode {opcode}")
        if is_masked == self._of_server:
            rule = "a server must not" if self._of_server else "a client must"
            raise _FaultError(PROTOCOL_ERROR, f"{rule} mask its frames")
        if opcode >= _CLOSE:
            if length > _CONTROL_BYTES_MAX:
                raise _FaultError(PROTOCOL_ERROR, "a control frame has at most 125 bytes")
            if not first & 0x80:
                raise _FaultError(PROTOCOL_ERROR, "a control frame is not fragmented")
        elif opcode == _CONTINUATION and not self._message_opcode:
            raise _FaultError(PROTOCOL_ERROR, "there is no message to continue")
        elif opcode != _CONTINUATION and self._message_opcode:
            raise _FaultError(PROTOCOL_ERROR, "a message began before the last one was whole")

    def _whole_frame(self, payload: bytes) -> Event | None:
        opcode = self._opcode
        if opcode >= _CLOSE:
            return self._control(opcode, payload)
        if self._is_final and opcode != _CONTINUATION:
            return _message(opcode, payload)
        if opcode != _CONTINUATION:
            self._message_opcode = opcode
        self._fragments_count += 1
        if self._fragments_count > _FRAGMENTS_COUNT_MAX:
            sentence = f"a message has at most {_FRAGMENTS_COUNT_MAX} fragments"
            raise _FaultError(TOO_LARGE, sentence)
        self._message += payload
        if not self._is_final:
            return None
        whole, opcode = bytes(self._message), self._message_opcode
        self._message = bytearray()
        self._message_opcode = self._fragments_count = 0
        return _message(opcode, whole)

    def _control(self, opcode: int, payload: bytes) -> Event:
        if opcode == _PING:
            return Ping(payload)
        if opcode == _PONG:
            return Pong(payload)
        self._is_over = True
        return _close(payload)


def _message(opcode: int, data: bytes) -> Message:
    if opcode == _BINARY:
        return Message(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        raise _FaultError(BAD_TEXT, "a text message is not UTF-8") from None
    return Message(data, is_text=True)


def _close(payload: bytes) -> Close:
    if not payload:
        return Close(NO_CODE, "")
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not _may_be_sent(code):
        raise _FaultError(PROTOCOL_ERROR, "there is no such close code")
    try:
        return Close(code, payload[2:].decode())
    except UnicodeDecodeError:
        raise _FaultError(BAD_TEXT, "the reason of a close is not UTF-8") from None


def _may_be_sent(code: int) -> bool:
    """Whether a close frame may have this code; some only stand for the lack of one."""
    return (1000 <= code <= 1014 and code not in (1004, 1005, 1006)) or 3000 <= code <= 4999


def _unmasked(data: bytes, mask: bytes) -> bytes:
    count = len(data)
    if mask == _NO_MASK:
        return data
    repeated = mask * (count // 4 + 1)
    number = int.from_bytes(data, "little") ^ int.from_bytes(repeated[:count], "little")
    return number.to_bytes(count, "little")


# Sent to a peer.


def frame_head(length: int) -> bytes:
    """The head of a binary message."""
    return _head(_BINARY, length)


def ping_frame(data: bytes = b"") -> bytes:
    """A ping, to find out whether the peer is alive."""
    return _head(_PING, len(data)) + data


def pong_frame(data: bytes) -> bytes:
    """The answer to a ping."""
    return _head(_PONG, len(data)) + data


def close_frame(code: int, reason: str = "") -> bytes:
    """The last frame. A reason that is too long is cut between two characters."""
    if code == NO_CODE:
        return _head(_CLOSE, 0)
    text = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return _head(_CLOSE, 2 + len(text)) + code.to_bytes(2, "big") + text


def masked(frame: bytes, mask: bytes) -> bytes:
    """A frame as a client sends it. The mask is four random bytes, new for each frame."""
    start = {126: 4, 127: 10}.get(frame[1], 2)
    head = frame[:1] + bytes((frame[1] | 0x80,)) + frame[2:start]
    return head + mask + _unmasked(frame[start:], mask)


def _head(opcode: int, length: int) -> bytes:
    first = 0x80 | opcode
    if length <= _CONTROL_BYTES_MAX:
        return bytes((first, length))
    if length < 65_536:
        return bytes((first, 126)) + length.to_bytes(2, "big")
    return bytes((first, 127)) + length.to_bytes(8, "big")

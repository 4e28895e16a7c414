"""AMQP 0-9-1 on the wire: frames in and out, for a server and for a publisher.

Methods are encoded by pamqp. Messages are packed here, because they are by far the most frequent:
the content header of a message is made once, however many consumers it goes to.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from pamqp import base, commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# The header of 0-9, sent by clients that mean 0-9-1; what they use of it is the same.
OLDER_PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x09"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_BYTES_MIN: Final = 4096  # the least that a peer may negotiate
_FRAME_HEAD: Final = struct.Struct(">BHI")
_FRAME_END: Final = 0xCE
_FRAME_OVERHEAD: Final = 8
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_BASIC: Final = 60
_ACK_HEAD: Final = b"\x00\x3c\x00\x50"
_ACK: Final = struct.Struct(">QB")
_DELIVERY: Final = struct.Struct(">QB")
_COUNT: Final = struct.Struct(">I")
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_OPEN: Final = b"\x00\x0a\x00\x28"
_CHANNEL_OPEN_OK: Final = b"\x00\x14\x00\x0b"
_DECLARE_OK: Final = b"\x00\x32\x00\x0b"
_COUNTS: Final = struct.Struct(">II")

Frame = base.Frame | ContentHeader | ContentBody | Heartbeat


class Code:
    """Reply codes."""

    SUCCESS: Final = 200
    CONTENT_TOO_LARGE: Final = 311
    CONNECTION_FORCED: Final = 320
    ACCESS_REFUSED: Final = 403
    NOT_FOUND: Final = 404
    RESOURCE_LOCKED: Final = 405
    PRECONDITION_FAILED: Final = 406
    FRAME_ERROR: Final = 501
    SYNTAX_ERROR: Final = 502
    COMMAND_INVALID: Final = 503
    CHANNEL_ERROR: Final = 504
    UNEXPECTED_FRAME: Final = 505
    RESOURCE_ERROR: Final = 506
    NOT_ALLOWED: Final = 530
    NOT_IMPLEMENTED: Final = 540
    INTERNAL_ERROR: Final = 541


class AmqpError(Exception):
    """The peer's fault: a reply code and a sentence. ``method`` is the method that caused it."""

    def __init__(self, code: int, text: str, method: base.Frame | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.method = method


class Message(Struct, frozen=True, gc=False):
    """A message and its place in the log. ``header`` is the payload of its content header."""

    seq: int
    exchange: str
    key: str
    header: bytes
    body: bytes
    also: str | None = None  # a second routing key
    queue: str = ""  # of the job that it is about


# content type, content encoding, headers, delivery mode, message id, timestamp, type, app id
_PROPERTY_FLAGS: Final = 0x8000 | 0x4000 | 0x2000 | 0x1000 | 0x0080 | 0x0040 | 0x0020 | 0x0008
_PERSISTENT: Final = b"\x02"
_CONTENT_HEAD: Final = struct.Struct(">HHQH")


def short(text: str) -> bytes:
    """A short string: at most 255 bytes, else raises AmqpError."""
    data = text.encode()
    if len(data) > 255:
        raise AmqpError(Code.SYNTAX_ERROR, f"{len(data)} bytes do not fit into a short string")
    return bytes((len(data),)) + data


def pack_headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Part of a header table: texts by name."""
    parts = []
    for name, text in pairs:
        value = text.encode()
        parts.append(short(name) + b"S" + _COUNT.pack(len(value)) + value)
    return b"".join(parts)


def pack_text_list(name: str, text: str) -> bytes:
    """Part of a header table: a list of one text."""
    value = text.encode()
    item = b"S" + _COUNT.pack(len(value)) + value
    return short(name) + b"A" + _COUNT.pack(len(item)) + item


def header_start(name: str, value_bytes: int) -> bytes:
    """What comes before a text of a known length in a header table."""
    return short(name) + b"S" + _COUNT.pack(value_bytes)


class HeaderTemplate:
    """The content header of one kind of message, most of which never changes."""

    __slots__ = ("_head", "_headers", "_tail")

    def __init__(self, *, content_type: str, kind: str, app_id: str, headers: bytes) -> None:
        self._head = short(content_type) + short("utf-8")
        self._headers = headers
        self._tail = short(kind) + short(app_id)

    def pack(self, body_bytes: int, headers: bytes, message_id: str, timestamp: int) -> bytes:
        """The payload of a content header frame; ``headers`` are those of this message only."""
        return b"".join(
            (
                _CONTENT_HEAD.pack(_BASIC, 0, body_bytes, _PROPERTY_FLAGS),
                self._head,
                _COUNT.pack(len(self._headers) + len(headers)),
                self._headers,
                headers,
                _PERSISTENT,
                short(message_id),
                timestamp.to_bytes(8, "big"),
                self._tail,
            )
        )


def _pack_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def _pack_content(channel: int, method: bytes, message: Message, frame_bytes_max: int) -> bytes:
    body = message.body
    room = frame_bytes_max - _FRAME_OVERHEAD
    head = _pack_frame(_METHOD, channel, method) + _pack_frame(_HEADER, channel, message.header)
    if len(body) <= room:
        return head + _pack_frame(_BODY, channel, body)
    pieces = (body[start : start + room] for start in range(0, len(body), room))
    return head + b"".join(_pack_frame(_BODY, channel, piece) for piece in pieces)


def pack_method(channel: int, method: base.Frame) -> bytes:
    """One method frame."""
    return frame.marshal(method, channel)


def pack_open(virtual_host: str) -> bytes:
    """The last step of a handshake. pamqp would refuse long names, which brokers accept."""
    return _pack_frame(_METHOD, 0, _OPEN + short(virtual_host) + b"\x00\x00")


def pack_channel_open_ok(channel: int) -> bytes:
    """The same bytes as RabbitMQ: the reserved argument is empty. pamqp sends "0", and some clients
    expect no bytes there.
    """
    return _pack_frame(_METHOD, channel, _CHANNEL_OPEN_OK + _COUNT.pack(0))


def pack_declare_ok(channel: int, queue: str, message_count: int, consumer_count: int) -> bytes:
    """Reports a queue. Any name is possible, also those that pamqp's check refuses."""
    counts = _COUNTS.pack(message_count, consumer_count)
    return _pack_frame(_METHOD, channel, _DECLARE_OK + short(queue) + counts)


def pack_publish(channel: int, message: Message, frame_bytes_max: int) -> bytes:
    """A message to an exchange, neither mandatory nor immediate."""
    method = _PUBLISH + short(message.exchange) + short(message.key) + b"\x00"
    return _pack_content(channel, method, message, frame_bytes_max)


class Delivery(Struct, frozen=True, gc=False):
    """A message for a consumer, or in answer to a Basic.Get."""

    tag: int
    redelivered: bool
    message: Message


def pack_deliver(channel: int, consumer: bytes, delivery: Delivery, frame_bytes_max: int) -> bytes:
    """A message for a consumer, whose tag is given as a packed short string."""
    message = delivery.message
    method = (
        _DELIVER
        + consumer
        + _DELIVERY.pack(delivery.tag, delivery.redelivered)
        + short(message.exchange)
        + short(message.key)
    )
    return _pack_content(channel, method, message, frame_bytes_max)


def pack_get_ok(channel: int, delivery: Delivery, left_count: int, frame_bytes_max: int) -> bytes:
    """A message in answer to a Basic.Get."""
    message = delivery.message
    method = (
        _GET_OK
        + _DELIVERY.pack(delivery.tag, delivery.redelivered)
        + short(message.exchange)
        + short(message.key)
        + _COUNT.pack(left_count)
    )
    return _pack_content(channel, method, message, frame_bytes_max)


class FrameReader:
    """Splits received bytes into frames."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Frame]]:
        """Each complete frame, with its channel. Raises AmqpError at the first bad one."""
        self._bytes += data
        start = 0
        buffer = self._bytes
        try:
            while len(buffer) - start >= _FRAME_HEAD.size:
                kind, channel, size = _FRAME_HEAD.unpack_from(buffer, start)
                if size > self.frame_bytes_max - _FRAME_OVERHEAD:
                    raise AmqpError(
                        Code.FRAME_ERROR,
                        f"a frame of {size + _FRAME_OVERHEAD} bytes; {self.frame_bytes_max} is the "
                        "most",
                    )
                end = start + _FRAME_HEAD.size + size
                if end >= len(buffer):
                    return
                if buffer[end] != _FRAME_END:
                    raise AmqpError(Code.FRAME_ERROR, "a frame does not end where it says")
                whole = bytes(buffer[start : end + 1])
                start = end + 1
                yield channel, _read_frame(kind, whole)
        finally:
            del buffer[:start]


def _read_frame(kind: int, whole: bytes) -> Frame:
    if kind == _METHOD and len(whole) == 21:
        head = whole[7:11]
        if head == _ACK_HEAD:
            # The most frequent method, so it is decoded here.
            tag, bits = _ACK.unpack_from(whole, 11)
            return commands.Basic.Ack(tag, bool(bits & 1))
    if kind not in (_METHOD, _HEADER, _BODY, _HEARTBEAT):
        raise AmqpError(Code.FRAME_ERROR, f"there are no frames of type {kind}")
    try:
        return frame.unmarshal(whole)[2]  # type: ignore[return-value]  # no protocol header: it has no frame end
    except Exception as error:  # noqa: BLE001 - a foreign parser on foreign bytes
        if kind == _METHOD and len(whole) >= 12:
            class_id, method_id = struct.unpack_from(">HH", whole, 7)
            if (class_id << 16 | method_id) not in commands.INDEX_MAPPING:
                sentence = f"there is no method {method_id} in class {class_id}"
                raise AmqpError(Code.NOT_IMPLEMENTED, sentence) from None
        raise AmqpError(Code.SYNTAX_ERROR, f"a frame cannot be read: {error}") from None

"""What travels between the server and the process that writes: batches there, numbers back.

Each message is its length and its number in eight bytes each, then MessagePack; so a frame goes
into the journal as it came, before anybody has looked inside. Rows are plain lists, in the order
of the parameters of the statements in ``applying.py``.
"""

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from manyhands.model.events import Event

_HEAD: Final = struct.Struct("<QQ")  # a batch of large payloads may pass 4 GiB
HEAD_BYTES: Final = _HEAD.size
# Set in the number of a batch that is in the journal already when it is sent.
_KEPT: Final = 1 << 63

Body = TypeVar("Body")
Row = Any  # a list or tuple of values that SQLite knows
Span = tuple[int, int, int]  # a message's number, where it starts, and where it ends


class Counters(Struct, frozen=True):
    """How far a store has come; written with every commit."""

    alive_at: int = 0
    serial: int = 0
    seq: int = 0
    position: int = 0


class Rarities(Struct, frozen=True, array_like=True, kw_only=True):
    """What few batches have."""

    dropped_jobs: list[Row] = []
    dropped_results: list[Row] = []
    events_dropped_to: int = 0
    terms: list[Row] = []
    replaced: list[Row] = []
    payloads: list[Row] = []
    tagged: list[Row] = []
    partials: list[Row] = []
    queues: list[Row] = []
    removed_queues: list[Row] = []
    limits: list[Row] = []
    removed_limits: list[Row] = []
    schedules: list[Row] = []
    removed_schedules: list[Row] = []
    cursors: list[Row] = []
    removed_cursors: list[Row] = []
    failures: list[Row] = []
    failure_groups: list[Row] = []
    mended: list[Row] = []
    bulks: list[Row] = []
    removed_bulks: list[Row] = []
    audit: list[Row] = []
    audit_dropped_to: list[Row] = []
    samples: list[Row] = []
    dropped_samples: list[Row] = []
    dropped_terms: list[Row] = []
    dropped_groups: list[Row] = []


class Frame(Struct, Generic[Body], frozen=True, array_like=True, kw_only=True):
    """One batch: rows to drop first, then rows to write, all in one transaction."""

    number: int
    counters: str  # how far serials, events, positions and time have come, as JSON
    inserted: list[Row] = []
    updated: list[Row] = []
    events_after: int = 0  # the number before that of the first event; they have no gaps
    events: list[Body] = []
    rarities: Rarities | None = None


# On arrival the body of an event stays as it is: that is what is stored.
SentFrame = Frame[Event]
ReceivedFrame = Frame[msgspec.Raw]


class Answer(Struct, frozen=True, array_like=True):
    """All batches up to ``number`` are durable, and those up to ``applied`` can be read from the
    file; or what went wrong, and then nothing follows.
    """

    number: int
    failure: str = ""
    applied: int = 0
    # Of the journal, as it is after ``number``: the server may go on from there.
    epoch: bytes = b""
    segment: int = 0
    offset: int = 0


_encode_into = msgspec.msgpack.Encoder().encode_into
decode_frame = msgspec.msgpack.Decoder(ReceivedFrame).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def pack(message: SentFrame | Answer) -> bytearray:
    """A message with its length and number in front."""
    buffer = bytearray(HEAD_BYTES)
    _encode_into(message, buffer, HEAD_BYTES)
    _HEAD.pack_into(buffer, 0, len(buffer) - HEAD_BYTES, message.number)
    return buffer


def mark_kept(packed: bytearray) -> None:
    """Say of a packed batch that it need not be written to the journal any more."""
    length, number = _HEAD.unpack_from(packed)
    _HEAD.pack_into(packed, 0, length, number | _KEPT)


def is_kept(span: Span) -> bool:
    """Whether that was said of it."""
    return span[0] >= _KEPT


def number_of(span: Span) -> int:
    """The number of a batch, whatever was said of it."""
    return span[0] & ~_KEPT


def cut(data: bytes | bytearray | memoryview) -> tuple[list[Span], int]:
    """The whole messages that these bytes begin with, and where what is left begins."""
    spans: list[Span] = []
    start, size = 0, len(data)
    while size - start >= HEAD_BYTES:
        length, number = _HEAD.unpack_from(data, start)
        end = start + HEAD_BYTES + length
        if end > size:
            break
        spans.append((number, start + HEAD_BYTES, end))
        start = end
    return spans, start


class FrameBuffer:
    """Bytes as they arrive, cut where a message ends."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> tuple[bytes, list[Span]]:
        """Add what arrived; gives all bytes that make whole messages, and where these are."""
        data: bytes | bytearray = chunk
        if self._rest:
            self._rest += chunk
            data = self._rest
        spans, end = cut(data)
        if data is chunk:
            if end < len(chunk):
                self._rest += chunk[end:]
            return (chunk if end == len(chunk) else chunk[:end]), spans
        whole = bytes(memoryview(data)[:end])
        del self._rest[:end]
        return whole, spans

"""What travels between the server and the process that writes: batches there, numbers back.

Each frame is its length in eight bytes, then MessagePack. Rows are plain lists, in the order of
the parameters of the statements in ``writer.py``.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from manyhands.model.events import Event

_LENGTH: Final = struct.Struct("<Q")  # a batch of large payloads may pass 4 GiB

Body = TypeVar("Body")
Row = Any  # a list or tuple of values that SQLite knows


class Frame(Struct, Generic[Body], frozen=True, array_like=True, kw_only=True):
    """One batch: rows to drop first, then rows to write, all in one transaction."""

    number: int
    counters: str  # how far serials, events, positions and time have come, as JSON
    dropped_jobs: list[Row] = []
    dropped_results: list[Row] = []
    events_dropped_to: int = 0
    terms: list[Row] = []
    replaced: list[Row] = []
    inserted: list[Row] = []
    payloads: list[Row] = []
    updated: list[Row] = []
    tagged: list[Row] = []
    events: list[tuple[int, Body]] = []
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


# On arrival the body of an event stays as it is: that is what is stored.
SentFrame = Frame[Event]
ReceivedFrame = Frame[msgspec.Raw]


class Answer(Struct, frozen=True, array_like=True):
    """All batches up to this number are durable; or what went wrong, and then nothing follows."""

    number: int
    failure: str = ""


_encode_into = msgspec.msgpack.Encoder().encode_into
decode_frame = msgspec.msgpack.Decoder(ReceivedFrame).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def pack(message: SentFrame | Answer) -> bytearray:
    """A message with its length in front."""
    buffer = bytearray(_LENGTH.size)
    _encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return buffer


class FrameBuffer:
    """Bytes as they arrive, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Add what arrived; yields each message that is now whole."""
        self._bytes += chunk
        start = 0
        view = memoryview(self._bytes)
        messages = []
        while len(view) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(view, start)[0]
            if end > len(view):
                break
            messages.append(bytes(view[start + _LENGTH.size : end]))
            start = end
        view.release()
        del self._bytes[:start]
        yield from messages

"""Messages between the server and the writer process: batches one way, their numbers back.

Each message is its length and its number in eight bytes each, then MessagePack, so a frame goes
into the journal as it arrives, without being decoded. The format of a frame belongs to the version
of the schema: a change needs a migration, and a translation of frames of the version before
(``older.py``).
"""

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from manyhands.model.job import Lease
from manyhands.model.payload import Encoding
from manyhands.store.records.tables import Rows

_HEAD: Final = struct.Struct("<QQ")  # a batch of large payloads may exceed 4 GiB
HEAD_BYTES: Final = _HEAD.size
# Set in the number of a batch that is in the journal before it is sent.
_KEPT: Final = 1 << 63

Body = TypeVar("Body")
JobRow = Any  # a list or tuple of values, in the order of the statements in ``apply.py``
Span = tuple[int, int, int]  # a message's number, where it starts, and where it ends


class Counters(Struct, frozen=True, omit_defaults=True):
    """Counters of a store, written with every commit."""

    alive_at: int = 0
    serial: int = 0
    seq: int = 0
    position: int = 0
    # Payloads and results of finished jobs on record; None in files of a version that did not count
    # them.
    finished_bytes: int | None = None
    behind_ms: int = 0  # how far the ages of records lag behind ``alive_at``


class NewRow(Struct, frozen=True, gc=False, array_like=True):
    """What is written once of a plain job."""

    job_id: str
    uid: str | None
    terms_id: int
    submitted_at: int
    unique_key: bytes | None
    realm: str
    name: str
    address: str
    payload: bytes


class PlainEnd(Struct, frozen=True, gc=False, array_like=True):
    """The completion of a plain job."""

    at: int
    result: bytes | None
    result_encoding: Encoding
    result_until: int | None


class PlainRow(Struct, frozen=True, gc=False, array_like=True):
    """What became of a plain job (``model/plain.py``) in a batch. Its row is made from that when a
    window is written, once for each job; the server has no time for it. Whatever changes in the row
    of a job is in each of these.
    """

    serial: int
    queue: str
    encoding: Encoding
    priority: float
    position: int
    submitted_at: int  # by the server's clock
    durable_interest: bool
    waiters: tuple[str, ...]
    new: NewRow | None
    lease: Lease | None = None
    end: PlainEnd | None = None


class Frame(Struct, Generic[Body], frozen=True, array_like=True, kw_only=True):
    """One batch. Jobs and events, which nearly every batch has, are lists of their own: as rows
    with table and key, jobs would cost 8 % more to pack and 4 % more to apply.
    """

    number: int
    counters: str  # serial, event number, position and time, as JSON
    inserted: list[JobRow] = []  # whole rows: new jobs, and those with a new payload
    updated: list[JobRow] = []  # what changes in the life of a job
    events_after: int = 0  # the number before the first event's; there are no gaps
    events: list[Body] = []
    rows: Rows = {}  # everything else, by table; applied before the jobs of the frame
    plain: list[PlainRow] = []  # jobs that are in neither list above


# A received event stays encoded: that is how it is stored.
SentFrame = Frame[Any]
ReceivedFrame = Frame[msgspec.Raw]


class Answer(Struct, frozen=True, array_like=True):
    """All batches up to ``number`` are durable, and those up to ``applied`` can be read from the
    file. With a failure, it is the last answer.
    """

    number: int
    failure: str = ""
    applied: int = 0
    # The end of the journal after ``number``, where the server may write next.
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


def pack_body(number: int, body: bytes) -> bytes:
    """An encoded message with its length and number in front."""
    return _HEAD.pack(len(body), number) + body


def mark_kept(packed: bytearray) -> None:
    """Flags a packed batch as already in the journal."""
    length, number = _HEAD.unpack_from(packed)
    _HEAD.pack_into(packed, 0, length, number | _KEPT)


def is_kept(span: Span) -> bool:
    """Whether the batch is flagged."""
    return span[0] >= _KEPT


def number_of(span: Span) -> int:
    """The number of a batch, without the flag."""
    return span[0] & ~_KEPT


def decode_head(data: bytes) -> tuple[int, int]:
    """The length and the number of the message after these bytes."""
    length, number = _HEAD.unpack(data)
    return length, number


def cut(data: bytes | bytearray | memoryview) -> tuple[list[Span], int]:
    """The complete messages at the start of these bytes, and where the rest begins."""
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
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> tuple[bytes, list[Span]]:
        """Adds a chunk; returns the bytes of all complete messages, and where each is."""
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

"""The notes that a server sends, decoded; and notes to send, as arrays.

Kinds and numbers are those of ``docs/protocols/stream.md``.
"""

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from manyhands.client import errors
from manyhands.protocols.native import stream_codec as wire

T = TypeVar("T")
Held = tuple[str, str]  # the id of a job, and the token of its lease
# A job to submit: id, queue, payload, encoding, options, headers.
Item = tuple[str, str, bytes, str, dict[str, Any] | None, dict[str, str] | None]


class Job(Struct, array_like=True, frozen=True, gc=False):
    """A job that the server handed out, with the lease it comes under."""

    id: str
    queue: str
    token: str
    lease_number: int
    attempts_used: int
    payload: bytes
    encoding: str
    term_ms: int | None = None
    headers: dict[str, str] | None = None
    extras: dict[str, Any] | None = None

    @property
    def held(self) -> Held:
        """What reports on the job begin with."""
        return self.id, self.token


class View(Struct, array_like=True, frozen=True):
    """A job as waiting clients see it. The state is one of the native API's, or ``unknown``."""

    id: str
    state: str
    result: bytes | None = None
    encoding: str | None = None
    failure: tuple[str, str, bytes] | None = None
    reason: str | None = None


class Refused(Struct, array_like=True, frozen=True):
    """A report that the server refused: which list, its index there, and why."""

    list: str
    index: int
    code: str
    sentence: str


class Submitted(Struct, array_like=True, frozen=True):
    """An item of a submit that was refused, or that joined an existing job."""

    index: int
    code: str | None
    sentence: str | None
    id: str | None = None
    state: str | None = None


class Limits(Struct, frozen=True):
    """Bounds of the server."""

    items: int = 500
    items_together: int = 10_000
    message_bytes: int = 17 * 1024 * 1024
    payload_bytes: int = 16 * 1024 * 1024
    unanswered: int = 10_000
    watches: int = 50_000
    credit: int = 10_000
    jobs: int = 500


class Greeting(Struct, frozen=True):
    """The answer to ``hello``."""

    server: str = ""
    incarnation: str = ""
    gone: list[str] = []
    limits: Limits = Limits()


class Answer(Struct, array_like=True, frozen=True):
    """The answer to a numbered note: the error if it was refused, else the result."""

    kind: int
    number: int
    error: tuple[str, str] | None = None
    result: Raw = wire.NIL


class Jobs(Struct, array_like=True, frozen=True):
    """Work."""

    kind: int
    jobs: list[Job]


class Notice(Struct, array_like=True, frozen=True):
    """A lost lease."""

    kind: int
    id: str
    lease_number: int
    why: str


class Ended(Struct, array_like=True, frozen=True):
    """A watched job has finished."""

    kind: int
    view: View


class Heard(Struct, array_like=True, frozen=True):
    """News of a watched job."""

    kind: int
    id: str
    progress: list[int | None] | None = None  # done, all (0: unknown), seconds left
    partial: bytes | None = None
    warning: bool = False


class Closing(Struct, array_like=True, frozen=True):
    """The server is about to stop."""

    kind: int
    seconds: float


Note = Answer | Jobs | Notice | Ended | Heard | Closing

_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Note]]] = {
    kind: msgspec.msgpack.Decoder(note)
    for kind, note in {
        wire.ANSWER: Answer,
        wire.JOBS: Jobs,
        wire.NOTICE: Notice,
        wire.ENDED: Ended,
        wire.HEARD: Heard,
        wire.CLOSING: Closing,
    }.items()
}
_encode: Final = msgspec.msgpack.Encoder().encode

read_greeting: Final = msgspec.msgpack.Decoder(Greeting).decode


def _reader(kind: type[T]) -> Callable[[Raw], T]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(result: Raw) -> T:
        try:
            return decode(result)
        except msgspec.MsgspecError as error:
            sentence = f"the server's answer has the wrong fields: {error}"
            raise errors.Refused("malformed_answer", sentence) from None

    return read


read_refused: Final = _reader(list[Refused])
read_submitted: Final = _reader(list[Submitted])
read_views: Final = _reader(list[View])
read_states: Final = _reader(list[tuple[str, str]])


def read_notes(data: bytes) -> list[Note]:
    """The notes of a message, without those of kinds that later versions may add."""
    notes: list[Note] = []
    for raw in wire.read_message(data):
        decoder = _DECODERS.get(_kind_of(raw))
        if decoder is not None:
            try:
                notes.append(decoder.decode(raw))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise wire.MalformedError(f"a note has the wrong fields: {error}") from None
    return notes


def _kind_of(raw: Raw) -> int:
    """The first field: kinds are small numbers, which msgpack writes as one byte."""
    data = memoryview(raw)
    first = data[0]
    start = 1 if first & 0xF0 == 0x90 else {0xDC: 3, 0xDD: 5}.get(first, len(data))
    if start >= len(data):
        raise wire.MalformedError("a note is an array that begins with its kind")
    return data[start]


def write_note(kind: int, number: int, *fields: object) -> bytes:
    """A note to send."""
    return _encode((kind, number, *fields))


def program_name() -> str:
    """What this program is called in the server's records."""
    return f"python/{os.getpid()}"

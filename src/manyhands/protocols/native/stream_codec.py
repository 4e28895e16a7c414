"""The notes of the stream: msgpack, one array each, several in a message.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw, Struct

# Kinds of notes. Those of clients carry a number, which their answer repeats.
HELLO: Final = 1
SUBMIT: Final = 2
WORK: Final = 3
NEWS: Final = 4
WANT: Final = 5
VOUCH: Final = 6
DEPART: Final = 7
WATCH: Final = 8
LOOK: Final = 9
CANCEL: Final = 10
ANSWER: Final = 20
JOBS: Final = 21
NOTICE: Final = 22
ENDED: Final = 23
HEARD: Final = 24
CLOSING: Final = 25

# Further fields may be appended to any note; peers that do not know them ignore them.
NIL: Final = Raw(b"\xc0")
Held = tuple[str, str]  # the id of a job, and the token of its lease


class Head(Struct, array_like=True, frozen=True):
    """What all notes of clients begin with."""

    kind: int
    number: Annotated[int, msgspec.Meta(ge=0)]


class Hello(Head, frozen=True):
    """The first note."""

    version: int
    program: str = ""
    worker: str | None = None
    held: list[Held] = []


class Item(Struct, array_like=True, frozen=True):
    """A job to submit."""

    id: str
    queue: str
    payload: bytes = b""
    encoding: str = "binary"
    options: Raw = NIL  # a map
    headers: dict[str, str] | None = None


class Submit(Head, frozen=True):
    """Jobs to submit."""

    items: list[Item]
    all_or_nothing: bool = False
    watch: bool = False


class Done(Struct, array_like=True, frozen=True):
    """A completed job."""

    id: str
    token: str
    result: bytes | None = None
    encoding: str = "binary"


class Failed(Struct, array_like=True, frozen=True):
    """A failed attempt."""

    id: str
    token: str
    code: str = "failed"
    message: str = ""
    details: bytes = b""
    retry: bool = True
    delay_ms: int | None = None


class Credit(Struct, array_like=True, frozen=True):
    """How many more jobs the worker takes: for idle slots, and ahead of them."""

    slots: int
    ahead: int = 0


class Work(Head, frozen=True):
    """Reports on jobs, and credit for more."""

    done: list[Done] = []
    failed: list[Failed] = []
    released: list[Held] = []
    renewed: list[Held] = []
    credit: Credit | None = None


class Progress(Struct, array_like=True, frozen=True):
    """How far a job is."""

    done: int
    all: int = 0  # unknown
    seconds_left: int | None = None


class Piece(Struct, array_like=True, frozen=True):
    """Progress of a job, a partial result, a line for its log, or several of them."""

    id: str
    token: str
    progress: Progress | None = None
    partial: bytes | None = None
    line: str | None = None
    warning: bool = False  # the line is one


class News(Head, frozen=True):
    """News of jobs in progress."""

    pieces: list[Piece]


class Want(Head, frozen=True):
    """The queues to take work from."""

    queues: list[str]
    order: str = "priority_in_turns"
    term_ms: int | None = None


class Vouch(Head, frozen=True):
    """Workers that are alive."""

    workers: list[str]


class Depart(Head, frozen=True):
    """A worker that leaves or is dead."""

    worker: str
    reason: str = ""
    running: list[Held] = []


class Watch(Head, frozen=True):
    """Jobs to watch, or to watch no longer."""

    ids: list[str]
    on: bool = True
    news: bool = False  # also progress and pieces of the result


class Look(Head, frozen=True):
    """Jobs to show."""

    ids: list[str]


class Cancel(Head, frozen=True):
    """Jobs to cancel."""

    ids: list[str]
    with_dependants: bool = True
    reason: str = "cancelled"


Note = Hello | Submit | Work | News | Want | Vouch | Depart | Watch | Look | Cancel

_NOTES: Final[dict[int, type[Note]]] = {
    HELLO: Hello,
    SUBMIT: Submit,
    WORK: Work,
    NEWS: News,
    WANT: Want,
    VOUCH: Vouch,
    DEPART: Depart,
    WATCH: Watch,
    LOOK: Look,
    CANCEL: Cancel,
}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(note) for kind, note in _NOTES.items()}
_decode_message: Final = msgspec.msgpack.Decoder(list[Raw]).decode
_decode_head: Final = msgspec.msgpack.Decoder(Head).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class MalformedError(Exception):
    """The message is not of the stream's form."""


class BadNoteError(Exception):
    """A note of unknown kind, or with the wrong fields for its kind."""

    def __init__(self, number: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number
        self.code = code
        self.sentence = sentence


def read_message(data: bytes) -> list[Raw]:
    """The notes of a message, each still to be decoded."""
    try:
        return _decode_message(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedError(f"a message is a msgpack array of notes: {error}") from None


def read_note(raw: Raw) -> Note:
    """Decodes one note."""
    try:
        head = _decode_head(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedError(f"a note begins with its kind and its number: {error}") from None
    decoder = _DECODERS.get(head.kind)
    if decoder is None:
        raise BadNoteError(head.number, "unknown_kind", f"there is no note of kind {head.kind}")
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise BadNoteError(head.number, "invalid_note", "it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        sentence = str(error).replace(" - at `$", " at `")
        raise BadNoteError(head.number, "invalid_note", sentence) from None


def write_message(notes: list[bytes]) -> bytes:
    """Builds a message from encoded notes."""
    count = len(notes)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 65_536:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(notes)


def answer(number: int, error: tuple[str, str] | None, result: Any = None) -> bytes:  # noqa: ANN401
    """ST6: the one answer to a note: a refusal or a result."""
    return _encode((ANSWER, number, error, result))


def jobs(rows: list[tuple[Any, ...]]) -> bytes:
    """Work for a worker."""
    return _encode((JOBS, rows))


def notice(job_id: str, lease_number: int, why: str) -> bytes:
    """The notice that a worker lost a lease."""
    return _encode((NOTICE, job_id, lease_number, why))


def ended(view: tuple[Any, ...]) -> bytes:
    """The notice that a watched job has finished."""
    return _encode((ENDED, view))


def heard(
    job_id: str,
    progress: tuple[int, int, int | None] | None,
    piece: bytes | None,
    *,
    warning: bool = False,
) -> bytes:
    """News of a watched job."""
    return _encode((HEARD, job_id, progress, piece, warning))


def closing(seconds: int) -> bytes:
    """The notice that the server is about to stop."""
    return _encode((CLOSING, seconds))

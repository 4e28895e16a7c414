"""The link between two servers: messages in frames, after a handshake that proves the secret.

A frame is a length of four bytes and a MessagePack array that begins with the number of its kind.
The server that called sends commands and wishes; the one that was called sends replies, signals,
wake-ups and what it decided. Fields are appended, never removed, so that servers of neighbouring
versions understand each other. This module does no I/O.
"""

import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from manyhands.model.commands import Command, Submit
from manyhands.model.events import Cursor, Event, Signal
from manyhands.model.job import Holder, Job, Origin, Schedule, State
from manyhands.model.payload import Encoding
from manyhands.model.policy import NamedLimit, Queue, Terms
from manyhands.model.replies import Reply
from manyhands.model.roles import Sender

# The versions of this codec that a server speaks.
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
# A larger message is sent in several frames: all but the last have the highest bit of their length
# set.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# An answer may have thousands of jobs with their payloads. What a peer that has proved itself may
# have us hold is bounded all the same.
MESSAGE_BYTES_MAX: Final = 1024 * 1024 * 1024
# What gathers in a turn is sent together, but not more than this.
GATHERED_BYTES_MAX: Final = 8 * 1024 * 1024
_GOES_ON: Final = 1 << 31
# Before the peer has proved that it knows the secret.
_GREETING_BYTES_MAX: Final = 4 * 1024
_LENGTH_BYTES: Final = 4
_NONCE_BYTES: Final = 32
_TERMS_KEPT_MAX: Final = 4_096


class LinkError(Exception):
    """The peer cannot be talked to. The text says why, as a sentence."""


class OtherServerError(LinkError):
    """Another server of the cluster has the address of the one that was called."""


class Hello(Struct, frozen=True, gc=False, tag=1, array_like=True):
    """Who is there. The first message, both ways."""

    version_min: int
    version_max: int
    cluster: str  # of the database: servers of another one are strangers
    tenure: int
    incarnation: str
    server: str
    nonce: bytes
    wanted: str = ""  # the incarnation that is called; another one may have its address by now


class Proof(Struct, frozen=True, gc=False, tag=2, array_like=True):
    """The second message, both ways: only who knows the secret can make it."""

    digest: bytes


class Ask(Struct, frozen=True, gc=False, array_like=True):
    """A command and its number. ``again``: an owner that is gone may have decided it."""

    number: int
    command: Command
    again: bool = False
    sender: Sender | None = None  # None: one that may do everything


class Asks(Struct, frozen=True, gc=False, tag=3, array_like=True):
    """Commands of a front, in order. It has the answers to all below ``confirmed``."""

    asks: tuple[Ask, ...]
    confirmed: int = 0


class Answers(Struct, frozen=True, gc=False, tag=4, array_like=True):
    """Replies with the numbers of their commands, by the owner in this epoch."""

    epoch: int
    replies: tuple[tuple[int, Reply], ...]


class Signals(Struct, frozen=True, gc=False, tag=5, array_like=True):
    """Signals to connections of the peer."""

    signals: tuple[Signal, ...]


class Want(Struct, frozen=True, gc=False, tag=6, array_like=True):
    """How many hands sleep for a queue at the front, where that has changed. An empty name stands
    for any queue. ``unused`` wake-ups found nobody asleep.
    """

    hands: tuple[tuple[str, int], ...]
    unused: tuple[tuple[str, int], ...] = ()


class Wake(Struct, frozen=True, gc=False, tag=7, array_like=True):
    """There is work: wake so many hands."""

    hands: tuple[tuple[str, int], ...]


class PieceNews(Struct, frozen=True, gc=False, array_like=True):
    """A piece of a result, or a line of a log."""

    job_id: str
    number: int
    at: int
    payload: bytes
    warning: bool = False
    is_log: bool = False


class ReadyStep(Struct, frozen=True, gc=False, tag=0, array_like=True):
    """A plain job was submitted. What many jobs have in common is in a table of the message, and
    here is its place there.
    """

    job_id: str
    serial: int
    queue: str
    payload: bytes
    encoding: Encoding
    terms: int
    origin: int
    priority: float
    position: int
    submitted_at: int
    at: int
    unique_key: bytes | None
    durable_interest: bool
    waiters: tuple[str, ...]


class LeasedStep(Struct, frozen=True, gc=False, tag=1, array_like=True):
    """It was claimed."""

    job_id: str
    token: str
    holder: int
    at: int
    lasted_ms: int
    term_ms: int | None
    expires_at: int | None
    cutoff_at: int | None
    connection: str | None


class CompletedStep(Struct, frozen=True, gc=False, tag=2, array_like=True):
    """It was completed."""

    job_id: str
    at: int
    lasted_ms: int
    result: bytes | None
    result_encoding: Encoding
    payload: bytes | None = None  # in place of the one that it was submitted with


Step = ReadyStep | LeasedStep | CompletedStep


class News(Struct, frozen=True, gc=False, tag=8, array_like=True, kw_only=True):
    """What the owner committed: the present value of what changed. None: it was removed."""

    number: int  # of the batch
    applied: int  # of the last batch whose records can be read in the database
    applied_seq: int  # of the last event that can be read there
    serial: int
    position: int
    jobs: tuple[Job, ...] = ()
    events: tuple[Event, ...] = ()
    events_after: int = 0
    queues: dict[str, Queue | None] = {}
    limits: dict[str, NamedLimit | None] = {}
    schedules: dict[str, Schedule | None] = {}
    cursors: dict[str, Cursor | None] = {}
    pieces: tuple[PieceNews, ...] = ()
    # Where nothing happened but to plain jobs, this stands for jobs and events.
    steps: tuple[Step, ...] = ()
    terms: tuple[Terms, ...] = ()
    origins: tuple[Origin, ...] = ()
    holders: tuple[Holder, ...] = ()


class Begin(Struct, frozen=True, gc=False, tag=9, array_like=True):
    """All that the owner knows follows, in parts, as news; what was known before is void."""

    epoch: int
    last_seq: int  # of the last event that was published


class End(Struct, frozen=True, gc=False, tag=10, array_like=True):
    """The last part was sent: from now on there is only what changes."""

    graphs: dict[str, int]  # open ones, and where each began


class Counts(Struct, frozen=True, gc=False, tag=11, array_like=True):
    """Finished jobs on record by queue and state, where retention changed them; and how much can be
    read in the database.
    """

    finished: dict[str, dict[State, int]]
    applied: int = 0
    applied_seq: int = 0


class Ping(Struct, frozen=True, gc=False, tag=14, array_like=True):
    """Are you there?"""

    number: int
    confirmed: int = 0


class Pong(Struct, frozen=True, gc=False, tag=15, array_like=True):
    """Yes. ``epoch`` is that of an owner, 0 of a server that is none."""

    number: int
    epoch: int = 0


class Undecided(Struct, frozen=True, gc=False, tag=17, array_like=True):
    """This server does not decide any more: the next one has to be asked for these."""

    numbers: tuple[int, ...]


class Hurry(Struct, frozen=True, gc=False, tag=18, array_like=True):
    """A search is about to begin: have applied what is durable now."""

    number: int


class Hurried(Struct, frozen=True, gc=False, tag=19, array_like=True):
    """Once the tables hold this batch of the server that answers, they hold all that was."""

    number: int
    batch: int


class Leave(Struct, frozen=True, gc=False, tag=20, array_like=True):
    """An operator wants this server to stop in order. The sentence says who."""

    sentence: str


class StopBulk(Struct, frozen=True, gc=False, tag=21, array_like=True):
    """Somebody has cancelled a bulk operation that the receiving server runs."""

    bulk_id: str


class Goodbye(Struct, frozen=True, gc=False, tag=16, array_like=True):
    """This server ends the link. The sentence says why."""

    sentence: str


Message = (
    Hello
    | Proof
    | Asks
    | Answers
    | Signals
    | Want
    | Wake
    | News
    | Begin
    | End
    | Counts
    | Ping
    | Pong
    | Undecided
    | Hurry
    | Hurried
    | Leave
    | StopBulk
    | Goodbye
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def frames(message: Message) -> list[bytes]:
    """The message as it travels."""
    body = _encode(message)
    size = len(body)
    if size <= FRAME_BYTES_MAX:
        return [size.to_bytes(_LENGTH_BYTES, "big") + body]
    if size > MESSAGE_BYTES_MAX:
        raise LinkError(f"a message of {size} bytes is too large for a link")
    parts: list[bytes] = []
    view = memoryview(body)
    for start in range(0, size, FRAME_BYTES_MAX):
        part = view[start : start + FRAME_BYTES_MAX]
        length = len(part) | (_GOES_ON if start + FRAME_BYTES_MAX < size else 0)
        parts += [length.to_bytes(_LENGTH_BYTES, "big"), bytes(part)]
    return parts


class Packed:
    """A message that goes over several links, and is packed once."""

    __slots__ = ("_frames", "_message")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._frames: list[bytes] | None = None

    def frames(self) -> list[bytes]:
        """As it travels."""
        if self._frames is None:
            self._frames = frames(self._message)
        return self._frames


Sent = Message | Packed


class Link:
    """One end of a link. ``feed`` returns what the peer said, once it has proved who it is; what
    ``take`` returns is to be sent.
    """

    def __init__(self, me: Hello, secret: bytes, *, calling: bool) -> None:
        assert len(me.nonce) == _NONCE_BYTES
        self.peer: Hello | None = None  # what it says of itself; believed once ``is_open``
        self.is_open = False
        self._me = me
        self._secret = secret
        self._calling = calling
        self._buffer = bytearray()
        self._begun = bytearray()  # a message of several frames, as far as it has come
        self._unsent: list[bytes] = frames(me)
        self._terms: dict[Terms, Terms] = {}

    def take(self) -> bytes:
        """What is to be sent now."""
        unsent, self._unsent = self._unsent, []
        return b"".join(unsent)

    def send(self, message: Sent) -> None:
        """Puts a message behind what is to be sent. Raises LinkError if it is too large."""
        self._unsent += message.frames() if isinstance(message, Packed) else frames(message)

    def feed(self, data: bytes) -> list[Message]:
        """Takes bytes as they arrived; returns the messages that are complete. Raises LinkError if
        the peer is not one of us, or talks nonsense.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            goes_on = self.is_open and length & _GOES_ON
            if goes_on:
                length ^= _GOES_ON
            length_max = FRAME_BYTES_MAX if self.is_open else _GREETING_BYTES_MAX
            if length > length_max:
                raise LinkError(f"it sent a frame of {length} bytes; at most {length_max} are read")
            end = at + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            body = bytes(buffer[at + _LENGTH_BYTES : end])
            at = end
            if goes_on or self._begun:
                if len(self._begun) + length > MESSAGE_BYTES_MAX:
                    raise LinkError(f"it sent a message of more than {MESSAGE_BYTES_MAX} bytes")
                self._begun += body
                if goes_on:
                    continue
                body, self._begun = bytes(self._begun), bytearray()
            message = self._read(body)
            if self.is_open and not isinstance(message, Proof):
                messages.append(message)
        del buffer[:at]
        return messages

    def _read(self, body: bytes) -> Message:
        try:
            message = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LinkError(f"it sent what is no message of a link ({error})") from None
        if isinstance(message, Goodbye):
            if not self.is_open:
                raise LinkError(f"it refused the link: {message.sentence[:500]}")
        elif self.peer is None:
            self._greet(message)
        elif not self.is_open:
            self._believe(message)
        elif isinstance(message, Hello | Proof):
            raise LinkError("it greeted twice")
        elif isinstance(message, Asks):
            self._share_terms(message)
        return message

    def _greet(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise LinkError("it did not say who it is")
        mine = self._me
        if message.cluster != mine.cluster:
            raise LinkError("it belongs to another cluster: its database is not ours")
        if message.version_max < mine.version_min or message.version_min > mine.version_max:
            raise LinkError(
                f"it speaks versions {message.version_min} to {message.version_max} of the link,"
                f" we speak {mine.version_min} to {mine.version_max}"
            )
        if len(message.nonce) != _NONCE_BYTES or message.nonce == mine.nonce:
            raise LinkError("its greeting is not well formed")
        self.peer = message
        self.send(Proof(self._digest(mine, message, calling=self._calling)))

    def _believe(self, message: Message) -> None:
        assert self.peer is not None
        expected = self._digest(self.peer, self._me, calling=not self._calling)
        if not isinstance(message, Proof) or not hmac.compare_digest(message.digest, expected):
            raise LinkError("it does not know the secret of this cluster (cluster_secret_file)")
        for caller, called in ((self._me, self.peer), (self.peer, self._me)):
            if caller.wanted not in ("", called.incarnation):
                raise OtherServerError(f"server {called.server} has the address of another now")
        self.is_open = True

    def _digest(self, prover: Hello, verifier: Hello, *, calling: bool) -> bytes:
        """Over both nonces and who says it, so that no proof serves twice or in the other
        direction.
        """
        said = _encode((calling, prover, verifier.nonce))
        return hmac.digest(self._secret, said, hashlib.sha256)

    def _share_terms(self, asks: Asks) -> None:
        """Jobs with equal terms share them in memory, as if they had been submitted here."""
        terms = self._terms
        for ask in asks.asks:
            if type(ask.command) is Submit:
                if len(terms) > _TERMS_KEPT_MAX:
                    terms.clear()
                for item in ask.command.items:
                    shared = terms.setdefault(item.terms, item.terms)
                    msgspec.structs.force_setattr(item, "terms", shared)
